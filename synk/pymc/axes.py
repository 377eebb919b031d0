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
from typing import Any

from pytensor.compile.builders import OpFromGraph
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.traversal import io_toposort
from pytensor.raise_op import CheckAndRaise
from pytensor.scan.op import Scan
from pytensor.tensor.basic import Alloc, Join
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.elemwise import CAReduce, DimShuffle, Elemwise
from pytensor.tensor.extra_ops import CumOp
from pytensor.tensor.math import Dot
from pytensor.tensor.shape import Reshape, SpecifyShape
from pytensor.tensor.subtensor import (
    IncSubtensor,
    Subtensor,
)
from pytensor.tensor.type import DenseTensorType, lscalar

from ..compiler.cloning import step_of
from ..compiler.domain import Refused
from ..compiler.lengths import inferred_shapes
from ..compiler.rules.base import PUTTING, TAKING
from ..compiler.rules.index import entries_of_index

Use = tuple[Apply, int]
"""A constant, as an input of a node."""

Axis = tuple[Variable | Use, int]

Pair = tuple[tuple[Variable, int], tuple[Variable, int]]


class Axes:
    """The dimensions of a graph: sets of axes."""

    def __init__(self, graph: Sequence[Variable]) -> None:
        self._above: dict[Axis, Axis] = {}
        self.nodes = io_toposort([], list(graph))
        for node in self.nodes:
            for one, other in _pairs(node):
                self.join(self._key(node, *one), self._key(node, *other))

    def of(self, var: Variable, axis: int) -> Axis:
        """Return the dimension of an axis of what is no constant."""
        return self._top((var, axis))

    def of_input(self, node: Apply, i: int, axis: int) -> Axis:
        """Return the dimension of an axis of an input of a node."""
        return self._top(self._key(node, node.inputs[i], axis))

    def all_of_input(self, node: Apply, i: int) -> list[Axis]:
        """Return the dimensions of an input's axes."""
        return [self.of_input(node, i, a) for a in range(_ndim(node.inputs[i]))]

    def _key(self, node: Apply, var: Variable, axis: int) -> Axis:
        if isinstance(var, Constant):
            return (node, node.inputs.index(var)), axis
        return var, axis

    def _top(self, axis: Axis) -> Axis:
        while (above := self._above.get(axis, axis)) != axis:
            self._above[axis] = self._above.get(above, above)
            axis = above
        return axis

    def join(self, one: Axis, other: Axis) -> None:
        """Have two dimensions be one."""
        one, other = self._top(one), self._top(other)
        if one != other:
            self._above[one] = other


def _ndim(var: Variable) -> int:
    return getattr(var.type, "ndim", 0)


def _pairs(node: Apply) -> Iterator[Pair]:
    """Yield axes of a node that are the same dimension, by twos."""
    for classes, rule in _RULES:
        if isinstance(node.op, classes):
            try:
                found = list(rule(node))
            except Refused:
                return
            break
    else:
        found = list(_by_shape(node))
    for one, other in found:
        if 1 not in (one[0].type.shape[one[1]], other[0].type.shape[other[1]]):
            yield one, other


def _elementwise(node: Apply) -> Iterator[Pair]:
    out = node.outputs[0]
    for var in node.inputs:
        yield from _aligned(var, out)


def _aligned(var: Variable, out: Variable) -> Iterator[Pair]:
    """Yield the axes of an operand, counted from the last, with those of a result."""
    for back in range(1, min(_ndim(var), _ndim(out)) + 1):
        if var.type.shape[-back] != 1:
            yield (var, _ndim(var) - back), (out, _ndim(out) - back)


def _same(node: Apply) -> Iterator[Pair]:
    """Yield those of a result that has the shape of the first input."""
    for axis in range(_ndim(node.outputs[0])):
        yield (node.inputs[0], axis), (node.outputs[0], axis)


def _cumulated(node: Apply) -> Iterator[Pair]:
    if _ndim(node.inputs[0]) == _ndim(node.outputs[0]):  # else it is flattened
        yield from _same(node)


def _shuffled(node: Apply) -> Iterator[Pair]:
    for axis, source in enumerate(node.op.new_order):
        if source != "x":
            yield (node.inputs[0], source), (node.outputs[0], axis)


def _kept(node: Apply) -> Iterator[Pair]:
    (var,), (out,) = node.inputs, node.outputs
    axes = node.op.axis
    reduced = range(_ndim(var)) if axes is None else {a % _ndim(var) for a in axes}
    kept = [axis for axis in range(_ndim(var)) if axis not in reduced]
    for axis, source in enumerate(kept):
        yield (var, source), (out, axis)


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
    signature = *op.inputs_sig, *op.outputs_sig
    for var, names in zip((*node.inputs, *node.outputs), signature, strict=True):
        for axis, name in enumerate(names, _ndim(var) - len(names)):
            if name in named:
                yield named[name], (var, axis)
            named.setdefault(name, (var, axis))
    out, n = node.outputs[0], len(op.outputs_sig[0])
    batch = _ndim(out) - n
    for var, names in zip(node.inputs, op.inputs_sig, strict=True):
        for axis in range(_ndim(var) - len(names)):
            into = batch - (_ndim(var) - len(names)) + axis
            if var.type.shape[axis] != 1:
                yield (var, axis), (out, into)
    for other, names in zip(node.outputs[1:], op.outputs_sig[1:], strict=True):
        for axis in range(_ndim(other) - len(names)):
            yield (other, axis), (out, axis)


def _is_all(entry: Any) -> bool:
    return isinstance(entry, slice) and entry == slice(None)


