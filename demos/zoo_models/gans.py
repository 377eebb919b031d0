"""Generator and critic of small images, for a WGAN as for an LSGAN.

As A. Radford et al. 2015 have them ("DCGAN") in the size that suits MNIST: two dense
layers and two convolutions each, with batch normalisation.
"""

from __future__ import annotations

import lasagne
import resnet
from lasagne import layers as L

from .layers import ConvLayer, TransposedConvLayer, scaled

NOISE = 100
"""How many numbers an image is made from."""

leaky = lasagne.nonlinearities.LeakyRectify(0.2)


def normalised(layer, nonlinearity=lasagne.nonlinearities.rectify):
    return L.NonlinearityLayer(resnet.BatchNormLayer(layer), nonlinearity)


def generator(z, shape=(1, 28, 28), width=1.0):
    """Return the layer whose outputs are images, of pixels from 0 to 1.

    Parameters
    ----------
    z : matrix
        Noise, shape (batch, NOISE).
    shape : tuple of int
        Channels, rows and columns of an image; both of the latter in fours.
    width : float
        By how much all layers are wider.
    """
    channels, rows, columns = shape
    plain = {"b": None, "nonlinearity": None}
    size = (scaled(128, width), rows // 4, columns // 4)
    layer = L.InputLayer((None, NOISE), z)
    layer = normalised(L.DenseLayer(layer, scaled(1024, width), **plain))
    layer = normalised(L.DenseLayer(layer, size[0] * size[1] * size[2], **plain))
    layer = L.ReshapeLayer(layer, ([0], *size))
    layer = normalised(TransposedConvLayer(layer, scaled(64, width), 5, **plain))
    sigmoid = lasagne.nonlinearities.sigmoid
    return TransposedConvLayer(layer, channels, 5, nonlinearity=sigmoid)


def critic(shape=(1, 28, 28), width=1.0):
    """Return the layer whose outputs are scores, of any size; see `generator`."""
    plain = {"b": None, "nonlinearity": None}
    layer = L.InputLayer((None, *shape))
    for filters in (64, 128):
        layer = ConvLayer(layer, scaled(filters, width), 5, stride=2, pad=2, **plain)
        layer = normalised(layer, leaky)
    layer = normalised(L.DenseLayer(layer, scaled(1024, width), **plain), leaky)
    return L.DenseLayer(layer, 1, b=None, nonlinearity=None)
