"""AlexNet, of A. Krizhevsky et al. 2012, "ImageNet classification with deep CNNs".

With the paper's two groups, which lay on two GPUs then, and its normalisation of each
pixel by the channels nearby. Of the image it takes 227 x 227 pixels.
"""

from __future__ import annotations

from lasagne import layers as L

from .layers import ConvLayer, Head, dense, logits, scaled


def build(x, image_size=227, classes=1000, width=1.0):
    """Return the head. Arguments are those of all classifiers here.

    Parameters
    ----------
    x : tensor4
        Images, shape (batch, 3, image_size, image_size).
    image_size, classes : int
    width : float
        By how much all layers are wider.

    Returns
    -------
    list of Head
    """

    def n(number):
        return scaled(number, width)

    layer = L.InputLayer((None, 3, image_size, image_size), x)
    layer = ConvLayer(layer, n(96), 11, stride=4)
    layer = L.LocalResponseNormalization2DLayer(layer)  # k 2, n 5, as in the paper
    layer = L.MaxPool2DLayer(layer, 3, stride=2)
    layer = ConvLayer(layer, n(256), 5, groups=2, pad=2)
    layer = L.LocalResponseNormalization2DLayer(layer)
    layer = L.MaxPool2DLayer(layer, 3, stride=2)
    layer = ConvLayer(layer, n(384), 3, pad=1)
    layer = ConvLayer(layer, n(384), 3, groups=2, pad=1)
    layer = ConvLayer(layer, n(256), 3, groups=2, pad=1)
    layer = L.MaxPool2DLayer(layer, 3, stride=2)
    layer = L.DropoutLayer(dense(layer, n(4096)), 0.5)
    layer = L.DropoutLayer(dense(layer, n(4096)), 0.5)
    return [Head(logits(layer, classes))]
