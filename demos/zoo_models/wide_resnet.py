"""Wide ResNets, for small images: S. Zagoruyko and N. Komodakis 2016.

"Wide residual networks", table 1, with blocks of two 3x3 convolutions, each of them
after its normalisation and rectifier, and without dropout.
"""

from __future__ import annotations

import lasagne
from lasagne import layers as L
from resnet import BatchNormLayer, ConvLayer, MeanLayer

from .layers import Head, logits, scaled


def build(x, image_size=32, classes=10, width=1.0, depth=28, widen=10):
    """Return the head; see `alexnet.build`.

    Parameters
    ----------
    x, image_size, classes, width
    depth : int
        Layers with weights, those of shortcuts aside: 6 n + 4.
    widen : int
        How many times as wide as the ResNet it comes from: the paper's k.
    """
    n, rest = divmod(depth - 4, 6)
    if n < 1 or rest:
        raise ValueError(f"depth must be 10, 16, 22, 28 and so on, got {depth}")

    def ready(layer):
        layer = BatchNormLayer(layer)
        return L.NonlinearityLayer(layer, lasagne.nonlinearities.rectify)

    def block(layer, filters, stride):
        before = ready(layer)
        # Where the shape changes, the shortcut takes what is normalised already.
        if layer.output_shape[1] != filters or stride > 1:
            layer = ConvLayer(before, filters, 1, stride)
        way = ConvLayer(before, filters, 3, stride)
        return L.ElemwiseSumLayer([layer, ConvLayer(ready(way), filters, 3)])

    layer = L.InputLayer((None, 3, image_size, image_size), x)
    layer = ConvLayer(layer, scaled(16, width), 3)
    for stage in range(3):
        for i in range(n):
            filters = scaled(16 * widen * 2**stage, width)
            layer = block(layer, filters, stride=2 if stage and i == 0 else 1)
    return [Head(logits(MeanLayer(ready(layer)), classes))]
