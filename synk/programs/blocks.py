"""A part that is sums over rows, run for blocks of rows that stay in a core's cache.

What a compiled graph computes on the way, such as ``X @ w`` and functions of it, is
then read while it is in the cache. Whether a function goes in blocks, and of how many
rows, is in its plan (`choice.plan`). Where numba has compiled a part, the loop over
blocks is compiled as well; else Python goes from block to block. The blocks are added
up in their order.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Protocol

import numpy as np
from pytensor.graph.basic import Variable
from pytensor.tensor.random.type import RandomType
from pytensor.tensor.type import DenseTensorType

from ..compiler.kept import Kept
from ..compiler.spec import FunctionSpec
from ..compiler.stages import Cut, Part, Stage
from ..engines.numba_blocks import ERRORS, Loop, loop_over_blocks
from ..memory.partition import part_lengths
from ..ops import is_reduced
from ..reduce_ops import Accumulator, ReduceOp, finish, shares


class Call(Protocol):
    """What is needed of one rank's part in a call: see `one_call`."""

    rows: list[Any]
    values: dict[Variable, Any]
    cut: Cut
    programs: Any

    def outputs_of(self, piece: Part, padded: bool) -> list[Any]:
        """Run a part on the rows taken."""

    def arguments(self, piece: Part) -> list[Any]:
        """Return what the code of a part takes: rows, constants, what it receives."""


class Blocks:
    """The parts of a function on one rank that blocks of rows can be added up for.

    Parameters
    ----------
    spec : FunctionSpec

    Attributes
    ----------
    can_be : bool
        Whether any part can go in blocks.
    last : tuple of (int, bool), or None
        How many blocks the last call's first such part had, and whether a compiled
        loop went through them.
    """

    def __init__(self, spec: FunctionSpec) -> None:
        self._sums: dict[Variable, ReduceOp] = dict(spec.sums)
        if spec.sliceable or spec.call_variables:
            self._sums = {}
        self.can_be = bool(self._sums)
        self._can: dict[int, bool] = {}
        self._loops: dict[int, Loop | None] = {}
        self.last: tuple[int, bool] | None = None

    def run(self, call: Call, stage: Stage, kept: Kept | None, size: int) -> bool:
        """Run a stage's part and keep what it computes, if it can go in blocks.

        Parameters
        ----------
        call : Call
            Not padded.
        stage : Stage
        kept : Kept, optional
            The part that computed terms which this one receives.
        size : int
            Rows of a block.

        Returns
        -------
        bool
            False if nothing was done.
        """
        part = stage.merged
        if not self.can_go(part, call.cut, kept):
            return False
        loop = self._loop(call, part, kept)
        blocks = -(-len(call.rows[0]) // size)
        self.last = self.last or (blocks, loop is not None)
        if loop is not None:
            try:
                call.values.update(self._looped(loop, call, part, size))
                return True
            except ERRORS:  # whatever it is, PyTensor tells it better
                pass
        call.values.update(self._added_up(call, part, size, kept))
        self._loops[id(part)] = None  # which cannot be compiled, as this has no error
        return True

    def can_go(self, part: Part, cut: Cut, kept: Kept | None) -> bool:
        """Tell whether all that a part makes of rows is sums or averages over them."""
        if id(part) not in self._can:
            self._can[id(part)] = self._is_of_sums(part, cut, kept)
        return self._can[id(part)]

    def _is_of_sums(self, part: Part, cut: Cut, kept: Kept | None) -> bool:
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
        self, loop: Loop, call: Call, part: Part, size: int
    ) -> dict[Variable, Any]:
        results = loop(size, *call.arguments(part))
        return {
            var: finish(result, np.dtype(var.type.dtype))  # type: ignore[attr-defined]
            for var, result in zip(part.wants, results, strict=True)
        }

    def _added_up(
        self, call: Call, part: Part, size: int, kept: Kept | None
    ) -> dict[Variable, Any]:
        rows, values = call.rows, call.values
        found: dict[Variable, Any] = {}
        bounds = [*range(0, len(rows[0]), size), len(rows[0])]
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
