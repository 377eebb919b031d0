"""A rule's functions, compiled: on arrays that may be any piece of its vectors."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt

from .rule import Group, Rule

Arrays = dict[str, np.ndarray]


class Functions:
    """What a rule computes, for vectors of one dtype.

    Parameters
    ----------
    rule : Rule
    dtype : str
        Of the parameters; constants of the rule are taken as such.
    mode : optional
        PyTensor's, in which it is computed.

    Attributes
    ----------
    of_worker, of_centre : tuple of str
        The names of what both keep, ``"w"`` and ``"c"`` first.
    scalars : set of str
        Those of the centre's that are no vectors.
    """

    def __init__(self, rule: Rule, dtype: Any, mode: Any = None) -> None:
        self._rule, self._mode, self.dtype = rule, mode, np.dtype(dtype).name
        some = np.zeros(2, self.dtype)
        of_worker, of_centre = rule.start(some)
        worker, centre = {"w": some, **of_worker}, {"c": some, **of_centre}
        self.of_worker, self.of_centre = tuple(worker), tuple(centre)
        self.scalars = {name for name, value in centre.items() if not np.ndim(value)}
        self._worker = {name: _variable(name, worker[name]) for name in worker}
        self._centre = {name: _variable(name, centre[name]) for name in centre}
        self._group = Group(*[pt.scalar(k, dtype=self.dtype) for k in ("n", "share")])
        self._given = pt.vector("given", dtype=self.dtype)

    def start(self, w: np.ndarray) -> tuple[Arrays, Arrays]:
        """Return the states of a worker and of the centre, of arrays of their own."""
        w = np.asarray(w, self.dtype)
        worker, centre = self._rule.start(w)
        starts = {"w": w, **worker}, {"c": w, **centre}
        made, of_centre = ({k: np.array(v) for k, v in of.items()} for of in starts)
        return made, of_centre

    def exchange(
        self, worker: Arrays, centre: Arrays, n: int, share: float
    ) -> tuple[Arrays, Arrays]:
        """Return what one worker's exchange makes of its state and the centre's."""
        arrays = self._in_order(worker, centre)
        results = self._exchange(*self._told(n, share), *arrays)
        return self._split(self._exchanged, results)

    def give(
        self, worker: Arrays, centre: Arrays, n: int, share: float
    ) -> tuple[Arrays, np.ndarray]:
        """Return new values of a worker's state, and what it gives."""
        arrays = self._in_order(worker, centre)
        *new, given = self._give(*self._told(n, share), *arrays)
        return self._split(self._gives, new)[0], given

    def move(self, centre: Arrays, given: np.ndarray) -> Arrays:
        """Return new values of the centre's state."""
        arrays = [centre[name] for name in self.of_centre]
        results = self._move(given, *arrays)
        return self._split(self._moves, results)[1]

    def take(self, worker: Arrays, centre: Arrays) -> Arrays:
        """Return new values of a worker's state, of what the centre is now."""
        results = self._take(*self._in_order(worker, centre))
        return self._split(self._takes, results)[0]

    def _in_order(self, worker: Arrays, centre: Arrays) -> list[np.ndarray]:
        """Return arrays in the order of the compiled functions' inputs."""
        return [
            *[worker[name] for name in self.of_worker],
            *[centre[name] for name in self.of_centre],
        ]

    def _told(self, n: int, share: float) -> list[np.ndarray]:
        return [np.asarray(value, self.dtype) for value in (n, share)]

    @staticmethod
    def _split(names: list[str], values: list[np.ndarray]) -> tuple[Arrays, Arrays]:
        """Tell the worker's values from the centre's."""
        found: tuple[Arrays, Arrays] = {}, {}
        for name, value in zip(names, values, strict=True):
            found[name[0] == "c"][name[2:]] = value
        return found

    @cached_property
    def _give(self) -> Any:
        with pytensor.config.change_flags(floatX=self.dtype):
            new, given = self._rule.give(self._worker, self._centre, self._group)
            self._gives = [f"w_{name}" for name in new]
            outputs = self._typed(self._worker, new)
            outputs.append(given.astype(self.dtype))
            return self._compile([*self._group, *self._states()], outputs)

    @cached_property
    def _move(self) -> Any:
        with pytensor.config.change_flags(floatX=self.dtype):
            new = self._rule.move(self._centre, self._given)
            self._moves = [f"c_{name}" for name in new]
            inputs = [self._given, *self._centre.values()]
            return self._compile(inputs, self._typed(self._centre, new))

    @cached_property
    def _take(self) -> Any:
        with pytensor.config.change_flags(floatX=self.dtype):
            new = self._rule.take(self._worker, self._centre)
            self._takes = [f"w_{name}" for name in new]
            return self._compile(self._states(), self._typed(self._worker, new))

    @cached_property
    def _exchange(self) -> Any:
        with pytensor.config.change_flags(floatX=self.dtype):
            rule, worker, centre = self._rule, dict(self._worker), dict(self._centre)
            given, sent = rule.give(worker, centre, self._group)
            moved = rule.move(centre, sent)
            taken = rule.take(worker | dict(given), centre | dict(moved))
            of_worker = dict(given) | dict(taken)
            self._exchanged = [f"w_{name}" for name in of_worker]
            self._exchanged += [f"c_{name}" for name in moved]
            outputs = self._typed(worker, of_worker) + self._typed(centre, moved)
            return self._compile([*self._group, *self._states()], outputs)

    @staticmethod
    def _typed(old: Mapping[str, Any], new: Mapping[str, Any]) -> list:
        """Return new values, of the dtypes of what they replace."""
        return [value.astype(old[name].dtype) for name, value in new.items()]

    def _states(self) -> list:
        return [*self._worker.values(), *self._centre.values()]

    def _compile(self, inputs: list, outputs: list) -> Any:
        # Outputs have memory of their own: what is returned may be an input itself.
        return pytensor.function(
            inputs,
            outputs,
            mode=self._mode,
            on_unused_input="ignore",
            trust_input=True,
        )


def _variable(name: str, value: np.ndarray) -> Any:
    return pt.tensor(name, dtype=value.dtype, shape=(None,) * np.ndim(value))
