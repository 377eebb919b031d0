"""A rule's functions, compiled: on arrays that may be any piece of its vectors."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.graph.basic import Variable
from pytensor.tensor.type import TensorType

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
        function, of_worker, of_centre = self._exchange
        arrays = self.in_order(worker, centre)
        results = function(*self.group(n, share), *arrays)
        k = len(of_worker)
        return _named(of_worker, results[:k]), _named(of_centre, results[k:])

    def give(
        self, worker: Arrays, centre: Arrays, n: int, share: float
    ) -> tuple[Arrays, np.ndarray]:
        """Return new values of a worker's state, and what it gives."""
        function, names = self._give
        arrays = self.in_order(worker, centre)
        *new, given = function(*self.group(n, share), *arrays)
        return _named(names, new), given

    def move(self, centre: Arrays, given: np.ndarray) -> Arrays:
        """Return new values of the centre's state."""
        function, names = self._move
        arrays = [centre[name] for name in self.of_centre]
        return _named(names, function(given, *arrays))

    def take(self, worker: Arrays, centre: Arrays) -> Arrays:
        """Return new values of a worker's state, of what the centre is now."""
        function, names = self._take
        return _named(names, function(*self.in_order(worker, centre)))

    def in_order(self, worker: Arrays, centre: Arrays) -> list[np.ndarray]:
        """Return arrays in the order of `inputs_of_states`."""
        return [
            *[worker[name] for name in self.of_worker],
            *[centre[name] for name in self.of_centre],
        ]

    def group(self, n: int, share: float) -> list[np.ndarray]:
        """Return what a worker is told of all, in the order of `inputs_of_group`."""
        return [np.asarray(value, self.dtype) for value in (n, share)]

    # -- graphs: new values by name, of the dtypes of what they replace

    def graph_of_give(self) -> tuple[dict, Variable]:
        """Return what becomes of a worker that gives, and what it gives."""
        with self._constants():
            new, given = self._rule.give(self._worker, self._centre, self._group)
            return self._typed(self._worker, new), pt.cast(given, self.dtype)

    def graph_of_move(self) -> dict:
        """Return what becomes of the centre."""
        with self._constants():
            new = self._rule.move(self._centre, self._given)
            return self._typed(self._centre, new)

    def graph_of_take(self) -> dict:
        """Return what becomes of a worker that takes."""
        with self._constants():
            new = self._rule.take(self._worker, self._centre)
            return self._typed(self._worker, new)

    def graph_of_sending(self) -> tuple[dict, dict]:
        """Return what becomes of one worker that gives, and of the centre by that."""
        with self._constants():
            given, sent = self._rule.give(self._worker, self._centre, self._group)
            moved = self._rule.move(self._centre, sent)
            return self._typed(self._worker, given), self._typed(self._centre, moved)

    def graph_of_exchange(self) -> tuple[dict, dict]:
        """Return what becomes of one worker and of the centre, by all three."""
        with self._constants():
            rule, worker, centre = self._rule, dict(self._worker), dict(self._centre)
            given, sent = rule.give(worker, centre, self._group)
            moved = rule.move(centre, sent)
            taken = rule.take(worker | dict(given), centre | dict(moved))
            new = self._typed(worker, dict(given) | dict(taken))
            return new, self._typed(centre, moved)

    @property
    def inputs_of_group(self) -> dict[str, Variable]:
        """The inputs of `give` and `exchange` that come first."""
        return dict(zip(Group._fields, self._group, strict=True))

    @property
    def inputs_of_states(self) -> dict[str, Variable]:
        """Their others, and those of `take`."""
        worker = {f"w{name}": var for name, var in self._worker.items()}
        return worker | {f"c{name}": var for name, var in self._centre.items()}

    @property
    def inputs_of_move(self) -> dict[str, Variable]:
        """The inputs of `move`."""
        centre = {f"c{name}": var for name, var in self._centre.items()}
        return {"given": self._given, **centre}

    def _constants(self) -> Any:
        """Take the constants of a rule for numbers of the dtype."""
        return pytensor.config.change_flags(floatX=self.dtype)

    # -- compiled

    @cached_property
    def _give(self) -> tuple[Any, list[str]]:
        new, given = self.graph_of_give()
        inputs = [*self._group, *self.inputs_of_states.values()]
        return self._compile(inputs, [*new.values(), given]), list(new)

    @cached_property
    def _move(self) -> tuple[Any, list[str]]:
        new = self.graph_of_move()
        inputs = [*self.inputs_of_move.values()]
        return self._compile(inputs, [*new.values()]), list(new)

    @cached_property
    def _take(self) -> tuple[Any, list[str]]:
        new = self.graph_of_take()
        inputs = [*self.inputs_of_states.values()]
        return self._compile(inputs, [*new.values()]), list(new)

    @cached_property
    def _exchange(self) -> tuple[Any, list[str], list[str]]:
        of_worker, of_centre = self.graph_of_exchange()
        inputs = [*self._group, *self.inputs_of_states.values()]
        outputs = [*of_worker.values(), *of_centre.values()]
        return self._compile(inputs, outputs), list(of_worker), list(of_centre)

    @staticmethod
    def _typed(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict:
        return {name: pt.cast(value, old[name].dtype) for name, value in new.items()}

    def _compile(self, inputs: list, outputs: list) -> Any:
        # Outputs have memory of their own: what is returned may be an input itself.
        return pytensor.function(
            inputs,
            outputs,
            mode=self._mode,
            on_unused_input="ignore",
            trust_input=True,
        )


def _named(names: list[str], values: list[np.ndarray]) -> Arrays:
    return dict(zip(names, values, strict=True))


def _variable(name: str, value: np.ndarray) -> Any:
    # Not by `pt.tensor`, which takes names such as "half" for dtypes.
    return TensorType(value.dtype, (None,) * np.ndim(value))(name)
