"""Shapes, arrays of a given shape, and Ops that move, join, split or reshape axes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace

import pytensor.tensor as pt
from pytensor.compile.ops import DeepCopyOp, ViewOp
from pytensor.graph.basic import Apply, Variable
from pytensor.printing import Print
from pytensor.raise_op import CheckAndRaise
from pytensor.tensor import basic as ptb
from pytensor.tensor.elemwise import DimShuffle
from pytensor.tensor.extra_ops import CpuContiguous
from pytensor.tensor.shape import Reshape, Shape, Shape_i, SpecifyShape
from pytensor.tensor.type_other import NoneTypeT

from ...ops import OwnRows
from .. import table
from ..domain import (
    IN_ORDER,
    Layout,
    Listed,
    Partial,
    Position,
    Refused,
    Replicated,
    Sharded,
    Unknown,
    Value,
    constant,
    describe,
    is_n,
    is_replicated,
    number_of,
    selected,
    unlisted,
)
from ..lengths import (
    ONE,
    Length,
    entries_of,
    of_input,
    of_numbers,
    product,
    size,
    value_of,
)
from ..padded import Made, Padder, plain
from ..sizes import are_filled
from .base import is_short, split_axis


def length(value: Value, axis: int) -> Value:
    """Return the `Value` of the length of an axis."""
    if isinstance(value, Unknown):
        return value
    if isinstance(value, (Sharded, Position)) and value.axis == axis:
        if value.length == "?":
            return Unknown(
                "Shape",
                f"axis {axis}",
                "counts the rows of a sliceable shared variable, which are not the"
                " rows that the ranks are weighed by",
            )
        if value.length == "some":
            return Partial("sum")
        return Replicated(1, exact=value.length == "n")
    return Replicated()


def _fixed(node: Apply, axis: int) -> Value | None:
    found = size(node.inputs[0], axis)
    return None if found.symbols else constant(found.number)


@table.placement(
    *(Shape, Shape_i),
    takes_unknown=True,
    takes_some_rows=True,
    same_in_jax=True,
    by_elements=True,
    cost="view",
)
def shape(node: Apply, values: list[Value]) -> Value:
    """The lengths of all axes, or of one."""
    if isinstance(node.op, Shape_i):
        return _fixed(node, node.op.i) or length(values[0], node.op.i)
    axes = range(node.inputs[0].type.ndim)
    return Listed(tuple(_fixed(node, i) or length(values[0], i) for i in axes))


@table.padded(Shape, Shape_i)
def real_shape(padder: Padder, node: Apply, values: list[Value]) -> Made:
    """For padded inputs, the shape with the real number of rows; a size."""
    (var,), (out,) = node.inputs, node.outputs
    new, rows = padder.new[var], plain(values[0])
    made = padder.made(node, [new])
    is_whole = isinstance(node.op, Shape)
    if isinstance(rows, Sharded) and (is_whole or rows.axis == node.op.i):
        padder.long[out] = made[0]
        lengths = list(new.shape)
        each = new.shape[rows.axis] // padder.padded_rows
        lengths[rows.axis] = padder.real * each
        made = [pt.stack(lengths) if is_whole else lengths[rows.axis]]
    return Made(made, [shape(node, values)])


@table.placement(ptb.MakeVector, takes_unknown=True, **table.VIEW)
def make_vector(node: Apply, values: list[Value]) -> Value:
    """A vector of scalars."""
    if all(isinstance(value, (Replicated, Unknown)) for value in values):
        return Listed(tuple(values))
    for value in values:
        if isinstance(value, Unknown):
            return value
    return selected(values)


# -- shapes that arrays are given


def entries(node: Apply, position: int, values: Sequence[Value]) -> list[Value]:
    """Return the values of the entries of an input that is a shape."""
    value = values[position]
    if isinstance(value, Listed):
        return list(value.entries)
    var = node.inputs[position]
    if isinstance(value, Replicated) and value.power and var.type.shape == (1,):
        return [value]
    if not is_replicated(value) or var.type.shape[0] is None:
        raise Refused("takes a shape that is not understood")
    data = getattr(var, "data", None)
    if data is None:
        return [Replicated()] * var.type.shape[0]
    return [constant(float(size)) for size in data]


def row_axis(lengths: Sequence[Value]) -> int | None:
    """Return the axis whose length is a multiple of n, or None; others are fixed."""
    found = None
    for axis, value in enumerate(lengths):
        if isinstance(value, Unknown):
            raise Refused(f"takes a shape that is not understood: {value}")
        if is_replicated(value):
            continue
        if found is not None:
            raise Refused("makes an array whose size grows with the square of the rows")
        if not isinstance(value, Replicated) or value.power != 1:
            raise Refused(f"takes as a length what is {describe(value)}")
        found = axis
    return found


def row_length(value: Value) -> str:
    """Return `Sharded.length` for an axis of this length."""
    return "n" if is_n(value) else "kn"


# -- arrays of a given shape


@table.placement(ptb.Alloc, length=of_numbers(1), lengths_from=1, **table.VIEW)
def alloc(node: Apply, values: list[Value]) -> Value:
    """A value repeated."""
    value, lengths = unlisted(values[0]), values[1:]
    inner = node.inputs[0].type
    axis = row_axis(lengths)
    added = len(lengths) - inner.ndim
    if isinstance(value, Sharded):
        if axis != value.axis + added:
            raise Refused("repeats rows along another axis")
        return replace(value, axis=value.axis + added)
    if axis is None:
        if isinstance(value, (Replicated, Partial)):
            return value
        raise Refused(f"repeats {describe(value)}")
    if not isinstance(value, Replicated):
        raise Refused(f"repeats {describe(value)} for each row")
    if axis >= added and inner.shape[axis - added] != 1:
        raise Refused("stretches something of fixed length to the rows")
    return Sharded(axis, value.power, row_length(lengths[axis]), None)


@table.placement(
    ptb.AllocEmpty, length=of_numbers(0), lengths_from=0, same_in_jax=True, cost="move"
)
def alloc_empty(node: Apply, values: list[Value]) -> Value:
    """Its elements are not read, so like zeros they have any power of n."""
    axis = row_axis(values)
    if axis is None:
        return Replicated(None)
    return Sharded(axis, None, row_length(values[axis]), None)


@table.placement(ptb.ARange, lengths_from=0, same_in_jax=True, cost="move")
def arange(node: Apply, values: list[Value]) -> Value:
    """From 0 to n, or to a multiple of n, a `Position`; of fixed bounds, replicated."""
    start, stop, step = values
    if all(map(is_replicated, values)):
        return Replicated()
    numbers = number_of(start) == 0 and number_of(step) == 1
    if is_short(node.outputs[0]):
        raise Refused("counts rows in short integers, which wrap around")
    if numbers and is_n(stop):
        return Position()
    is_integer = node.inputs[1].type.numpy_dtype.kind in "iu"
    if numbers and is_integer and isinstance(stop, Replicated) and stop.power == 1:
        return Position(0, "kn", value_of(node.inputs[1]))
    raise Refused("counts rows, and starts again on every rank")


# -- Ops that return their input


_CONVERTING = (ptb.TensorFromScalar, ptb.ScalarFromTensor)
_VIEWS = (ViewOp, DeepCopyOp, CpuContiguous, Print, OwnRows)


@table.placement(*_VIEWS, *_CONVERTING, makes_sizes=True)
def identity(node: Apply, values: list[Value]) -> Value:
    """The value of the first input."""
    return values[0]


table.placement(CheckAndRaise, takes_unknown=True, takes_some_rows=True)(identity)
table.known(*_VIEWS, CheckAndRaise, length=of_input(0))
table.known(ViewOp, cost="view")
table.known(*_CONVERTING, same_in_jax=True, by_elements=True, cost="view")


@table.padded(CheckAndRaise)
def unchecked(padder: Padder, node: Apply, values: list[Value]) -> Made:
    """The first input, unchecked, as in JAX."""
    var, (out,) = node.inputs[0], node.outputs
    if var in padder.long:
        padder.long[out] = padder.long[var]
    return Made([padder.new[var]], [values[0]])


@table.placement(SpecifyShape, length=of_input(0), lengths_from=1, **table.VIEW)
def specify_shape(node: Apply, values: list[Value]) -> Value:
    """The value of the first input; its number of rows must not be fixed."""
    value, *lengths = values
    for axis, (var, given) in enumerate(zip(node.inputs[1:], lengths, strict=True)):
        if isinstance(var.type, NoneTypeT) or _is_as_long(value, axis, given):
            continue
        if value_of(var) != size(node.inputs[0], axis):
            raise Refused("fixes the number of rows")
    return value


def _is_as_long(value: Value, axis: int, length: Value) -> bool:
    """Return whether `length` follows the rows as the axis of `value` does."""
    if isinstance(value, (Sharded, Position)) and value.axis == axis:
        return is_n(length) and value.length == "n"
    return is_replicated(length)


# -- axes moved, joined or split


@table.placement(DimShuffle, takes_some_rows=True, **table.VIEW)
def dimshuffle(node: Apply, values: list[Value]) -> Value:
    """Axes in another order, added or dropped; the rows' axis must stay."""
    (value,) = values
    order = list(node.op.new_order)
    if isinstance(value, (Sharded, Position)):
        if value.axis not in order:
            raise Refused("drops the rows' axis")
        return replace(value, axis=order.index(value.axis))
    if isinstance(value, Listed) and not order:
        (value,) = value.entries  # x.shape[0] of a vector, as PyTensor rewrites it
    return unlisted(value)


