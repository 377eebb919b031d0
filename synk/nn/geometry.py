"""Sizes, padding and strides: what the Ops share, as integer arithmetic.

Everything here takes sizes as Python ints or as None where they are not known.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

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
    if isinstance(values, (int,)) or not isinstance(values, Sequence):
        values = [values] * ndim
    numbers = tuple(as_int(value, what) for value in values)
    if len(numbers) != ndim:
        raise ValueError(f"{what} must be one int or {ndim}, got {numbers}")
    if any(number < least for number in numbers):
        raise ValueError(f"{what} must be at least {least}, got {numbers}")
    return numbers


def as_border(mode: Any, ndim: int) -> Border:
    """Return a border mode as "half", "full", or what to pad at each end."""
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


def dilated(size: int, dilation: int) -> int:
    """Return how far a filter reaches."""
    return (size - 1) * dilation + 1


def pads_of(border: Border, kernel: Sequence[int], dilation: Sequence[int]) -> Pads:
    """Return what to pad at both ends of each axis, for filters of a size."""
    if not isinstance(border, str):
        return border
    reaches = [dilated(k, d) for k, d in zip(kernel, dilation, strict=True)]
    if border == "half":
        return tuple((reach // 2, reach // 2) for reach in reaches)
    return tuple((reach - 1, reach - 1) for reach in reaches)


def conv_length(
    size: int, kernel: int, pad: tuple[int, int], stride: int, dilation: int
) -> int:
    """Return the length of a convolution's output along an axis."""
    room = size + pad[0] + pad[1] - dilated(kernel, dilation)
    if room < 0:
        raise ValueError(
            f"filters that reach over {dilated(kernel, dilation)} pixels do not fit"
            f" into {size} pixels padded by {pad[0]} and {pad[1]}"
        )
    return room // stride + 1


def input_length(
    length: int, kernel: int, pad: tuple[int, int], stride: int, dilation: int
) -> int:
    """Return the least length of an input whose convolution has a length."""
    return (length - 1) * stride + dilated(kernel, dilation) - pad[0] - pad[1]


def pool_length(
    size: int, window: int, stride: int, pad: int, ignore_border: bool
) -> int:
    """Return the number of windows along an axis.

    Without `ignore_border` there are as many as it takes to see every pixel, provided
    that strides are not longer than windows; those at the end may be cut short.
    """
    if ignore_border:
        return max(0, (size + 2 * pad - window) // stride + 1)
    if stride >= window:
        return max(0, (size - 1) // stride + 1)
    return max(0, (size - 1 - window + stride) // stride) + 1 if size else 0
