"""Which stages' parts can be run for blocks of rows, and how their values meet.

What a compiled graph computes on the way, such as ``X @ w`` and functions of it, is
read while it is in a core's cache then. A block is to the graph what a rank is: rows of
its own, which the collectives take as they take a rank's. Whether a function goes in
blocks, and of how many rows, is in its plan (`choice.plan`); how they are run is in
`running`.

Sums, averages and products come together in a tree over the blocks' numbers, of which a
rank makes the subtrees that it has all blocks of (`reduce_tree`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.random.type import RandomType
from pytensor.tensor.type import DenseTensorType

from ..compiler.kept import row_by_row
from ..compiler.rules.base import name
from ..compiler.spec import FunctionSpec
from ..compiler.stages import Cut, Stage, contributed, op_of
from ..engines.numba_blocks import Loop, Way, is_tree
from ..reduce_ops import ReduceOp
from ..reduce_tree import Columns, has_order


class Take(NamedTuple):
    """A value that a part makes of each block, and how those come together."""

    var: Variable
    way: Way


class PartInBlocks:
    """How a stage's part goes in blocks.

    It makes what the stage reduces in a tree, outputs that the master combines in one,
    and all else. The trees come together by these ops.
    """

    def __init__(
        self,
        handed: list[Take],
        wired: list[Take],
        others: list[Take],
        ops: Mapping[Variable, Any],
    ) -> None:
        self.takes = [*handed, *wired, *others]
        self.trees = [var for var, _ in (*handed, *wired)]
        self.wired = [var for var, _ in wired]
        self.others = others
        self._handed, self._ops = len(handed), ops
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
            handed, wired, every = map(Columns, (kinds[:n], kinds[n:], kinds))
            self._columns[key] = handed, wired, every
        return self._columns[key]


class Blocks:
    """The parts of a function on one rank that can be run for blocks of rows."""

    def __init__(self, spec: FunctionSpec) -> None:
        self._spec = spec
        self._sums: dict[Variable, ReduceOp | None] = dict(spec.sums)
        if spec.sliceable:
            self._sums = {}
        # By the identity of a stage's merged part.
        self._found: dict[int, PartInBlocks | None] = {}
        self._handed: dict[int, dict[Variable, int]] = {}
        # What runs a part in a compiled loop; None where there can be none.
        self.loops: dict[int, Loop | None] = {}
        # Why not all that is computed of rows can go in blocks.
        self.refused: str | None = None
        # How many blocks the last call's first such part had, and whether a compiled
        # loop went through them.
        self.last: tuple[int, bool] | None = None

    def cover(self, cut: Cut) -> bool:
        """Tell whether all that a call computes of rows can go in blocks."""
        stages = [stage for stage in cut.stages if stage.rows]
        return bool(stages) and all(self.in_blocks(stage, cut) for stage in stages)

    def are_apart(self, cut: Cut) -> bool:
        """Tell whether something is needed of each block by itself."""
        found = [self.in_blocks(stage, cut) for stage in cut.stages if stage.rows]
        return any(way == "stack" for each in found if each for _, way in each.takes)

    def in_blocks(self, stage: Stage, cut: Cut) -> PartInBlocks | None:
        """Return how a stage's part goes in blocks, or None if it cannot."""
        number = id(stage.merged)
        if number not in self._found:
            found = self._find(stage, cut)
            if isinstance(found, str):
                self.refused = self.refused or found
            self._found[number] = None if isinstance(found, str) else found
        return self._found[number]

    def _find(self, stage: Stage, cut: Cut) -> PartInBlocks | str:
        """Return how a part goes in blocks, or why it cannot."""
        part = stage.merged
        if part.updates or any(isinstance(v.type, RandomType) for v in part.reads):
            return "random numbers are drawn for it"
        if self._spec.call.first in ancestors(part.wants, part.receives):
            return "it numbers its rows among all"
        handed, wired, others = (dict[Take, None]() for _ in range(3))
        for var in part.wants:
            if var not in cut.on_rows:
                others[Take(var, None)] = None
                continue
            if not isinstance(var.type, DenseTensorType):
                return f"{name(var)} is no dense tensor"
            for use, op in self._uses(var, stage, cut):
                way = self._way(var, op)
                if way == "none":
                    how = "as the script has it" if op is None else f"by {op!r}"
                    return f"{name(var)} does not follow from blocks of rows, {how}"
                into = others
                if is_tree(way):
                    into = handed if use == "reduced" else wired
                into[Take(var, way)] = None
        return PartInBlocks(list(handed), list(wired), list(others), self._sums)

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

        By each is which of the values that the stage hands on it is of, on a rank
        without rows too.
        """
        number = id(stage.merged)
        if number not in self._handed:
            found: dict[Variable, Any] = {}
            for red in stage.reduced:
                var, op = contributed(red), op_of(red)
                is_sum = self._sums.get(var) == op and var in cut.on_rows
                if is_sum and has_order(op, var.type.dtype):  # type: ignore[attr-defined]
                    found[red] = var
            given = set(found.values())
            order = [var for var in stage.merged.wants if var in given]
            self._handed[number] = {red: order.index(v) for red, v in found.items()}
        return self._handed[number]
