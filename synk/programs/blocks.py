"""A part that is sums over rows, run for blocks of rows that stay in a core's cache.

What a compiled graph computes on the way, such as ``X @ w`` and functions of it, is
then read while it is in the cache. Whether that wins is seen on real calls: some are
run in one go and some in blocks, in turns, and then the faster way is taken. Where
numba compiles the graph it may compile the loop over blocks as well, which is tried
once calls have taken as long as that takes, or at once where engines are compared, or
where an earlier run has left its code on disk. A rank chooses for itself, as its values
are the same to rounding in any way, and no other rank waits within a part. The blocks
are added up in their order.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from time import perf_counter
from typing import Any, Protocol

import numpy as np
from pytensor.graph.basic import Variable
from pytensor.tensor.random.type import RandomType
from pytensor.tensor.type import DenseTensorType

from ..compiler.kept import Kept
from ..compiler.spec import FunctionSpec
from ..compiler.stages import Cut, Part, Stage
from ..engines.numba_blocks import ERRORS, Loop, loop_over_blocks
from ..memory.partition import cuts, part_lengths
from ..ops import is_reduced
from ..reduce_ops import Accumulator, ReduceOp, finish, shares
from ..times.timing import Times
from .block_trial import Trial

BYTES = 1 << 20
"""Of rows in a block: about what a core's second-level cache holds."""

FROM = 4 * BYTES
"""Bytes of rows from which on it is tried."""


class Call(Protocol):
    """What is needed of one rank's part in a call: see `one_call`."""

    rows: list[Any]
    values: dict[Variable, Any]
    cut: Cut
    times: Times
    programs: Any

    def run_part(self, piece: Part) -> None:
        """Run a part and keep what it computes."""

    def outputs_of(self, piece: Part, padded: bool) -> list[Any]:
        """Run a part on the rows taken."""

    def arguments(self, piece: Part) -> list[Any]:
        """Return what the code of a part takes: rows, constants, what it receives."""


def are_many(rows: Sequence[Any]) -> bool:
    """Tell whether rows of inputs are so many that blocks may win."""
    return sum([array.nbytes for array in rows]) >= FROM


def is_to_repeat(spec: FunctionSpec) -> bool:
    """Tell whether results are to be those of every run to the bit."""
    return not spec.is_chosen


