"""What a training rule is: how workers that train by themselves exchange parameters.

A rule is written as its paper writes it, on vectors: all parameters of a worker, one
after the other. It says nothing of processes, of memory, or of who comes when. The same
methods are computed by ranks, each on a few thousand elements at a time, and by
`simulate`, for any number of workers in one process.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.graph.replace import graph_replace

from .. import updates
from ..user_frames import callers_level

Order: TypeAlias = Literal["together", "turns", "free"]
ORDERS: tuple[Order, ...] = ("together", "turns", "free")

State: TypeAlias = Mapping[str, Any]
"""Vectors of PyTensor by name; scalars, too, such as an optimiser's count of steps."""

Start: TypeAlias = Mapping[str, np.ndarray]


class Group(NamedTuple):
    """What a worker is told of all workers: scalars of PyTensor.

    Attributes
    ----------
    n : scalar variable
        How many workers there are.
    share : scalar variable
        This one's part of what all have done since they met last: its rows divided by
        the rows of all where they meet, otherwise 1 / n.
    """

    n: Any
    share: Any


class Rule:
    """How workers exchange parameters with a centre.

    Subclasses say in three pure functions what an exchange is: what a worker *gives*,
    how the centre *moves* by it, and what the worker *takes* back. They get the states
    of both as mappings of vectors, and return new values of those that change; they
    must compute element by element. A worker's parameters are ``"w"`` in its state, the
    centre's ``"c"`` in that.

    Parameters
    ----------
    every : int
        Steps that a worker makes by itself between two exchanges.
    order : {"together", "turns", "free"}
        "together": all workers meet; they give what follows from the same old centre,
        it moves once by the sum of that, and they take. "turns": one worker after the
        other gives, moves the centre and takes, always in the same order, so that a
        repetition has the same bits. "free": as "turns", whoever is ready first.

    Raises
    ------
    ValueError
        If an argument does not fit.
    """

    orders: Sequence[Order] = ORDERS
    """Which orders the rule has."""
    has_centre = True
    """Whether there are parameters besides those of the workers."""
    is_mean = False
    """Whether the centre is a mean of the workers, which is old between exchanges."""
    fragments = 1
    """Into how many pieces the parameters are cut, which are exchanged one by one."""
    delay = 0
    """How many steps after it has given a worker takes; it goes on meanwhile."""
    max_staleness: int | None = None
    """How many exchanges of others may come between two of a worker."""

    def __init__(self, every: int = 1, order: Order = "together") -> None:
        if isinstance(every, bool) or int(every) != every or every < 1:
            raise ValueError(f"every must be an int of at least 1, got {every!r}")
        if order not in self.orders:
            known = " or ".join(map(repr, self.orders))
            raise ValueError(f"order must be {known}, got {order!r}")
        self.every, self.order = int(every), order

    def start(self, w: np.ndarray) -> tuple[Start, Start]:
        """Return what a worker and the centre keep, besides ``"w"`` and ``"c"``.

        Parameters
        ----------
        w : numpy.ndarray, shape (parameters,)
            The values that all begin with.
        """
        return {}, {}

    def give(self, worker: State, centre: State, group: Group) -> tuple[State, Any]:
        """Return new values of a worker's, and the vector that it gives.

        Parameters
        ----------
        worker, centre : mapping of str to vector
            What both keep.
        group : Group
        """
        raise NotImplementedError

    def move(self, centre: State, given: Any) -> State:
        """Return new values of the centre's, moved by what was given.

        Parameters
        ----------
        centre : mapping of str to vector
        given : vector
            By one worker, or the sum of what all have given.
        """
        raise NotImplementedError

    def take(self, worker: State, centre: State) -> State:
        """Return new values of a worker's, after the centre has moved.

        Parameters
        ----------
        worker, centre : mapping of str to vector
            What both keep.
        """
        return {}

    def due(self, step: int) -> Sequence[int]:
        """Return which fragments a worker gives after so many steps; mostly none.

        Parameters
        ----------
        step : int
            How many it has made.
        """
        return (0,) if step % self.every == 0 else ()

    def check(self, n: int) -> None:
        """Raise or warn if the rule does not do with so many workers.

        Parameters
        ----------
        n : int
        """

    def __repr__(self) -> str:
        options = ", ".join(f"{name}={value!r}" for name, value in vars(self).items())
        return f"{type(self).__name__}({options})"


class Optimiser:
    """An optimiser at the centre: a rule of `synk.updates`, or one of that form.

    It is a pure function here, of one vector of parameters, and must compute element by
    element: no norm of a whole gradient.
    """

    def __init__(self, rule: str | Callable, **options: Any) -> None:
        if isinstance(rule, str) and rule not in updates.__all__:
            known = ", ".join(updates.__all__)
            raise ValueError(
                f"there is no optimiser {rule!r}: synk.updates has {known}"
            )
        self._rule: Callable = getattr(updates, rule) if isinstance(rule, str) else rule
        self._options = options

    def takes(self, name: str) -> bool:
        """Tell whether it has an argument of a name."""
        return name in inspect.signature(self._rule).parameters

    def start(self, w: np.ndarray) -> Start:
        """Return what it keeps, before the first step on parameters `w`."""
        _, kept, _ = self._graphs(w.dtype)
        start = {}
        for name, var in kept.items():
            value = np.asarray(var.get_value())
            start[name] = np.broadcast_to(value[0], w.shape) if value.ndim else value
        return {name: np.array(value) for name, value in start.items()}

    def move(self, c: Any, gradient: Any, state: State) -> tuple[Any, State]:
        """Return the parameters after a step along a gradient, and what is kept."""
        param, kept, new = self._graphs(c.dtype, gradient)
        given = {param: c, **{var: state[name] for name, var in kept.items()}}
        found = graph_replace([new[param], *[new[var] for var in kept.values()]], given)
        moved, *rest = (
            pt.cast(value, of.dtype) for value, of in zip(found, given, strict=True)
        )
        return moved, dict(zip(kept, rest, strict=True))

    def _graphs(self, dtype: Any, gradient: Any = None) -> tuple[Any, dict, dict]:
        """Return the rule's parameter, its other variables by name, and its updates."""
        param = pytensor.shared(np.zeros(2, dtype), name="c")
        new = self._rule(
            [param if gradient is None else gradient], [param], **self._options
        )
        kept = {f"{i}": var for i, var in enumerate(new) if var is not param}
        return param, kept, new

    def __repr__(self) -> str:
        name = getattr(self._rule, "__name__", self._rule)
        options = "".join(f", {key}={value!r}" for key, value in self._options.items())
        return f"{name}{options}"


def warn(message: str) -> None:
    """Warn of a setting, at the line of the script that trains."""
    warnings.warn(message, UserWarning, stacklevel=callers_level())


def check_at_least(name: str, value: float, least: float = 0) -> float:
    """Return a number that is not less than another, or raise ValueError."""
    if not value >= least:
        raise ValueError(f"{name} must be at least {least}, got {value!r}")
    return value