@table.length(DimShuffle)
def dimshuffle_length(node: Apply, var: Variable, axis: int) -> Length:
    """The length of the axis that moves there."""
    return size(node.inputs[0], node.op.new_order[axis])


@table.placement(
    ptb.Join, makes_sizes=True, same_in_jax=True, by_elements=True, cost="move"
)
def join(node: Apply, values: list[Value]) -> Value:
    """Arrays joined along another axis than the rows'."""
    axis, parts = split_axis(node, values)
    if not isinstance(axis, int):
        raise Refused("joins along an axis that is not constant")
    kinds = {type(part) for part in parts}
    if Listed in kinds and kinds <= {Listed, Replicated}:
        _, places = split_axis(node, range(len(values)))
        with suppress(Refused):  # a part of unknown length
            joined = [entries(node, i, values) for i in places]
            return Listed(tuple(entry for part in joined for entry in part))
    parts = [unlisted(part) for part in parts]
    rows = [part for part in parts if isinstance(part, Sharded)]
    for part in rows:
        if part.axis == axis:
            raise Refused("joins along the rows: those of all parts would be mingled")
    if rows and len(rows) < len(parts):
        raise Refused("joins rows with something of fixed length")
    return selected(parts)


@table.length(ptb.Join)
def join_length(node: Apply, var: Variable, axis: int) -> Length | None:
    """The length of another axis than the joined one."""
    where, parts = split_axis(node, node.inputs)
    return size(parts[0], axis) if isinstance(where, int) and where != axis else None


