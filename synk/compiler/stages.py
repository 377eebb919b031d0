"""Cutting a graph at its all-reduces into stages.

A value's *level* is the number of all-reduces on the longest way to it. Stage k
computes the values of level k, from rows, shared variables, reduced values and values
of earlier stages. It has two parts::

    common   values that depend on no row of this rank: equal on all ranks
    rows     the rest: computed for each slice, and not at all by a rank without rows

An ordinary call runs both as one compiled graph, `Stage.merged`. Random numbers that do
not depend on rows' values are drawn by a part before it (`Stage.drawn`), for all of the
rank's rows at once, also if the rest runs in blocks. Nothing is computed twice: values
that another part or a later stage needs are forwarded to it, except views and shapes,
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
    """A graph that is compiled as one function."""

    # Its results: outputs of the function, values to reduce and values to forward.
    wants: list[Variable] = field(default_factory=list)
    # Its arguments from elsewhere: values of other parts, and reduced values.
    receives: list[Variable] = field(default_factory=list)
    # Updates of random streams, which the part makes in place. Other variables are
    # stored at the end of the call: see `Cut.stored`.
    updates: list[tuple[SharedVariable, Variable]] = field(default_factory=list)
    reads: set[SharedVariable] = field(default_factory=set)
    # Variables and their new values, if nothing else takes these: they are results
    # after `wants`, and stored all at once.
    news: list[tuple[SharedVariable, Variable]] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.wants or self.updates or self.news)

    @property
    def computes(self) -> list[Variable]:
        """The results of the compiled part: `wants`, then the new values of `news`."""
        return [*self.wants, *(new for _, new in self.news)]

    @cached_property
    def storages(self) -> list[list[Any]]:
        """The storage cells of the variables of `news`."""
        return [shared.container.storage for shared, _ in self.news]


@dataclass
class Stage:
    """The parts of one level, and the collectives that end it."""

    common: Part
    rows: Part
    merged: Part  # both as one graph, without `drawn` and `kept`
    reduced: list[Variable]  # results of the collectives
    phase: int = COMMON  # the phase of a call that its time counts as
    # The results in `reduced` that are all rows of an input, and that input's index.
    # Ranks read these rows in shared memory, so they do not meet for them.
    of_inputs: dict[Variable, int] = field(default_factory=dict)
    drawn: Part = field(default_factory=Part)  # draws for `merged`, which runs after it
    kept: Part = field(default_factory=Part)  # values that are kept for equal rows


def contributed(reduced: Any) -> Variable:
    """Return the operand of the collective whose result is `reduced`."""
    return reduced.owner.inputs[0]


def op_of(reduced: Any) -> ReduceOp | Literal["gather", "stack"]:
    """Return the op of the collective whose result is `reduced`."""
    return reduced.owner.op.op


@dataclass
class Cut:
    """The stages of a function, for some of its outputs."""

    stages: list[Stage]
    outputs: list[Variable]  # those asked for
    updates: list[tuple[SharedVariable, Variable]]  # of the whole function
    # Indices of updates that are stored after all stages: of all but random streams
    # that a part updates in place. So parts read the values with which the call began,
    # and these are intact if the call fails on another rank.
    stored: list[int]
    on_rows: set[Variable]  # variables that depend on a rank's own rows
    # Updates that only write some elements of the variable, by index in `updates`.
    written: dict[int, Written] = field(default_factory=dict)

    @cached_property
    def copied(self) -> set[int]:
        """Which of `stored` have a new value that is also an output, or another's."""
        taken, found = set(self.outputs), set()
        for i in self.stored:
            _, new = self.updates[i]
            if new in taken:
                found.add(i)
            taken.add(new)
        return found

    @cached_property
    def meets(self) -> bool:
        """Whether the ranks wait for one another in a call."""
        return any(set(stage.reduced) - set(stage.of_inputs) for stage in self.stages)

    @cached_property
    def inputs_read(self) -> set[int]:
        """The indices of the inputs of which every rank reads all rows."""
        return {i for stage in self.stages for i in stage.of_inputs.values()}


def cut(
    spec: FunctionSpec, subset: Iterable[int], in_slices: bool, in_place: bool = False
) -> Cut:
    """Return the stages of a function, for the outputs with the indices `subset`.

    `in_slices`: the rows parts run for one slice after the other. `in_place`: updates
    of some elements may be written into the variables' arrays.
    """
    outputs = [spec.outputs[i] for i in subset]
    return _Cutter(spec, outputs, in_slices, in_place).cut()


