"""Going through a graph and placing the collectives that its operations need.

The rule of an Op says whether its result is replicated, sharded or partial (see
`domain`). If the rule refuses the operands as they are, the placer tries other forms of
them, the cheapest first: the number of rows as that of all ranks, partial values
reduced, powers of the number of rows made equal, rows gathered. It takes the first form
that the rule accepts. So each placed value stands for the serial run's, and is proven
as in any other graph.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence

from pytensor.graph.basic import Apply, Variable
from pytensor.graph.op import Op
from pytensor.graph.replace import clone_replace
from pytensor.scalar import Second
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.shape import Shape, Shape_i

from ...ops import AllReduce, AllRows, OwnRows
from ...user_frames import hand_on_line
from ..cloning import lowered
from ..domain import (
    Partial,
    Position,
    Refused,
    Replicated,
    Sharded,
    Unknown,
    Value,
)
from ..rules.base import is_stream, takes_streams
from ..table import ask_or_none
from ..walk import apply_rule
from .local_statistics import OwnStatistics, counts_rows
from .streams import Streams
from .whole import Whole

Form = Callable[[Variable], Variable]
Try = tuple[Sequence[int], Form]
"""Indices of operands, and the function that makes another form of each."""


class Placer:
    """Places the collectives of a graph.

    `whole` has the placed variables, `own` the statistics that stay unreduced, and
    `streams` the random streams. `placed` is given if the graph stands for one Op: the
    Op's operands, which are placed already.
    """

    def __init__(
        self,
        whole: Whole,
        own: OwnStatistics,
        streams: Streams,
        placed: Iterable[Variable] = (),
    ) -> None:
        self._whole, self._own, self._streams = whole, own, streams
        self._placed = {var: var for var in placed}
        self._is_inside = bool(self._placed)
        # For variables of a graph that stands for one Op: the Op's first result.
        self._within: dict[Variable, Variable] = {}
        self.repeated: list[tuple[Apply, list[Variable]]] = []
        """Nodes that every rank computes from all rows, and their placed outputs."""
        self.drawn: dict[Variable, Variable] = {}
        """Draws for rows in graphs that stay as written, and their placed variables."""

    def draw(self, drawn: Sequence[Variable]) -> None:
        """Place draws for rows whose graphs otherwise stay as they are written."""
        for old, new in zip(drawn, self.place(drawn), strict=True):
            if not isinstance(self._whole.value(new), Unknown):
                self.drawn[old] = new

    def place(self, graph: Sequence[Variable]) -> list[Variable]:
        """Return the placed variables for those of the user's graph."""
        self._own.find_meeting(graph)
        for node in self._in_order(graph):
            self._visit(node)
        return [self._placed.get(var, var) for var in graph]

    def _in_order(self, graph: Sequence[Variable]) -> list[Apply]:
        """Return the nodes to be placed, in the order of computation."""
        found: list[Apply] = []
        entered: set[Apply] = set()
        done: set[Apply] = set()
        todo = [var.owner for var in reversed(graph) if var.owner is not None]
        while todo:
            node = todo[-1]
            if node not in entered:
                entered.add(node)
                # One output tells that a node is placed: a graph within an Op may be
                # given a draw without the state after it, or one part of a split.
                if any(map(self._placed.__contains__, node.outputs)):
                    done.add(node)
                elif not self._stays(node):
                    todo += [
                        var.owner
                        for var in reversed(node.inputs)
                        if var.owner is not None and var.owner not in entered
                    ]
                continue
            todo.pop()
            if node not in done:
                done.add(node)
                found.append(node)
        return found

    def users(self) -> dict[Variable, Variable]:
        """Return, by placed variable, the variable of the user's graph."""
        found = {new: old for old, new in reversed(self._placed.items())}
        return {**self._within, **found}

    def _stays(self, node: Apply) -> bool:
        """Return whether a node stays as it is, with all nodes above it.

        Reductions that the user wrote do, and shapes that follow from the inputs'
        shapes: a collective does not change these, so they need not wait for one.
        """
        if isinstance(node.op, (Shape, Shape_i)):
            return self._whole.lengths.shape(node) is not None
        return is_users(node)

    def _visit(self, node: Apply) -> None:
        ways = (_WAYS[cls] for cls in type(node.op).__mro__ if cls in _WAYS)
        way = next(ways, Placer._by_rules)
        for old, new in zip(node.outputs, way(self, node), strict=True):
            if new is not old and way is not Placer._marked:
                self._hand_on(old, new)
            self._placed[old] = new
            self._own.note(old, new)

    def _hand_on(self, old: Variable, new: Variable) -> None:
        """Give the name and the user's line of `old` to the variable placed for it."""
        if new.owner is None or new in self._placed:
            return  # it is a variable of the user's graph
        if old.name and not new.name:
            new.name = old.name
        trace = vars(old.tag).get("trace")
        if trace is not None:
            new.tag.trace = trace

    # -- nodes of some Ops, see `_WAYS`

    def _marked(self, node: Apply) -> list[Variable]:
        """Place a mark of `synk.ops.all_gather`: gather, or cut out own rows."""
        given = [self._placed.get(var, var) for var in node.inputs]
        is_all = isinstance(node.op, AllRows)
        made = (self._whole.all_rows if is_all else self._whole.own_rows)(*given)
        if made not in given:
            hand_on_line(node.outputs[0], [made])
        return [made]

    def _reduced(self, node: Apply) -> list[Variable]:
        """Place an all-reduce: keep the user's, place one of `synk.grad` anew."""
        if is_users(node):
            written = self._whole.as_written(node)
            if self.drawn:
                (made,) = clone_replace(written.outputs, self.drawn)
                written = made.owner or written
            self._whole.add_known(written, Replicated())
            return written.outputs
        given = self._placed.get(node.inputs[0], node.inputs[0])
        with contextlib.suppress(Refused):
            return [self._whole.whole(given, node.op)]
        return self._whole.remake(node, [given]).outputs

    def _shape(self, node: Apply) -> list[Variable]:
        """Place a shape as a function of the inputs' shapes, before any collective."""
        (var,) = node.inputs
        placed = self._placed.get(var, var)
        value = self._whole.lengths.shape(node)
        if value is None and placed not in self._whole.as_long:
            of_rows = self._whole.value(placed)
            if isinstance(of_rows, Sharded):
                (value,) = apply_rule(node, [of_rows])
        if value is None:
            return self._by_rules(node)
        if var.owner is None or self._placed.get(var) is var:
            self._whole.add_known(node, value)
            return node.outputs
        written = self._whole.lengths.written(node)
        if written is None:
            return self._by_rules(node)
        found = self._whole.add_graph(written)
        is_known = self._whole.value(found) == value
        return [found if is_known else self._whole.add_asserted(found, value)]

    def _elementwise(self, node: Apply) -> list[Variable]:
        """Place an elementwise node; of one that fills a scalar, take the value."""
        if isinstance(node.op.scalar_op, Second):
            like, value = node.inputs
            same = node.outputs[0].type.dtype == value.type.dtype
            if like.type.ndim == 0 and same:
                return [self._placed.get(value, value)]
        return self._by_rules(node)

    # -- all other nodes

    def _by_rules(self, node: Apply) -> list[Variable]:
        """Place a node with the first form of its operands that its rule accepts.

        If none is accepted, lower the Op, gather the operands, or compute all above the
        node from all rows. If that fails too, the outputs are unknown.
        """
        draws = takes_streams(node)
        inputs = [self._placed.get(var, var) for var in node.inputs]
        if draws:
            for i, var in enumerate(node.inputs):
                if is_stream(var):
                    inputs[i] = self._streams.own(var)
        first = self._whole.remake(node, inputs)
        if not draws and self._is_known(first, inputs):
            return first.outputs
        for given in itertools.chain([inputs], forms(self._whole, node, inputs)):
            made = self._understood(node, given)
            if made is not None:
                return made
            if given is inputs and self._own.accept(first, node):
                self._streams.note(node, first.outputs, is_common=False)
                return first.outputs
        made = (
            self._lowered(node, inputs)
            or self._gathered(node, inputs)
            or self._from_all_rows(node)
        )
        if made is None:  # unknown, and so are later draws from its streams
            self._streams.note(node, first.outputs, is_common=False)
        return made or first.outputs

    def _understood(
        self, node: Apply, inputs: Sequence[Variable]
    ) -> list[Variable] | None:
        """Return a node's outputs for placed operands; None if they are unknown."""
        drawn = self._streams.placed_draws(node, inputs)
        if drawn is not None:
            self._streams.note(node, drawn, is_common=True)
            return drawn
        for given, is_common in self._streams.operand_choices(node, inputs):
            made = self._whole.remake(node, given)
            if self._is_known(made, given):
                self._streams.note(node, made.outputs, is_common)
                return made.outputs
        return None

    def _lowered(
        self, node: Apply, inputs: Sequence[Variable]
    ) -> list[Variable] | None:
        """Place a node as a graph of simpler Ops; None if that is not possible."""
        graph = ask_or_none(lowered, node, inputs)
        if graph is None:
            return None
        streams = self._streams.within(node, inputs)
        inside = Placer(self._whole, self._own, streams, inputs)
        made = inside.place(graph)
        if not self._are_known(made):
            return None
        self._streams.follow(node, graph, streams)
        self.repeated += inside.repeated
        parts = inside.users().keys() - set(inputs)
        self._within.update(dict.fromkeys(parts, node.outputs[0]))
        return made

    def _from_all_rows(self, node: Apply) -> list[Variable] | None:
        """Compute a node and all above it from all inputs' rows, on every rank.

        None if that is not possible. Inside a graph that stands for one Op it is not:
        its operands are of a rank's rows. The Op as a whole is then computed so.
        """
        if self._is_inside:
            return None
        with contextlib.suppress(Refused):
            made = [self._whole.of_all_rows(var) for var in node.outputs]
            self.repeated.append((node, made))
            return made
        return None

    def _gathered(self, node: Apply, inputs: list[Variable]) -> list[Variable] | None:
        """Compute a node from gathered operands; None if that is not possible."""
        places = [i for i, var in enumerate(inputs) if not is_stream(var)]
        given = changed(inputs, places, self._whole.gathered)
        made = None if given is None else self._understood(node, given)
        if made is not None:
            self.repeated.append((node, made))
        return made

    def _is_known(self, made: Apply, inputs: Sequence[Variable]) -> bool:
        """Return whether the rules know a node's outputs, and a rank can compute them.

        Some Ops convert operands to types of a fixed length, that of all rows. This
        fails on a rank, even if the Op uses only the operand's length.
        """
        converted = [
            new for new, given in zip(made.inputs, inputs, strict=True) if new != given
        ]
        return self._are_known(made.outputs) and self._are_known(converted)

    def _are_known(self, made: Iterable[Variable]) -> bool:
        return not any(type(self._whole.value(var)) is Unknown for var in made)


