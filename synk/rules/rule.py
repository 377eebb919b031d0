"""`Rule`: how workers that train by themselves exchange parameters.

A rule is written in the notation of its paper, on vectors: all parameters of a worker,
one after the other. It does not deal with processes, memory or the order of workers.
Ranks compute its methods on a few thousand elements at a time, and `simulate` computes
the same methods for any number of workers in one process.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.graph.replace import graph_replace

from .. import updates

Order: TypeAlias = Literal["together", "turns", "free"]
ORDERS: tuple[Order, ...] = ("together", "turns", "free")

State: TypeAlias = Mapping[str, Any]
"""Symbolic vectors by name; also scalars, such as an optimiser's count of steps."""

Start: TypeAlias = Mapping[str, np.ndarray]


class Group(NamedTuple):
    """Numbers about all workers, for `Rule.give`: symbolic scalars.

    Attributes
    ----------
    n : scalar variable
        The number of workers.
    share : scalar variable
        In the order "together", this worker's rows since the last exchange, divided by
        those of all workers; otherwise 1 / n.
    """

    n: Any
    share: Any


class Rule:
    """How workers exchange parameters with a centre.

    Subclasses define an exchange by three pure functions: a worker *gives* a vector,
    the centre *moves* by it, and the worker *takes* from the centre. The functions get
    the states of worker and centre as mappings of vectors, and return new values of the
    entries that change; they must compute element by element. A worker's parameters are
    ``"w"`` in its state, the centre's ``"c"``.

    Parameters
    ----------
    every : int
        Steps that a worker makes by itself between two exchanges.
    order : {"together", "turns", "free"}
        "together": all workers meet; each gives, by the same old centre, the centre
        moves once by the sum, and each takes. "turns": one worker after the other
        gives, moves the centre and takes, always in the same order, so that a
        repetition has the same bits. "free": as "turns", but in the order in which
        workers are ready.

    Raises
    ------
    ValueError
        If an argument does not fit.
    """

    orders: Sequence[Order] = ORDERS
    """The values of `order` that the rule supports."""
    has_centre = True
    """Whether there is a centre, with parameters besides the workers'."""
    is_mean = False
    """Whether the centre is the workers' mean, which is outdated between exchanges."""
    fragments = 1
    """The number of pieces of the parameters, each exchanged by itself."""
    delay = 0
    """The number of further steps that a worker makes between giving and taking."""
    max_staleness: int | None = None
    """The most exchanges of other workers between two of one worker; None: no limit."""

    def __init__(self, every: int = 1, order: Order = "together") -> None:
        if isinstance(every, bool) or int(every) != every or every < 1:
            raise ValueError(f"every must be an int of at least 1, got {every!r}")
        if order not in self.orders:
            known = " or ".join(map(repr, self.orders))
            raise ValueError(f"order must be {known}, got {order!r}")
        self.every, self.order = int(every), order

    def start(self, w: np.ndarray) -> tuple[Start, Start]:
        """Return the first states of a worker and the centre, without "w" and "c".

        Parameters
        ----------
        w : numpy.ndarray, shape (parameters,)
            The parameters that all begin with.
        """
        return {}, {}

    def give(self, worker: State, centre: State, group: Group) -> tuple[State, Any]:
        """Return new values for the worker's state, and the vector that it gives.

        Parameters
        ----------
        worker, centre : mapping of str to vector
            The states.
        group : Group
        """
        raise NotImplementedError

    def move(self, centre: State, given: Any) -> State:
        """Return new values for the centre's state, moved by `given`.

        Parameters
        ----------
        centre : mapping of str to vector
        given : vector
            The vector that one worker gives, or in "together" the sum of all workers'.
        """
        raise NotImplementedError

    def take(self, worker: State, centre: State) -> State:
        """Return new values for the worker's state, after the centre has moved.

        Parameters
        ----------
        worker, centre : mapping of str to vector
            The states.
        """
        return {}

    def due(self, step: int) -> Sequence[int]:
        """Return the fragments that a worker gives after a step; mostly none.

        Parameters
        ----------
        step : int
            The number of steps that the worker has made.
        """
        return (0,) if step % self.every == 0 else ()

    def check(self, n: int) -> None:
        """Raise or warn if the rule's settings do not fit the number of workers.

        Parameters
        ----------
        n : int
        """

    def __repr__(self) -> str:
        options = ", ".join(f"{name}={value!r}" for name, value in vars(self).items())
        return f"{type(self).__name__}({options})"


def update_rule(rule: str | Callable, what: str = "rule") -> Callable:
    """Return the rule of `synk.updates` of a name, or the function `rule` itself."""
    if isinstance(rule, str):
        if rule not in updates.__all__:
            known = ", ".join(updates.__all__)
            raise ValueError(f"there is no {what} {rule!r}: synk.updates has {known}")
        return getattr(updates, rule)
    if not callable(rule):
        raise TypeError(f"a rule is a function or its name, got {rule!r}")
    return rule


class Optimiser:
    """An optimiser at the centre: a rule of `synk.updates`, or one of that form.

    Here it is a pure function of one vector of parameters. It must compute element by
    element, so it cannot use the norm of a whole gradient.
    """

    def __init__(self, rule: str | Callable, **options: Any) -> None:
        self._rule = update_rule(rule, "optimiser")
        self.options = options

    def takes(self, name: str) -> bool:
        """Return whether the rule has an argument `name`."""
        return name in inspect.signature(self._rule).parameters

    def start(self, w: np.ndarray) -> Start:
        """Return the optimiser's state before the first step on parameters `w`."""
        _, kept, _ = self._graphs(w.dtype)
        start = {name: np.array(var.get_value()) for name, var in kept.items()}
        return {
            name: np.full(w.shape, value[0]) if value.ndim else value
            for name, value in start.items()
        }

    def move(self, c: Any, gradient: Any, state: State) -> tuple[Any, State]:
        """Return the parameters after a step along a gradient, and the new state."""
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
            [param if gradient is None else gradient], [param], **self.options
        )
        kept = {f"{i}": var for i, var in enumerate(new) if var is not param}
        return param, kept, new

    def __repr__(self) -> str:
        name = getattr(self._rule, "__name__", self._rule)
        options = "".join(f", {key}={value!r}" for key, value in self.options.items())
        return f"{name}{options}"


def check_at_least(name: str, value: float, least: float = 0) -> float:
    """Return `value`, or raise ValueError if it is less than `least`."""
    if not value >= least:
        raise ValueError(f"{name} must be at least {least}, got {value!r}")
    return value
