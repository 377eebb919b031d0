"""Cutting a graph at its all-reduces into stages.

A value's *level* is the number of all-reduces on the longest way to it. Stage k
computes what has level k from rows, shared variables, values that were reduced before,
and values that stages before it computed. It has two parts::

    common   what no row of this rank enters: the same on every rank, computed once
    rows     the rest: computed for each slice, and not at all by a rank without rows

An ordinary call runs both as one compiled graph. Random numbers, where no value of a
row decides what they are, have one of their own before that: they are drawn for all
rows of the rank at once, be the rest gone through in blocks. Nothing is computed twice:
what another part or a later stage needs is forwarded to it, save for views and shapes,
which cost nothing.

A step of gradient descent, ``w - rate * all_reduce(gradient)``, comes down to::

    stage 0   rows     loss and gradient             -> all-reduce, one flat buffer
    stage 1   common   w - rate * reduced gradient   -> the update of w
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from pytensor.compile import SharedVariable
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.traversal import io_toposort, walk
from pytensor.tensor.random.type import RandomType
from pytensor.tensor.shape import Shape, Shape_i

from ..ops import is_collective, is_reduced
from ..reduce_ops import ReduceOp
from ..times.timing import COMMON, COMPUTE
from .cloning import with_inner
from .spec import FunctionSpec
from .written import Written, written


@dataclass
class Part:
    """A graph that is compiled by itself."""

    # What it computes for others: a user's outputs, values to reduce or to forward.
    wants: list[Variable] = field(default_factory=list)
    # What it takes from other parts, and reduced values.
    receives: list[Variable] = field(default_factory=list)
    # Those of random streams, which it makes in place. All others are made when the
    # call has come to its end: see `Cut`.
    updates: list[tuple[SharedVariable, Variable]] = field(default_factory=list)
    reads: set[SharedVariable] = field(default_factory=set)
    # New values that nothing else takes: computed after `wants`, and stored together.
    news: list[tuple[SharedVariable, Variable]] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.wants or self.updates or self.news)

    @property
    def computes(self) -> list[Variable]:
        """What its code returns: values for others, and then new ones of variables."""
        return [*self.wants, *(new for _, new in self.news)]

    @cached_property
    def storages(self) -> list[list[Any]]:
        """Where variables hold what `news` are to be."""
        return [shared.container.storage for shared, _ in self.news]


@dataclass
class Stage:
    """The parts of one level, and the all-reduces that end it."""

    common: Part
    rows: Part
    merged: Part
    reduced: list[Variable]  # outputs of AllReduce nodes
    phase: int = COMMON  # as which its computation counts
    # What of `reduced` has all rows of an input, and of which. They are where every
    # rank can read them, so that none need meet for them.
    of_inputs: dict[Variable, int] = field(default_factory=dict)
    drawn: Part = field(default_factory=Part)  # before `merged`, which receives it
    kept: Part = field(default_factory=Part)  # not computed again for the same rows


def contributed(reduced: Any) -> Variable:
    """Return what each rank gives for a result of a collective."""
    return reduced.owner.inputs[0]


def op_of(reduced: Any) -> ReduceOp | Literal["gather", "stack"]:
    """Return how a collective combines: an op, "gather" or "stack"."""
    return reduced.owner.op.op


@dataclass
class Cut:
    """All stages of a function, for some of its outputs."""

    stages: list[Stage]
    outputs: list[Variable]  # as asked for
    updates: list[tuple[SharedVariable, Variable]]  # of the whole function
    # Updates that are stored when all stages are done: all but those of random streams.
    # So what a part reads of a variable is what the call began with, and the former
    # value is whole if the call fails on another rank.
    stored: list[int]
    on_rows: set[Variable]  # what differs between ranks because their rows do
    # Updates whose value is an output's as well, or another variable's.
    copied: set[int] = field(default_factory=set)
    # Updates of which only what is written to the variable is computed.
    written: dict[int, Written] = field(default_factory=dict)

    @cached_property
    def meets(self) -> bool:
        """Whether the ranks wait for one another in a call."""
        return any(set(stage.reduced) - set(stage.of_inputs) for stage in self.stages)

    @cached_property
    def inputs_read(self) -> set[int]:
        """The numbers of the inputs of which every rank reads all rows."""
        return {i for stage in self.stages for i in stage.of_inputs.values()}


def cut(
    spec: FunctionSpec, subset: Iterable[int], in_slices: bool, in_place: bool = False
) -> Cut:
    """Cut the graph of a function into stages, for a subset of its outputs.

    `in_slices` says that the rows parts are run for one slice after the other, and
    `in_place` that updates can be written into the variables' arrays.
    """
    outputs = [spec.outputs[i] for i in subset]
    return _Cutter(spec, outputs, in_slices, in_place).cut()


def uncut(spec: FunctionSpec, subset: Iterable[int], in_place: bool = True) -> Cut:
    """Return a function as one stage: on one rank an all-reduce changes nothing.

    What PyTensor makes of the whole graph is faster than of its parts. It adds the
    step of plain gradient descent to a parameter within the product that is the
    gradient, for one; unless updates are not made `in_place`, but stored afterwards.
    """
    outputs, updates = [spec.plain_outputs[i] for i in subset], spec.plain_updates
    stored = [
        i
        for i, (shared, _) in enumerate(updates)
        if i in spec.row_updates
        or not (in_place or isinstance(shared.type, RandomType))
    ]
    wants = dict.fromkeys([*outputs, *(updates[i][1] for i in stored)])
    made = [pair for i, pair in enumerate(updates) if i not in stored]
    stages = [Stage(Part(), Part(), Part(list(wants), updates=made), [], COMPUTE)]
    copied = _copied(outputs, updates, stored)
    return Cut(stages, outputs, updates, stored, set(), copied)


def store_together(
    cut: Cut, spec: FunctionSpec, is_whole: Callable[[Variable], bool]
) -> None:
    """Have parts return new values that are stored as they are after all others.

    That are those which no other part takes, nor an output; they follow from no row of
    a rank's, and `is_whole` says that they have no entries of padded rows.
    """
    taken = {*cut.outputs, *(cut.updates[i][1] for i in cut.copied)}
    for stage in cut.stages:
        taken.update(map(contributed, stage.reduced))
        taken.update(stage.common.receives, stage.merged.receives)
    taken |= cut.on_rows
    for i in list(cut.stored):
        shared, new = cut.updates[i]
        if new in taken or i in spec.row_updates or not is_whole(new):
            continue
        for stage in cut.stages:
            for part in (stage.common, stage.merged):
                if new in part.wants:
                    part.wants.remove(new)
                    part.news.append((shared, new))
        cut.stored.remove(i)


class _Cutter:
    def __init__(
        self,
        spec: FunctionSpec,
        outputs: list[Variable],
        in_slices: bool,
        in_place: bool,
    ) -> None:
        self.spec, self.outputs, self.in_slices = spec, outputs, in_slices
        self.news = [new for _, new in spec.updates]
        self.commons = {stream.common for stream in spec.streams}
        self.level: dict[Variable, int] = {}
        self.on_rows = spec.row_values([*outputs, *self.news])
        self.free: set[Variable] = set()
        self.reduced: list[Variable] = []
        self.forwarded: set[Variable] = set()
        nodes = io_toposort([], [*outputs, *self.news])
        for node in nodes:
            self._classify(node)
        self.drawn = _drawn_once(nodes, self.on_rows, self.commons)
        self.written = self._written(nodes) if in_place else {}
        self.draws_first = in_place and not in_slices and spec.draws_first
        self.apart = set(spec.apart or ())

    def _classify(self, node) -> None:
        """Find the level of a node's outputs, and whether they are free."""
        meets = is_collective(node)
        if not meets and any(map(is_collective, with_inner([node]))):
            raise ValueError(
                f"all_reduce inside of {node.op}: the ranks would have to wait for one"
                " another within a compiled graph; reduce before or after it"
            )
        level = max((self.level.get(var, 0) for var in node.inputs), default=0)
        if meets:
            level += 1
            self.reduced.append(node.outputs[0])
        elif costs_nothing(node) and all(
            var.owner is None or var in self.free for var in node.inputs
        ):
            self.free.update(node.outputs)
        self.level.update(dict.fromkeys(node.outputs, level))

    def cut(self) -> Cut:
        """Work backwards: a stage must know what the later ones want of it."""
        depth = max((self.level[var] for var in self.reduced), default=0)
        common_wants: list[dict] = [{} for _ in range(depth + 1)]
        rows_wants: list[dict] = [{} for _ in range(depth + 1)]

        def want(var: Variable) -> None:
            wants = rows_wants if var in self.on_rows else common_wants
            wants[self.level.get(var, 0)][var] = None

        for var in (*self.outputs, *map(contributed, self.reduced)):
            want(var)
        for i, new in enumerate(self.news):
            for var in self.written[i].takes if i in self.written else (new,):
                want(var)
        inputs = self.spec.inputs
        stages: list[Stage] = []
        for level in reversed(range(depth + 1)):
            is_given = self._given(level)
            for var in list(_walk(rows_wants[level], is_given)):
                if var in self.drawn and self.level[var] == level:
                    want(var)
            common = self._part(common_wants[level], is_given, want)
            computed = {
                var
                for var in _walk(common_wants[level], is_given)
                if var.owner is not None and not is_given(var)
            }
            rows = self._part(rows_wants[level], self._given(level, computed), want)
            # Values that the rows part wants of the common part came last.
            common.wants = list(common_wants[level])
            all_wants = {**common_wants[level], **rows_wants[level]}
            merged = self._part(all_wants, is_given, want)
            reduced = [var for var in self.reduced if self.level[var] == level + 1]
            of_inputs = {
                var: inputs.index(contributed(var))
                for var in reduced
                if op_of(var) == "gather" and contributed(var) in inputs
            }
            stage = Stage(common, rows, merged, reduced, of_inputs=of_inputs)
            if self.draws_first:
                stage.drawn, stage.merged = self._drawn_apart(merged, level, want)
            stages.insert(0, stage)
        stored = self._place_updates(stages)
        for stage in stages:
            stage.phase = COMPUTE if stage.rows else COMMON
        updates = self.spec.updates
        copied = _copied(self.outputs, updates, stored)
        return Cut(
            *(stages, self.outputs, updates, stored, self.on_rows, copied),
            written=self.written,
        )

    def _part(
        self,
        wants: Iterable[Variable],
        is_given: Callable[[Variable], bool],
        want: Callable[[Variable], None] = lambda var: None,
    ) -> Part:
        """Return the part that computes values; `want` is told what it receives."""
        part = Part(list(wants))
        for var in _walk(part.wants, is_given):
            if is_given(var):
                part.receives.append(var)
                if not is_reduced(var):
                    self.forwarded.add(var)
                    want(var)
            elif isinstance(var, SharedVariable):
                part.reads.add(var)
        return part

    def _drawn_apart(
        self, merged: Part, level: int, want: Callable[[Variable], None]
    ) -> tuple[Part, Part]:
        """Return the part that draws what another needs, and what is left of that."""
        is_given = self._given(level)

        def is_drawn(var: Variable) -> bool:
            if var.owner is None or is_given(var):
                return False
            return var in self.apart or bool(_streams([var, *var.owner.inputs]))

        ends = _walk(merged.wants, lambda var: is_given(var) or is_drawn(var))
        found = dict.fromkeys(filter(is_drawn, ends))
        wants = [var for var in merged.wants if var not in found]
        rest = self._part(wants, self._given(level, found))

        # Of what stages before have made of rows the drawing part receives no more than
        # what they have drawn: of the rest, which may have been made in blocks, it
        # takes shapes alone. These may be of what no other part receives.
        def is_received(var: Variable) -> bool:
            return is_given(var) and (var not in self.on_rows or var in self.apart)

        return self._part(found, is_received, want), rest

    def _given(
        self, level: int, common: Collection[Variable] = ()
    ) -> Callable[[Variable], bool]:
        """Return what tells whether a part of a stage has a value from others.

        `common` is what another part of the stage computes.
        """

        def is_given(var: Variable) -> bool:
            if var.owner is None or (var in self.free and var not in common):
                return False
            return is_reduced(var) or self.level[var] < level or var in common

        return is_given

    def _place_updates(self, stages: list[Stage]) -> list[int]:
        """Let parts lead random streams on; return the updates stored later."""
        stored: list[int] = []
        for i, (shared, new) in enumerate(self.spec.updates):
            if not isinstance(shared.type, RandomType):
                stored.append(i)
                continue
            level, on_rows = self.level.get(new, 0), new in self.on_rows
            stage = stages[level]
            later = [part for s in stages[level + 1 :] for part in (s.common, s.rows)]
            if self.in_slices:
                later.append(stage.rows)
            # A rank's own stream goes on from slice to slice; each slice begins in one
            # that all ranks have alike where the call does.
            is_read = any(shared in part.reads for part in later)
            if shared in self.commons if on_rows else is_read:
                stored.append(i)
                continue
            owner = stage.rows if on_rows else stage.common
            owner.updates.append((shared, new))
            (stage.drawn or stage.merged).updates.append((shared, new))
        # What is wanted to lead a stream on only is not wanted otherwise.
        kept = {*self.outputs, *(self.news[i] for i in stored), *self.forwarded}
        kept.update(var for made in self.written.values() for var in made.takes)
        kept.update(map(contributed, self.reduced))
        for stage in stages:
            for part in (stage.common, stage.rows, stage.drawn, stage.merged):
                mere = {new for _, new in part.updates} - kept
                part.wants = [var for var in part.wants if var not in mere]
        return stored

    def _written(self, nodes: Sequence[Apply]) -> dict[int, Written]:
        """Return the updates that write to some elements, and that nothing else takes.

        Nor are they combined over slices.
        """
        taken = {var for node in nodes for var in node.inputs}
        taken.update(self.outputs)
        found = {}
        for i, (shared, new) in enumerate(self.spec.updates):
            if new in taken or self.news.count(new) > 1:
                continue
            made = written(shared, new)
            if made is not None and not (self.in_slices and new in self.on_rows):
                found[i] = made
        return found