def is_users(node: Apply) -> bool:
    """Return whether a node is an all-reduce that the user wrote."""
    return isinstance(node.op, AllReduce) and node.op.gradient is None


_WAYS: dict[type[Op], Callable[[Placer, Apply], list[Variable]]] = {
    AllRows: Placer._marked,
    OwnRows: Placer._marked,
    AllReduce: Placer._reduced,
    Shape: Placer._shape,
    Shape_i: Placer._shape,
    Elemwise: Placer._elementwise,
}
"""How nodes of some Ops are placed; all others by `Placer._by_rules`."""


def forms(
    whole: Whole, node: Apply, inputs: Sequence[Variable]
) -> Iterator[list[Variable]]:
    """Yield other forms of a node's operands, the cheapest first."""
    values = [whole.value(var) for var in inputs]
    if any(isinstance(value, Unknown) for value in values):
        return
    counts = [i for i, value in enumerate(values) if counts_rows(value)]
    partial = [i for i, value in enumerate(values) if isinstance(value, Partial)]
    both = [*counts, *partial]
    tries: list[Try] = [(places, whole.whole) for places in (counts, partial, both)]
    if any(isinstance(value, Sharded) for value in values):
        if isinstance(node.op, Elemwise):
            tries += _local(whole, inputs, values)
        numbers = [i for i, value in enumerate(values) if isinstance(value, Position)]
        tries.append((numbers, whole.numbered))
        # If operands have rows on different axes: all but those on one axis gathered.
        axes = {
            i: value.axis - inputs[i].type.ndim
            for i, value in enumerate(values)
            if isinstance(value, Sharded)
        }
        for own in dict.fromkeys(axes.values()):
            others = [i for i, axis in axes.items() if axis != own]
            tries.append((others, whole.gathered))
        # Rows scaled so that their powers of the number of rows are 0.
        scaled = [i for i in axes if values[i].power]  # type: ignore[union-attr]

        def unscaled(var: Variable) -> Variable:
            value = whole.value(var)
            if isinstance(value, Sharded):
                return whole.scaled(var, -(value.power or 0))
            return whole.whole(var)

        tries += [(scaled, unscaled), ([*scaled, *both], unscaled)]
    for places, form in tries:
        made = changed(inputs, places, form)
        if made is not None:
            yield made


