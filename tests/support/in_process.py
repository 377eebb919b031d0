"""Ranks as programs in one process: what N ranks compute of a function, with no fork.

The compiler has placed collectives in a function's graph. Here the graph is computed up
to the first of them, for the rows of each rank in turn; their values are combined; and
so on, level by level, to the outputs and the new values of shared variables. Each level
is compiled once, whatever the number of ranks, and the ranks' parts may be as uneven as
a test wants them. ::

    ranks = InProcess(synk.function([x], [x.std(), x - x.mean()], mode=PY))
    for n in (1, 2, 3, 5):
        std, centred = ranks(n, rows).outputs

This is for the numbers of what is placed. How stages are cut, run in slices and meet is
left to tests with a session. Random streams and sliceable variables are not for here.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytensor
from pytensor.graph.basic import Variable
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import io_toposort
from reference import PY

import synk
from synk.memory.partition import cuts
from synk.ops import COLLECTIVES
from synk.reduce_ops import combine

COUNTS = (1, 2, 3, 5)
"""As many ranks as tests compute with, if nothing is said against it."""


@dataclass
class Computed:
    """What a call has come to: outputs, and the new values of variables on each rank.

    In the order of the updates, and None where a rank without rows makes none.
    """

    outputs: list[Any]
    updates: list[list[Any]]


class InProcess:
    """A function, to be computed as by any number of ranks, in a mode of its own."""

    def __init__(self, f: synk.Function, mode: Any = PY) -> None:
        self.spec = spec = f._spec
        if spec.refused is not None:
            raise synk.SplitError(spec.refused)
        if spec.streams or spec.stand_ins:
            raise ValueError("it draws, or slices a shared variable")
        self._news = [new for _, new in spec.updates]
        wanted = [*spec.outputs, *self._news]
        self._of_rows = spec.row_values(wanted)
        self._levels = levels_of(wanted)
        self._stand_ins: dict[Variable, Variable] = {}
        self._mode = mode
        self._contribute = []
        for level in self._levels:
            shares = [var.owner.inputs[0] for var in level]
            self._contribute.append(self._compiled(shares))
            self._stand_ins |= {var: var.type() for var in level}
        self._finish = self._compiled(wanted)
        self._idle: Any = None

    def _compiled(self, wanted: list) -> Any:
        """Compile values, from those of collectives of the levels before."""
        inputs = [*self.spec.all_inputs, *self._stand_ins.values()]
        wanted = clone_replace(wanted, self._stand_ins) if wanted else []
        options = {"mode": self._mode, "on_unused_input": "ignore"}
        # What a call updates is among the values; variables are left as they are.
        return pytensor.function(inputs, wanted, no_default_updates=True, **options)

    def __call__(
        self, ranks: int, *values: Any, bounds: Sequence[int] | None = None
    ) -> Computed:
        """Compute a call of values of the inputs, the scattered ones first.

        Rank r has the rows from ``bounds[r]`` to ``bounds[r + 1]``; without bounds they
        are divided as in a session.
        """
        all_inputs = [*self.spec.inputs, *self.spec.bcast_inputs]
        given_to_all = [
            np.asarray(value, var.type.dtype)
            for value, var in zip(values, all_inputs, strict=True)
        ]
        n = len(self.spec.inputs)
        rows, constants = given_to_all[:n], given_to_all[n:]
        total = len(rows[0]) if rows else 0
        bounds = cuts(total, ranks) if bounds is None else list(bounds)
        weights = list(np.diff(bounds)) if rows else [1] * ranks
        busy = [r for r in range(ranks) if weights[r] or not sum(weights)]
        given = [
            [
                *(value[bounds[r] : bounds[r + 1]] for value in rows),
                *constants,
                *self._told(rows, total, bounds[r]),
            ]
            for r in range(ranks)
        ]
        met: list[np.ndarray] = []
        for level, contribute in zip(self._levels, self._contribute, strict=True):
            shares = {r: contribute(*given[r], *met) for r in busy}
            met += [
                combined(var, {r: shares[r][i] for r in busy}, weights)
                for i, var in enumerate(level)
            ]
        results = {r: self._finish(*given[r], *met) for r in busy}
        of_busy = [weights[r] for r in busy]
        outputs = [
            output_of(op, [results[r][i] for r in busy], of_busy)
            for i, op in enumerate(self.spec.wire_ops)
        ]
        first = len(outputs)
        updates = [
            results[r][first:] if r in results else self._without_rows(given[r], met)
            for r in range(ranks)
        ]
        return Computed(outputs, updates)

    def _told(self, rows: list, total: int, first: int) -> list[np.ndarray]:
        """Return what a rank is told of the call besides its arguments."""
        call = self.spec.call
        told = {
            call.total: np.asarray(total),
            call.first: np.asarray(first),
            call.as_long: np.empty((total, 0), np.int8),
        }
        for i, var in call.none_of.items():
            told[var] = np.empty((0, *rows[i].shape[1:]), np.int8)
        return [told[var] for var in self.spec.call_variables]

    def _without_rows(self, given: list, met: list) -> list[Any]:
        """Return the new values that a rank without rows makes, None for others."""
        common = [new for new in self._news if new not in self._of_rows]
        if not common:
            return [None] * len(self._news)
        if self._idle is None:
            self._idle = self._compiled(common)
        made = dict(zip(common, self._idle(*given, *met), strict=True))
        return [made.get(new) for new in self._news]


def output_of(op: str | None, values: list, weights: Sequence[int]) -> Any:
    """Combine the ranks' values of an output, as the master does."""
    if op is None:
        return values[0]
    if op == "gather":
        return np.concatenate([np.atleast_1d(value) for value in values])
    return combine(op, [np.asarray(value) for value in values], weights)


def levels_of(wanted: Sequence[Variable]) -> list[list[Variable]]:
    """Return what collectives return on the way to some values, level by level."""
    level: dict[Variable, int] = {}
    found: list[list[Variable]] = []
    for node in io_toposort([], list(wanted)):
        at = max((level.get(var, 0) for var in node.inputs), default=0)
        if isinstance(node.op, COLLECTIVES):
            if at == len(found):
                found.append([])
            found[at].append(node.outputs[0])
            at += 1
        level.update(dict.fromkeys(node.outputs, at))
    return found


def combined(var: Any, shares: dict[int, Any], weights: Sequence[int]) -> np.ndarray:
    """Return what a collective makes of the values of the ranks that have rows."""
    op = var.owner.op.op
    values = [np.asarray(value) for value in shares.values()]
    if op == "gather":
        return np.concatenate(values)
    if op == "stack":
        none = np.zeros_like(values[0])
        return np.stack([shares.get(r, none) for r in range(len(weights))])
    return combine(op, values, [weights[r] for r in shares]).astype(var.type.dtype)
