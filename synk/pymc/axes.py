"""Which axes of a graph belong to one dimension.

Two axes belong to one dimension if an Op matches their entries one by one: for example
the rows of a covariate matrix in a product, and the observed values from which the
product is subtracted. Axes of the same length that no Op matches are two dimensions.
The groups from which an index gathers rows are another dimension than the rows.

Each use of a constant counts separately, as PyTensor merges constants that are equal,
such as the zeros of two prior means.
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

from ..compiler.cloning import inner_graph_of
from ..compiler.domain import Refused
from ..compiler.lengths import inferred_shapes
from ..compiler.rules.base import PUTTING, TAKING, split_axis
from ..compiler.rules.index import entries_of_index, layout

Use = tuple[Apply, int]
"""A use of a constant: a node, and the number of its input."""

Axis = tuple[Variable | Use, int]
"""An axis of a variable or constant; as a dimension, the one that represents it."""

Pair = tuple[tuple[Variable, int], tuple[Variable, int]]


class Axes:
    """The dimensions of a graph: sets of axes, each represented by one axis."""

    def __init__(self, graph: Sequence[Variable]) -> None:
        self._above: dict[Axis, Axis] = {}
        for node in io_toposort([], list(graph)):
            for one, other in _pairs(node):
                self.join(self._key(node, *one), self._key(node, *other))

    def of(self, var: Variable) -> list[Axis]:
        """Return the dimensions of the axes of a variable that is no constant."""
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
        """Return the axis that represents the dimension of an axis."""
        while (above := self._above.get(axis, axis)) != axis:
            self._above[axis] = self._above.get(above, above)
            axis = above
        return axis

    def join(self, one: Axis, other: Axis) -> None:
        """Make the dimensions of two axes one."""
        one, other = self.top(one), self.top(other)
        if one != other:
            self._above[one] = other


def _ndim(var: Variable) -> int:
    return var.type.ndim if isinstance(var.type, DenseTensorType) else 0


def _pairs(node: Apply) -> Iterator[Pair]:
    """Yield pairs of a node's axes that belong to one dimension."""
    rules = (rule for classes, rule in _RULES if isinstance(node.op, classes))
    try:
        found = list(next(rules, _by_shape)(node))
    except Refused:  # an index that is not understood
        return
    for one, other in found:
        if 1 not in (one[0].type.shape[one[1]], other[0].type.shape[other[1]]):
            yield one, other


def _elementwise(node: Apply) -> Iterator[Pair]:
    """Yield pairs of operands' axes and the result's, matched from the last one."""
    out = node.outputs[0]
    for var in node.inputs:
        for back in range(1, min(_ndim(var), _ndim(out)) + 1):
            yield (var, _ndim(var) - back), (out, _ndim(out) - back)


def _same(node: Apply) -> Iterator[Pair]:
    """Yield pairs for a result that has the shape of the first input."""
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
    """Yield pairs by a gufunc signature; batch axes are matched from the last one."""
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
    """Yield pairs for full slices of an index, and for axes of index arrays.

    `first` is the number of the first input of the index. `taken` is the array of the
    entries that are read or written.
    """
    array = node.inputs[0]
    entries = entries_of_index(node, first)
    entries += [slice(None)] * (_ndim(array) - len(entries))
    arrays: list[Any] = [e for e in entries if isinstance(e, Variable) and _ndim(e)]
    masks = [each for each in arrays if each.type.dtype == "bool"]
    if any(_ndim(mask) > 1 for mask in masks):
        return  # a mask of several axes merges them
    ndim = max(map(_ndim, arrays), default=0)
    place, axes = layout(entries, ndim)
    # Written entries are broadcast, so axes are counted from the last one.
    before = _ndim(taken) - len(axes)
    for out, axis in enumerate(axes, before):
        if axis >= 0 and entries[axis] == slice(None) and out >= 0:
            yield (array, axis), (taken, out)
    for each in [] if masks else arrays:
        into = before + place + ndim - _ndim(each)
        for axis in range(max(-into, 0), _ndim(each)):
            yield (each, axis), (taken, into + axis)


