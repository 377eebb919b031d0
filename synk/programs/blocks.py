"""Which parts of stages can run block by block, and how blocks' values are combined.

With blocks of rows, intermediate values such as ``X @ w`` are read while they are in a
core's cache. The graph computes a block as it computes a rank's rows, so collectives
combine blocks as they combine ranks. The plan says whether a call goes in blocks, and
of how many rows (`choice.plan`); `running` runs them.

Sums, averages and products of floats are added in a tree over the blocks' numbers. Each
rank makes the subtrees of its own blocks (`reduce_tree`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.random.type import RandomType
from pytensor.tensor.type import DenseTensorType

from ..compiler.rules.base import name
from ..compiler.spec import FunctionSpec
from ..compiler.stages import Cut, Stage, contributed, op_of
from ..engines.numba_blocks import Loop, Way, is_tree
from ..reduce_ops import ReduceOp
from ..reduce_tree import Columns, has_order


class Take(NamedTuple):
    """A value that a part computes for each block, and the way to combine these."""

    var: Variable
    way: Way


class PartInBlocks:
    """How a stage's part runs block by block: the values to take from each block.

    `reduced` are values that the stage reduces in a tree, `outputs` those that the
    master combines in a tree, `others` all else. `ops` has the op of each value.
    """

    def __init__(
        self,
        reduced: list[Take],
        outputs: list[Take],
        others: list[Take],
        ops: Mapping[Variable, Any],
    ) -> None:
        self.takes = [*reduced, *outputs, *others]
        self.trees = [var for var, _ in (*reduced, *outputs)]
        self.outputs = [var for var, _ in outputs]
        self.others = others
        self._n_reduced, self._ops = len(reduced), ops
        self._columns: dict[tuple, tuple[Columns, Columns, Columns]] = {}

    def columns(
        self, shapes: Sequence[tuple[int, ...]]
    ) -> tuple[Columns, Columns, Columns]:
        """Return the columns of `reduced`, of `outputs` and of both, for `shapes`."""
        key = tuple(shapes)
        if key not in self._columns:
            trees = zip(shapes, self.trees, strict=True)
            kinds = [(shape, var.type.dtype, self._ops[var]) for shape, var in trees]  # type: ignore[attr-defined]
            n = self._n_reduced
            reduced, outputs, every = map(Columns, (kinds[:n], kinds[n:], kinds))
            self._columns[key] = reduced, outputs, every
        return self._columns[key]


class Blocks:
    """The parts of a function, on one rank, that can run block by block."""

    def __init__(self, spec: FunctionSpec) -> None:
        self._spec = spec
        self._sums: dict[Variable, ReduceOp | None] = dict(spec.sums)
        if spec.sliceable:
            self._sums = {}
        # By the id of a stage's merged part, as all dicts here.
        self._found: dict[int, PartInBlocks | None] = {}
        self._reductions: dict[int, dict[Variable, int]] = {}
        # The compiled loop over the blocks of a part; None if numba cannot compile it.
        self.loops: dict[int, Loop | None] = {}
        # The first reason why some part cannot run block by block.
        self.refused: str | None = None
        # Of the last call's first part in blocks: the number of blocks, and whether a
        # compiled loop ran them.
        self.last: tuple[int, bool] | None = None

    def cover(self, cut: Cut) -> bool:
        """Return whether all parts of a call that have rows can run block by block."""
        stages = [stage for stage in cut.stages if stage.rows]
        return bool(stages) and all(self.in_blocks(stage, cut) for stage in stages)

    def in_blocks(self, stage: Stage, cut: Cut) -> PartInBlocks | None:
        """Return how a stage's part runs block by block, or None if it cannot."""
        number = id(stage.merged)
        if number not in self._found:
            found = self._find(stage, cut)
            if isinstance(found, str):
                self.refused = self.refused or found
            self._found[number] = None if isinstance(found, str) else found
        return self._found[number]

    def _find(self, stage: Stage, cut: Cut) -> PartInBlocks | str:
        """Return how a part runs block by block, or why it cannot."""
        part = stage.merged
        if part.updates or any(isinstance(v.type, RandomType) for v in part.reads):
            return "random numbers are drawn for it"
        if self._spec.call.first in ancestors(part.wants, part.receives):
            return "it numbers its rows among all"
        reduced, outputs, others = (dict[Take, None]() for _ in range(3))
        for var in part.wants:
            if var not in cut.on_rows:
                others[Take(var, None)] = None
                continue
            if not isinstance(var.type, DenseTensorType):
                return f"{name(var)} is no dense tensor"
            for use, op in self._uses(var, stage, cut):
                way = self._way(var, op)
                if way == "none":
                    how = {None: "as the script has it", "none": "for a later stage"}
                    by = how.get(op, f"by {op!r}")
                    return f"{name(var)} does not follow from blocks of rows, {by}"
                into = others
                if is_tree(way):
                    into = reduced if use == "reduced" else outputs
                into[Take(var, way)] = None
        return PartInBlocks(list(reduced), list(outputs), list(others), self._sums)

    def _uses(self, var: Variable, stage: Stage, cut: Cut) -> Iterator[tuple[str, Any]]:
        """Yield each use of a value, and the op that combines ranks' values for it."""
        for red in stage.reduced:
            if contributed(red) is var:
                yield "reduced", op_of(red)
        for output, op in zip(self._spec.outputs, self._spec.wire_ops, strict=True):
            if output is var and output in cut.outputs:
                yield "output", op
        if any(new is var for _, new in cut.updates):
            yield "update", "own"
        if any(var in other.merged.receives for other in cut.stages):
            yield "forwarded", self._spec.passed_on.get(var, "none")

    def _way(self, var: Any, op: Any) -> Way | Literal["none"]:
        """Return the way to combine blocks' values for a use with this op."""
        if op == "gather":
            return "none" if var in self._sums else "rows"
        if op == "stack":
            return "stack"
        if var not in self._sums or op != self._sums[var]:
            return "none"
        way: Any = f"{op} tree" if has_order(op, var.type.dtype) else op
        return way

    def tree_reductions(self, stage: Stage, cut: Cut) -> dict[Variable, int]:
        """Return {reduction in a tree: position of its value in the reduced ones}.

        A rank without rows needs this as well.
        """
        number = id(stage.merged)
        if number not in self._reductions:
            found: dict[Variable, Any] = {}
            for red in stage.reduced:
                var, op = contributed(red), op_of(red)
                is_sum = self._sums.get(var) == op and var in cut.on_rows
                if is_sum and has_order(op, var.type.dtype):  # type: ignore[attr-defined]
                    found[red] = var
            given = set(found.values())
            order = [var for var in stage.merged.wants if var in given]
            self._reductions[number] = {red: order.index(v) for red, v in found.items()}
        return self._reductions[number]
