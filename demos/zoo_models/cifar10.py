"""The small network that Theano-MPI trained on parts of CIFAR-10's images, 28 x 28."""

from __future__ import annotations

from lasagne import layers as L

from .layers import ConvLayer, Head, dense, logits, scaled


def build(x, image_size=28, classes=10, width=1.0):
    """Return the head; see `alexnet.build`."""
    layer = L.InputLayer((None, 3, image_size, image_size), x)
    layer = L.MaxPool2DLayer(ConvLayer(layer, scaled(64, width), 5), 2)
    layer = L.MaxPool2DLayer(ConvLayer(layer, scaled(128, width), 5), 2)
    layer = ConvLayer(layer, scaled(64, width), 3)
    layer = L.DropoutLayer(dense(layer, scaled(256, width)), 0.5)
    return [Head(logits(layer, classes))]
