"""What a rank does of a call: with rows, in one go or by parts; or without any.

Parts are blocks, or slices where the script asks for them. Every slice starts from the
original values of the shared variables. What the rows part of a stage computes is
accumulated over the slices, each value by its op and for each of its roles; the common
part runs once.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
from pytensor.compile import SharedVariable
from pytensor.graph.basic import Variable
from pytensor.tensor.random.type import RandomType

from ..compiler.kept import Kept
from ..compiler.stages import Stage, contributed, op_of
from ..draws import SLICE, derived
from ..engines import host
from ..memory.partition import count, cuts, part, part_lengths
from ..reduce_ops import shares
from ..times.timing import COMMON, COMPUTE, ROWS
from .blocks import Total, kept_in_blocks
from .one_call import RankCall, Task
from .padding import UNPADDED


def run(task: Task) -> list[Any]:
    """Compute outputs and make updates, in one go, in blocks or in slices."""
    if task.kind == "slice":
        return SlicedCall(task, "slice").run()
    call, programs, times = RankCall(task, task.kind), task.programs, task.times
    call.padded_size = task.padded_size
    if task.sources:
        call.rows = task.taken or programs.loader.take(task.sources, task.selections)
        times.spent(ROWS)
    kept = programs.kept(task.subset) if task.kind == "kept" else None
    block = _block(task, call, kept)
    if kept is not None:
        _take_kept(task, call, kept, block)
    programs.blocks.last = None
    is_padded = bool(task.padded_size)
    for level, stage in enumerate(call.cut.stages):
        has_run, is_of_rows = False, stage.phase == COMPUTE
        call.run_part(stage.drawn)
        if block and stage.merged and is_of_rows:
            has_run = programs.blocks.run(call, level, kept, block, task.tree)
        if not has_run:
            call.run_part(stage.merged, padded=is_padded and is_of_rows)
        call.reduce(stage, level)
    return call.finish()


def _block(task: Task, call: RankCall, kept: Kept | None) -> int:
    """Return the rows of a block; 0 if a rank's rows are gone through in one go."""
    if call.padded_size or not call.rows or len(call.rows[0]) <= task.block:
        return 0 if task.tree is None else task.block
    if task.tree is None and task.programs.blocks.are_apart(call.cut, kept):
        return 0  # blocks are not those of all ranks
    return task.block


def _take_kept(task: Task, call: RankCall, kept: Kept, block: int) -> None:
    """Take what follows from the rows alone, computed as all else is or kept."""
    compute = partial(call.outputs_of, kept, padded=False)
    if block:
        compute = partial(kept_in_blocks, call, kept, block)
    key = None if task.kept is None else (block, *task.kept)
    for var, value in task.programs.kept_terms.of(kept, key, compute).items():
        by_block = block and var not in kept.rows
        (call.by_block if by_block else call.values)[var] = value


def idle(task: Task) -> None:
    """Take part in a call without rows."""
    call = RankCall(task, "idle")
    # No row enters the common parts.
    call.rows = [
        np.empty((0, *source.shape[1:]), var.type.dtype)
        for source, var in zip(task.sources, task.programs.spec.row_inputs, strict=True)
    ]
    for level, stage in enumerate(call.cut.stages):
        call.run_part(stage.common)
        call.reduce(stage, level)
    call.store()
    task.times.end(COMMON, level)


# -- in slices


