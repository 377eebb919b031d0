"""VGG16: K. Simonyan and A. Zisserman 2014, "Very deep convolutional networks", D."""

from __future__ import annotations

from lasagne import layers as L

from .layers import ConvLayer, Head, dense, logits, scaled

BLOCKS = ((64, 64), (128, 128), (256,) * 3, (512,) * 3, (512,) * 3)
"""Channels of the convolutions between two poolings."""


def build(x, image_size=224, classes=1000, width=1.0):
    """Return the head; see `alexnet.build`."""
    layer = L.InputLayer((None, 3, image_size, image_size), x)
    for block in BLOCKS:
        for filters in block:
            layer = ConvLayer(layer, scaled(filters, width), 3, pad=1)
        layer = L.MaxPool2DLayer(layer, 2)
    for _ in range(2):
        layer = L.DropoutLayer(dense(layer, scaled(4096, width)), 0.5)
    return [Head(logits(layer, classes))]
