"""Layers that the networks of the zoo share, and Lasagne 0.1 has not."""

from __future__ import annotations

from typing import NamedTuple

import synk  # first: with it come Theano's names, which Lasagne imports

# isort: split
import lasagne
import theano.tensor as T
from lasagne import layers as L

ZEROS = lasagne.init.Constant(0)


class Head(NamedTuple):
    """An output of a classifier."""

    logits: L.Layer
    weight: float = 1.0
    """How much its cross-entropy counts in training."""


def scaled(number: int, width: float) -> int:
    """Return a number of channels of a network so many times as wide: an even one."""
    return 2 * max(1, round(number * width / 2))


class ConvLayer(L.Conv2DLayer):
    """A convolution with bias and rectifier, in groups if wanted.

    Filters correlate, and are not flipped. At first they are as K. He et al. 2015 have
    them, "Delving deep into rectifiers", which suits networks of any width.

    Parameters
    ----------
    incoming : Layer
    filters, size : int
    groups : int
        Into how many channels and filters are divided: a filter sees the channels of
        its group.
    """

    def __init__(self, incoming, filters, size, groups=1, **options):
        self.groups = groups
        channels = incoming.output_shape[1]
        if channels % groups or filters % groups:
            raise ValueError(
                f"{channels} channels and {filters} filters make no {groups} groups"
            )
        W = lasagne.init.HeNormal(gain="relu")
        super().__init__(incoming, filters, size, **{"W": W, **options})

    def get_W_shape(self):
        """Return the shape of the filters."""
        channels = self.input_shape[1] // self.groups
        return (self.num_filters, channels, *self.filter_size)

    def get_output_for(self, input, **options):
        """Return the outputs."""
        found = T.nnet.conv2d(
            input,
            self.W,
            border_mode=self.pad,
            subsample=self.stride,
            filter_flip=False,
            num_groups=self.groups,
        )
        if self.b is not None:
            found = found + self.b.dimshuffle("x", 0, "x", "x")
        return self.nonlinearity(found)


class TransposedConvLayer(L.Layer):
    """A convolution of stride 2 transposed: images become twice as high and wide.

    Parameters
    ----------
    incoming : Layer
    filters, size : int
        `size` is odd.
    nonlinearity : callable
    b : Initializer or None
    """

    def __init__(
        self,
        incoming,
        filters,
        size,
        nonlinearity=lasagne.nonlinearities.rectify,
        b=ZEROS,
        **options,
    ):
        super().__init__(incoming, **options)
        self.filters, self.size = filters, size
        self.nonlinearity = nonlinearity or lasagne.nonlinearities.identity
        shape = (self.input_shape[1], filters, size, size)
        self.W = self.add_param(lasagne.init.GlorotUniform(), shape, "W")
        self.b = None
        if b is not None:
            self.b = self.add_param(b, (filters,), "b", regularizable=False)

    def get_output_shape_for(self, input_shape):
        """Return the shape of the outputs."""
        batch, _, rows, columns = input_shape
        return (batch, self.filters, 2 * rows, 2 * columns)

    def get_output_for(self, input, **options):
        """Return the outputs."""
        shape = self.get_output_shape_for(self.input_shape)
        found = synk.nn.conv2d_transpose(
            input,
            self.W,
            (input.shape[0], *shape[1:]),
            border_mode=self.size // 2,
            subsample=2,
            filter_flip=False,
        )
        if self.b is not None:
            found = found + self.b.dimshuffle("x", 0, "x", "x")
        return self.nonlinearity(found)


def dense(incoming, units, **options):
    """Return a dense layer with rectifiers, which begins as `ConvLayer` does."""
    W = lasagne.init.HeNormal(gain="relu")
    return L.DenseLayer(incoming, units, **{"W": W, **options})


def logits(incoming, classes):
    """Return the last layer of a classifier, small at first: all classes are alike."""
    W = lasagne.init.Normal(0.01)
    return L.DenseLayer(incoming, classes, W=W, nonlinearity=None)
