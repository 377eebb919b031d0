"""Convolution and pooling in numpy.

A convolution is a product, by BLAS, of the filters and a matrix whose columns are the
windows.

The columns are as many times larger than the images as a window has pixels. So they are
made in blocks that stay in the cache (K. Chellapilla et al. 2006, "High performance
convolutional neural networks for document processing"). Pooling goes through the places
of a window, for all windows at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from math import prod
from typing import Any, NamedTuple

import numpy as np

from .windows import ConvOp, Pads, Pooling

Shape = Sequence[int]

_BLOCK = 2**21
"""Bytes of the columns of a block: about the size of a core's cache."""


def outputs(op: ConvOp, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Return the outputs from inputs (batch, channels, *image) and filters."""
    y = np.empty(op.outputs_shape(x.shape, w.shape), x.dtype)
    matrices = _matrices(op, w)
    padded = pad(x, op.pads(w.shape))
    for block in _blocks(op, w.shape, y):
        np.matmul(matrices, block.gather(padded), out=block.outputs)
    return y


def inputs(op: ConvOp, x: np.ndarray, w: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the adjoint in the inputs; of x only the shape counts."""
    axes = list(zip(x.shape[2:], op.pads(w.shape), strict=True))
    sizes = [size + low + high for size, (low, high) in axes]
    padded = np.zeros((*x.shape[:2], *sizes), y.dtype)
    matrices = _matrices(op, w).swapaxes(1, 2)
    for block in _blocks(op, w.shape, np.ascontiguousarray(y)):
        np.matmul(matrices, block.outputs, out=block.matrix)
        block.scatter(padded)
    inner: Any = [slice(low, low + size) for size, (low, _) in axes]
    return padded[:, :, *inner]


def filters(op: ConvOp, x: np.ndarray, w: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the adjoint in the filters; of w only the shape counts."""
    filters, *others = w.shape
    total = np.zeros((op.groups, filters // op.groups, prod(others)), y.dtype)
    padded = pad(x, op.pads(w.shape))
    for block in _blocks(op, w.shape, np.ascontiguousarray(y)):
        columns = block.gather(padded).swapaxes(2, 3)
        for result, matrix in zip(block.outputs, columns, strict=True):
            total += np.matmul(result, matrix)
    return _flipped(op, total.reshape(w.shape))


def pad(x: Any, pads: Pads, fill: float = 0, module: Any = np) -> Any:
    """Return an array with margins around its last axes; `module` is numpy or JAX's."""
    if not any(map(any, pads)):
        return x
    leading = x.ndim - len(pads)
    return module.pad(x, [(0, 0)] * leading + list(pads), constant_values=fill)


def _flipped(op: ConvOp, w: np.ndarray) -> np.ndarray:
    return np.flip(w, tuple(range(2, op.ndim + 2))) if op.flip else w


def _matrices(op: ConvOp, w: np.ndarray) -> np.ndarray:
    """Return the filters as matrices: (groups, filters, pixels of all channels)."""
    shape = (op.groups, w.shape[0] // op.groups, prod(w.shape[1:]))
    return np.ascontiguousarray(_flipped(op, w)).reshape(shape)


class _Block(NamedTuple):
    """Some images, or some rows of one image, and memory for their columns."""

    images: slice
    windows: list[tuple]
    """For each place in a window: its index in `columns`, and in a padded image."""
    columns: np.ndarray
    """Shape (images, channels, *window, *pixels)."""
    matrix: np.ndarray
    """The same as (images, groups, channels and pixels of a window, pixels)."""
    outputs: np.ndarray
    """The block's part of the outputs: (images, groups, filters, pixels)."""

    def gather(self, padded: np.ndarray) -> np.ndarray:
        """Return the matrix, filled from padded images."""
        for at, where in self.windows:
            self.columns[at] = padded[(self.images, slice(None), *where)]
        return self.matrix

    def scatter(self, padded: np.ndarray) -> None:
        """Add the matrix to padded images, at the pixels that `gather` reads."""
        for at, where in self.windows:
            padded[(self.images, slice(None), *where)] += self.columns[at]


def _blocks(op: ConvOp, w: Shape, y: np.ndarray) -> Iterator[_Block]:
    batch, rows, rest = y.shape[0], y.shape[2], y.shape[3:]
    channels, window = w[1] * op.groups, tuple(w[2:])
    row_bytes = max(1, channels * prod(window) * prod(rest) * y.itemsize)
    some_rows = min(rows, max(1, _BLOCK // row_bytes))
    some_images = max(1, _BLOCK // (row_bytes * rows)) if some_rows == rows else 1
    room = np.empty(
        min(batch, some_images) * some_rows * row_bytes // y.itemsize, y.dtype
    )
    flat = y.reshape(batch, op.groups, w[0] // op.groups, rows * prod(rest))
    for image in range(0, batch, some_images):
        images = slice(image, min(batch, image + some_images))
        count = images.stop - image
        for first in range(0, rows, some_rows):
            part = (min(rows, first + some_rows) - first, *rest)
            shape = (count, channels, *window, *part)
            columns = room[: prod(shape)].reshape(shape)
            per_group = prod(w[1:])
            yield _Block(
                images,
                list(_windows(op, window, first, part)),
                columns,
                columns.reshape(count, op.groups, per_group, prod(part)),
                flat[images, ..., first * prod(rest) : (first + part[0]) * prod(rest)],
            )


def _windows(op: ConvOp, window: Shape, first: int, pixels: Shape) -> Iterator[tuple]:
    """Yield each place in a window: its index in the columns, and in padded images.

    `first` is the first row of outputs, and `pixels` the shape of the block's outputs.
    """
    start = [first * op.stride[0], *[0] * (op.ndim - 1)]
    for at in product(*map(range, window)):
        axes = zip(at, op.dilation, start, strict=True)
        places = [i * d + before for i, d, before in axes]
        yield (slice(None), slice(None), *at), cut(places, pixels, op.stride)


def cut(places: Shape, lengths: Shape, strides: Shape) -> tuple[slice, ...]:
    """Return the index, in an image, of one place in each of the windows."""
    axes = zip(places, lengths, strides, strict=True)
    return tuple(slice(i, i + (n - 1) * s + 1, s) for i, n, s in axes)


def pool(op: Pooling, x: np.ndarray) -> np.ndarray:
    """Return the maximum, sum or average of each window."""
    fill = -np.inf if op.mode == "max" else 0
    y = np.full((*x.shape[: -op.ndim], *op.pooled(x.shape)), fill, x.dtype)
    if not y.size:
        return y
    padded = pad(x, op.margins(x.shape), fill)
    for where in _places(op, y.shape):
        if op.mode == "max":
            np.maximum(y, padded[where], out=y)
        else:
            y += padded[where]
    return op.averaged(y, x.shape)


def grad(op: Pooling, x: np.ndarray, y: np.ndarray, g: np.ndarray) -> np.ndarray:
    """Return the gradient by x, from `g`, that by the pooled y."""
    margins = op.margins(x.shape)
    padded = pad(x, margins, -np.inf) if op.mode == "max" else x
    g = op.averaged(g, x.shape)
    total = pad(np.zeros(x.shape, x.dtype), margins)
    for where in _places(op, g.shape) if g.size else ():
        total[where] += np.where(padded[where] == y, g, 0) if op.mode == "max" else g
    inner: Any = op.inner(x.shape)
    return total[(..., *inner)]


def pick(op: Pooling, x: np.ndarray, y: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Return the sum of v over those pixels of each window where x equals y."""
    margins = op.margins(x.shape)
    x, v = pad(x, margins, -np.inf), pad(v, margins)
    total = np.zeros(y.shape, y.dtype)
    for where in _places(op, y.shape) if y.size else ():
        total += np.where(x[where] == y, v[where], 0)
    return total


def _places(op: Pooling, shape: Shape) -> Iterator[Any]:
    """Yield, for each place in a window, its index in padded images."""
    for at in product(*map(range, op.window)):
        yield (..., *cut(at, shape[-op.ndim :], op.stride))
