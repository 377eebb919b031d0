"""Rules of the Ops for the splitting proof; rows are the images of a batch.

All Ops compute each image by itself, along axis 0, except `ConvFilters`, which sums
over the images. See `compiler.domain` for what a rule must preserve.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pytensor.graph.basic import Apply, Variable

from ..compiler import table
from ..compiler.domain import (
    Partial,
    Refused,
    Replicated,
    Sharded,
    Value,
    align,
    describe,
    independent,
    is_replicated,
    is_sum,
    product,
    unlisted,
    without_block,
)
from ..compiler.lengths import Length, size
from ..compiler.rules.reductions import fold, product_of_real
from .convops import Conv, ConvFilters, ConvInputs
from .neighbours import Patches, PatchesSum
from .poolops import Pool, PoolOp


@table.placement(Conv)
def conv(node: Apply, values: list[Value]) -> Value:
    """Linear in both inputs, for each image."""
    x, w = values
    return _product([x], [w])


@table.placement(ConvInputs)
def conv_inputs(node: Apply, values: list[Value]) -> Value:
    """Linear in filters and outputs, for each image."""
    x, w, y = values
    _check_as_many([x, y])
    return _product([y], [w])


@table.placement(ConvFilters, padded=product_of_real)
def conv_filters(node: Apply, values: list[Value]) -> Value:
    """Sum over the images, linear in inputs and outputs."""
    x, w, y = values
    if isinstance(unlisted(w), Sharded):
        raise Refused("gives filters as many as there are rows")
    _check_as_many([x, y])
    found = _product([x, y], [])
    return fold("sum", found) if isinstance(found, Sharded) else found


table.known(
    *(Conv, ConvInputs, ConvFilters, Patches, PatchesSum, PoolOp),
    same_in_jax=True,
    cost="move",
)


@table.length(Conv)
def conv_length(node: Apply, var: Variable, axis: int) -> Length | None:
    """Return the lengths of outputs: images of x, and channels of the filters."""
    return size(node.inputs[axis], 0) if axis < 2 else None


@table.length(ConvInputs)
def conv_inputs_length(node: Apply, var: Variable, axis: int) -> Length | None:
    """Return the number of images: that of outputs."""
    return None if axis else size(node.inputs[2], 0)


@table.length(PoolOp)
def pool_length(node: Apply, var: Variable, axis: int) -> Length | None:
    """Return the lengths before the windows' axes: those of x, in gradients too."""
    is_kept = axis < var.type.ndim - node.op.ndim
    return size(node.inputs[0], axis) if is_kept else None


def _product(of_images: Sequence[Value], others: Sequence[Value]) -> Value:
    """Return the value of a product for each image, of operands with images or not."""
    given = [unlisted(value) for value in (*of_images, *others)]
    for i, value in enumerate(given):
        if isinstance(value, Sharded) and (i >= len(of_images) or value.axis):
            raise Refused("works on all rows together")
        if isinstance(value, Partial) and value.op != "sum":
            raise Refused(f"is no linear function of {describe(value)}")
    return product(given)


@table.placement(Pool)
def pool(node: Apply, values: list[Value]) -> Value:
    """For each image. A sum of partial sums is partial, and a maximum of maxima."""
    (value,) = _of_one_size(values)
    if isinstance(value, Sharded):
        return _leading(value, node.inputs[0].type.ndim - node.op.ndim)
    if isinstance(value, Replicated):
        return Replicated(value.power)
    if value == Partial("max") if node.op.mode == "max" else is_sum(value):
        return value
    raise Refused(f"pools {describe(value)}")


@table.placement(PoolOp)
def pool_gradient(node: Apply, values: list[Value]) -> Value:
    """Linear in the last images; the others choose pixels, or give the shape."""
    *images, last = _of_one_size(values)
    _check_as_many([*images, last])
    if isinstance(last, Sharded):
        _leading(last, node.inputs[0].type.ndim - node.op.ndim)
    if node.op.mode != "max":
        return last if isinstance(last, (Sharded, Replicated)) else independent([last])
    return product([independent(images), last])


def _of_one_size(values: list[Value]) -> list[Value]:
    """Return the images' values; raise if the sizes of windows are not replicated."""
    *images, sizes = values
    if not is_replicated(unlisted(sizes)):
        raise Refused("pools by windows whose size differs between parts of the rows")
    return [unlisted(value) for value in images]


@table.placement(Patches)
def patches(node: Apply, values: list[Value]) -> Value:
    """Patches of each image, in rows after those of the image before."""
    value = unlisted(values[0])
    if not isinstance(value, Sharded):
        return value
    length = "?" if value.length == "?" else "kn"
    return replace(without_block(_leading(value, 1)), length=length)


@table.placement(PatchesSum)
def patches_sum(node: Apply, values: list[Value]) -> Value:
    """Linear in the patches, for each image."""
    images, parts = map(unlisted, values)
    _check_as_many([images, parts])
    if isinstance(images, Sharded) and isinstance(parts, Sharded):
        align([images, replace(without_block(parts), length=images.length)])
        return replace(_leading(images, 1), power=_leading(parts, 1).power)
    is_linear = isinstance(parts, Replicated) or is_sum(parts)
    return parts if is_linear else independent([parts])


def _check_as_many(images: Sequence[Value]) -> None:
    """Raise Refused unless all images are sharded, or none is.

    An Op that uses only the shape of some images uses their number as well.
    """
    if len({isinstance(unlisted(value), Sharded) for value in images}) > 1:
        raise Refused("meets images with something of fixed length")


def _leading(value: Value, axes: int) -> Sharded:
    """Return a sharded value, if its rows are along one of the first `axes` axes."""
    assert isinstance(value, Sharded)
    if value.axis >= axes:
        raise Refused("works on all rows together")
    return value
