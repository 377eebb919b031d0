"""Runs a rank's call: on its rows at once, in blocks, in slices, or without rows.

Blocks follow from the plan, slices from the script's `num_slices`. Every slice starts
from the original values of the shared variables. The values of a stage's rows part are
accumulated over the slices, by the op of each of their uses; the common part runs once.

If numba has compiled a part, it compiles the loop over blocks as well; otherwise Python
runs the loop.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Literal

import numpy as np
from pytensor.compile import SharedVariable
from pytensor.graph.basic import Variable
from pytensor.tensor.random.type import RandomType
from pytensor.tensor.type import DenseTensorType

from ..compiler.kept import Kept
from ..compiler.stages import Part, Stage, contributed, op_of
from ..draws import SLICE, derived
from ..engines import host
from ..engines.numba_blocks import ERRORS, CutBy, Loop, Looped, loop_over_blocks
from ..memory.partition import count, cuts, part, part_lengths
from ..reduce_ops import Accumulator, ReduceOp, result_dtype, shares
from ..reduce_tree import BlockCut, Columns, Stack, Subtrees, TreeOutput
from ..times.timing import COMMON, COMPUTE, ROWS
from .blocks import PartInBlocks
from .one_call import RankCall, Task
from .padding import UNPADDED


def run(task: Task) -> list[Any]:
    """Compute outputs and make updates, for a rank with rows; return the outputs."""
    if task.kind == "slice":
        return SlicedCall(task, "slice").run()
    call, programs, times = RankCall(task, task.kind), task.programs, task.times
    call.padded_size = task.padded_size
    if task.sources:
        call.rows = task.taken or programs.loader.take(task.sources, task.selections)
        times.spent(ROWS)
    kept = programs.kept(task.subset) if task.kind == "kept" else None
    if kept is not None:
        _take_kept(task, call, kept)
    programs.blocks.last = None
    is_padded = bool(task.padded_size)
    for level, stage in enumerate(call.cut.stages):
        is_of_rows = stage.phase == COMPUTE
        call.run_part(stage.drawn)
        if task.tree is not None and stage.merged and is_of_rows:
            _run_in_blocks(call, level, kept, task.tree)
        else:
            call.run_part(stage.merged, padded=is_padded and is_of_rows)
        call.reduce(stage, level)
    return call.finish()


def idle(task: Task) -> None:
    """Run the common parts and the reductions of a call, on a rank without rows."""
    call = RankCall(task, "idle")
    # The common parts take rows as arguments, and do not read them.
    call.rows = [
        np.empty((0, *source.shape[1:]), var.type.dtype)
        for source, var in zip(task.sources, task.programs.spec.row_inputs, strict=True)
    ]
    for level, stage in enumerate(call.cut.stages):
        call.run_part(stage.common)
        call.reduce(stage, level)
    call.store()
    task.times.end(COMMON, level)


class Total:
    """One value, accumulated by its op over blocks or slices of a rank's rows."""

    def __init__(self, op: Any) -> None:
        self._op: ReduceOp | Literal["gather", "stack"] | None = op
        self._value: Any = None

    def add(self, value: np.ndarray, share: float) -> None:
        """Add the value of one more block or slice; `share` is its part of the rows."""
        if self._op is None:
            self._value = value  # the last one counts
        elif self._op == "gather" or self._op == "stack":
            self._value = [*(self._value or []), value]
        elif share or self._op != "avg":  # 0 times NaN is NaN
            if self._value is None:
                self._value = Accumulator(self._op, value.dtype)
            self._value.add(value, share)

    def result(self, is_output: bool = False) -> np.ndarray:
        """Return the accumulated value."""
        if self._op is None:
            return self._value
        if self._op == "gather":
            return np.concatenate(list(map(np.atleast_1d, self._value)))
        if self._op == "stack":
            return np.stack(self._value)
        # An average of integers is rounded for a variable, but not for an output.
        dtype = self._value.dtype
        return self._value.result(result_dtype(self._op, dtype) if is_output else None)


# -- in blocks