def _indexed(node: Apply, first: int, taken: Variable) -> Iterator[Pair]:
    """Yield the axes that an index leaves as they are, and those of index arrays.

    `taken` is what is taken out, or put in.
    """
    array = node.inputs[0]
    entries = entries_of_index(node, first)
    if any(_is_array(e) and e.type.dtype == "bool" and _ndim(e) > 1 for e in entries):
        return  # a mask of several axes makes one of them
    entries += [slice(None)] * (_ndim(array) - len(entries))
    arrays = [axis for axis, e in enumerate(entries) if _is_array(e)]
    ndim = max((_ndim(entries[axis]) for axis in arrays), default=0)
    numbers = [a for a, e in enumerate(entries) if not isinstance(e, slice)]
    are_together = not numbers or numbers == list(range(numbers[0], numbers[-1] + 1))
    place = numbers[0] if arrays and are_together else 0
    offset = _ndim(taken) - (ndim + sum(isinstance(e, slice) for e in entries))
    if offset:  # what is put in is broadcast; its axes are counted from the last
        offset = min(offset, 0)
    out = offset
    for axis, entry in enumerate(entries):
        if arrays and out == offset + place:
            yield from _of_arrays([entries[a] for a in arrays], taken, out, ndim)
            out += ndim
        if isinstance(entry, slice):
            if _is_all(entry) and 0 <= out < _ndim(taken):
                yield (array, axis), (taken, out)
            out += 1
    if arrays and out == offset + place:
        yield from _of_arrays([entries[a] for a in arrays], taken, out, ndim)


def _is_array(entry: Any) -> bool:
    return isinstance(entry, Variable) and _ndim(entry) > 0


def _of_arrays(
    arrays: list[Variable], taken: Variable, first: int, ndim: int
) -> Iterator[Pair]:
    if any(array.type.dtype == "bool" for array in arrays):  # type: ignore[attr-defined]
        return
    for array in arrays:
        for axis in range(_ndim(array)):
            into = first + ndim - _ndim(array) + axis
            if array.type.shape[axis] != 1 and 0 <= into < _ndim(taken):
                yield (array, axis), (taken, into)


def _taken(node: Apply) -> Iterator[Pair]:
    yield from _indexed(node, 1, node.outputs[0])


def _put(node: Apply) -> Iterator[Pair]:
    yield from _same(node)
    yield from _indexed(node, 2, node.inputs[1])


def _spread(node: Apply) -> Iterator[Pair]:
    yield from _aligned(node.inputs[0], node.outputs[0])


def _joined(node: Apply) -> Iterator[Pair]:
    """Which axis arrays are joined along is Join's, or its first input before 3.1."""
    (out,), arrays = node.outputs, node.inputs
    along: Any = getattr(node.op, "axis", None)
    if along is None:
        first, *arrays = node.inputs
        if not isinstance(first, Constant):
            return
        along = int(first.data)
    for var in arrays:
        for axis in range(_ndim(out)):
            if axis != along % _ndim(out):
                yield (var, axis), (out, axis)


def _reshaped(node: Apply) -> Iterator[Pair]:
    """Leading axes that stay as long stay as they are, and so do the last ones."""
    var, out = node.inputs[0], node.outputs[0]
    for one, other in _kept_lengths(var.type.shape, out.type.shape):
        yield (var, one), (out, other)


def _kept_lengths(
    old: Sequence[int | None], new: Sequence[int | None]
) -> Iterator[tuple[int, int]]:
    pairs = list(zip(old, new, strict=False))
    for axis, (one, other) in enumerate(pairs):
        if one is None or one != other:
            break
        yield axis, axis
    for back, (one, other) in enumerate(
        zip(reversed(old), reversed(new), strict=False), 1
    ):
        if one is None or one != other:
            break
        yield len(old) - back, len(new) - back


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
        if isinstance(var, Constant):
            continue
        before = _ndim(outer) - _ndim(var)
        for axis in range(_ndim(var)):
            dimension, place = inside.of(var, axis), (outer, axis + before)
            if dimension in found:
                yield found[dimension], place
            found.setdefault(dimension, place)


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
            for axis in range(_ndim(inner[i])):
                inside.join(inside.of(outputs[k], axis), inside.of(inner[i], axis))
    pairs = [
        (inner[i], node.inputs[k])
        for i, k in mappings["outer_inp_from_inner_inp"].items()
    ]
    pairs += [
        (outputs[i], node.outputs[k])
        for i, k in mappings["outer_out_from_inner_out"].items()
    ]
    yield from _joined_inside(inside, pairs)


def _by_shape(node: Apply) -> Iterator[Pair]:
    """Other Ops say of which input's axis the length of a result's axis is."""
    symbols: dict[Variable, tuple[Variable, int]] = {}
    shapes: list[Any] = []
    for var in node.inputs:
        if not isinstance(var.type, DenseTensorType):
            shapes.append(None)
            continue
        lengths = [lscalar() for _ in range(_ndim(var))]
        symbols.update((s, (var, axis)) for axis, s in enumerate(lengths))
        shapes.append(tuple(lengths))
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
    (Elemwise, _elementwise),
    (DimShuffle, _shuffled),
    (CAReduce, _kept),
    (Dot, _product),
    (Blockwise, _by_signature),
    ((CheckAndRaise, SpecifyShape), _same),
    (Alloc, _spread),
    (CumOp, _cumulated),
    ((Subtensor, *TAKING), _taken),
    ((IncSubtensor, *PUTTING), _put),
    (Join, _joined),
    (Reshape, _reshaped),
)