class SlicedCall(RankCall):
    """A call whose rows parts run for one slice after the other."""

    def run(self) -> list[np.ndarray]:
        """Run all stages and return the outputs."""
        sources, selections = self.task.sources, self.task.selections
        self.parts = num_slices = self.task.num_slices
        # More slices than rows would be empty ones.
        num_slices = min(num_slices, max(map(count, selections)) or 1)
        bounds = [cuts(count(rows), num_slices) for rows in selections]
        sizes = list(zip(*map(part_lengths, bounds), strict=True))
        present = [i for i in range(num_slices) if any(sizes[i])] or [0]
        self._shares = shares([sizes[i][0] for i in present])
        self._pieces = [
            [
                part(rows, ends[i], ends[i + 1])
                for rows, ends in zip(selections, bounds, strict=True)
            ]
            for i in present
        ]
        before = np.cumsum([0, *(sizes[i][0] for i in present)])
        self._rows_before = [int(rows) for rows in before[:-1]]
        self._before = 0
        self._forwarded: list[dict] = [{} for _ in present]  # by slice
        self._totals: dict[tuple[str, Variable], Any] = {}
        for level, stage in enumerate(self.cut.stages):
            self.rows = self.programs.loader.take(sources, self._pieces[0])
            self.times.spent(ROWS)
            if stage.common:
                self.run_part(stage.common)
                self.times.spent(COMMON, level)
            if stage.rows:
                self._run_slices(stage, level, sources)
            self.reduce(stage, level)
        return self.finish()

    def _run_slices(
        self, stage: Stage, level: int, sources: Sequence[np.ndarray]
    ) -> None:
        totals = {role: Total(op) for role, op in self._roles(stage).items()}
        common = self.values
        slices = zip(
            self._forwarded, self._pieces, self._shares, self._rows_before, strict=True
        )
        with _for_slices(self._drawn_from(stage)) as take_streams:
            for i, (forwarded, piece, share, before) in enumerate(slices):
                take_streams(i)
                self._before = before
                piece, self.padded_size = self.programs.padded(piece)
                self.rows = self.programs.loader.take(sources, piece)
                self.times.spent(ROWS)
                self.values = {**common, **forwarded}
                results = self.outputs_of(stage.rows, bool(self.padded_size))
                forwarded.update(zip(stage.rows.wants, results, strict=True))
                for (_, var), total in totals.items():
                    total.add(self.real(var, forwarded[var]), share)
                self.times.spent(COMPUTE, level)
        self.values, self.padded_size, self._before = common, UNPADDED, 0
        for (role, var), total in totals.items():
            self._totals[role, var] = total.result(is_output=role == "output")

    def _drawn_from(self, stage: Stage) -> list[SharedVariable]:
        """Return the streams that slices draw from and do not lead on.

        A later stage does, or nothing. From those that all ranks have alike every slice
        is to draw the same.
        """
        kept = {shared for shared, _ in stage.rows.updates}
        kept.update(stream.common for stream in self.spec.streams)
        return [
            var
            for var in stage.rows.reads
            if isinstance(var.type, RandomType) and var not in kept
        ]

    @property
    def first_row(self) -> int:
        """How many rows of the call are before those of the present slice."""
        return super().first_row + self._before

    def value(self, role: str, var: Variable) -> np.ndarray:
        """Return a value, accumulated over the slices where it was."""
        total = self._totals.get((role, var))
        return self.values[var] if total is None else total

    def _roles(self, stage: Stage) -> dict[tuple[str, Variable], Any]:
        """Return what the rows part computes, what for, and how slices combine it."""
        roles: dict[tuple[str, Variable], Any] = {}
        inputs = self.inputs_read(stage)
        for reduced in stage.reduced:
            if reduced not in inputs:
                roles["reduce", contributed(reduced)] = op_of(reduced)
        for i in self.subset:
            roles["output", self.spec.outputs[i]] = self.spec.wire_ops[i]
        for i in self.cut.stored:
            roles["update", self.spec.updates[i][1]] = self.spec.update_ops[i]
        wants = set(stage.rows.wants)
        return {role: op for role, op in roles.items() if role[1] in wants}


@contextlib.contextmanager
def _for_slices(variables: Iterable[SharedVariable]) -> Iterator[Callable[[int], None]]:
    """Give what has each slice draw numbers of its own, from the same variables.

    Called with the number of a slice, it gives the variables their values for that
    slice. Afterwards they are what they were.
    """
    states = {var: host.get_value(var) for var in variables}

    def take(i: int) -> None:
        for var, state in states.items():
            mine = derived(state, SLICE, i) if i else copy.deepcopy(state)
            host.set_value(var, mine)

    try:
        yield take
    finally:
        for var, state in states.items():
            host.set_value(var, state)