def changed(
    inputs: Sequence[Variable], places: Sequence[int], form: Form
) -> list[Variable] | None:
    """Return the operands with those at `places` in another form; None if refused."""
    made = list(inputs)
    with contextlib.suppress(Refused):
        for i in places:
            made[i] = form(made[i])
        return made if places else None
    return None


def _local(whole: Whole, inputs: Sequence[Variable], values: list[Value]) -> list[Try]:
    """Return the try that cuts this rank's rows out of operands with all rows.

    An elementwise Op combines axes of one length only: so an operand that is combined
    with rows, and is not broadcast along them, has an entry for each of all rows.
    """
    rows = [
        (value.length, value.axis - var.type.ndim)
        for var, value in zip(inputs, values, strict=True)
        if isinstance(value, (Sharded, Position))
    ]
    back = {axis for _, axis in rows}
    if len(back) > 1 or any(length != "n" for length, _ in rows):
        return []  # it is not known which entries are this rank's
    (axis,) = back

    def form(var: Variable) -> Variable:
        value = whole.value(var)
        if isinstance(value, Position):
            return whole.numbered(var)
        has_axis = var.type.ndim >= -axis and var.type.shape[axis] != 1
        if isinstance(value, Sharded) or not has_axis:
            return whole.whole(var) if isinstance(value, Partial) else var
        return whole.cut_own_rows(whole.whole(var), axis + var.type.ndim)

    return [(range(len(inputs)), form)]