def _put(node: Apply) -> Iterator[Pair]:
    yield from _same(node)
    yield from _indexed(node, 2, node.inputs[1])


def _joined(node: Apply) -> Iterator[Pair]:
    along, arrays = split_axis(node, node.inputs)
    (out,) = node.outputs
    for var in arrays if isinstance(along, int) else ():
        for axis in range(_ndim(out)):
            if axis != along % _ndim(out):
                yield (var, axis), (out, axis)


def _reshaped(node: Apply) -> Iterator[Pair]:
    """Yield pairs of first and of last axes whose lengths a reshape keeps."""
    var, out = node.inputs[0], node.outputs[0]
    first, last = ends_kept(var.type.shape, out.type.shape)
    for axis in (*range(first), *range(-last, 0)):
        yield (var, axis % _ndim(var)), (out, axis % _ndim(out))


def ends_kept(old: Sequence[int | None], new: Sequence[int | None]) -> tuple[int, int]:
    """Return how many first, and how many last axes have the same known lengths.

    No axis is counted twice.
    """

    def count(pairs: Iterable[tuple[int | None, int | None]]) -> int:
        kept = takewhile(lambda pair: pair[0] == pair[1] is not None, pairs)
        return sum(1 for _ in kept)

    first = count(zip(old, new, strict=False))
    rest = reversed(old[first:]), reversed(new[first:])
    return first, count(zip(*rest, strict=False))


def _within(node: Apply) -> Iterator[Pair]:
    """Yield pairs that the inner graph of an Op joins."""
    op: Any = node.op
    inner = [*op.inner_inputs, *op.inner_outputs]
    pairs = zip(inner, (*node.inputs, *node.outputs), strict=True)
    yield from _joined_inside(Axes(op.inner_outputs), pairs)


def _joined_inside(
    inside: Axes, pairs: Iterable[tuple[Variable, Variable]]
) -> Iterator[Pair]:
    """Yield pairs of outer variables' axes whose inner axes are of one dimension.

    `pairs` has (inner, outer) variables. An outer one may have more axes, of steps,
    before those of the inner one.
    """
    found: dict[Axis, tuple[Variable, int]] = {}
    for var, outer in pairs:
        if not isinstance(var, Constant):
            before = _ndim(outer) - _ndim(var)
            for axis, dimension in enumerate(inside.of(var), before):
                yield found.setdefault(dimension, (outer, axis)), (outer, axis)


def _scanned(node: Apply) -> Iterator[Pair]:
    """Yield pairs that a scan's step joins: in sequences, states and constant inputs.

    Axes that a step matches, such as subjects in each trial, are matched in the scan's
    inputs and outputs, too.
    """
    op: Any = node.op
    yield from _by_shape(node)
    inner, outputs = inner_graph_of(node)
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
    """Yield pairs of an input's and a result's axis if the Op says their lengths agree.

    This is for all Ops without a rule, by their `infer_shape`.
    """
    symbols: dict[Variable, tuple[Variable, int]] = {}
    shapes: list[Any] = []
    for var in node.inputs:
        is_array = isinstance(var.type, DenseTensorType)
        lengths = tuple(lscalar() for _ in range(_ndim(var)))
        symbols.update((s, (var, axis)) for axis, s in enumerate(lengths))
        shapes.append(lengths if is_array else None)
    try:
        found = inferred_shapes(node, shapes)
    except Exception:  # the Op's own `infer_shape` may need more than symbols
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
    ((Subtensor, *TAKING), lambda node: _indexed(node, 1, node.outputs[0])),
    ((IncSubtensor, *PUTTING), _put),
    (Join, _joined),
    (Reshape, _reshaped),
)
