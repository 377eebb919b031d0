"""Layers of Keras 2 beside NumPy: what they compute, and their weights' gradients.

Every layer is an output of a model of its family, which predicts and makes one step.
The program prints, for each layer, the largest difference from NumPy of its output, and
of its gradient along a random direction of its weights, and what the model predicts,
and its losses and weights after the step: on ranks and, but for recurrent layers, which
take long to compile, serially from the same state::

    python -m synk --parallel --every --ranks=3 tests/support/keras_layers.py
"""

import contextlib
import gc
import itertools
import json

with contextlib.suppress(ImportError):  # on the path where Python is of today
    import keras_today  # noqa: F401

import numpy as np
import theano
from keras import backend as K
from keras import layers as L
from keras.models import Model
from keras.optimizers import SGD
from scipy.special import expit as sigmoid
from scipy.special import softmax

import synk

K.set_floatx("float64")
theano.config.floatX = "float64"  # which Keras has set as its own was
gc.disable()  # all graphs are kept to the end
ROWS, RATE = 11, 0.5
np.random.seed(0)  # which gives dropout its seeds
random = np.random.RandomState(0)
DATA = {
    "flat": random.normal(size=(ROWS, 6)),
    "other": random.normal(size=(ROWS, 6)),
    "steps": random.normal(size=(ROWS, 6, 4)),
    "image": random.normal(size=(ROWS, 6, 5, 3)),
    "volume": random.normal(size=(ROWS, 4, 4, 4, 2)),
    "film": random.normal(size=(ROWS, 3, 5, 4, 2)),
    "words": random.randint(0, 7, (ROWS, 5)),
}
DATA["steps"][3:, 4:] = 0  # what masks leave out


# -- what NumPy says


