"""Windows in images: sizes, padding and strides, of convolution and pooling.

Sizes are ints, or scalar variables when PyTensor infers a shape.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Variable

from .base import KernelOp

Pads = tuple[tuple[int, int], ...]
Border = str | tuple[tuple[int, int], ...]


def as_int(value: Any, what: str) -> int:
    """Return an int from an int, or from a constant of PyTensor."""
    value = getattr(value, "data", value)
    try:
        return operator.index(value.item() if hasattr(value, "item") else value)
    except (TypeError, ValueError):
        raise TypeError(f"{what} must be known ints, got {value!r}") from None


def as_ints(values: Any, ndim: int, what: str, least: int) -> tuple[int, ...]:
    """Return an int for each of `ndim` axes; one int stands for all of them."""
    if not isinstance(values, Sequence):
        values = [values] * ndim
    numbers = tuple(as_int(value, what) for value in values)
    if len(numbers) != ndim:
        raise ValueError(f"{what} must be one int or {ndim}, got {numbers}")
    if any(number < least for number in numbers):
        raise ValueError(f"{what} must be at least {least}, got {numbers}")
    return numbers


def as_border(mode: Any, ndim: int) -> Border:
    """Return a border mode as "half", "full", or the padding at each axis' ends."""
    if isinstance(mode, str):
        if mode == "valid":
            return ((0, 0),) * ndim
        if mode in ("half", "full"):
            return mode
        raise ValueError(
            "border_mode must be 'valid', 'full', 'half', or numbers of pixels;"
            f" got {mode!r}"
        )
    sides = list(mode) if isinstance(mode, Sequence) else [mode] * ndim
    if len(sides) != ndim:
        raise ValueError(f"border_mode must have {ndim} entries, got {mode!r}")
    pads = [as_ints(side, 2, "border_mode", 0) for side in sides]
    return tuple((low, high) for low, high in pads)


def dilated(size: Any, dilation: int) -> Any:
    """Return the number of pixels over which a dilated filter reaches."""
    return (size - 1) * dilation + 1


def conv_length(
    size: Any, kernel: Any, pad: tuple[Any, Any], stride: int, dilation: int
) -> Any:
    """Return the length of a convolution's output along an axis."""
    room = size + pad[0] + pad[1] - dilated(kernel, dilation)
    if isinstance(room, int) and room < 0:
        raise ValueError(
            f"filters that reach over {dilated(kernel, dilation)} pixels do not fit"
            f" into {size} pixels padded by {pad[0]} and {pad[1]}"
        )
    return room // stride + 1


