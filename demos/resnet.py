"""ResNet-50 in Lasagne's layers; `resnet50.py` trains it, and `zoo.py` deeper ones.

The network of K. He et al. 2015, "Deep residual learning for image recognition",
table 1, as torchvision and most others build it ("v1.5"): where a block halves the
image, its 3x3 convolution does it; in the paper the first 1x1 convolution does. Filters
correlate and are not flipped, so that weights of other programs can be copied over.
"""

from __future__ import annotations

import synk  # noqa: F401  first: with it come Theano's names, which Lasagne imports

# isort: split
import lasagne
import theano
import theano.tensor as T
from lasagne import layers as L

BLOCKS = (3, 4, 6, 3)
"""How many blocks each stage has; (3, 4, 23, 3) would be ResNet-101."""

BLOCKS_152 = (3, 8, 36, 3)
"""Those of ResNet-152."""

EPSILON = 1e-5
"""Added to variances."""
RATE = 0.1
"""How much a batch counts in the running averages."""


class ConvLayer(L.Conv2DLayer):
    """A convolution without bias and activation, which batch normalisation brings."""

    def __init__(self, incoming, filters, size, stride=1, **options):
        super().__init__(
            incoming,
            filters,
            size,
            stride=stride,
            pad=size // 2,
            W=lasagne.init.HeNormal(gain="relu"),
            b=None,
            nonlinearity=None,
            **options,
        )

    def get_output_for(self, input, **options):
        """Return the outputs; Lasagne 0.1 itself pads in a way that is slow in JAX."""
        return T.nnet.conv2d(
            input,
            self.W,
            border_mode=self.pad,
            subsample=self.stride,
            filter_flip=False,
        )


class BatchNormLayer(L.Layer):
    """Normalises channels; Lasagne 0.1 has no such layer.

    It says nothing of ranks: what rows they are whose statistics it takes, the function
    says that is made of it. The running averages, by which outputs with
    ``deterministic=True`` are normalised, are the same on all ranks in any case. As
    torch's, they are of the unbiased variance.

    Parameters
    ----------
    incoming : Layer
        Outputs of shape (batch, channels, rows, columns), or (batch, channels).
    gamma : float
        The scale at first.
    """

    def __init__(self, incoming, gamma=1, **options):
        super().__init__(incoming, **options)
        shape = (self.input_shape[1],)
        zeros, ones = lasagne.init.Constant(0), lasagne.init.Constant(1)
        # No weight decay for any of them.
        scale = lasagne.init.Constant(gamma)
        self.gamma = self.add_param(scale, shape, "gamma", regularizable=False)
        self.beta = self.add_param(zeros, shape, "beta", regularizable=False)
        state = {"trainable": False, "regularizable": False}
        self.mean = self.add_param(zeros, shape, "mean", **state)
        self.variance = self.add_param(ones, shape, "variance", **state)
        self.updates = {}

    def get_output_for(self, input, deterministic=False, **options):
        """Return normalised channels; if they are for training, set `updates`."""
        if deterministic:
            return self.normalised(input, self.mean, self.variance)
        axes = (0, *range(2, input.ndim))
        mean = input.mean(axes)
        variance = T.sqr(input - along_channels(mean, input.ndim)).mean(axes)
        self.updates = self.running_averages(input, mean, variance)
        return self.normalised(input, mean, variance)

    def normalised(self, input, mean, variance):
        """Return the scaled and shifted channels."""
        scale = self.gamma / T.sqrt(variance + EPSILON)
        mean, scale, beta = (
            along_channels(values, input.ndim) for values in (mean, scale, self.beta)
        )
        return (input - mean) * scale + beta

    def running_averages(self, input, mean, variance):
        """Return what the averages are after a batch with these statistics."""
        rows = input.shape[0]
        if input.ndim > 2:
            rows = rows * T.prod(input.shape[2:])
        count = T.cast(rows, input.dtype)
        unbiased = variance * count / (count - 1)
        return {
            self.mean: self.mean + RATE * (mean - self.mean),
            self.variance: self.variance + RATE * (unbiased - self.variance),
        }


