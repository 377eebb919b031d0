"""What the Ops do with copies of rows; see `compiler.padded`.

All work on each image by itself, along axis 0, save for `ConvFilters`, for which images
and outputs of the copies are zeros.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pytensor.graph.basic import Apply, Variable

from ..compiler.domain import Refused
from ..compiler.padded.products import contract
from ..compiler.padded.walk import Padded, Padder, aligned, rule
from .convops import Conv, ConvFilters, ConvInputs
from .margins import Margins
from .pool_op import PoolOp
from .sizedpool import SizedPool
from .templates import LikeInputs


def _labels(node: Apply) -> list[list[str]]:
    """Return names of axes; images and outputs have that of the images in common."""
    labels = []
    for i, var in enumerate(node.inputs):
        is_filters = i == 1
        first = f"{i}, 0" if is_filters else "image"
        labels.append([first, *(f"{i}, {j}" for j in range(1, var.type.ndim))])
    return labels


def _check_images(padder: Padder, node: Apply) -> None:
    for i, var in enumerate(node.inputs):
        state = padder.state(var)
        if state is not None and (i == 1 or state.axis):
            raise Refused("works on all rows together")


@rule(Conv, ConvInputs)
def of_images(padder: Padder, node: Apply) -> None:
    """For each image."""
    _check_images(padder, node)
    contract(padder, node, node.inputs, _labels(node), ["image"])


@rule(ConvFilters)
def of_filters(padder: Padder, node: Apply) -> None:
    """A sum over the images; the filters count for their shape alone."""
    _check_images(padder, node)
    x, _, y = node.inputs
    labels = _labels(node)
    contract(padder, node, [x, y], [labels[0], labels[2]], [])


@rule(LikeInputs)
def like_inputs(padder: Padder, node: Apply) -> None:
    """Zeros, as many images as there are outputs."""
    filters, outputs = node.inputs
    state = padder.state(outputs)
    if filters in padder.found or (state is not None and state.axis):
        raise Refused("works on all rows together")
    padder.row_by_row(node, state and replace(state, blocks=None))


@rule(PoolOp, Margins)
def beside(padder: Padder, node: Apply) -> None:
    """For each image, or each channel."""
    _beside(padder, node, node.inputs)


@rule(SizedPool)
def sized(padder: Padder, node: Apply) -> None:
    """For each image, if the sizes are the same for all of them."""
    *images, sizes = node.inputs
    if sizes in padder.found:
        raise Refused("pools by windows whose size depends on the rows")
    padder.check_no_sizes([sizes])
    _beside(padder, node, images)


def _beside(padder: Padder, node: Apply, images: Sequence[Variable]) -> None:
    found: Padded | None = aligned(map(padder.state, images))
    first = node.inputs[0].type.ndim - node.op.ndim
    if found is not None and found.axis >= first:
        raise Refused("works on all rows together")
    if found is not None and any(var not in padder.found for var in images):
        raise Refused("meets images with something of fixed length")
    padder.row_by_row(node, found)
