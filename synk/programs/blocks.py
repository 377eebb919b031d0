"""A stage's part, run for blocks of rows that stay in a core's cache.

What a compiled graph computes on the way, such as ``X @ w`` and functions of it, is
then read while it is in the cache. Whether a function goes in blocks, and of how many
rows, is in its plan (`choice.plan`). Where numba has compiled a part, the loop over
blocks is compiled as well; else Python goes from block to block.

Sums, averages and products come together in a tree over the blocks' numbers, of which a
rank makes the subtrees that it has all blocks of (`reduce_tree`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.random.type import RandomType
from pytensor.tensor.type import DenseTensorType

from ..compiler.kept import Kept, row_by_row
from ..compiler.rules.base import name
from ..compiler.spec import FunctionSpec
from ..compiler.stages import Cut, Part, Stage, contributed, op_of
from ..engines.numba_blocks import (
    ERRORS,
    CutBy,
    Loop,
    Looped,
    Way,
    is_tree,
    loop_over_blocks,
)
from ..reduce_ops import Accumulator, ReduceOp, result_dtype
from ..reduce_tree import (
    BlockCut,
    Columns,
    Stack,
    Subtrees,
    TreeOutput,
    block_cut,
    combined,
    has_order,
)


class CallInBlocks(Protocol):
    """What is needed of one rank's part in a call: see `one_call`.

    Attributes
    ----------
    values, by_block : dict of Variable to numpy.ndarray
        What this rank has as a whole, and of each block, along a first axis.
    handed : Subtrees or None
        What goes to the other ranks, to be reduced in a tree.
    in_trees : dict of Variable to TreeOutput
        What the master combines in one.
    """

    rows: list[Any]
    rank: int
    values: dict[Variable, Any]
    by_block: dict[Variable, Any]
    handed: Subtrees | None
    in_trees: dict[Variable, TreeOutput]
    cut: Cut
    programs: Any

    def outputs_of(self, piece: Part, padded: bool) -> list[Any]:
        """Run a part on the rows taken."""

    def arguments(self, piece: Part) -> list[Any]:
        """Return what the code of a part takes: rows, constants, what it receives."""


class Take(NamedTuple):
    """A value that a part makes of each block, and how those come together."""

    var: Variable
    way: Way


class PartInBlocks:
    """How a stage's part goes in blocks.

    Parameters
    ----------
    handed, wired, others : iterable of Take
        What the stage reduces in a tree; outputs that the master combines in one; and
        all else.
    ops : mapping of Variable to ReduceOp
        By which values come together.

    Attributes
    ----------
    takes : list of Take
        All of them, in this order.
    trees : list of Variable
        What comes together in a tree.
    others : list of Take
        What does not.
    """

    def __init__(
        self,
        handed: Iterable[Take],
        wired: Iterable[Take],
        others: Iterable[Take],
        ops: Mapping[Variable, Any],
    ) -> None:
        first, then, self.others = list(handed), list(wired), list(others)
        self.takes = [*first, *then, *self.others]
        self.trees = [var for var, _ in (*first, *then)]
        self.wired = [var for var, _ in then]
        self._handed, self._ops = len(first), ops
        self._columns: dict[tuple, tuple[Columns, Columns, Columns]] = {}

    def columns(
        self, shapes: Sequence[tuple[int, ...]]
    ) -> tuple[Columns, Columns, Columns]:
        """Return where values lie in entries: those handed on, those wired, and all."""
        key = tuple(shapes)
        if key not in self._columns:
            trees = zip(shapes, self.trees, strict=True)
            kinds = [(shape, var.type.dtype, self._ops[var]) for shape, var in trees]  # type: ignore[attr-defined]
            n = self._handed
            parts = kinds[:n], kinds[n:], kinds
            handed, wired, every = map(Columns, parts)
            self._columns[key] = handed, wired, every
        return self._columns[key]


class Blocks:
    """The parts of a function on one rank that can be run for blocks of rows.

    A block is to the graph what a rank is: rows of its own, which the collectives take
    as they take a rank's.

    Attributes
    ----------
    refused : str or None
        Why not all that is computed of rows can go in blocks.
    last : tuple of (int, bool), or None
        How many blocks the last call's first such part had, and whether a compiled
        loop went through them.
    """

    def __init__(self, spec: FunctionSpec) -> None:
        self._spec = spec
        self._sums: dict[Variable, ReduceOp | None] = dict(spec.sums)
        if spec.sliceable:
            self._sums = {}
        self._found: dict[int, PartInBlocks | None] = {}
        self._loops: dict[int, Loop | None] = {}
        self._handed: dict[int, dict[Variable, int]] = {}
        self.refused: str | None = None
        self.last: tuple[int, bool] | None = None

    # -- whether, and how

    def cover(self, cut: Cut, kept: Kept | None = None) -> bool:
        """Tell whether all that a call computes of rows can go in blocks."""
        stages = [stage for stage in cut.stages if stage.rows]
        return bool(stages) and all(self.found(each, cut, kept) for each in stages)

    def are_apart(self, cut: Cut, kept: Kept | None) -> bool:
        """Tell whether something is needed of each block by itself."""
        found = [self.found(each, cut, kept) for each in cut.stages if each.rows]
        return any(way == "stack" for each in found if each for _, way in each.takes)

    def found(self, stage: Stage, cut: Cut, kept: Kept | None) -> PartInBlocks | None:
        """Return how a stage's part goes in blocks, or None if it cannot."""
        number = id(stage.merged)
        if number not in self._found:
            self._found[number] = self._find(stage, cut, kept)
        return self._found[number]

    def _find(self, stage: Stage, cut: Cut, kept: Kept | None) -> PartInBlocks | None:
        part = stage.merged
        if part.updates or any(isinstance(v.type, RandomType) for v in part.reads):
            self._refuse("random numbers are drawn for it")
            return None
        if self._spec.call.first in ancestors(part.wants, part.receives):
            self._refuse("it numbers its rows among all")
            return None
        handed, wired, others = (dict[Take, None]() for _ in range(3))
        for var in part.wants:
            if var not in cut.on_rows:
                others[Take(var, None)] = None
                continue
            if not isinstance(var.type, DenseTensorType):
                self._refuse(f"{name(var)} is no dense tensor")
                return None
            for use, op in self._uses(var, stage, cut):
                way = self._way(var, op)
                if way == "none":
                    how = "as the script has it" if op is None else f"by {op!r}"
                    self._refuse(
                        f"{name(var)} does not follow from blocks of rows, {how}"
                    )
                    return None
                is_handed = is_tree(way) and use == "reduced"
                into = handed if is_handed else wired if is_tree(way) else others
                into[Take(var, way)] = None
        return PartInBlocks(handed, wired, others, self._sums)

    def _refuse(self, why: str) -> None:
        """Note why a part cannot go in blocks."""
        self.refused = self.refused or why

    def _uses(self, var: Variable, stage: Stage, cut: Cut) -> Iterator[tuple[str, Any]]:
        """Yield what a value is for, and how it is combined or received there."""
        for red in stage.reduced:
            if contributed(red) is var:
                yield "reduced", op_of(red)
        for output, op in zip(self._spec.outputs, self._spec.wire_ops, strict=True):
            if output is var and output in cut.outputs:
                yield "output", op
        if any(new is var for _, new in cut.updates):
            yield "update", "own"
        if any(var in other.merged.receives for other in cut.stages):
            is_by_row = row_by_row([var], self._spec.inputs)
            yield "forwarded", "gather" if is_by_row else "stack"

    def _way(self, var: Any, op: Any) -> Way | Literal["none"]:
        """Return how blocks' values come together for a use."""
        if op == "gather":
            return "none" if var in self._sums else "rows"
        if op == "stack":
            return "stack"
        if var not in self._sums or op != self._sums[var]:
            return "none"
        way: Any = f"{op} tree" if has_order(op, var.type.dtype) else op
        return way

    def handed(self, stage: Stage, cut: Cut) -> dict[Variable, int]:
        """Return the reductions of a stage that go in a tree, if its part does.

        Returns
        -------
        dict of Variable to int
            Which of the values that the stage hands on each is of, on a rank without
            rows too.
        """
        number = id(stage.merged)
        if number not in self._handed:
            found = [red for red in stage.reduced if self._is_handed(red, cut)]
            given = set(map(contributed, found))
            order = [var for var in stage.merged.wants if var in given]
            places = {var: i for i, var in enumerate(order)}
            self._handed[number] = {red: places[contributed(red)] for red in found}
        return self._handed[number]

    def _is_handed(self, reduced: Variable, cut: Cut) -> bool:
        var: Any = contributed(reduced)
        op = op_of(reduced)
        is_sum = self._sums.get(var) == op and var in cut.on_rows
        return is_sum and has_order(op, var.type.dtype)

    # -- a call

    def run(
        self,
        call: CallInBlocks,
        level: int,
        kept: Kept | None,
        size: int,
        tree: BlockCut | None,
    ) -> bool:
        """Run a stage's part, if it can go in blocks; return whether it has.

        Parameters
        ----------
        kept : Kept, optional
            The part that computed terms which this one receives.
        size : int
            Rows of a block.
        tree : BlockCut or None
            How the rows of all ranks are cut; None if each rank adds up its own.
        """
        stage = call.cut.stages[level]
        found, part = self.found(stage, call.cut, kept), stage.merged
        rows, rank = len(call.rows[0]), call.rank
        local = block_cut((0, rows), size) if tree is None else tree.of(rank)
        if found is None or local is None:
            return False
        loop = self._loop(call, part, found, kept)
        self.last = self.last or (-(-rows // size), loop is not None)
        made = None
        if loop is not None:
            try:
                made = loop(size, local.first(0), rows, *call.arguments(part))
            except ERRORS:  # whatever it is, PyTensor tells it better
                pass
        if made is None:
            made = self._one_by_one(call, part, found, kept, size, local.first(0))
            self._loops[id(part)] = None  # it cannot be compiled, as this has no error
        self._keep(call, found, made, local, tree, level)
        return True

    @staticmethod
    def _keep(
        call: CallInBlocks,
        found: PartInBlocks,
        made: Looped,
        local: BlockCut,
        tree: BlockCut | None,
        level: int,
    ) -> None:
        """Tell apart what others get of a call and what is this rank's."""
        entries, shapes, results = made
        columns, wired, every = found.columns(shapes)
        for (var, way), value in zip(found.others, results, strict=True):
            (call.by_block if way == "stack" else call.values)[var] = value
        call.handed = None
        if tree is None:
            whole = combined(local, [entries], every)
            call.values.update(zip(found.trees, whole, strict=True))
            return
        if columns.each:
            call.handed = Subtrees(entries[:, : columns.width], columns)
        if wired.each:
            subtrees = Subtrees(entries[:, columns.width :], wired)
            for place, var in enumerate(found.wired):
                key = "tree", level
                call.in_trees[var] = TreeOutput(key, subtrees, tree, place)

    def _loop(
        self, call: CallInBlocks, part: Part, found: PartInBlocks, kept: Kept | None
    ) -> Loop | None:
        """Return what runs a part in a compiled loop, if there can be one."""
        if id(part) not in self._loops:
            self._loops[id(part)] = None
            kinds: list[Any] = [var.type for var in part.wants]
            if not all(isinstance(kind, DenseTensorType) for kind in kinds):
                return None
            received = _cut_of(part, call, kept)
            whole = len(call.arguments(part)) - len(call.rows) - len(received)
            cuts: list[CutBy] = ["rows"] * len(call.rows)
            place = part.wants.index
            self._loops[id(part)] = loop_over_blocks(
                call.programs.program(part),
                [*cuts, *[None] * whole, *received],
                [kind.dtype for kind in kinds],
                [(place(var), way) for var, way in found.takes],
            )
        return self._loops[id(part)]

    def _one_by_one(
        self,
        call: CallInBlocks,
        part: Part,
        found: PartInBlocks,
        kept: Kept | None,
        size: int,
        first: int,
    ) -> Looped:
        """Run a part for one block after the other, from Python."""
        trees, others = found.trees, found.others
        totals = [Total(_op_of(way)) for _, way in others]
        columns: Columns | None = None
        stack: Stack | None = None
        received = _cut_of(part, call, kept)
        for rows, blocks in _each_block(call, size, part.receives, received):
            results = call.outputs_of(part, False)
            made = dict(zip(part.wants, map(np.asarray, results), strict=True))
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


def _op_of(way: Way) -> Any:
    """Return the op of what does not come together in a tree."""
    return "gather" if way == "rows" else way


def kept_in_blocks(call: CallInBlocks, kept: Kept, size: int) -> list[np.ndarray]:
    """Return the terms of the data alone, computed in blocks as all else is.

    What has no entry for each row has one for each block.
    """
    found: list[list] = [[] for _ in kept.wants]
    for _ in _each_block(call, size, [], []):
        for some, value in zip(found, call.outputs_of(kept, False), strict=True):
            some.append(value)
    return [
        np.concatenate(some) if var in kept.rows else np.stack(some)
        for var, some in zip(kept.wants, found, strict=True)
    ]


def _cut_of(part: Part, call: CallInBlocks, kept: Kept | None) -> list[CutBy]:
    """Return what of that which a part receives goes to a block."""
    spec = call.programs.spec
    by_row = {*row_by_row(part.receives, spec.inputs), *(spec.apart or ())}
    if kept is not None:
        by_row.update(kept.rows)
    return [
        None if var not in call.cut.on_rows else "rows" if var in by_row else "blocks"
        for var in part.receives
    ]


def _each_block(
    call: CallInBlocks, size: int, receives: Sequence[Variable], cuts: Sequence[CutBy]
) -> Iterator[tuple[int, int]]:
    """Have a call compute on one block after the other.

    Yields
    ------
    rows, blocks : int
        The rows of a block; how many blocks there are.
    """
    rows, values, by_block = call.rows, call.values, call.by_block
    cut = dict(zip(receives, cuts, strict=True))
    of_rows = {var: values[var] for var, by in cut.items() if by == "rows"}
    of_blocks = {var: by_block[var] for var, by in cut.items() if by == "blocks"}
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


class Total:
    """One value, accumulated over parts of a rank's rows by its op."""

    def __init__(self, op: Any) -> None:
        self._op: ReduceOp | Literal["gather", "stack"] | None = op
        self._value: Any = None

    def add(self, value: np.ndarray, share: float) -> None:
        """Take the value of one more part."""
        if self._op is None:
            self._value = value  # as it is: in the end, that of the last part
        elif self._op == "gather" or self._op == "stack":
            self._value = [*(self._value or []), value]
        elif share or self._op != "avg":  # nothing times NaN is NaN
            if self._value is None:
                self._value = Accumulator(self._op, value.dtype)
            self._value.add(value, share)

    def result(self, is_output: bool = False) -> np.ndarray:
        """Return the value of all parts."""
        if self._op is None:
            return self._value
        if self._op == "gather":
            return np.concatenate(list(map(np.atleast_1d, self._value)))
        if self._op == "stack":
            return np.stack(self._value)
        # An average of integers is rounded only where a variable must hold it.
        dtype = self._value.dtype
        return self._value.result(result_dtype(self._op, dtype) if is_output else None)