@table.placement(ptb.ExtractDiag)
def diagonal(node: Apply, values: list[Value]) -> Value:
    """Elements of each row, or of a value without rows."""
    value = unlisted(values[0])
    axes = node.op.axis1, node.op.axis2
    if isinstance(value, (Sharded, Position)):
        if value.axis in axes:
            raise Refused("takes a diagonal, along the rows")
        before = sum(axis < value.axis for axis in axes)
        return replace(value, axis=value.axis - before)
    return value


@table.placement(ptb.Split, by_elements=True, cost="view")
def split(node: Apply, values: list[Value]) -> list[Value]:
    """An array split along another axis than the rows'."""
    axis, (value, sizes) = split_axis(node, values)
    value = unlisted(value)
    if not is_replicated(unlisted(sizes)) or not isinstance(axis, (int, Replicated)):
        raise Refused("splits at places that depend on the rows")
    if isinstance(value, Sharded):
        if not isinstance(axis, int):
            raise Refused("splits along an axis that is not constant")
        if axis == value.axis:
            raise Refused("splits along the rows")
    elif isinstance(value, Position):
        raise Refused(f"splits {describe(value)}")
    return [value] * len(node.outputs)


@table.placement(Reshape, lengths_from=1, **table.VIEW)
def reshape(node: Apply, values: list[Value]) -> Value:
    """The rows' axis may merge with others, which gives blocks; see `Layout`.

    In memory, there are L blocks, each with S elements of each of n rows: L is the
    product of the lengths before the rows' axis and of the number of blocks along it, S
    that of the lengths after. A reshape keeps the order of elements. So the lengths
    before the new axis must divide L, and the quotient is the new number of blocks.
    """
    value = unlisted(values[0])
    lengths = entries(node, 1, values)
    if isinstance(value, Position):
        return _reshaped_position(value, lengths)
    if not isinstance(value, Sharded):
        if not all(map(is_replicated, lengths)):
            raise Refused("gives something without rows a length that depends on them")
        return value
    axis = row_axis(lengths)
    if axis is None:
        axis = _inferred(lengths)
        if axis is None:
            raise Refused("gives the rows' axis a length that does not follow theirs")
        _check_divides(node, value, axis)
        kind = "kn" if value.length != "?" else "?"
    else:
        kind = row_length(lengths[axis])
    layout = _blocks(node, value, axis, kind)
    return Sharded(axis, value.power, kind, layout)