class Blocks:
    """The parts of a function on one rank that blocks of rows can be added up for.

    Parameters
    ----------
    spec : FunctionSpec

    Attributes
    ----------
    can_be : bool
        Whether any part can go in blocks.
    last : Trial or None
        Of the last call's parts that could go in blocks; one that is not over, if there
        is one.
    """

    def __init__(self, spec: FunctionSpec) -> None:
        self._sums: dict[Variable, ReduceOp] = dict(spec.sums)
        if spec.sliceable or spec.call_variables or is_to_repeat(spec):
            self._sums = {}
        self.can_be = bool(self._sums)
        self._is_compared = spec.is_compared
        self._can: dict[int, bool] = {}
        self._loops: dict[int, Loop | None] = {}
        self.trials: dict[tuple[int, int], Trial] = {}
        """By the identity of a part, and the binary digits of a number of rows."""
        self.last: Trial | None = None

    @property
    def is_trying(self) -> bool:
        """Whether the next such call may take less than the last one."""
        return self.last is not None and not self.last.is_over

    def run(self, call: Call, stage: Stage, kept: Kept | None) -> bool:
        """Run a stage's part and keep what it computes, if it can go in blocks.

        Parameters
        ----------
        call : Call
            Of many rows, and not padded.
        stage : Stage
        kept : Kept, optional
            The part that computed terms which this one receives.

        Returns
        -------
        bool
            False if nothing was done.
        """
        part = stage.merged
        if id(part) not in self._can:
            self._can[id(part)] = self._is_of_sums(part, call.cut, kept)
        if not self._can[id(part)]:
            return False
        nbytes = sum(rows.nbytes for rows in call.rows)
        rows = len(call.rows[0])
        key = id(part), rows.bit_length()
        if key not in self.trials:
            blocks = min(rows, nbytes // BYTES)
            loop = self._loop(call, part, kept)
            trial = Trial(blocks, loop is not None)
            if loop is not None and (self._is_compared or loop.is_on_disk):
                trial.join_loop()
            self.trials[key] = trial
        trial = self.trials[key]
        if not self.is_trying:
            self.last = trial
        way, start = trial.next(), perf_counter()
        if way == "loop":
            try:
                call.values.update(self._looped(call, part, trial.blocks, kept))
            except ERRORS:  # whatever it is, PyTensor tells it better
                trial.failed(way)
                way = "blocks"
        if way == "whole":
            call.run_part(part)
        elif way == "blocks":
            call.values.update(self._added_up(call, part, trial.blocks, kept))
        if not call.times.is_fresh:
            trial.took(way, perf_counter() - start)
        return True

    def _is_of_sums(self, part: Part, cut: Cut, kept: Kept | None) -> bool:
        """Tell whether all that a part makes of rows is sums or averages over them."""
        if part.updates or any(isinstance(var.type, RandomType) for var in part.reads):
            return False
        rows = [] if kept is None else kept.rows
        whole = [var for var in part.receives if var not in rows]
        of_rows = cut.on_rows.intersection(part.wants)
        return (
            bool(of_rows)
            and of_rows <= self._sums.keys()
            and all(map(is_reduced, whole))
        )

    def _op(self, var: Variable, cut: Cut) -> ReduceOp | None:
        """Return how a value is combined over blocks; None if no row enters it."""
        return self._sums[var] if var in cut.on_rows else None

    def _loop(self, call: Call, part: Part, kept: Kept | None) -> Loop | None:
        """Return what runs a part in a compiled loop, if there can be one."""
        if id(part) not in self._loops:
            self._loops[id(part)] = None
            kinds: list[Any] = [var.type for var in part.wants]
            if not all(isinstance(kind, DenseTensorType) for kind in kinds):
                return None
            of_rows = [] if kept is None else kept.rows
            are_rows = [True] * len(call.rows)
            are_rows += [False] * (len(call.arguments(part)) - len(are_rows))
            for i, var in enumerate(reversed(part.receives)):
                are_rows[-1 - i] = var in of_rows
            ops = [self._op(var, call.cut) for var in part.wants]
            program = call.programs.program(part)
            self._loops[id(part)] = loop_over_blocks(
                program, are_rows, ops, [kind.dtype for kind in kinds]
            )
        return self._loops[id(part)]

    def _looped(
        self, call: Call, part: Part, blocks: int, kept: Kept | None
    ) -> dict[Variable, Any]:
        loop = self._loop(call, part, kept)
        assert loop is not None
        size = -(-len(call.rows[0]) // blocks)
        results = loop(size, *call.arguments(part))
        return {
            var: finish(result, np.dtype(var.type.dtype))  # type: ignore[attr-defined]
            for var, result in zip(part.wants, results, strict=True)
        }

    def _added_up(
        self, call: Call, part: Part, blocks: int, kept: Kept | None
    ) -> dict[Variable, Any]:
        rows, values = call.rows, call.values
        found: dict[Variable, Any] = {}
        bounds = cuts(len(rows[0]), blocks)
        of_rows = [] if kept is None else kept.rows
        totals: dict[Variable, Accumulator] = {}
        try:
            weights = shares(part_lengths(bounds))
            for (start, stop), share in zip(pairwise(bounds), weights, strict=True):
                call.rows = [array[start:stop] for array in rows]
                call.values = values | {v: values[v][start:stop] for v in of_rows}
                results = call.outputs_of(part, False)
                found = dict(zip(part.wants, results, strict=True))
                for var in call.cut.on_rows.intersection(part.wants):
                    if var not in totals:
                        totals[var] = Accumulator(self._sums[var], found[var].dtype)
                    totals[var].add(found[var], share)
        finally:
            call.rows, call.values = rows, values
        # What no row enters is the same in every block.
        return found | {var: total.result() for var, total in totals.items()}
