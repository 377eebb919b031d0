"""GoogLeNet: C. Szegedy et al. 2014, "Going deeper with convolutions".

Two auxiliary classifiers halfway up have a part in the loss while it trains.
"""

from __future__ import annotations

import resnet
import theano.tensor as T
from lasagne import layers as L

from .layers import ConvLayer, Head, dense, logits, scaled

MODULES = {
    "3a": (64, 96, 128, 16, 32, 32),
    "3b": (128, 128, 192, 32, 96, 64),
    "4a": (192, 96, 208, 16, 48, 64),
    "4b": (160, 112, 224, 24, 64, 64),
    "4c": (128, 128, 256, 24, 64, 64),
    "4d": (112, 144, 288, 32, 64, 64),
    "4e": (256, 160, 320, 32, 128, 128),
    "5a": (256, 160, 320, 32, 128, 128),
    "5b": (384, 192, 384, 48, 128, 128),
}
"""Filters of each module's convolutions: 1x1, 1x1 and 3x3, 1x1 and 5x5, after a pool.

Table 1 of the paper."""

AUXILIARY = ("4a", "4d")
"""The modules whose outputs an auxiliary head classifies."""


class TogetherLayer(L.ConcatLayer):
    """Puts channels together, and tells PyTensor the shape of the result.

    PyTensor's own inference has, for a while, each length be the sum of those that are
    joined: the number of rows comes from the module below, and becomes a sum of 4 ** 9
    terms before it is found not to be needed, which took longer than anyone waits.
    """

    def get_output_for(self, inputs, **options):
        """Return all the channels."""
        shape = (inputs[0].shape[0], *self.output_shape[1:])
        return T.reshape(super().get_output_for(inputs), shape, ndim=4)


def build(x, image_size=224, classes=1000, width=1.0):
    """Return the head and the two auxiliary ones; see `alexnet.build`."""

    def conv(layer, filters, size, **options):
        return ConvLayer(layer, scaled(filters, width), size, **options)

    def halved(layer):
        return L.MaxPool2DLayer(layer, 3, stride=2, pad=1)

    def module(layer, one, before3, three, before5, five, pooled):
        """Return an inception module: four ways, whose channels are put together."""
        pool = L.MaxPool2DLayer(layer, 3, stride=1, pad=1)
        ways = [
            conv(layer, one, 1),
            conv(conv(layer, before3, 1), three, 3, pad=1),
            conv(conv(layer, before5, 1), five, 5, pad=2),
            conv(pool, pooled, 1),
        ]
        return TogetherLayer(ways, axis=1)

    def auxiliary(layer):
        layer = L.Pool2DLayer(layer, 5, stride=3, mode="average_exc_pad")
        layer = dense(conv(layer, 128, 1), scaled(1024, width))
        return Head(logits(L.DropoutLayer(layer, 0.7), classes), weight=0.3)

    layer = L.InputLayer((None, 3, image_size, image_size), x)
    layer = halved(conv(layer, 64, 7, stride=2, pad=3))
    layer = conv(L.LocalResponseNormalization2DLayer(layer), 64, 1)
    layer = L.LocalResponseNormalization2DLayer(conv(layer, 192, 3, pad=1))
    layer = halved(layer)
    others = []
    for name, filters in MODULES.items():
        layer = module(layer, *filters)
        if name in AUXILIARY:
            others.append(auxiliary(layer))
        if name in ("3b", "4e"):
            layer = halved(layer)
    layer = L.DropoutLayer(resnet.MeanLayer(layer), 0.4)
    return [Head(logits(layer, classes)), *others]
