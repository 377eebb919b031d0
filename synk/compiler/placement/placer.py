"""Going through a graph, and reducing what an operation needs whole.

Every value is replicated, sharded by rows or partial (see `domain`), as the rule of its
Op says. Where a rule cannot take its operands as they are, they are tried in other
forms, the cheapest first: numbers of rows as those of all ranks, partial values
reduced, powers of the number of rows made equal, rows gathered. The first form that the
rule understands is taken. So each placed value stands for the serial one, and what the
rules say of it is proven as for any other graph.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator, Sequence

from pytensor.graph.basic import Apply, Variable
from pytensor.scalar import Second
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.shape import Shape, Shape_i

from ...ops import AllReduce, AllRows, OwnRows
from ...user_frames import hand_on_line
from ..domain import (
    Count,
    Listed,
    Partial,
    Position,
    Refused,
    Replicated,
    Sharded,
    Unknown,
    Value,
)
from ..rules.streams import is_stream
from ..walk import apply_rule
from .gathered import Gathered
from .lowering import lowered
from .own import OwnStatistics
from .streams import Streams


class Placer:
    """Places the reductions of a graph.

    Parameters
    ----------
    whole : Gathered
        Where placed variables are kept.
    own : OwnStatistics
        What is not to be reduced, though an operation would need it whole.
    streams : Streams
        Where random draws are made from.
    placed : iterable of Variable, optional
        What of the graph is placed already.
    """

    def __init__(
        self,
        whole: Gathered,
        own: OwnStatistics,
        streams: Streams,
        placed: Iterable[Variable] = (),
    ) -> None:
        self._whole, self._own, self._streams = whole, own, streams
        self._placed = {var: var for var in placed}
        # Of Ops that are placed as what they are made of: parts of an Op's result.
        self._within: dict[Variable, Variable] = {}
        self.repeated: list[tuple[Apply, list[Variable]]] = []
        """Nodes that every rank computes from all rows, and what stands for them."""

    def place(self, graph: Sequence[Variable]) -> list[Variable]:
        """Return what takes the place of variables, with the reductions they need."""
        self._own.look_at(graph)
        todo = [(var.owner, False) for var in reversed(graph) if var.owner]
        seen = set()
        while todo:
            node, is_ready = todo.pop()
            if is_ready:
                self._visit(node)
            elif node not in seen and not self._are_placed(node.outputs):
                seen.add(node)
                todo.append((node, True))
                needed = [] if self._stays(node) else node.inputs
                todo += [(var.owner, False) for var in reversed(needed) if var.owner]
        return [self._placed.get(var, var) for var in graph]

    def users(self) -> dict[Variable, Variable]:
        """Return of placed variables those of the graph for which they stand."""
        found = {new: old for old, new in reversed(self._placed.items())}
        return {**self._within, **found}

    def _are_placed(self, variables: Iterable[Variable]) -> bool:
        return all(var in self._placed for var in variables)

    def _stays(self, node: Apply) -> bool:
        """Tell whether a node is left as it is, and with it all that leads to it.

        So are reductions that the user has placed. And shapes that follow from those
        of the inputs: they are the same before a reduction, and need not wait for it.
        """
        if isinstance(node.op, (Shape, Shape_i)):
            return self._whole.shape_of_inputs(node) is not None
        return is_users(node)

    def _visit(self, node: Apply) -> None:
        if isinstance(node.op, (AllRows, OwnRows)):
            self._say(node)
            return
        if is_users(node):
            node_made = self._whole.as_written(node)
            made = node_made.outputs
            self._whole.take(node_made, Replicated())
        elif self._stays(node):
            made = node.outputs
            self._whole.take(node, self._whole.shape_of_inputs(node) or Replicated())
        elif isinstance(node.op, AllReduce):
            made = self._gradient(node)
        elif (shape := self._early(node)) is not None:
            made = node.outputs
            self._whole.take(node, shape)
        elif (source := _filled(node)) is not None:
            made = [self._placed.get(source, source)]
        else:
            made = self._best(node)
        for old, new in zip(node.outputs, made, strict=True):
            if old.name and not new.name:
                new.name = old.name
            if new.owner is not None and hasattr(old.tag, "trace"):
                new.tag.trace = old.tag.trace
            self._placed[old] = new
            self._own.note(old, new)

    def _say(self, node: Apply) -> None:
        """Take the user's word for which rows are to be where."""
        given = [self._placed.get(var, var) for var in node.inputs]
        is_all = isinstance(node.op, AllRows)
        made = (self._whole.all_rows if is_all else self._whole.own_rows)(*given)
        if made not in given:
            hand_on_line(node.outputs[0], [made])
        self._placed[node.outputs[0]] = made
        self._own.note(node.outputs[0], made)

    def _early(self, node: Apply) -> Value | None:
        """Return what a shape is that needs no reduction; None if it may need one.

        It is taken of what the user has written, before anything was reduced.
        """
        if not isinstance(node.op, (Shape, Shape_i)):
            return None
        (of,) = node.inputs
        placed = self._placed.get(of, of)
        value = self._whole.value(placed)
        if placed in self._whole.as_long or not isinstance(value, Sharded):
            return None
        return apply_rule(node, [value])[0]

    def _gradient(self, node: Apply) -> list[Variable]:
        """Reduce a gradient of :func:`synk.grad` as it has to be."""
        given = self._placed.get(node.inputs[0], node.inputs[0])
        with contextlib.suppress(Refused):
            return [self._whole.whole(given, node.op)]
        return self._whole.again(node, [given]).outputs

    def _best(self, node: Apply) -> list[Variable]:
        inputs = [
            self._streams.own(var) if is_stream(var) else self._placed.get(var, var)
            for var in node.inputs
        ]
        first = self._whole.again(node, inputs)
        if self._are_known(first.outputs) and not any(map(is_stream, node.inputs)):
            return first.outputs
        for given in itertools.chain([inputs], self._forms(node, inputs)):
            made = self._understood(node, given)
            if made is not None:
                return made
            if given is inputs and self._own.taken(first, node):
                self._streams.note(node, first.outputs, is_common=False)
                return first.outputs
        return (
            self._lowered(node, first)
            or self._gathered(node, inputs)
            or self._from_all_rows(node)
            or first.outputs
        )

    def _understood(
        self, node: Apply, inputs: Sequence[Variable]
    ) -> list[Variable] | None:
        """Return what a node makes of placed operands; None if that is unknown."""
        for given, is_common in self._streams.ways(node, inputs):
            made = self._whole.again(node, given).outputs
            if self._are_known(made):
                self._streams.note(node, made, is_common)
                return made
        return None

    def _lowered(self, node: Apply, first: Apply) -> list[Variable] | None:
        """Place what an Op is made of, in its place; None if that does not help."""
        graph = lowered(first)
        if graph is None:
            return None
        streams = self._streams.within(node, first)
        inside = Placer(self._whole, self._own, streams, first.inputs)
        made = inside.place(graph)
        if not self._are_known(made):
            return None
        self._streams.follow(node, graph, streams)
        self.repeated += inside.repeated
        parts = inside.users().keys() - set(first.inputs)
        self._within.update(dict.fromkeys(parts, node.outputs[0]))
        return made

    def _from_all_rows(self, node: Apply) -> list[Variable] | None:
        """Have every rank compute all from all inputs' rows; None if it cannot."""
        with contextlib.suppress(Refused):
            made = [self._whole.of_all_rows(var) for var in node.outputs]
            self.repeated.append((node, made))
            return made
        return None

    def _gathered(self, node: Apply, inputs: list[Variable]) -> list[Variable] | None:
        """Have every rank compute it from all rows; None if that is not possible."""
        places = [i for i, var in enumerate(inputs) if not is_stream(var)]
        for given in self._with(inputs, places, self._whole.gathered):
            made = self._understood(node, given)
            if made is not None:
                self.repeated.append((node, made))
                return made
        return None

    def _are_known(self, made: Iterable[Variable]) -> bool:
        return not any(isinstance(self._whole.value(var), Unknown) for var in made)

    # -- other forms of operands

    def _forms(self, node: Apply, inputs: list[Variable]) -> Iterator[list[Variable]]:
        """Yield operands in other forms, those first that cost least."""
        whole = self._whole
        values = [whole.value(var) for var in inputs]
        if any(isinstance(value, Unknown) for value in values):
            return
        counts = [i for i, value in enumerate(values) if _counts_rows(value)]
        partial = [i for i, value in enumerate(values) if isinstance(value, Partial)]
        rows = [i for i, value in enumerate(values) if isinstance(value, Sharded)]
        yield from self._with(inputs, counts, whole.whole)
        yield from self._with(inputs, partial, whole.whole)
        yield from self._with(inputs, [*counts, *partial], whole.whole)
        if rows:
            yield from self._local(node, inputs, values)
            yield from self._paired(inputs, values, rows)
            yield from self._in_power(inputs, values, [*counts, *partial])

    def _with(self, inputs: list[Variable], places: Iterable[int], form) -> Iterator:
        """Yield the operands with some of them in another form, if they have it."""
        places = list(places)
        if not places:
            return
        made = list(inputs)
        try:
            for i in places:
                made[i] = form(made[i])
        except Refused:
            return
        yield made

    def _paired(
        self, inputs: list[Variable], values: list[Value], rows: list[int]
    ) -> Iterator[list[Variable]]:
        """Yield operands such that each rank pairs its own rows with those of all."""
        axes = {i: values[i].axis - inputs[i].type.ndim for i in rows}  # type: ignore[union-attr]
        for own in dict.fromkeys(axes.values()):
            others = [i for i, axis in axes.items() if axis != own]
            yield from self._with(inputs, others, self._whole.gathered)

    def _in_power(
        self, inputs: list[Variable], values: list[Value], others: list[int]
    ) -> Iterator[list[Variable]]:
        """Yield operands whose powers of the number of rows are all 0."""
        whole = self._whole
        scaled = [
            i
            for i, value in enumerate(values)
            if isinstance(value, Sharded) and value.power
        ]

        def form(var: Variable) -> Variable:
            value = whole.value(var)
            if isinstance(value, Sharded):
                return whole.scaled(var, -(value.power or 0))
            return whole.whole(var)

        yield from self._with(inputs, scaled, form)
        yield from self._with(inputs, [*scaled, *others], form)

    def _local(
        self, node: Apply, inputs: list[Variable], values: list[Value]
    ) -> Iterator[list[Variable]]:
        """Yield operands of which those as long as all rows are cut to this rank's.

        An elementwise Op takes operands of one length only: what meets rows, and is
        not repeated along them, has a value for each of all rows.
        """
        whole = self._whole
        if not isinstance(node.op, Elemwise):
            return
        rows = [
            (value.length, value.axis - var.type.ndim)
            for var, value in zip(inputs, values, strict=True)
            if isinstance(value, (Sharded, Position))
        ]
        back = {axis for _, axis in rows}
        if len(back) > 1 or any(length != "n" for length, _ in rows):
            return  # which of several entries of a row are this rank's is not known
        (axis,) = back

        def form(var: Variable) -> Variable:
            value = whole.value(var)
            if isinstance(value, Position):
                return whole.numbered(var, value)
            has_axis = var.type.ndim >= -axis and var.type.shape[axis] != 1
            if isinstance(value, Sharded) or not has_axis:
                return whole.whole(var) if isinstance(value, Partial) else var
            return whole.local(whole.whole(var), axis + var.type.ndim)

        yield from self._with(inputs, range(len(inputs)), form)


def is_users(node: Apply) -> bool:
    """Tell whether a node is an all-reduce that the user has placed."""
    return isinstance(node.op, AllReduce) and node.op.gradient is None


def _filled(node: Apply) -> Variable | None:
    """Return what stands for a value in a shape, where the shape is that of a scalar.

    The shape is no reason to wait for a reduction.
    """
    if not isinstance(node.op, Elemwise) or not isinstance(node.op.scalar_op, Second):
        return None
    like, value = node.inputs
    same = node.outputs[0].type.dtype == value.type.dtype
    return value if like.type.ndim == 0 and same else None


def _counts_rows(value: Value) -> bool:
    """Tell whether a value follows from the number of a rank's rows alone."""
    if isinstance(value, Listed):
        return any(map(_counts_rows, value.entries))
    return isinstance(value, Count) or (
        isinstance(value, Replicated) and bool(value.power)
    )