class MeanLayer(L.GlobalPoolLayer):
    """The mean over rows and columns; Lasagne's own layer makes them one axis first.

    That would be undone in the gradient by a shape which, with ``sync``, comes from
    another part of the graph, where JAX cannot know it.
    """

    def get_output_for(self, input, **options):
        """Return the means, shape (batch, channels)."""
        return input.mean((2, 3))


def along_channels(values, ndim):
    """Return a vector in a shape that broadcasts to that of images."""
    return values.dimshuffle("x", 0, *["x"] * (ndim - 2))


def build(x, image_size=224, classes=1000, width=64, blocks=BLOCKS):
    """Return the last layer, whose outputs are the logits of the classes.

    Parameters
    ----------
    x : tensor4
        Images, shape (batch, 3, image_size, image_size).
    image_size, classes : int
    width : int
        Channels of the first layer; 64 in the paper, fewer make a small network.
    blocks : sequence of int
    """

    def conv(layer, filters, size, stride, name, **options):
        layer = ConvLayer(layer, filters, size, stride, name=name)
        return BatchNormLayer(layer, name=f"{name}.norm", **options)

    def relu(layer):
        return L.NonlinearityLayer(layer, lasagne.nonlinearities.rectify)

    def block(layer, filters, stride, name):
        """Return a bottleneck: 1x1, 3x3 and 1x1 convolutions, beside a shortcut."""
        shortcut = layer
        if stride > 1 or layer.output_shape[1] != 4 * filters:
            shortcut = conv(layer, 4 * filters, 1, stride, f"{name}.shortcut")
        layer = relu(conv(layer, filters, 1, 1, f"{name}.conv1"))
        layer = relu(conv(layer, filters, 3, stride, f"{name}.conv2"))
        # At first each block is its shortcut (P. Goyal et al. 2017, section 5.1).
        layer = conv(layer, 4 * filters, 1, 1, f"{name}.conv3", gamma=0)
        return relu(L.ElemwiseSumLayer([shortcut, layer]))

    layer = L.InputLayer((None, 3, image_size, image_size), x)
    layer = relu(conv(layer, width, 7, 2, "stem"))
    layer = L.MaxPool2DLayer(layer, 3, stride=2, pad=1)
    for stage, number in enumerate(blocks):
        for i in range(number):
            stride = 2 if stage > 0 and i == 0 else 1
            layer = block(layer, width * 2**stage, stride, f"block{stage + 1}.{i + 1}")
    layer = MeanLayer(layer)
    weights = lasagne.init.Normal(0.01)
    return L.DenseLayer(layer, classes, W=weights, nonlinearity=None, name="dense")


def running_averages(network):
    """Return the updates of all batch normalisations, for the training function.

    Of the outputs that `lasagne.layers.get_output` made last for training. `network` is
    the last layer, or a list of several.
    """
    updates = {}
    for layer in L.get_all_layers(network):
        if isinstance(layer, BatchNormLayer):
            updates.update(layer.updates)
    return updates


def count(network):
    """Return how many numbers training moves: 25,557,032 for 1000 classes."""
    return L.count_params(network, trainable=True)


def check(network):
    """Assert that this is ResNet-50: its layers, and its parameters if not narrower."""
    layers = L.get_all_layers(network)
    assert sum(isinstance(layer, ConvLayer) for layer in layers) == 53
    assert sum(isinstance(layer, L.DenseLayer) for layer in layers) == 1
    if layers[1].num_filters == 64:
        assert count(network) == 23_508_032 + (2048 + 1) * network.num_units


def objectives(logits, y):
    """Return cross-entropy, and how often the class is the first and in the first 5.

    All are means over the rows.
    """
    log_p = T.nnet.logsoftmax(logits)
    rows = T.arange(y.shape[0])
    own = logits[rows, y].dimshuffle(0, "x")
    place = T.ge(logits, own).sum(axis=1)  # 1 is the best, 0 is NaN
    floatX = theano.config.floatX
    return [
        -log_p[rows, y].mean(),
        T.cast(T.eq(place, 1), floatX).mean(),
        T.cast(T.and_(T.ge(place, 1), T.le(place, 5)), floatX).mean(),
    ]
