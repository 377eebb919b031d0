"""Convolution, pooling and patches of images, by the functions of `synk.nn`.

Theano had several generations of these functions; here are older ones, too.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytensor.tensor as pt

from .. import nn
from ..also_named import also_named
from ..nn import windows

# -- theano.tensor.nnet.abstract_conv


def _refuse(unshared: bool) -> None:
    if unshared:
        raise NotImplementedError("unshared filters: synk has no Op for them")


def _with_shape(x: Any, shape: Any) -> Any:
    """Return `x` with the static lengths in `shape`, except for the batch.

    Lasagne gives the batch's length, too, but each rank has fewer rows.
    """
    x = pt.as_tensor_variable(x)
    if shape is None or x.owner is None:
        return x
    known = [n if isinstance(n, int | np.integer) else None for n in shape[1:]]
    return pt.specify_shape(x, [None, *known])


def _convolution(op: Callable) -> Callable:
    """Return a function of `synk.nn` that takes shapes, as in Theano.

    The shapes may have None for unknown lengths.
    """

    @also_named("image_shape", "input_shape")
    @functools.wraps(op)
    def conv(
        input: Any,
        filters: Any,
        input_shape: Any = None,
        filter_shape: Any = None,
        *args: Any,
        unshared: bool = False,
        **options: Any,
    ) -> Any:
        _refuse(unshared)
        x, w = _with_shape(input, input_shape), _with_shape(filters, filter_shape)
        return op(x, w, *args, **options)

    conv.__module__ = __name__  # for pickling
    return conv


conv2d = _convolution(nn.conv2d)
conv3d = _convolution(nn.conv3d)


def conv2d_grad_wrt_inputs(
    output_grad: Any,
    filters: Any,
    input_shape: Any,
    filter_shape: Any = None,
    unshared: bool = False,
    **kwargs: Any,
) -> Any:
    """Return the gradient of `conv2d` by its images; options are those of `conv2d`."""
    _refuse(unshared)
    return nn.conv2d_grad_wrt_inputs(output_grad, filters, input_shape, **kwargs)


@also_named("input_dilation", "subsample")
def conv2d_transpose(
    input: Any,
    filters: Any,
    output_shape: Any,
    filter_shape: Any = None,
    *args: Any,
    unshared: bool = False,
    **options: Any,
) -> Any:
    """Convolve images transposed; options are those of `conv2d`."""
    _refuse(unshared)
    return nn.conv2d_transpose(input, filters, output_shape, *args, **options)


class _Convolution:
    """The base of Theano's convolution Ops, which layers of its time make and call.

    Here they are no Ops, and call the functions of `synk.nn`, which describe the
    parameters. `imshp` and `kshp`, the shapes of images and filters, are not needed.
    """

    convdim = 2

    def __init__(
        self,
        imshp: Any = None,
        kshp: Any = None,
        border_mode: Any = "valid",
        subsample: Any = None,
        filter_flip: bool = True,
        filter_dilation: Any = None,
        num_groups: int = 1,
        unshared: bool = False,
    ) -> None:
        _refuse(unshared)
        self.imshp, self.kshp = imshp, kshp
        self.parameters = {
            "border_mode": border_mode,
            "subsample": 1 if subsample is None else subsample,
            "filter_flip": filter_flip,
            "filter_dilation": 1 if filter_dilation is None else filter_dilation,
            "num_groups": num_groups,
        }

    def _sizes(self, shape: Any) -> tuple:
        """Return a whole shape; `shape` is that, or has the sizes of images alone."""
        return (None, None, *[shape[i] for i in range(-self.convdim, 0)])


class AbstractConv2d_gradInputs(_Convolution):
    """The gradient of a convolution by its images: transposed convolution."""

    def __call__(self, kern: Any, topgrad: Any, shape: Any) -> Any:
        """Return it for filters, the gradient by the result, and the images' size."""
        gradient = getattr(nn, f"conv{self.convdim}d_grad_wrt_inputs")
        return gradient(topgrad, kern, self._sizes(shape), **self.parameters)


class AbstractConv3d_gradInputs(AbstractConv2d_gradInputs):
    """The gradient of a convolution by its volumes."""

    convdim = 3


class AbstractConv2d_gradWeights(_Convolution):
    """The gradient of a convolution by its filters."""

    def __call__(self, img: Any, topgrad: Any, shape: Any) -> Any:
        """Return it for images, the gradient by the result, and the filters' size."""
        sizes = self._sizes(shape)
        return nn.conv2d_grad_wrt_weights(img, topgrad, sizes, **self.parameters)