def padded(x, size, strides, padding):
    """Pad as for ``same``: so that there is a window for each stride."""
    if padding == "valid":
        return x
    pads = [(0, 0)]
    for length, wide, stride in zip(x.shape[1:-1], size, strides, strict=True):
        more = max((-(-length // stride) - 1) * stride + wide - length, 0)
        pads.append((more // 2, more - more // 2))
    return np.pad(x, [*pads, (0, 0)])


def windows(x, size, strides=None, padding="valid", dilation=1):
    """Return windows of an image, as (rows, *places, *size, channels)."""
    strides = strides or size
    reach = [(n - 1) * dilation + 1 for n in size]
    x = padded(x, reach, strides, padding)
    counts = [
        (n - r) // s + 1 for n, r, s in zip(x.shape[1:-1], reach, strides, strict=True)
    ]
    found = np.empty((len(x), *counts, *size, x.shape[-1]))
    for place in itertools.product(*map(range, counts)):
        cut = tuple(
            slice(p * s, p * s + r, dilation)
            for p, s, r in zip(place, strides, reach, strict=True)
        )
        found[(slice(None), *place)] = x[(slice(None), *cut)]
    return found


def conv(x, w, b=0.0, strides=None, **how):
    """Convolve; Theano's kernels are flipped, other than those of TensorFlow."""
    n = w.ndim - 2
    w = w[(slice(None, None, -1),) * n]
    cut = windows(x, w.shape[:n], strides or (1,) * n, **how)
    return np.tensordot(cut, w, n + 1) + b


def transposed(x, w, b=0.0, stride=2):
    """Scatter each pixel times the kernel, which is (height, width, out, in)."""
    height, width = w.shape[:2]
    w = w[::-1, ::-1]
    size = [(n - 1) * stride + k for n, k in zip(x.shape[1:3], w.shape, strict=False)]
    found = np.zeros((len(x), *size, w.shape[2]))
    for i, j in itertools.product(*map(range, x.shape[1:3])):
        rows = slice(i * stride, i * stride + height)
        columns = slice(j * stride, j * stride + width)
        found[:, rows, columns] += np.einsum("nc,hwoc->nhwo", x[:, i, j], w)
    return found + b


def depthwise(x, w, b=0.0):
    cut = windows(x, w.shape[:-2], (1,) * (w.ndim - 2))
    by = "nijhwc,hwcm->nijcm" if w.ndim == 4 else "nihc,hcm->nicm"
    found = np.einsum(by, cut, w)
    return found.reshape(*found.shape[:-2], -1) + b


def separable(x, depth, point, b=0.0):
    return depthwise(x, depth) @ point.reshape(point.shape[-2:]) + b


def local(x, w, b, size=(5, 4)):
    """Return a convolution with weights of its own at each place."""
    cut = windows(x, size, (1,) * len(size))
    flat = cut.reshape(len(x), len(w), -1)
    found = np.einsum("npk,pko->npo", flat, w)
    return found.reshape(*cut.shape[: x.ndim - 1], -1) + b


def pool(by, size, **how):
    axes = tuple(range(-1 - len(size), -1))
    return lambda x: by(windows(x, size, **how), axes)


def recurrent(step, x, *weights, shape=(3,), mask=False, backward=False):
    """Return the states after each step; steps of zeros are left out by a mask."""
    states, found = [np.zeros((len(x), *shape))] * 2, []
    for at in reversed(range(x.shape[1])) if backward else range(x.shape[1]):
        new = step(x[:, at], states, *weights)
        if mask:
            seen = x[:, at].any(1)[:, None]
            new = [np.where(seen, a, b) for a, b in zip(new, states, strict=True)]
        states = new
        found.append(states[0])
    return np.stack(found, 1)


def simple(x, states, w, u, b):
    return [np.tanh(x @ w + states[0] @ u + b)] * 2


def lstm(x, states, w, u, b):
    i, f, c, o = np.split(x @ w + states[0] @ u + b, 4, 1)
    cell = sigmoid(f) * states[1] + sigmoid(i) * np.tanh(c)
    return [sigmoid(o) * np.tanh(cell), cell]


def gru(x, states, w, u, b):
    z, r, h = np.split(x @ w + b, 3, 1)
    uz, ur, uh = np.split(u, 3, 1)
    z, r = sigmoid(z + states[0] @ uz), sigmoid(r + states[0] @ ur)
    return [z * states[0] + (1 - z) * np.tanh(h + (r * states[0]) @ uh)] * 2


def convolved(x, states, w, u, b):
    of_states = conv(states[0], u, padding="same")
    i, f, c, o = np.split(conv(x, w, b) + of_states, 4, -1)
    cell = sigmoid(f) * states[1] + sigmoid(i) * np.tanh(c)
    return [sigmoid(o) * np.tanh(cell), cell]


def normalised(x, scale, shift, mean, variance, training=False):
    axes = tuple(range(x.ndim - 1))
    if training:
        mean, variance = x.mean(axes), x.var(axes)
    return scale * (x - mean) / np.sqrt(variance + 1e-3) + shift


def selu(x):
    alpha, scale = 1.6732632423543772, 1.0507009873554805
    return scale * np.where(x > 0, x, alpha * np.expm1(x))


def repeated(x, times):
    for axis in range(1, x.ndim - 1):
        x = np.repeat(x, times, axis)
    return x


def dense(x, w, b=0.0):
    return x @ w + b


def over(axis):
    """Return a cosine, as `Dot` computes it of normalised inputs."""
    return lambda x, y: (
        (x * y).sum(axis, keepdims=True)
        / np.linalg.norm(x, axis=axis, keepdims=True)
        / np.linalg.norm(y, axis=axis, keepdims=True)
    )


# -- the table: family, layer, inputs, what it is in NumPy

GATES = {"recurrent_activation": "sigmoid", "bias_initializer": "normal"}
BOTH = ("flat", "other")
TABLE = {
    "activations": {
        "dense": (L.Dense(4), "flat", dense),
        "dense of steps": (L.Dense(4, use_bias=False), "steps", dense),
        "relu": (L.Activation("relu"), "flat", lambda x: np.maximum(x, 0)),
        "tanh": (L.Activation("tanh"), "flat", np.tanh),
        "softmax": (L.Activation("softmax"), "steps", lambda x: softmax(x, -1)),
        "softplus": (L.Activation("softplus"), "flat", lambda x: np.log1p(np.exp(x))),
        "softsign": (L.Activation("softsign"), "flat", lambda x: x / (1 + abs(x))),
        "selu": (L.Activation("selu"), "flat", selu),
        "hard sigmoid": (
            *(L.Activation("hard_sigmoid"), "flat"),
            lambda x: np.clip(0.2 * x + 0.5, 0, 1),
        ),
        "leaky relu": (L.LeakyReLU(0.2), "flat", lambda x: np.where(x > 0, x, 0.2 * x)),
        "elu": (L.ELU(0.7), "flat", lambda x: np.where(x > 0, x, 0.7 * np.expm1(x))),
        "prelu": (L.PReLU(), "steps", lambda x, a: np.where(x > 0, x, a * x)),
        "thresholded": (L.ThresholdedReLU(0.3), "flat", lambda x: x * (x > 0.3)),
        "relu to 1": (L.ReLU(1.0), "flat", lambda x: np.clip(x, 0, 1)),
    },
    "rows": {
        "flatten": (L.Flatten(), "image", lambda x: x.reshape(len(x), -1)),
        "reshape": (L.Reshape((4, 3, 2)), "steps", lambda x: x.reshape(-1, 4, 3, 2)),
        "permute": (L.Permute((3, 1, 2)), "image", lambda x: x.transpose(0, 3, 1, 2)),
        "repeat": (L.RepeatVector(3), "flat", lambda x: np.stack([x] * 3, 1)),
        "lambda": (L.Lambda(lambda x: K.square(x) + 1), "flat", lambda x: x**2 + 1),
        "dropout": (L.Dropout(0.4), "flat", lambda x: x),
        "noise": (L.GaussianNoise(0.4), "flat", lambda x: x),
        "alpha dropout": (L.AlphaDropout(0.4), "flat", lambda x: x),
        "spatial dropout": (L.SpatialDropout1D(0.4), "steps", lambda x: x),
        "embedding": (L.Embedding(7, 3), "words", lambda x, w: w[x]),
        "normalisation": (L.BatchNormalization(), "flat", normalised),
        "normalisation of images": (L.BatchNormalization(), "image", normalised),
        "add": (L.Add(), BOTH, np.add),
        "subtract": (L.Subtract(), BOTH, np.subtract),
        "multiply": (L.Multiply(), BOTH, np.multiply),
        "average": (L.Average(), BOTH, lambda x, y: (x + y) / 2),
        "maximum": (L.Maximum(), BOTH, np.maximum),
        "minimum": (L.Minimum(), BOTH, np.minimum),
        "concatenate": (L.Concatenate(), BOTH, lambda *x: np.concatenate(x, 1)),
        "dot": (L.Dot(1), BOTH, lambda x, y: (x * y).sum(1, keepdims=True)),
        "cosine": (L.Dot(1, normalize=True), BOTH, over(1)),
    },
    "convolutions": {
        "conv 1d": (L.Conv1D(4, 3), "steps", conv),
        "causal": (
            *(L.Conv1D(4, 2, padding="causal"), "steps"),
            lambda x, w, b: conv(np.pad(x, [(0, 0), (1, 0), (0, 0)]), w, b),
        ),
        "conv 2d": (L.Conv2D(4, (3, 2)), "image", conv),
        "same": (
            *(L.Conv2D(4, 3, padding="same"), "image"),
            lambda *x: conv(*x, padding="same"),
        ),
        "strided": (
            *(L.Conv2D(4, 3, strides=2), "image"),
            lambda *x: conv(*x, strides=(2, 2)),
        ),
        "dilated": (
            *(L.Conv2D(4, 2, dilation_rate=2), "image"),
            lambda *x: conv(*x, dilation=2),
        ),
        "conv 3d": (L.Conv3D(3, 2), "volume", conv),
        "transposed": (L.Conv2DTranspose(4, 3, strides=2), "image", transposed),
        "depthwise": (L.DepthwiseConv2D(2, depth_multiplier=2), "image", depthwise),
        "separable 1d": (L.SeparableConv1D(4, 2), "steps", separable),
        "separable 2d": (L.SeparableConv2D(4, 2), "image", separable),
        "local 1d": (
            *(L.LocallyConnected1D(3, 5), "steps"),
            lambda *x: local(*x, size=(5,)),
        ),
        "local 2d": (L.LocallyConnected2D(3, (5, 4)), "image", local),
    },
    "places": {
        "crop 1d": (L.Cropping1D((1, 2)), "steps", lambda x: x[:, 1:-2]),
        "crop 2d": (L.Cropping2D(1), "image", lambda x: x[:, 1:-1, 1:-1]),
        "crop 3d": (L.Cropping3D(1), "volume", lambda x: x[:, 1:-1, 1:-1, 1:-1]),
        "pad 1d": (
            *(L.ZeroPadding1D(2), "steps"),
            lambda x: np.pad(x, [(0, 0), (2, 2), (0, 0)]),
        ),
        "pad 2d": (
            *(L.ZeroPadding2D(((1, 0), (2, 1))), "image"),
            lambda x: np.pad(x, [(0, 0), (1, 0), (2, 1), (0, 0)]),
        ),
        "up 1d": (L.UpSampling1D(2), "steps", lambda x: repeated(x, 2)),
        "up 2d": (L.UpSampling2D(2), "image", lambda x: repeated(x, 2)),
        "up 3d": (L.UpSampling3D(2), "volume", lambda x: repeated(x, 2)),
        "max 1d": (L.MaxPooling1D(2), "steps", pool(np.max, (2,))),
        "max 2d": (L.MaxPooling2D((2, 2)), "image", pool(np.max, (2, 2))),
        "max same": (
            *(L.MaxPooling2D(3, 2, padding="same"), "image"),
            lambda x: pool(np.max, (3, 3), strides=(2, 2))(
                np.pad(x, [(0, 0), (1, 1), (1, 1), (0, 0)], constant_values=-np.inf)
            ),
        ),
        "max 3d": (L.MaxPooling3D(2), "volume", pool(np.max, (2, 2, 2))),
        "mean 1d": (L.AveragePooling1D(2), "steps", pool(np.mean, (2,))),
        "mean 2d": (
            *(L.AveragePooling2D(2, 1), "image"),
            pool(np.mean, (2, 2), strides=(1, 1)),
        ),
        "mean 3d": (L.AveragePooling3D(2), "volume", pool(np.mean, (2, 2, 2))),
        "max of all 1d": (L.GlobalMaxPooling1D(), "steps", lambda x: x.max(1)),
        "max of all 2d": (L.GlobalMaxPooling2D(), "image", lambda x: x.max((1, 2))),
        "mean of all 1d": (L.GlobalAveragePooling1D(), "steps", lambda x: x.mean(1)),
        "mean of all 2d": (
            *(L.GlobalAveragePooling2D(), "image"),
            lambda x: x.mean((1, 2)),
        ),
    },
    "recurrent": {
        "gru": (
            *(L.GRU(3, **GATES, reset_after=False, return_sequences=True), "steps"),
            lambda x, *w: recurrent(gru, x, *w),
        ),
        "lstm": (
            *(L.LSTM(3, **GATES, return_sequences=True), "steps"),
            lambda x, *w: recurrent(lstm, x, *w),
        ),
        "masked, both ways": (
            *([L.Masking(), L.Bidirectional(L.SimpleRNN(3))], "steps"),
            lambda x, *w: np.concatenate(
                [
                    recurrent(simple, x, *w[:3], mask=True)[:, -1],
                    recurrent(simple, x, *w[3:], mask=True, backward=True)[:, -1],
                ],
                1,
            ),
        ),
        "convolved": (
            *(L.ConvLSTM2D(2, 3, **GATES), "film"),
            lambda x, *w: recurrent(convolved, x, *w, shape=(3, 2, 2))[:, -1],
        ),
        "in time": (L.TimeDistributed(L.Dense(2)), "steps", dense),
    },
}


def checked(family):
    """Return what layers differ by, what their model computes, and what it does again.

    It makes one step. What is returned at last makes it once more from the same state.
    """
    table = TABLE[family]
    used = sorted({n for _, given, _ in table.values() for n in np.atleast_1d(given)})
    inputs = {name: L.Input(DATA[name].shape[1:], name=name) for name in used}
    outputs, weights, layers = [], [], []
    for layer, given, _ in table.values():
        names = np.atleast_1d(given)
        found = [inputs[name] for name in names]
        found = found[0] if len(found) == 1 else found
        for each in layer if isinstance(layer, list) else [layer]:
            found = each(found)
            layer = each
        layers.append(layer)
        outputs.append(L.Reshape((-1,))(found))
        weights.append([0.5 * random.normal(size=w.shape) for w in layer.get_weights()])
        if isinstance(layer, L.BatchNormalization):
            weights[-1][3] = 0.5 + abs(weights[-1][3])
        layer.set_weights(weights[-1])
    model = Model(list(inputs.values()), outputs)
    model.compile(SGD(RATE), "mse")
    x = [DATA[name] for name in used]
    targets = [random.normal(size=(ROWS, y._keras_shape[1])) for y in outputs]
    start = []

    def step():
        for variable, value in start:
            variable.set_value(value)
        predicted = model.predict(x, batch_size=ROWS)
        told = model.train_on_batch(x, targets)
        return predicted, told, [layer.get_weights() for layer in layers]

    if family != "recurrent":
        model._make_train_function()
        shared = model.train_function.function.get_shared()
        start += [(variable, variable.get_value()) for variable in shared]
    found = step()
    report = {}
    for name, predicted, *rest in zip(
        *(table, found[0], targets, weights, found[2]), strict=True
    ):
        report[name] = differences(*table[name][1:], predicted, *rest)
    return report, numbers(*found), lambda: numbers(*step()) if start else None


def numbers(predicted, told, weights):
    """Return the sums of all that a model computes."""
    arrays = *predicted, *told, *(w for of_layer in weights for w in of_layer)
    return [float(np.sum(each)) for each in arrays]


def differences(given, reference, predicted, target, weights, after):
    """Return by how much an output, and the change along a direction, are others'."""
    x = [DATA[name] for name in np.atleast_1d(given)]

    def computed(weights, **how):
        return reference(*x, *weights, **how).reshape(len(target), -1)

    gap = float(np.abs(computed(weights) - predicted).max())
    how = {"training": True} if reference is normalised else {}
    count = 2 if how else len(weights)  # averages are no parameters
    ways = [random.normal(size=w.shape) for w in weights[:count]]
    if not ways:
        return [gap]

    def loss(step):
        moved = [w + step * d for w, d in zip(weights, ways, strict=False)]
        return np.mean((computed(moved + weights[count:], **how) - target) ** 2)

    slope = (loss(1e-5) - loss(-1e-5)) / 2e-5
    changes = zip(weights, after, ways, strict=False)
    gradient = sum(float(((w - new) / RATE * way).sum()) for w, new, way in changes)
    return [gap, abs(gradient - slope)]


if __name__ == "__main__":
    found = {family: checked(family) for family in TABLE}
    size = synk.size()
    synk.close()
    for family, (report, by_ranks, again) in found.items():
        print(json.dumps([family, size, report, by_ranks, again()]), flush=True)