@table.length(Reshape)
def reshape_length(node: Apply, var: Variable, axis: int) -> Length | None:
    """The length in the reshape's operand; for -1, the quotient of all elements."""
    length = reshaped(node)[axis]
    return length if length.number >= 0 else None


def reshaped(node: Apply) -> list[Length]:
    """Return the lengths of a reshape's result; -1 for one that is not found."""
    lengths = entries_of(node.inputs[1])
    for axis, length in enumerate(lengths):
        if length.number < 0:  # all elements divided by the other lengths
            source = node.inputs[0]
            sizes = [size(source, i) for i in range(source.type.ndim)]
            others = product([*lengths[:axis], *lengths[axis + 1 :]])
            lengths[axis] = product(sizes) / others or length
    return lengths


def _check_divides(node: Apply, rows: Sharded, axis: int) -> None:
    """Raise if a rank's rows may not fill groups of a reshape's axis of length -1.

    Two columns of rows with one element each need an even number of rows: all rows may
    be even in number, and a rank's not. If the graph does not tell how many elements a
    row has, calls check it (`sizes.are_filled`).
    """
    new = reshaped(node)
    if new[axis].number >= 0:
        return
    source = node.inputs[0]
    others = [i for i in range(source.type.ndim) if i != rows.axis]
    of_row = product(size(source, i) for i in others)
    needed = product([*new[:axis], *new[axis + 1 :]])
    are_known = not (of_row.symbols_only() - needed.symbols_only())
    if (rows.length == "n" and are_known) or not are_filled(node, axis):
        raise Refused("needs a number of rows that ranks may not have")


def _blocks(node: Apply, rows: Sharded, axis: int, kind: str) -> Layout | None:
    """Return the layout of rows along an axis of a reshape's result."""
    source = node.inputs[0]
    old = [size(source, i) for i in range(source.type.ndim)]
    new = reshaped(node)
    before, after = product(old[: rows.axis]), product(old[rows.axis + 1 :])
    new_before, new_after = product(new[:axis]), product(new[axis + 1 :])
    if rows.layout is None and new_after == after and new_before / before:
        return None  # all entries along the axis are equal, before and after
    layout = rows.layout or IN_ORDER
    # If both axes have length n, L is equal before and after.
    if rows.length == kind == "n" and layout.blocks == ONE and new_after == after:
        return layout
    # From the lengths before the rows' axis, or else from those after it.
    blocks = product([before, layout.blocks]) / new_before
    if blocks is None:
        blocks = product([*new[axis:], layout.blocks]) / product(old[rows.axis :])
    if blocks is None or (blocks != ONE and kind == "n"):
        raise Refused("reshapes rows to lie elsewhere than they did")
    # Several blocks have to end between entries along the new axis.
    if blocks != ONE and after / new_after is None and new[axis] / blocks is None:
        raise Refused("reshapes rows to lie elsewhere than they did")
    return replace(layout, blocks=blocks, block=new[axis] / blocks)


def _reshaped_position(value: Position, lengths: Sequence[Value]) -> Value:
    """Return row numbers along another axis, if all others have length 1."""
    axis = row_axis(lengths)
    axis = _inferred(lengths) if axis is None else axis
    others = [number_of(size) for i, size in enumerate(lengths) if i != axis]
    if axis is None or any(size != 1 for size in others):
        raise Refused(f"gives another shape to {describe(Position())}")
    return replace(value, axis=axis)


def _inferred(lengths: Iterable[Value]) -> int | None:
    """Return the axis whose length is given as -1."""
    numbers = list(map(number_of, lengths))
    return numbers.index(-1) if -1 in numbers else None