def get_conv_output_shape(
    image_shape: Sequence[int | None],
    kernel_shape: Sequence[int | None],
    border_mode: Any,
    subsample: Sequence[int],
    filter_dilation: Sequence[int] | None = None,
) -> tuple[int | None, ...]:
    """Return the shape of a convolution's output; None stands for an unknown length."""
    lengths: list[int | None] = []
    ndim = len(subsample)
    dilation = windows.as_ints(filter_dilation or 1, ndim, "filter_dilation", 1)
    border = windows.as_border(border_mode, ndim)
    for i, (size, kernel) in enumerate(
        zip(image_shape[2:], kernel_shape[2:], strict=True)
    ):
        if size is None or kernel is None:
            lengths.append(None)
            continue
        pads = border if isinstance(border, str) else border[i : i + 1]
        along = windows.ConvOp(pads, (subsample[i],), (dilation[i],))
        lengths += along.outputs_shape((None, None, size), (None, None, kernel))[2:]
    return (image_shape[0], kernel_shape[0], *lengths)


def bilinear_upsampling(
    input: Any,
    ratio: int | None = None,
    frac_ratio: Any = None,
    batch_size: int | None = None,
    num_input_channels: int | None = None,
    use_1D_kernel: bool = True,
) -> Any:
    """Make images `ratio` times larger, by bilinear interpolation.

    `ratio` must be an integer. The other arguments have no effect.
    """
    if frac_ratio is not None or ratio is None:
        raise NotImplementedError("bilinear_upsampling: whole ratios only")
    input = pt.as_tensor_variable(input)
    rows = pt.cast(_upsampling_matrix(input.shape[2], ratio), input.dtype)
    columns = pt.cast(_upsampling_matrix(input.shape[3], ratio), input.dtype)
    return pt.dot(
        pt.tensordot(input, rows, [[2], [1]]).dimshuffle(0, 1, 3, 2), columns.T
    )


