"""What the Ops of pooling have in common: how windows lie in an image."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .base import KernelOp, as_floats
from .geometry import pool_length

MODES = ("max", "sum", "average_inc_pad", "average_exc_pad")


class PoolOp(KernelOp):
    """What the three have in common: how windows lie in an image.

    Parameters
    ----------
    window, stride, padding : tuple of int
        One for each of the last axes.
    ignore_border : bool
        To leave out windows that reach over the end.
    mode : {"max", "sum", "average_inc_pad", "average_exc_pad"}
    """

    __props__ = ("window", "stride", "padding", "ignore_border", "mode")

    def __init__(
        self,
        window: tuple[int, ...],
        stride: tuple[int, ...],
        padding: tuple[int, ...],
        ignore_border: bool,
        mode: str,
    ) -> None:
        self.window = window
        self.stride = stride
        self.padding = padding
        self.ignore_border = ignore_border
        self.mode = mode

    @property
    def ndim(self) -> int:
        """The number of axes of a window."""
        return len(self.window)

    def sibling(self, cls: type[PoolOp]) -> PoolOp:
        """Return one of the two other Ops, with the same parameters."""
        return cls(
            self.window, self.stride, self.padding, self.ignore_border, self.mode
        )

    def pooled(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return the number of windows along each of the last axes."""
        axes = zip(
            shape[-self.ndim :], self.window, self.stride, self.padding, strict=True
        )
        return tuple(pool_length(*axis, self.ignore_border) for axis in axes)

    def margins(self, shape: Sequence[int]) -> tuple[tuple[int, int], ...]:
        """Return how far windows reach over the ends of each of the last axes."""
        counts = self.pooled(shape)
        return tuple(
            (pad, max(0, (count - 1) * stride + window - pad - size))
            for size, count, window, stride, pad in zip(
                shape[-self.ndim :],
                counts,
                self.window,
                self.stride,
                self.padding,
                strict=True,
            )
        )

    def with_margins(self, shape: Sequence[int]) -> list[int]:
        """Return the lengths of an image's axes with its margins."""
        sizes = zip(self.margins(shape), shape[-self.ndim :], strict=True)
        return [low + size + high for (low, high), size in sizes]

    def inner(self, shape: Sequence[int]) -> tuple[slice, ...]:
        """Return where the image lies that has the margins around it."""
        sizes = zip(self.margins(shape), shape[-self.ndim :], strict=True)
        return tuple(slice(low, low + size) for (low, _), size in sizes)

    def averaged(self, y: Any, shape: Sequence[int]) -> Any:
        """Return sums, or what is as many, over the number of pixels if it is asked.

        Of images of a shape; arrays of numpy or JAX.
        """
        if not self.mode.startswith("average"):
            return y
        return y / self.counts(shape).astype(y.dtype)

    def counts(self, shape: Sequence[int]) -> np.ndarray:
        """Return by how many pixels each window's sum is divided; shape of a result."""
        total = np.ones((1,) * self.ndim)
        for i, size in enumerate(shape[-self.ndim :]):
            pad = self.padding[i]
            starts = np.arange(self.pooled(shape)[i]) * self.stride[i]
            low, high = (0, size + 2 * pad)
            if self.mode == "average_exc_pad":
                low, high = (pad, pad + size)
            ends = np.minimum(starts + self.window[i], high)
            along = [1] * self.ndim
            along[i] = -1
            inside = np.maximum(ends - np.maximum(starts, low), 1)
            total = total * inside.reshape(along)
        return total

    def checked(self, *variables: Any) -> list[Any]:
        """Return the inputs of a node, of one dtype and with enough axes."""
        tensors = as_floats(*variables)
        for var in tensors:
            if var.type.ndim < self.ndim:
                raise TypeError(
                    f"pooling of {self.ndim} axes takes tensors that have them, got"
                    f" {var} with {var.type.ndim}"
                )
        return tensors