def _walk(
    wants: Iterable[Variable], is_given: Callable[[Variable], bool]
) -> Iterator[Variable]:
    """Yield what a part computes, reads and receives."""

    def before(var: Variable) -> list[Variable] | None:
        return None if var.owner is None or is_given(var) else var.owner.inputs

    yield from walk(wants, before, bfs=False)  # type: ignore[misc]


def _copied(
    outputs: Iterable[Variable],
    updates: Sequence[tuple[SharedVariable, Variable]],
    stored: Iterable[int],
) -> set[int]:
    """Return the updates whose value something else has as well."""
    taken, copied = set(outputs), set()
    for i in stored:
        _, new = updates[i]
        if new in taken:
            copied.add(i)
        taken.add(new)
    return copied


def _drawn_once(
    nodes: Sequence[Apply], on_rows: set[Variable], commons: Collection[Variable]
) -> set[Variable]:
    """Return random draws that no row enters.

    Slices are to see one draw, and PyTensor removes a draw of which a part takes no
    more than the stream's next state: so the common part makes it for the rows part.
    Not so draws from a rank's own stream that draws for rows follow: with these the
    stream goes on from slice to slice.
    """
    alike = set(commons)
    for node in nodes:
        streams = _streams(node.inputs)
        if streams and alike.issuperset(streams):
            alike.update(_streams(node.outputs))
    drawn: set[Variable] = set()
    followed: set[Variable] = set()  # streams that draws for rows go on from
    for node in reversed(nodes):
        streams = _streams(node.inputs)
        goes_on = not alike.issuperset(streams) and not followed.isdisjoint(
            node.outputs
        )
        if not on_rows.isdisjoint(node.outputs) or goes_on:
            followed.update(streams)
        elif streams:
            drawn.update(node.outputs)
    return drawn


def _streams(variables: Iterable[Variable]) -> list[Variable]:
    return [var for var in variables if isinstance(var.type, RandomType)]


def costs_nothing(node) -> bool:
    """Tell whether a node is a view, a shape, or computes with numbers of elements."""
    if node.op.view_map or isinstance(node.op, (Shape, Shape_i)):
        return True
    types, counts = [v.type for v in (*node.inputs, *node.outputs)], ("int64", "int32")
    return all(getattr(of, "ndim", 1) == 0 and of.dtype in counts for of in types)
