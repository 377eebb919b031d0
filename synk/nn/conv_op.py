"""What the Ops of convolution have in common: how windows lie in an image."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .base import KernelOp, as_floats
from .geometry import Border, conv_length, pads_of


class ConvOp(KernelOp):
    """What the three have in common: how windows lie in an image.

    Parameters
    ----------
    border : "half", "full" or a pair of ints for each axis of the image
    stride, dilation : tuple of int
    flip : bool
        To convolve, and not to correlate.
    groups : int
        Into how many the channels are divided.
    """

    __props__ = ("border", "stride", "dilation", "flip", "groups")

    def __init__(
        self,
        border: Border,
        stride: tuple[int, ...],
        dilation: tuple[int, ...],
        flip: bool = True,
        groups: int = 1,
    ) -> None:
        self.border = border
        self.stride = stride
        self.dilation = dilation
        self.flip = flip
        self.groups = groups

    @property
    def ndim(self) -> int:
        """The number of axes of an image."""
        return len(self.stride)

    def sibling(self, cls: type[ConvOp]) -> ConvOp:
        """Return one of the two other Ops, with the same parameters."""
        return cls(self.border, self.stride, self.dilation, self.flip, self.groups)

    def outputs_shape(self, x: Sequence[int], w: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of the outputs, from those of inputs and filters."""
        if x[1] != w[1] * self.groups or w[0] % self.groups:
            raise ValueError(
                f"inputs of shape {tuple(x)} have {x[1]} channels; filters of shape"
                f" {tuple(w)} in {self.groups} groups need {w[1] * self.groups}, and"
                f" their number, {w[0]}, must be a multiple of {self.groups}"
            )
        axes = zip(x[2:], w[2:], self.pads(w), self.stride, self.dilation, strict=True)
        return (x[0], w[0], *(conv_length(*axis) for axis in axes))

    def pads(self, w: Sequence[int]) -> tuple[tuple[int, int], ...]:
        """Return what to pad at both ends of each axis, for filters of a shape."""
        return pads_of(self.border, w[2:], self.dilation)

    def symbolic_pads(self, reach: Sequence) -> Sequence:
        """Return what to pad at both ends together, for filters of some reach."""
        if not isinstance(self.border, str):
            return [low + high for low, high in self.border]
        if self.border == "half":
            return [r // 2 * 2 for r in reach]
        return [(r - 1) * 2 for r in reach]

    def check_outputs(
        self, x: Sequence[int], w: Sequence[int], y: Sequence[int]
    ) -> None:
        """Raise unless outputs have the shape that belongs to inputs and filters."""
        if tuple(y) != (expected := self.outputs_shape(x, w)):
            raise ValueError(
                f"inputs of shape {tuple(x)} and filters of shape {tuple(w)} give"
                f" outputs of shape {expected}, not {tuple(y)}"
            )

    def checked(self, *variables: Any) -> list[Any]:
        """Return the inputs of a node, of one dtype and with enough axes."""
        tensors = as_floats(*variables)
        for var in tensors:
            if var.type.ndim != self.ndim + 2:
                raise TypeError(
                    f"a convolution of {self.ndim} axes takes tensors of"
                    f" {self.ndim + 2}, got {var} with {var.type.ndim}"
                )
        return tensors
