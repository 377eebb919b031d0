"""What a rule computes, as graphs of PyTensor: one for each kind of sweep."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.graph.basic import Variable
from pytensor.tensor.type import TensorType

from .rule import Group, Rule

Arrays = dict[str, np.ndarray]


class Kind(NamedTuple):
    """What a worker does with each block of the centre that it sweeps through.

    Attributes
    ----------
    gives, moves, takes : bool
        The functions of the rule that it computes. The centre moves by what the worker
        gives, or if it does not, by the sum of what all have left in ``given``; and
        what it gives it leaves there, if the centre does not move.
    locks : bool
        Whether it takes the lock of each block.
    """

    gives: bool = False
    moves: bool = False
    takes: bool = False
    locks: bool = False


KINDS = {
    "exchange": Kind(gives=True, moves=True, takes=True, locks=True),
    "send": Kind(gives=True, moves=True, locks=True),
    "fetch": Kind(takes=True, locks=True),
    "give": Kind(gives=True),
    "move": Kind(moves=True),
    "take": Kind(takes=True),
}
"""One after the other, an exchange is whole, or is sent now and fetched later. Where
all meet they give, the centre moves, and they take: nobody writes what others read."""


class RuleGraphs:
    """The graphs of a rule, for vectors of one dtype.

    Their variables have names: ``n``, ``share`` and ``given``, and those of the states
    of a worker and of the centre with a ``w`` or a ``c`` before, such as ``ww``.

    Parameters
    ----------
    rule : Rule
    dtype : str
        Of the parameters; constants of the rule are taken as such.
    mode : optional
        PyTensor's, in which all is computed. By default it is loops that are written
        for the graphs, see `sweeps`.

    Attributes
    ----------
    of_worker, of_centre : tuple of str
        The names of what both keep, ``"w"`` and ``"c"`` first.
    scalars : set of str
        Those of the centre's that are no vectors, such as an optimiser's step number.
    inputs : dict of str to variable
    sweeps : dict
        What `sweeps` has compiled of them.
    """

    def __init__(self, rule: Rule, dtype: Any, mode: Any = None) -> None:
        self.rule, self.mode, self.dtype = rule, mode, np.dtype(dtype).name
        worker, centre = self.start(np.zeros(2))
        self.of_worker, self.of_centre = tuple(worker), tuple(centre)
        self.scalars = {name for name, value in centre.items() if not np.ndim(value)}
        self._worker = {name: _variable(name, worker[name]) for name in worker}
        self._centre = {name: _variable(name, centre[name]) for name in centre}
        self._group = Group(*[pt.scalar(k, dtype=self.dtype) for k in ("n", "share")])
        self._given = pt.vector("given", dtype=self.dtype)
        self.sweeps: dict[str, Any] = {}
        self.inputs: dict[str, Variable] = {
            **dict(zip(Group._fields, self._group, strict=True)),
            "given": self._given,
            **{f"w{name}": var for name, var in self._worker.items()},
            **{f"c{name}": var for name, var in self._centre.items()},
        }

    def start(self, w: np.ndarray) -> tuple[Arrays, Arrays]:
        """Return the states of a worker and of the centre, of arrays of their own."""
        w = np.asarray(w, self.dtype)
        worker, centre = self.rule.start(w)
        starts = {"w": w, **worker}, {"c": w, **centre}
        of_worker, of_centre = (
            {k: np.array(v) for k, v in of.items()} for of in starts
        )
        return of_worker, of_centre

    def outputs(self, kind: Kind) -> dict[str, Variable]:
        """Return the new values that a sweep writes, of the dtypes of the old ones."""
        rule, worker, centre = self.rule, dict(self._worker), dict(self._centre)
        new: dict[str, Any] = {}
        moved: dict[str, Any] = {}
        given: Any = self._given
        # The constants of a rule are numbers of the parameters' dtype.
        with pytensor.config.change_flags(floatX=self.dtype):
            if kind.gives:
                of_worker, given = rule.give(worker, centre, self._group)
                new.update(of_worker)
            if kind.moves:
                moved.update(rule.move(centre, given))
            if kind.takes:
                new.update(rule.take({**worker, **new}, {**centre, **moved}))
            found = {f"w{name}": value for name, value in new.items()}
            found |= {f"c{name}": value for name, value in moved.items()}
            if kind.gives and not kind.moves:
                found["given"] = given
            return {
                name: pt.cast(value, self.inputs[name].type.dtype)
                for name, value in found.items()
            }


def _copied(values: Mapping[str, Any]) -> Arrays:
    return {name: np.array(value) for name, value in values.items()}


def _variable(name: str, value: np.ndarray) -> Any:
    # Not by `pt.tensor`, which takes names such as "half" for dtypes.
    return TensorType(value.dtype, (None,) * np.ndim(value))(name)