def pool_length(
    size: Any, window: Any, stride: Any, pad: Any, ignore_border: bool
) -> Any:
    """Return the number of windows along an axis.

    Without `ignore_border` windows cover every pixel, if strides are not longer than
    windows; those at the end may be cut short.
    """
    are_symbols = any(isinstance(n, Variable) for n in (size, window, stride, pad))
    larger: Any = pt.maximum if are_symbols else max
    smaller: Any = pt.minimum if are_symbols else min
    if ignore_border:
        return larger(0, (size + 2 * pad - window) // stride + 1)
    unseen = larger(0, size - larger(window, stride))  # pixels after the first window
    # An image without pixels has no window.
    return smaller(size, (unseen + stride - 1) // stride + 1)


@dataclass(eq=False, repr=False)
class ConvOp(KernelOp):
    """The base of the three Ops of a convolution, with its parameters."""

    border: Border
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    flip: bool = True
    """Whether to convolve; otherwise it correlates."""
    groups: int = 1
    """The number of groups of channels."""

    __props__ = ("border", "stride", "dilation", "flip", "groups")

    @property
    def ndim(self) -> int:
        """The number of axes of an image."""
        return len(self.stride)

    def outputs_shape(self, x: Sequence, w: Sequence) -> tuple[Any, ...]:
        """Return the shape of the outputs, from those of inputs and filters."""
        are_ints = all(isinstance(n, int) for n in (x[1], *w[:2]))
        if are_ints and (x[1] != w[1] * self.groups or w[0] % self.groups):
            raise ValueError(
                f"inputs of shape {tuple(x)} have {x[1]} channels; filters of shape"
                f" {tuple(w)} in {self.groups} groups need {w[1] * self.groups}, and"
                f" their number, {w[0]}, must be a multiple of {self.groups}"
            )
        axes = zip(x[2:], w[2:], self.pads(w), self.stride, self.dilation, strict=True)
        return (x[0], w[0], *(conv_length(*axis) for axis in axes))

    def pads(self, w: Sequence) -> Pads:
        """Return the padding at the ends of each axis, for filters of shape `w`."""
        if not isinstance(self.border, str):
            return self.border
        reaches = [dilated(k, d) for k, d in zip(w[2:], self.dilation, strict=True)]
        if self.border == "half":
            return tuple((reach // 2, reach // 2) for reach in reaches)
        return tuple((reach - 1, reach - 1) for reach in reaches)

    def arguments(self, *arrays: Any) -> tuple:
        """Return the kernels' arguments: the Op, inputs, filters and maybe outputs."""
        x, w, *ys = (array.shape for array in arrays)
        expected = self.outputs_shape(x, w)
        for y in ys:
            if tuple(y) != expected:
                raise ValueError(
                    f"inputs of shape {tuple(x)} and filters of shape {tuple(w)} give"
                    f" outputs of shape {expected}, not {tuple(y)}"
                )
        return (self, *arrays)

    def checked(self, *variables: Any) -> list[Any]:
        """Return the inputs of a node, of one dtype and with enough axes."""
        tensors = super().checked(*variables)
        for var in tensors:
            if var.type.ndim != self.ndim + 2:
                raise TypeError(
                    f"a convolution of {self.ndim} axes takes tensors of"
                    f" {self.ndim + 2}, got {var} with {var.type.ndim}"
                )
        return tensors


MODES = ("max", "sum", "average_inc_pad", "average_exc_pad")


class Pooling(NamedTuple):
    """The parameters of pooling, for kernels. Windows lie on images' last axes."""

    window: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    ignore_border: bool
    """Whether to leave out windows that reach over the end."""
    mode: str
    """One of `MODES`."""

    @property
    def ndim(self) -> int:
        """The number of axes of a window."""
        return len(self.window)

    def pooled(self, shape: Sequence) -> tuple[Any, ...]:
        """Return the number of windows along each of the last axes."""
        sizes = shape[len(shape) - self.ndim :]
        axes = zip(sizes, self.window, self.stride, self.padding, strict=True)
        return tuple(pool_length(*axis, self.ignore_border) for axis in axes)

    def margins(self, shape: Sequence[int]) -> Pads:
        """Return how far windows reach over the ends of each of the last axes."""
        found = []
        for i, count in enumerate(self.pooled(shape), -self.ndim):
            end = (count - 1) * self.stride[i] + self.window[i]
            low = self.padding[i]
            found.append((low, max(0, end - low - shape[i])))
        return tuple(found)

    def with_margins(self, shape: Sequence[int]) -> list[int]:
        """Return the lengths of an image's axes with its margins."""
        sizes = zip(self.margins(shape), shape[-self.ndim :], strict=True)
        return [low + size + high for (low, high), size in sizes]

    def inner(self, shape: Sequence[int]) -> tuple[slice, ...]:
        """Return the index of an image within itself with its margins."""
        sizes = zip(self.margins(shape), shape[-self.ndim :], strict=True)
        return tuple(slice(low, low + size) for (low, _), size in sizes)

    def averaged(self, y: Any, shape: Sequence[int]) -> Any:
        """Return y, one value for each window; for averages divided by `counts`.

        `shape` is that of the images; y is an array of numpy or JAX.
        """
        if not self.mode.startswith("average"):
            return y
        return y / self.counts(shape).astype(y.dtype)

    def counts(self, shape: Sequence[int]) -> np.ndarray:
        """Return the number of pixels by which each window's sum is divided."""
        by_axis = []
        for i, count in enumerate(self.pooled(shape), -self.ndim):
            pad, size = self.padding[i], shape[i]
            starts = np.arange(count) * self.stride[i]
            low, high = (0, size + 2 * pad)
            if self.mode == "average_exc_pad":
                low, high = (pad, pad + size)
            ends = np.minimum(starts + self.window[i], high)
            by_axis.append(np.maximum(ends - np.maximum(starts, low), 1))
        return reduce(np.multiply.outer, by_axis)