def _upsampling_matrix(length: Any, ratio: int) -> Any:
    """Return the matrix (length * ratio, length) of bilinear interpolation.

    Beyond the outermost inputs, their values continue.
    """
    # Input i is output i * ratio + (ratio - 1) // 2.
    place = (pt.arange(length * ratio) - (ratio - 1) // 2) / ratio
    place = pt.clip(place, 0, length - 1)
    return pt.maximum(1 - pt.abs(place[:, None] - pt.arange(length)[None, :]), 0)


# -- older convolutions


class ConvOp:
    """Theano's first convolution Op, which scripts of its time ask for shapes."""

    def __init__(self, *_: Any, **__: Any) -> None:
        raise NotImplementedError("ConvOp: use theano.tensor.nnet.conv2d")

    @staticmethod
    def getOutputShape(
        inshp: Sequence[int],
        kshp: Sequence[int],
        stride: Sequence[int] = (1, 1),
        mode: str = "valid",
    ) -> tuple[int | None, ...]:
        """Return a convolution's (rows, columns), for those of images and filters."""
        shapes = (None, None, *inshp), (None, None, *kshp)
        return get_conv_output_shape(*shapes, mode, stride)[2:]


def conv3d_of_time_first(
    signals: Any,
    filters: Any,
    signals_shape: Any = None,
    filters_shape: Any = None,
    border_mode: str = "valid",
) -> Any:
    """Convolve as `theano.tensor.nnet.conv3d2d.conv3d`; its shapes have no effect.

    Signals, filters and the result have the shape (batch or filters, time, channels,
    rows, columns).
    """
    x, w = (pt.as_tensor_variable(v).swapaxes(1, 2) for v in (signals, filters))
    return conv3d(x, w, border_mode=border_mode).swapaxes(1, 2)


def first_conv2d(
    input: Any,
    filters: Any,
    image_shape: Any = None,
    filter_shape: Any = None,
    border_mode: str = "valid",
    subsample: Any = (1, 1),
    **kwargs: Any,
) -> Any:
    """Convolve as `theano.tensor.nnet.conv.conv2d`; its hints have no effect."""
    hints = {name for name in kwargs if name.startswith(("unroll_", "imshp", "kshp"))}
    hints |= {"nb_threads", "openmp", "version", "verbose"}
    other = {name: kwargs[name] for name in kwargs.keys() - hints}
    shapes = image_shape, filter_shape
    return conv2d(input, filters, *shapes, border_mode, subsample, **other)


def conv2d_of_matrices(
    input: Any,
    filters: Any,
    image_shape: Any = None,
    filter_shape: Any = None,
    border_mode: str = "valid",
    subsample: Any = (1, 1),
    **_: Any,
) -> Any:
    """Convolve as `theano.tensor.signal.conv.conv2d`: images without channels.

    Both may be a matrix, or several in a tensor3. The shape of the result is (images,
    filters, rows, columns), without the axes that `input` or `filters` did not have.
    """
    images, kernels = pt.as_tensor_variable(input), pt.as_tensor_variable(filters)
    for name, value in ("input", images), ("filters", kernels):
        if value.ndim not in (2, 3):
            raise ValueError(f"{name} needs 2 or 3 dimensions, got {value.ndim}")
    x = images[None, None] if images.ndim == 2 else images[:, None]
    w = kernels[None, None] if kernels.ndim == 2 else kernels[:, None]
    out = conv2d(x, w, border_mode=border_mode, subsample=subsample)
    if kernels.ndim == 2:
        out = out[:, 0]
    return out[0] if images.ndim == 2 else out


# -- theano.tensor.signal.pool


def _pooling(op: Callable) -> Callable:
    """Return a function of `synk.nn` with Theano's arguments, and their older names.

    As in Theano, `ignore_border` is False by default.
    """

    @also_named("ds", "ws")
    @also_named("st", "stride")
    @also_named("padding", "pad")
    @functools.wraps(op)
    def pool(
        input: Any,
        ws: Any,
        ignore_border: bool | None = None,
        stride: Any = None,
        pad: Any = None,
        mode: str = "max",
    ) -> Any:
        options = {} if pad is None else {"pad": pad}
        return op(input, ws, bool(ignore_border), stride, mode=mode, **options)

    pool.__module__ = __name__  # for pickling
    return pool


pool_2d = _pooling(nn.pool_2d)
pool_3d = _pooling(nn.pool_3d)


class Pool:
    """Theano's pooling Op, which layers of its time call, and ask for shapes.

    Here it is no Op, and calls the functions of `synk.nn`, which describe the
    parameters. `openmp` has no effect.
    """

    def __init__(
        self,
        ignore_border: bool = False,
        mode: str = "max",
        ndim: int = 2,
        openmp: Any = None,
    ) -> None:
        if ndim not in (2, 3):
            raise NotImplementedError(f"Pool: ndim must be 2 or 3, got {ndim}")
        self._pool = pool_2d if ndim == 2 else pool_3d
        self.ignore_border, self.mode, self.ndim = ignore_border, mode, ndim

    def __call__(self, x: Any, ws: Any, stride: Any = None, pad: Any = None) -> Any:
        """Pool the last axes of `x`."""
        return self._pool(x, ws, self.ignore_border, stride, pad, self.mode)

    @staticmethod
    @also_named("ds", "ws")
    @also_named("st", "stride")
    @also_named("padding", "pad")
    def out_shape(
        imgshape: Sequence[Any],
        ws: Any = None,
        ignore_border: bool = False,
        stride: Any = None,
        pad: Any = None,
        ndim: int = 2,
    ) -> list[Any]:
        """Return the shape of what is pooled from images of a shape."""
        sizes, pads = tuple(ws), tuple(pad or (0,) * ndim)
        strides = sizes if stride is None else tuple(stride)
        pooling = windows.Pooling(sizes, strides, pads, ignore_border, "max")
        return [*imgshape[:-ndim], *pooling.pooled(imgshape)]


class DownsampleFactorMax:
    """The name of `Pool` before; its windows are given when it is made."""

    out_shape = staticmethod(Pool.out_shape)

    def __init__(
        self,
        ds: Any,
        ignore_border: bool = False,
        st: Any = None,
        padding: Any = None,
        mode: str = "max",
    ) -> None:
        self._how = ds, ignore_border, st, padding, mode

    def __call__(self, x: Any) -> Any:
        """Pool the last two axes of `x`."""
        return pool_2d(x, *self._how)


def max_pool_2d_same_size(input: Any, patch_size: Any) -> Any:
    """Return `input` with all but the largest element of each window set to 0."""
    input = pt.as_tensor_variable(input)
    largest = pool_2d(input, patch_size, ignore_border=True)
    return pt.grad(largest.sum(), input) * input
