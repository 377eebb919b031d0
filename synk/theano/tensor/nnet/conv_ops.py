"""The convolution Ops of Theano's `abstract_conv`, as layers of its time call them.

They are no Ops here but call the functions of `synk.nn`.
"""

from __future__ import annotations

from typing import Any

from ...network import network_op

__all__ = [
    "AbstractConv2d",
    "AbstractConv2d_gradInputs",
    "AbstractConv2d_gradWeights",
    "AbstractConv3d",
    "AbstractConv3d_gradInputs",
    "AbstractConv3d_gradWeights",
]


class _Convolution:
    """What all share: the parameters of a convolution.

    Parameters
    ----------
    imshp, kshp : tuple of int or None, optional
        Shapes of images and filters; not needed here.
    border_mode, subsample, filter_flip, filter_dilation, num_groups
        As in ``synk.nn.conv2d``.
    unshared : False
        Filters that differ from place to place are not implemented.
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
        if unshared:
            raise NotImplementedError("unshared filters: synk has no Op for them")
        self.imshp, self.kshp = imshp, kshp
        self.parameters = {
            "border_mode": border_mode,
            "subsample": 1 if subsample is None else subsample,
            "filter_flip": filter_flip,
            "filter_dilation": 1 if filter_dilation is None else filter_dilation,
            "num_groups": num_groups,
        }

    def _apply(self, what: str, *args: Any) -> Any:
        name = f"conv{self.convdim}d{what}"
        return network_op(name, type(self).__name__)(*args, **self.parameters)

    def _sizes(self, shape: Any) -> tuple:
        """Return a whole shape, of which `shape` has the sizes of images, or all."""
        return (None, None, *[shape[i] for i in range(-self.convdim, 0)])


class AbstractConv2d(_Convolution):
    """A convolution of images; its parameters as in `_Convolution`."""

    def __call__(self, img: Any, kern: Any) -> Any:
        """Convolve images with filters."""
        return self._apply("", img, kern)


class AbstractConv2d_gradInputs(_Convolution):
    """The gradient of `AbstractConv2d` by its images: transposed convolution."""

    def __call__(self, kern: Any, topgrad: Any, shape: Any) -> Any:
        """Return it for filters, the gradient by the result, and the images' size."""
        return self._apply("_grad_wrt_inputs", topgrad, kern, self._sizes(shape))


class AbstractConv2d_gradWeights(_Convolution):
    """The gradient of `AbstractConv2d` by its filters."""

    def __call__(self, img: Any, topgrad: Any, shape: Any) -> Any:
        """Return it for images, the gradient by the result, and the filters' size."""
        return self._apply("_grad_wrt_weights", img, topgrad, self._sizes(shape))


class AbstractConv3d(AbstractConv2d):
    """A convolution of volumes."""

    convdim = 3


class AbstractConv3d_gradInputs(AbstractConv2d_gradInputs):
    """The gradient of `AbstractConv3d` by its volumes."""

    convdim = 3


class AbstractConv3d_gradWeights(AbstractConv2d_gradWeights):
    """The gradient of `AbstractConv3d` by its filters."""

    convdim = 3
