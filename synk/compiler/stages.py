"""Cutting a graph at its all-reduces into stages.

A value's *level* is the number of all-reduces on the longest way to it. Stage k
computes what has level k from rows, shared variables, values that were reduced before,
and values that stages before it computed. It has two parts::

    common   what no row of this rank enters: the same on every rank, computed once
    rows     the rest: computed for each slice, and not at all by a rank without rows

An ordinary call runs both as one compiled graph. Nothing is computed twice: what
another part or a later stage needs is forwarded to it, save for views and shapes, which
cost nothing.

A step of gradient descent, ``w - rate * all_reduce(gradient)``, comes down to::

    stage 0   rows     loss and gradient             -> all-reduce, one flat buffer
    stage 1   common   w - rate * reduced gradient   -> the update of w
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from pytensor.compile import SharedVariable
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.op import HasInnerGraph
from pytensor.graph.traversal import io_toposort
from pytensor.tensor.random.type import RandomType
from pytensor.tensor.shape import Shape, Shape_i
from pytensor.tensor.type import DenseTensorType

from ..ops import COLLECTIVES, is_reduced
from ..reduce_ops import ReduceOp
from ..times.timing import COMMON, COMPUTE
from .spec import FunctionSpec


@dataclass
class Part:
    """A graph that is compiled by itself.

    Attributes
    ----------
    wants : list of Variable
        What it computes for others: a user's outputs, values to reduce or to forward.
    receives : list of Variable
        What it takes from other parts, and reduced values.
    updates : list of (SharedVariable, Variable)
        Those of the function that it makes.
    reads : set of SharedVariable
    """

    wants: list[Variable] = field(default_factory=list)
    receives: list[Variable] = field(default_factory=list)
    updates: list[tuple[SharedVariable, Variable]] = field(default_factory=list)
    reads: set[SharedVariable] = field(default_factory=set)

    def __bool__(self) -> bool:
        return bool(self.wants or self.updates)


@dataclass
class Stage:
    """The parts of one level, and the all-reduces that end it."""

    common: Part
    rows: Part
    merged: Part
    reduced: list[Variable]  # outputs of AllReduce nodes
    phase: int = COMMON  # as which its computation counts
    of_inputs: dict[Variable, int] = field(default_factory=dict)
    """What of `reduced` has all rows of an input, and of which.

    They are where every rank can read them, so that none need meet for them.
    """


def contributed(reduced: Any) -> Variable:
    """Return what each rank gives for a result of a collective."""
    return reduced.owner.inputs[0]


def op_of(reduced: Any) -> ReduceOp | Literal["gather", "stack"]:
    """Return how a collective combines: an op, "gather" or "stack"."""
    return reduced.owner.op.op


def _inputs_of(reduced: list[Variable], inputs: list[Variable]) -> dict[Variable, int]:
    """Return which results are gathers of inputs as they are, and of which."""
    return {
        var: inputs.index(contributed(var))
        for var in reduced
        if op_of(var) == "gather" and contributed(var) in inputs
    }


@dataclass
class Cut:
    """All stages of a function, for some of its outputs.

    Attributes
    ----------
    stages : list of Stage
    outputs : list of Variable
        As asked for.
    deferred : list of int
        Updates that are stored when all stages are done: of variables that a later
        part still reads, and in calls with slices all that depend on rows.
    on_rows : set of Variable
        The values that differ between ranks because their rows do.
    """

    stages: list[Stage]
    outputs: list[Variable]
    deferred: list[int]
    on_rows: set[Variable]

    @cached_property
    def inputs_read(self) -> set[int]:
        """The numbers of the inputs of which every rank reads all rows."""
        return {i for stage in self.stages for i in stage.of_inputs.values()}


def cut(spec: FunctionSpec, subset: Iterable[int], in_slices: bool) -> Cut:
    """Cut the graph of a function into stages.

    Parameters
    ----------
    spec : FunctionSpec
    subset : iterable of int
        Which outputs are to be computed.
    in_slices : bool
        Whether the rows parts are to be run for one slice after the other.
    """
    outputs = [spec.outputs[i] for i in subset]
    return _Cutter(spec, outputs, in_slices).cut()


def uncut(spec: FunctionSpec, subset: Iterable[int]) -> Cut:
    """Return a function as one stage: on one rank an all-reduce changes nothing.

    What PyTensor makes of the whole graph is faster than of its parts. It adds the
    step of plain gradient descent to a parameter within the product that is the
    gradient, for one.
    """
    outputs = [spec.plain_outputs[i] for i in subset]
    merged = Part(list(dict.fromkeys(outputs)), updates=list(spec.plain_updates))
    return Cut([Stage(Part(), Part(), merged, [], COMPUTE)], outputs, [], set())


class _Cutter:
    def __init__(
        self, spec: FunctionSpec, outputs: list[Variable], in_slices: bool
    ) -> None:
        self.spec = spec
        self.outputs = outputs
        self.in_slices = in_slices
        self.news = [new for _, new in spec.updates]
        self.level: dict[Variable, int] = {}
        self.on_rows = spec.row_values([*outputs, *self.news])
        self.free: set[Variable] = set()
        self.reduced: list[Variable] = []
        self.forwarded: set[Variable] = set()
        nodes = io_toposort([], [*outputs, *self.news])
        for node in nodes:
            self._classify(node)
        self.drawn = _drawn_once(nodes, self.on_rows)

    def _classify(self, node) -> None:
        """Find the level of a node's outputs, and whether they are free."""
        _refuse_inner(node)
        level = max((self.level.get(var, 0) for var in node.inputs), default=0)
        if isinstance(node.op, COLLECTIVES):
            level += 1
            self.reduced.append(node.outputs[0])
        free = costs_nothing(node) and all(
            var.owner is None or var in self.free for var in node.inputs
        )
        for var in node.outputs:
            self.level[var] = level
            if free and not isinstance(node.op, COLLECTIVES):
                self.free.add(var)

    def cut(self) -> Cut:
        """Work backwards: a stage must know what the later ones want of it."""
        depth = max((self.level[var] for var in self.reduced), default=0)
        common_wants: list[dict] = [{} for _ in range(depth + 1)]
        rows_wants: list[dict] = [{} for _ in range(depth + 1)]

        def want(var: Variable) -> None:
            wants = rows_wants if var in self.on_rows else common_wants
            wants[self.level.get(var, 0)][var] = None

        for var in (*self.outputs, *(red.owner.inputs[0] for red in self.reduced)):
            want(var)
        for new in self.news:
            want(new)
        stages: list[Stage] = []
        for level in reversed(range(depth + 1)):
            for var in list(self._walk(rows_wants[level], level, set())):
                if var in self.drawn and self.level[var] == level:
                    want(var)
            common = self._part(common_wants[level], level, set(), want)
            computed = self._computed(common_wants[level], level, set())
            rows = self._part(rows_wants[level], level, computed, want)
            # Values that the rows part wants of the common part came last.
            common.wants = list(common_wants[level])
            merged = self._part(
                {**common_wants[level], **rows_wants[level]}, level, set(), want
            )
            reduced = [var for var in self.reduced if self.level[var] == level + 1]
            of_inputs = _inputs_of(reduced, self.spec.inputs)
            stage = Stage(common, rows, merged, reduced, of_inputs=of_inputs)
            stages.insert(0, stage)
        deferred = self._place_updates(stages)
        for stage in stages:
            stage.phase = COMPUTE if stage.rows else COMMON
        return Cut(stages, self.outputs, deferred, self.on_rows)

    def _part(self, wants: dict, level: int, common: set, want) -> Part:
        part = Part(list(wants))
        for var in self._walk(wants, level, common):
            if self._is_received(var, level, common):
                part.receives.append(var)
                if not is_reduced(var):
                    self.forwarded.add(var)
                    want(var)
            elif isinstance(var, SharedVariable):
                part.reads.add(var)
        return part

    def _computed(self, wants: dict, level: int, common: set) -> set[Variable]:
        return {
            var
            for var in self._walk(wants, level, common)
            if var.owner is not None and not self._is_received(var, level, common)
        }

    def _is_received(self, var: Variable, level: int, common: set) -> bool:
        if var.owner is None or (var in self.free and var not in common):
            return False
        return is_reduced(var) or self.level[var] < level or var in common

    def _walk(self, wants: Iterable[Variable], level: int, common: set):
        """Yield what a part computes, reads and receives."""
        seen: set[Variable] = set()
        todo = list(wants)
        while todo:
            var = todo.pop()
            if var in seen:
                continue
            seen.add(var)
            yield var
            if var.owner is not None and not self._is_received(var, level, common):
                todo.extend(var.owner.inputs)

    def _place_updates(self, stages: list[Stage]) -> list[int]:
        """Let the part that computes a new value store it, unless it is too early."""
        deferred = []
        for i, (shared, new) in enumerate(self.spec.updates):
            level, on_rows = self.level.get(new, 0), new in self.on_rows
            stage = stages[level]
            is_tensor = isinstance(shared.type, DenseTensorType)
            # A rank's own stream goes on from slice to slice.
            can_wait = is_tensor or not on_rows
            later = [part for s in stages[level + 1 :] for part in (s.common, s.rows)]
            if self.in_slices and not on_rows:
                later.append(stage.rows)
            is_read = any(shared in part.reads for part in later)
            if can_wait and (is_read or (self.in_slices and on_rows)):
                deferred.append(i)
                continue
            owner = stage.rows if on_rows else stage.common
            owner.updates.append((shared, new))
            stage.merged.updates.append((shared, new))
        self._drop_mere_updates(stages, deferred)
        return deferred

    def _drop_mere_updates(self, stages: list[Stage], deferred: list[int]) -> None:
        """Take from the wants what is wanted for an update only."""
        kept = {*self.outputs, *(self.news[i] for i in deferred)}
        kept |= self.forwarded
        kept.update(red.owner.inputs[0] for red in self.reduced)
        for stage in stages:
            for part in (stage.common, stage.rows, stage.merged):
                made = {new for _, new in part.updates}
                part.wants = [
                    var for var in part.wants if var in kept or var not in made
                ]