def uncut(spec: FunctionSpec, subset: Iterable[int], in_place: bool = True) -> Cut:
    """Return the user's plain graph as one stage, for a call on one rank.

    PyTensor optimises the whole graph better than its parts. With `in_place`, the
    compiled function updates variables itself, and PyTensor can fuse, say, a descent
    step with the product that is its gradient; else new values are stored afterwards.
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
    return Cut(stages, outputs, updates, stored, set())


def store_together(
    cut: Cut, spec: FunctionSpec, is_whole: Callable[[Variable], bool]
) -> None:
    """Move updates from `cut.stored` to `Part.news` where nothing else takes them.

    Such a new value is no output and no operand of another part or collective, does not
    depend on a rank's own rows, and has no entries of padded rows (`is_whole`).
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
    """Makes one `Cut`.

    `free` has the variables that every part computes again instead of receiving them.
    """

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
        nodes = io_toposort([], [*outputs, *self.news])
        for node in nodes:
            self._classify(node)
        self.drawn = _drawn_once(nodes, self.on_rows, self.commons)
        self.written = self._written(nodes) if in_place else {}
        self.draws_first = in_place and not in_slices and spec.draws_first
        self.early = set(spec.early_draws or ())

    def _classify(self, node) -> None:
        """Note the level of a node's outputs, and whether they are free to compute."""
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
        """Return the stages, made from the last to the first.

        A later stage decides which values an earlier one has to forward.
        """
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
            # The rows part may have added to these since `common` was made.
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
                stage.drawn, stage.merged = self._split_draws(merged, level, want)
            stages.insert(0, stage)
        stored = self._place_updates(stages)
        for stage in stages:
            stage.phase = COMPUTE if stage.rows else COMMON
        how = stages, self.outputs, self.spec.updates, stored, self.on_rows
        return Cut(*how, self.written)

    def _part(
        self,
        wants: Iterable[Variable],
        is_given: Callable[[Variable], bool],
        want: Callable[[Variable], None] = lambda var: None,
    ) -> Part:
        """Return the part that computes `wants`.

        `want` is called for each value that another part has to forward to it.
        """
        part = Part(list(wants))
        for var in _walk(part.wants, is_given):
            if is_given(var):
                part.receives.append(var)
                if not is_reduced(var):
                    want(var)
            elif isinstance(var, SharedVariable):
                part.reads.add(var)
        return part

    def _split_draws(
        self, merged: Part, level: int, want: Callable[[Variable], None]
    ) -> tuple[Part, Part]:
        """Return the draws of a merged part as one part, and the rest as another."""
        is_given = self._given(level)

        def is_drawn(var: Variable) -> bool:
            if var.owner is None or is_given(var):
                return False
            return var in self.early or bool(_streams([var, *var.owner.inputs]))

        ends = _walk(merged.wants, lambda var: is_given(var) or is_drawn(var))
        found = dict.fromkeys(filter(is_drawn, ends))
        wants = [var for var in merged.wants if var not in found]
        rest = self._part(wants, self._given(level, found))

        # Row values of earlier stages may have been computed in blocks. So the drawing
        # part receives only their draws, and computes shapes of other values itself.
        def is_received(var: Variable) -> bool:
            return is_given(var) and (var not in self.on_rows or var in self.early)

        return self._part(found, is_received, want), rest

    def _given(
        self, level: int, common: Collection[Variable] = ()
    ) -> Callable[[Variable], bool]:
        """Return a function: whether a part of stage `level` receives a variable.

        `common` has the variables that another part of the same stage computes.
        """

        def is_given(var: Variable) -> bool:
            if var.owner is None or (var in self.free and var not in common):
                return False
            return is_reduced(var) or self.level[var] < level or var in common

        return is_given

    def _place_updates(self, stages: list[Stage]) -> list[int]:
        """Give the updates of random streams to parts; return the indices of the rest.

        A stream is stored at the end, and not updated in place, if a later part reads
        it, or if it is a common one that draws for rows advance.
        """
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
            # A rank's own stream advances from slice to slice. A common stream does
            # not: each slice draws from its state at the start of the call.
            is_read = any(shared in part.reads for part in later)
            if shared in self.commons if on_rows else is_read:
                stored.append(i)
                continue
            owner = stage.rows if on_rows else stage.common
            owner.updates.append((shared, new))
            (stage.drawn or stage.merged).updates.append((shared, new))
        # New states of streams that are updated in place need not be results as well.
        parts = [p for s in stages for p in (s.common, s.rows, s.drawn, s.merged)]
        kept = {*self.outputs, *(self.news[i] for i in stored)}
        kept.update(var for part in parts for var in part.receives)
        kept.update(var for made in self.written.values() for var in made.takes)
        kept.update(map(contributed, self.reduced))
        for part in parts:
            dropped = {new for _, new in part.updates} - kept
            part.wants = [var for var in part.wants if var not in dropped]
        return stored

    def _written(self, nodes: Sequence[Apply]) -> dict[int, Written]:
        """Return, by index, updates that only write some elements of their variable.

        Without those whose new value anything else takes, or slices have to combine.
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
    """Yield what a part with these `wants` computes, reads and receives."""

    def before(var: Variable) -> list[Variable] | None:
        return None if var.owner is None or is_given(var) else var.owner.inputs

    yield from walk(wants, before, bfs=False)  # type: ignore[misc]


def _drawn_once(
    nodes: Sequence[Apply], on_rows: set[Variable], commons: Collection[Variable]
) -> set[Variable]:
    """Return the outputs of draws that the common part has to make for the rows part.

    They depend on no row, and all slices have to see one draw. PyTensor would remove
    a draw from a part that only takes the stream's next state. Left out are draws
    from a rank's own stream that draws for rows follow, as that stream advances from
    slice to slice.
    """
    alike = set(commons)
    for node in nodes:
        streams = _streams(node.inputs)
        if streams and alike.issuperset(streams):
            alike.update(_streams(node.outputs))
    drawn: set[Variable] = set()
    followed: set[Variable] = set()  # states that draws for rows take
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
    """Return whether a node is a view, a shape, or arithmetic of integer scalars."""
    if node.op.view_map or isinstance(node.op, (Shape, Shape_i)):
        return True
    types, counts = [v.type for v in (*node.inputs, *node.outputs)], ("int64", "int32")
    return all(getattr(of, "ndim", 1) == 0 and of.dtype in counts for of in types)