def _take_kept(task: Task, call: RankCall, kept: Kept) -> None:
    """Set the values of terms of the rows alone, kept or computed now."""
    block, passed_on = task.tree.block if task.tree else 0, call.spec.passed_on
    compute = partial(call.outputs_of, kept, padded=False)
    if block:
        compute = partial(_kept_in_blocks, call, kept, block)
    key = None if task.kept is None else (block, *task.kept)
    for var, value in task.programs.kept_terms.of(kept, key, compute).items():
        by_block = block and passed_on[var] == "stack"
        (call.by_block if by_block else call.values)[var] = value


def _kept_in_blocks(call: RankCall, kept: Kept, size: int) -> list[np.ndarray]:
    """Return the terms of the rows alone, computed block by block.

    A term without an entry for each row has one for each block.
    """
    found: list[list] = [[] for _ in kept.wants]
    for _ in _each_block(call, size, {}):
        for some, value in zip(found, call.outputs_of(kept, False), strict=True):
            some.append(value)
    return [
        np.stack(some) if call.spec.passed_on[var] == "stack" else np.concatenate(some)
        for var, some in zip(kept.wants, found, strict=True)
    ]


def _run_in_blocks(
    call: RankCall, level: int, kept: Kept | None, tree: BlockCut
) -> None:
    """Run a stage's part in blocks of rows.

    `kept` is the part of kept terms, if there are any, which this part receives.
    """
    stage, blocks = call.cut.stages[level], call.programs.blocks
    found, piece = blocks.in_blocks(stage, call.cut), stage.merged
    assert found is not None  # see `Programs.block`
    size, first, rows = tree.block, tree.first(call.rank), len(call.rows[0])
    if id(piece) not in blocks.loops:
        blocks.loops[id(piece)] = _compiled_loop(call, piece, found, kept)
    loop = blocks.loops[id(piece)]
    blocks.last = blocks.last or (-(-rows // size), loop is not None)
    made = None
    if loop is not None:
        try:
            made = loop(size, first, rows, *call.arguments(piece))
        except ERRORS:  # if the call is wrong, the loop in Python raises it better
            pass
    if made is None:
        made = _one_by_one(call, piece, found, kept, size, first)
        blocks.loops[id(piece)] = None  # only the compiled loop had an error
    _store_values(call, found, made, tree, level)


def _received(call: RankCall, piece: Part, kept: Kept | None) -> dict[Variable, CutBy]:
    """Return how each received value is cut for a block; None: it is passed whole."""
    spec = call.programs.spec
    early = spec.early_draws or ()
    return {
        var: None
        if var not in call.cut.on_rows
        else "rows"
        if var in early or spec.passed_on[var] == "gather"
        else "blocks"
        for var in piece.receives
    }


def _compiled_loop(
    call: RankCall, piece: Part, found: PartInBlocks, kept: Kept | None
) -> Loop | None:
    """Return a compiled loop that runs a part on all blocks, or None."""
    kinds: list[Any] = [var.type for var in piece.wants]
    if not all(isinstance(kind, DenseTensorType) for kind in kinds):
        return None
    received = [*_received(call, piece, kept).values()]
    whole = len(call.arguments(piece)) - len(call.rows) - len(received)
    by_rows: list[CutBy] = ["rows"] * len(call.rows)
    place = piece.wants.index
    return loop_over_blocks(
        call.programs.program(piece),
        [*by_rows, *[None] * whole, *received],
        [kind.dtype for kind in kinds],
        [(place(var), way) for var, way in found.takes],
    )


def _one_by_one(
    call: RankCall,
    piece: Part,
    found: PartInBlocks,
    kept: Kept | None,
    size: int,
    first: int,
) -> Looped:
    """Run a part on one block after the other, in a Python loop."""
    trees, others = found.trees, found.others
    totals = [Total("gather" if way == "rows" else way) for _, way in others]
    columns: Columns | None = None
    stack: Stack | None = None
    received = _received(call, piece, kept)
    for rows, blocks in _each_block(call, size, received):
        results = call.outputs_of(piece, False)
        made = dict(zip(piece.wants, map(np.asarray, results), strict=True))
        if stack is None or columns is None:
            *_, columns = found.columns([made[var].shape for var in trees])
            stack = Stack(first, blocks, columns)
        for var, column in zip(trees, columns.each, strict=True):
            column.write(stack.next, made[var], rows)
        stack.push()
        for (var, _), total in zip(others, totals, strict=True):
            total.add(made[var], 1.0)
    assert stack is not None
    assert columns is not None
    every = [total.result() for total in totals]
    return Looped(stack.entries, [each.shape for each in columns.each], every)


def _each_block(
    call: RankCall, size: int, received: dict[Variable, CutBy]
) -> Iterator[tuple[int, int]]:
    """Set the call's rows and values to those of one block after the other.

    Yield the number of rows of the block, and the number of blocks.
    """
    rows, values, by_block = call.rows, call.values, call.by_block
    of_rows = {var: values[var] for var, by in received.items() if by == "rows"}
    of_blocks = {var: by_block[var] for var, by in received.items() if by == "blocks"}
    starts = range(0, len(rows[0]), size)
    try:
        call.by_block = {}
        for k, start in enumerate(starts):
            here = slice(start, min(start + size, len(rows[0])))
            call.rows = [array[here] for array in rows]
            call.values = {
                **values,
                **{var: value[here] for var, value in of_rows.items()},
                **{var: value[k, ...] for var, value in of_blocks.items()},
            }
            yield here.stop - start, len(starts)
    finally:
        call.rows, call.values, call.by_block = rows, values, by_block


def _store_values(
    call: RankCall, found: PartInBlocks, made: Looped, tree: BlockCut, level: int
) -> None:
    """Store the values of a part in blocks: own ones, and subtrees for other ranks."""
    entries, shapes, results = made
    columns, outputs, _ = found.columns(shapes)
    for (var, way), value in zip(found.others, results, strict=True):
        (call.by_block if way == "stack" else call.values)[var] = value
    call.subtrees = None
    if columns.each:
        call.subtrees = Subtrees(entries[:, : columns.width], columns)
    if outputs.each:
        subtrees = Subtrees(entries[:, columns.width :], outputs)
        for place, var in enumerate(found.outputs):
            key = "tree", level
            call.in_trees[var] = TreeOutput(key, subtrees, tree, place)


# -- in slices


class SlicedCall(RankCall):
    """A call whose rows parts run on one slice of the rank's rows after the other."""

    def run(self) -> list[np.ndarray]:
        """Run all stages and return the outputs."""
        sources, selections = self.task.sources, self.task.selections
        self.parts = num_slices = self.task.num_slices
        # No more slices than rows: further ones would be empty.
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
        slices = zip(self._forwarded, self._pieces, self._shares, strict=True)
        with _for_slices(self._drawn_from(stage)) as take_streams:
            for i, (forwarded, piece, share) in enumerate(slices):
                take_streams(i)
                padded, self.padded_size = self.programs.padded(piece)
                self.rows = self.programs.loader.take(sources, padded)
                self.times.spent(ROWS)
                self.values = {**common, **forwarded}
                results = self.outputs_of(stage.rows, bool(self.padded_size))
                forwarded.update(zip(stage.rows.wants, results, strict=True))
                for (_, var), total in totals.items():
                    total.add(self.real(var, forwarded[var]), share)
                self.times.spent(COMPUTE, level)
                self._before += count(piece[0])
        self.values, self.padded_size, self._before = common, UNPADDED, 0
        for (role, var), total in totals.items():
            self._totals[role, var] = total.result(is_output=role == "output")

    def _drawn_from(self, stage: Stage) -> list[SharedVariable]:
        """Return the streams that slices draw from and this stage does not advance.

        Without the streams that all ranks share: there each slice draws the same.
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
        """The number of the call's rows before those of the present slice."""
        return super().first_row + self._before

    def value(self, role: str, var: Variable) -> np.ndarray:
        """Return a value, or its total over slices for this `role`, if there is one."""
        total = self._totals.get((role, var))
        return self.values[var] if total is None else total

    def _roles(self, stage: Stage) -> dict[tuple[str, Variable], Any]:
        """Return {(role, value of the rows part): op that combines slices}."""
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
    """Yield a function that sets the streams to the state slice i draws from.

    Afterwards, the streams have their former states again.
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
