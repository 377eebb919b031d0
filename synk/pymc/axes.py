"""Which axes of a graph are one and the same dimension.

Two axes are one dimension if an Op puts their entries side by side: the axis of a
covariate that a product keeps and that of the observed values which the result is
subtracted from. An axis that is as long and meets it nowhere is another dimension, and
so are the groups that rows are gathered from by an index.

A constant is looked at for each of its uses by itself: PyTensor makes one of constants
that are equal, such as the zeros of two prior means.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import takewhile
from typing import Any

from pytensor.compile.builders import OpFromGraph
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.traversal import io_toposort
from pytensor.scan.op import Scan
from pytensor.tensor.basic import Alloc, Join
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.math import Dot
from pytensor.tensor.shape import Reshape, SpecifyShape
from pytensor.tensor.subtensor import IncSubtensor, Subtensor
from pytensor.tensor.type import DenseTensorType, lscalar

from ..compiler.cloning import step_of
from ..compiler.domain import Refused
from ..compiler.lengths import inferred_shapes
from ..compiler.rules.base import PUTTING, TAKING, apart
from ..compiler.rules.index import entries_of_index, layout

Use = tuple[Apply, int]
"""A constant, as an input of a node."""

Axis = tuple[Variable | Use, int]

Pair = tuple[tuple[Variable, int], tuple[Variable, int]]


class Axes:
    """The dimensions of a graph: sets of axes, each told by one that stands for it."""

    def __init__(self, graph: Sequence[Variable]) -> None:
        self._above: dict[Axis, Axis] = {}
        for node in io_toposort([], list(graph)):
            for one, other in _pairs(node):
                self.join(self._key(node, *one), self._key(node, *other))

    def of(self, var: Variable) -> list[Axis]:
        """Return the dimensions of the axes of what is no constant."""
        return [self.top((var, axis)) for axis in range(_ndim(var))]

    def of_input(self, node: Apply, i: int) -> list[Axis]:
        """Return the dimensions of the axes of an input of a node."""
        var = node.inputs[i]
        return [self.top(self._key(node, var, axis)) for axis in range(_ndim(var))]

    def _key(self, node: Apply, var: Variable, axis: int) -> Axis:
        if isinstance(var, Constant):
            return (node, node.inputs.index(var)), axis
        return var, axis

    def top(self, axis: Axis) -> Axis:
        """Return what stands for the dimension of an axis."""
        while (above := self._above.get(axis, axis)) != axis:
            self._above[axis] = self._above.get(above, above)
            axis = above
        return axis

    def join(self, one: Axis, other: Axis) -> None:
        """Have two dimensions be one."""
        one, other = self.top(one), self.top(other)
        if one != other:
            self._above[one] = other


def _ndim(var: Variable) -> int:
    return var.type.ndim if isinstance(var.type, DenseTensorType) else 0


def _pairs(node: Apply) -> Iterator[Pair]:
    """Yield axes of a node that are the same dimension, by twos."""
    rules = (rule for classes, rule in _RULES if isinstance(node.op, classes))
    try:
        found = list(next(rules, _by_shape)(node))
    except Refused:  # an index that is not understood
        return
    for one, other in found:
        if 1 not in (one[0].type.shape[one[1]], other[0].type.shape[other[1]]):
            yield one, other


def _elementwise(node: Apply) -> Iterator[Pair]:
    """Yield the axes of operands, counted from the last, with those of a result."""
    out = node.outputs[0]
    for var in node.inputs:
        for back in range(1, min(_ndim(var), _ndim(out)) + 1):
            yield (var, _ndim(var) - back), (out, _ndim(out) - back)


def _same(node: Apply) -> Iterator[Pair]:
    """Yield those of a result that has the shape of the first input."""
    for axis in range(_ndim(node.outputs[0])):
        yield (node.inputs[0], axis), (node.outputs[0], axis)


def _product(node: Apply) -> Iterator[Pair]:
    (a, b), (out,) = node.inputs, node.outputs
    if _ndim(a) == 2:
        yield (a, 0), (out, 0)
    if _ndim(b) == 2:
        yield (b, 1), (out, _ndim(out) - 1)
    yield (a, _ndim(a) - 1), (b, 0)


def _by_signature(node: Apply) -> Iterator[Pair]:
    """Axes of the core are told by names, those of the batch from the last one."""
    op: Any = node.op
    named: dict[str, tuple[Variable, int]] = {}
    out = node.outputs[0]
    last = _ndim(out) - len(op.outputs_sig[0])
    signature = *op.inputs_sig, *op.outputs_sig
    for var, names in zip((*node.inputs, *node.outputs), signature, strict=True):
        batch = _ndim(var) - len(names)
        for axis, name in enumerate(names, batch):
            yield named.setdefault(name, (var, axis)), (var, axis)
        for axis in range(batch):
            yield (var, axis), (out, last - batch + axis)


def _indexed(node: Apply, first: int, taken: Variable) -> Iterator[Pair]:
    """Yield the axes that an index leaves as they are, and those of index arrays.

    `taken` is what is taken out, or put in.
    """
    array = node.inputs[0]
    entries = entries_of_index(node, first)
    entries += [slice(None)] * (_ndim(array) - len(entries))
    arrays: list[Any] = [e for e in entries if isinstance(e, Variable) and _ndim(e)]
    masks = [each for each in arrays if each.type.dtype == "bool"]
    if any(_ndim(mask) > 1 for mask in masks):
        return  # one of several axes makes one of them
    ndim = max(map(_ndim, arrays), default=0)
    place, axes = layout(entries, ndim)
    # What is put in is broadcast; its axes are counted from the last one.
    before = _ndim(taken) - len(axes)
    for out, axis in enumerate(axes, before):
        if axis >= 0 and entries[axis] == slice(None) and out >= 0:
            yield (array, axis), (taken, out)
    for each in [] if masks else arrays:
        into = before + place + ndim - _ndim(each)
        for axis in range(max(-into, 0), _ndim(each)):
            yield (each, axis), (taken, into + axis)


def _taken(node: Apply) -> Iterator[Pair]:
    yield from _indexed(node, 1, node.outputs[0])


def _put(node: Apply) -> Iterator[Pair]:
    yield from _same(node)
    yield from _indexed(node, 2, node.inputs[1])


def _joined(node: Apply) -> Iterator[Pair]:
    along, arrays = apart(node, node.inputs)
    (out,) = node.outputs
    for var in arrays if isinstance(along, int) else ():
        for axis in range(_ndim(out)):
            if axis != along % _ndim(out):
                yield (var, axis), (out, axis)


def _reshaped(node: Apply) -> Iterator[Pair]:
    """Leading axes that stay as long stay as they are, and so do the last ones."""
    var, out = node.inputs[0], node.outputs[0]
    first, last = ends_kept(var.type.shape, out.type.shape)
    for axis in (*range(first), *range(-last, 0)):
        yield (var, axis % _ndim(var)), (out, axis % _ndim(out))


def ends_kept(old: Sequence[int | None], new: Sequence[int | None]) -> tuple[int, int]:
    """Return how many leading axes are known to stay as long, and how many last ones.

    No axis is counted twice.
    """

    def count(pairs: Iterable[tuple[int | None, int | None]]) -> int:
        kept = takewhile(lambda pair: pair[0] == pair[1] is not None, pairs)
        return sum(1 for _ in kept)

    first = count(zip(old, new, strict=False))
    rest = reversed(old[first:]), reversed(new[first:])
    return first, count(zip(*rest, strict=False))


def _within(node: Apply) -> Iterator[Pair]:
    """Yield those that the graph within an Op joins."""
    op: Any = node.op
    inner = [*op.inner_inputs, *op.inner_outputs]
    pairs = zip(inner, (*node.inputs, *node.outputs), strict=True)
    yield from _joined_inside(Axes(op.inner_outputs), pairs)


def _joined_inside(
    inside: Axes, pairs: Iterable[tuple[Variable, Variable]]
) -> Iterator[Pair]:
    """Yield axes of outer variables, where those of the inner ones are joined.

    An outer variable may have axes before those of the inner one, as of steps.
    """
    found: dict[Axis, tuple[Variable, int]] = {}
    for var, outer in pairs:
        if not isinstance(var, Constant):
            before = _ndim(outer) - _ndim(var)
            for axis, dimension in enumerate(inside.of(var), before):
                yield found.setdefault(dimension, (outer, axis)), (outer, axis)


def _scanned(node: Apply) -> Iterator[Pair]:
    """Yield those that a step joins: of sequences, states and what is given to all.

    What lies beside each other in every step, such as subjects in each trial, does so
    in all that the scan takes and gives.
    """
    op: Any = node.op
    yield from _by_shape(node)
    inner, outputs = step_of(node)
    inside = Axes(outputs)
    mappings = op.get_oinp_iinp_iout_oout_mappings()
    for k, places in mappings["inner_inp_from_inner_out"].items():
        for i in places if not isinstance(outputs[k], Constant) else ():
            axes = inside.of(outputs[k]), inside.of(inner[i])
            for one, other in zip(*axes, strict=True):
                inside.join(one, other)
    inputs = mappings["outer_inp_from_inner_inp"].items()
    given = mappings["outer_out_from_inner_out"].items()
    pairs = [(inner[i], node.inputs[k]) for i, k in inputs]
    pairs += [(outputs[i], node.outputs[k]) for i, k in given]
    yield from _joined_inside(inside, pairs)


def _by_shape(node: Apply) -> Iterator[Pair]:
    """Other Ops say of which input's axis the length of a result's axis is."""
    symbols: dict[Variable, tuple[Variable, int]] = {}
    shapes: list[Any] = []
    for var in node.inputs:
        is_array = isinstance(var.type, DenseTensorType)
        lengths = tuple(lscalar() for _ in range(_ndim(var)))
        symbols.update((s, (var, axis)) for axis, s in enumerate(lengths))
        shapes.append(lengths if is_array else None)
    try:
        found = inferred_shapes(node, shapes)
    except Exception:  # that of an Op that asks more of its graph than this
        return
    for out, shape in zip(node.outputs, found or (), strict=False):
        for axis, length in enumerate(shape or ()):
            if isinstance(length, Variable) and length in symbols:
                yield symbols[length], (out, axis)


_RULES: tuple[tuple[Any, Callable[[Apply], Iterator[Pair]]], ...] = (
    (OpFromGraph, _within),
    (Scan, _scanned),
    ((Elemwise, Alloc), _elementwise),
    (Dot, _product),
    (Blockwise, _by_signature),
    (SpecifyShape, _same),
    ((Subtensor, *TAKING), _taken),
    ((IncSubtensor, *PUTTING), _put),
    (Join, _joined),
    (Reshape, _reshaped),
)