def _drawn_once(nodes: Sequence[Apply], on_rows: set[Variable]) -> set[Variable]:
    """Return random draws that no row enters, and that none for rows follow.

    Slices are to see one draw, and PyTensor removes a draw of which a part takes no
    more than the stream's next state: so the common part makes it for the rows part.
    """
    drawn: set[Variable] = set()
    followed: set[Variable] = set()  # streams that draws for rows go on from
    for node in reversed(nodes):
        streams = [var for var in node.inputs if isinstance(var.type, RandomType)]
        if not on_rows.isdisjoint(node.outputs) or not followed.isdisjoint(
            node.outputs
        ):
            followed.update(streams)
        elif streams:
            drawn.update(node.outputs)
    return drawn


def costs_nothing(node) -> bool:
    """Tell whether a node is a view, a shape, or computes with numbers of elements."""
    if node.op.view_map or isinstance(node.op, (Shape, Shape_i)):
        return True
    types = [var.type for var in (*node.inputs, *node.outputs)]
    return all(getattr(of, "ndim", 1) == 0 and of.dtype in _COUNTS for of in types)


_COUNTS = ("int64", "int32")


def _refuse_inner(node) -> None:
    """Refuse an all-reduce inside of a scan or another graph within a node."""
    if not isinstance(node.op, HasInnerGraph):
        return
    for inner in node.op.fgraph.apply_nodes:
        _refuse_inner(inner)
        if isinstance(inner.op, COLLECTIVES):
            raise ValueError(
                f"all_reduce inside of {node.op}: the ranks would have to wait for one"
                " another within a compiled graph; reduce before or after it"
            )
