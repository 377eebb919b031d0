"""`theano.tensor.nnet.conv`: the convolution of the first Theano."""

from __future__ import annotations

from typing import Any

from .abstract_conv import conv2d as _conv2d

__all__ = ["conv2d"]


def conv2d(
    input: Any,
    filters: Any,
    image_shape: Any = None,
    filter_shape: Any = None,
    border_mode: str = "valid",
    subsample: Any = (1, 1),
    **kwargs: Any,
) -> Any:
    """Convolve images with filters; `theano.tensor.nnet.conv2d` is the later one.

    Parameters
    ----------
    input, filters, image_shape, filter_shape, border_mode, subsample
        As there.
    **kwargs
        Hints about loops to unroll, which have no meaning any more.
    """
    hints = {name for name in kwargs if name.startswith(("unroll_", "imshp", "kshp"))}
    other = set(kwargs) - hints - {"nb_threads", "openmp", "version", "verbose"}
    if other:
        raise TypeError(f"unknown arguments: {', '.join(sorted(other))}")
    return _conv2d(
        input,
        filters,
        input_shape=image_shape,
        filter_shape=filter_shape,
        border_mode=border_mode,
        subsample=subsample,
    )
