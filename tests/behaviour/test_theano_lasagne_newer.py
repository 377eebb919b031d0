"""What code written for Lasagne after 0.1 asks of Theano, call by call.

That version is on no package index: where its wheel is not, its layers can't be tested
themselves. Each graph calls Theano as one of them does, and is compared with numpy, and
in JAX mode.
"""

from __future__ import annotations

import functools

import numpy as np
import pytest
import theano
import theano.tensor as T
from children import in_a_child
from graph_groups import Graph, Group
from theano.sandbox.rng_mrg import MRG_RandomStreams

pytestmark = pytest.mark.usefixtures("scans_in_python")

MODE = "FAST_COMPILE"
RNG = np.random.default_rng(0)
IMAGES, MATRIX = RNG.normal(size=(2, 3, 5, 6)), RNG.normal(size=(4, 5))
CLASSES = np.array([0, 4, 1, 2], dtype="int32")


def convolved(x, w, step=1):
    """Return images correlated with filters, the filters' elements `step` apart."""
    lengths = tuple((n - 1) * step + 1 for n in w.shape[2:])
    axes = tuple(range(2, x.ndim))
    windows = np.lib.stride_tricks.sliding_window_view(x, lengths, axes)
    windows = windows[(..., *[slice(None, None, step)] * len(axes))]
    of_windows = [1, *range(x.ndim, 2 * x.ndim - 2)]
    return np.moveaxis(np.tensordot(windows, w, [of_windows, [1, *axes]]), -1, 1)


# -- convolutions


def transposed(ndim, is_known):
    """Every pixel adds its filter, at twice its place."""
    lengths = (3, 4, 2)[:ndim]
    x, w = RNG.normal(size=(2, 3, *lengths)), RNG.normal(size=(3, 2, *[3] * ndim))
    full = tuple(2 * n + 1 for n in lengths)
    expected = np.zeros((2, 2, *full))
    for place in np.ndindex(*lengths):
        part = (..., *(slice(2 * i, 2 * i + 3) for i in place))
        expected[part] += np.einsum("bc,co...->bo...", x[(..., *place)], w)

    def build(x, w):
        op = getattr(T.nnet.abstract_conv, f"AbstractConv{ndim}d_gradInputs")
        convolution = op(
            imshp=(None, 2, *full) if is_known else None,
            kshp=w.type.shape,
            subsample=(2,) * ndim,
            border_mode=(0,) * ndim,
            filter_flip=False,
        )
        return convolution(w, x, full if is_known else [2 * n + 1 for n in x.shape[2:]])

    return Graph(build, (x, w), expected)


def dilated(is_known):
    """By the gradient of filters."""
    w = RNG.normal(size=(3, 4, 2, 2))

    def build(x, w):
        convolution = T.nnet.abstract_conv.AbstractConv2d_gradWeights(
            imshp=(3, None, 5, 6),
            kshp=(4, None, 3, 4),
            subsample=(2, 2),
            border_mode="valid",
            filter_flip=False,
        )
        place = (3, 4) if is_known else (x.shape[2] - 2, x.shape[3] - 2)
        return convolution(x.transpose(1, 0, 2, 3), w, place).transpose(1, 0, 2, 3)

    expected = convolved(IMAGES, w.transpose(1, 0, 2, 3), 2)
    return Graph(build, (IMAGES, w), expected)


def of_volumes():
    x, w = RNG.normal(size=(2, 2, 4, 3, 5)), RNG.normal(size=(3, 2, 2, 2, 3))

    def build(x, w):
        return T.nnet.conv3d(
            x,
            w,
            (None, 2, 4, 3, 5),
            (3, 2, 2, 2, 3),
            subsample=(1, 1, 1),
            border_mode="valid",
            filter_flip=False,
        )

    return Graph(build, (x, w), convolved(x, w))


def plain():
    w = RNG.normal(size=(4, 3, 2, 2))
    convolution = T.nnet.abstract_conv.AbstractConv2d(filter_flip=False)
    assert convolution.convdim == 2
    return Graph(convolution, (IMAGES, w), convolved(IMAGES, w))


def local():
    """Filters that differ from place to place: shifted images times weights."""
    w = RNG.normal(size=(2, 3, 3, 5, 6))

    def build(x, w):
        result = (x[:, None] * w[None, :, :, 1]).sum(axis=-3)
        for shift, new, old in (
            (0, slice(1, 5), slice(0, 4)),
            (2, slice(0, 4), slice(1, 5)),
        ):
            part = (x[:, None, :, old] * w[:, :, shift, new]).sum(axis=-3)
            result = T.inc_subtensor(result[:, :, new], part)
        return result

    padded = np.pad(IMAGES, [(0, 0), (0, 0), (1, 1), (0, 0)])
    expected = sum(
        np.einsum("bcij,ocij->boij", padded[:, :, s : s + 5], w[:, :, s])
        for s in range(3)
    )
    return Graph(build, (IMAGES, w), expected)


# -- pooling and its reverse


def pooled(mode, of):
    x = RNG.normal(size=(2, 2, 4, 6, 2))
    parts = x.reshape(2, 2, 2, 2, 3, 2, 1, 2)

    def build(x):
        options = {"ignore_border": True, "pad": (0, 0, 0), "mode": mode}
        return T.signal.pool.pool_3d(x, ws=(2, 2, 2), stride=(2, 2, 2), **options)

    return Graph(build, (x,), of(parts, axis=(3, 5, 7)))


def pyramid():
    """The largest of each of 2 x 2 parts, whatever the size of the images."""

    def build(x):
        found = []
        for i, j in np.ndindex(2, 2):
            places = []
            for part, length in zip((i, j), x.shape[2:], strict=True):
                first, last = T.floor(part / 2.0 * length), (part + 1) / 2.0 * length
                places.append(
                    slice(first.astype("int32"), T.ceil(last).astype("int32"))
                )
            found.append(T.max(x[(slice(None), slice(None), *places)], axis=(2, 3)))
        return T.stack(found, axis=-1)

    parts = [(slice(0, 3), slice(2, 5)), (slice(0, 3), slice(3, 6))]
    expected = [IMAGES[:, :, r, c].max(axis=(2, 3)) for r in parts[0] for c in parts[1]]
    return Graph(build, (IMAGES,), np.stack(expected, axis=-1))


def spread():
    def build(x):
        shape = (x.shape[0], x.shape[1], x.shape[2] * 2, x.shape[3] * 3)
        zeros = T.zeros(shape=shape, dtype=x.dtype)
        return T.set_subtensor(zeros[:, :, ::2, ::3], x)

    expected = np.zeros((2, 3, 10, 18))
    expected[:, :, ::2, ::3] = IMAGES
    return Graph(build, (IMAGES,), expected)


# -- layers that bend images


def grid(rows, columns):
    """Return the places of pixels, from -1 to 1, as x, y and 1 in three rows."""

    def line(count):
        count = T.cast(count, theano.config.floatX)
        step = 2.0 / (count - 1)
        return T.arange(count, dtype=theano.config.floatX) * step - 1.0

    x = T.dot(T.ones((rows, 1)), line(columns).dimshuffle("x", 0))
    y = T.dot(line(rows).dimshuffle(0, "x"), T.ones((1, columns)))
    x, y = x.reshape((1, -1)), y.reshape((1, -1))
    return T.concatenate([x, y, T.ones_like(x)], axis=0)


def sampled(x, places, rows, columns):
    """Return the images at other places, by bilinear interpolation."""
    count, channels, height, width = x.shape
    across = (places[:, 0].flatten() + 1) / 2 * T.cast(width - 1, "float64")
    down = (places[:, 1].flatten() + 1) / 2 * T.cast(height - 1, "float64")
    left, top = T.floor(across), T.floor(down)
    right = T.cast(T.minimum(left + 1, T.cast(width - 1, "float64")), "int64")
    bottom = T.cast(T.minimum(top + 1, T.cast(height - 1, "float64")), "int64")
    first = T.repeat(T.arange(count, dtype="int64") * height * width, rows * columns)
    pixels = x.dimshuffle(0, 2, 3, 1).reshape((-1, channels))
    part, below = across - left, down - top
    corners = [
        (T.cast(top, "int64"), T.cast(left, "int64"), (1 - below) * (1 - part)),
        (T.cast(top, "int64"), right, (1 - below) * part),
        (bottom, T.cast(left, "int64"), below * (1 - part)),
        (bottom, right, below * part),
    ]
    found = T.sum(
        [w.dimshuffle(0, "x") * pixels[first + i * width + j] for i, j, w in corners],
        axis=0,
    )
    return T.reshape(found, (count, rows, columns, channels)).dimshuffle(0, 3, 1, 2)


def transformer():
    """Half as many rows, and mirrored columns; beside the pixels, where slopes jump."""

    def build(x, theta):
        rows, columns = T.cast(x.shape[2] / 2.5, "int64"), T.cast(x.shape[3], "int64")
        places = T.dot(T.reshape(theta, (-1, 2, 3)), grid(rows, columns))
        return sampled(x, T.clip(places, -1, 1), rows, columns)

    return build


THETA = np.tile([-1.0, 0, 0, 0, 1, 0], (2, 1))
INSIDE = np.array([[0.5, 0.1, 0.03, -0.2, 0.6, 0.12], [0.4, -0.3, 0, 0.12, 0.7, 0.02]])


def tiled():
    """As thin plate splines have it: a known matrix, tiled to the batch."""
    fixed = RNG.normal(size=(3, 7))

    def build(x):
        known = T.as_tensor_variable(fixed).dimshuffle("x", 0, 1)
        return T.batched_dot(x[:, 0, :, :3], T.tile(known, (x.shape[0], 1, 1)))

    return Graph(build, (IMAGES,), IMAGES[:, 0, :, :3] @ fixed)


# -- other layers


def inverse():
    """The inverse of a layer is its gradient."""
    other = RNG.normal(size=MATRIX.shape)

    def build(x, g):
        return theano.grad(None, wrt=x, known_grads={T.tanh(x): g})

    return Graph(build, (MATRIX, other), other * (1 - np.tanh(MATRIX) ** 2))


def cropped():
    """Cut to the smallest."""
    wide = RNG.normal(size=(2, 3, 4, 9))

    def build(x, y):
        least = T.min(T.as_tensor_variable([x.shape, y.shape]), axis=0)
        first = (y.shape[3] - least[3]) // 2
        other = y[:, :, : least[2], slice(first, first + least[3])]
        return x[:, :, : least[2], : least[3]] + other

    return Graph(build, (IMAGES, wide), IMAGES[:, :, :4] + wide[:, :, :, 1:7])


def standardised(x):
    centred = x - x.mean((2, 3), keepdims=True)
    return centred / T.sqrt(T.sqr(centred).mean((2, 3), keepdims=True) + 1e-4)


def leaky(x, slopes):
    return T.nnet.relu(x, slopes.dimshuffle(["x", 0, "x", "x"]))


def last_state():
    """A loop that ends in its last state, and skips what is masked."""
    sequences, w = RNG.normal(size=(3, 6, 4)), RNG.normal(size=(4, 4))
    mask = (np.arange(6) < np.array([[6], [2], [4]])).astype(float)
    keeps = theano.shared(mask)

    def build(x, w):
        def step(row, keep, hidden, w):
            new = T.tanh(row + T.dot(hidden, w))
            return T.switch(keep, new, hidden)

        states = theano.scan(
            fn=step,
            sequences=[x.dimshuffle(1, 0, 2), keeps.dimshuffle(1, 0, "x")],
            outputs_info=[T.dot(T.ones((x.shape[0], 1)), T.zeros((1, 4)))],
            non_sequences=[w],
            truncate_gradient=-1,
            go_backwards=False,
            strict=True,
        )[0]
        return states[-1]

    hidden = np.zeros((3, 4))
    for i in range(6):
        new = np.tanh(sequences[:, i] + hidden @ w)
        hidden = np.where(mask[:, i : i + 1] > 0, new, hidden)
    return Graph(build, (sequences, w), hidden)


def multiclass(p, y):
    chosen = T.extra_ops.to_one_hot(y, p.shape[1])
    correct = p[chosen.nonzero()]
    rest = T.reshape(p[(1 - chosen).nonzero()], (-1, p.shape[1] - 1))
    return T.nnet.relu(T.max(rest, axis=1) - correct + 1)


def binary(p):
    return T.nnet.relu(1 - p * (2 * T.gt(p, 0.3) - 1))


def among_best(p, y):
    best = T.argsort(p, axis=-1)
    best = best[[slice(None) for _ in range(best.ndim - 1)] + [slice(-2, None)]]
    return T.cast(T.any(T.eq(best, T.shape_padaxis(y, axis=-1)), axis=-1), "float64")


SCALE, ALPHA = 1.0507009873554805, 1.6732632423543772
POSITIVE = MATRIX > 0
CENTRED = IMAGES - IMAGES.mean((2, 3), keepdims=True)
SLOPES = np.array([0.25, 0.5, 0.0])
REST = np.where(np.eye(5)[CLASSES] == 1, -np.inf, MATRIX).max(axis=1)
TWO = MATRIX.argsort(axis=1)[:, -2:]
TARGETS = np.array([TWO[0, 0], TWO[1, 1], TWO[2, 0], 0], dtype="int32")
BENT = {
    "transposed": transposed(2, True),
    "transposed, of volumes": transposed(3, False),
    "dilated": dilated(False),
    "of volumes": of_volumes(),
    "plain": plain(),
    "local": local(),
    "largest": pooled("max", np.max),
    "mean": pooled("average_exc_pad", np.mean),
    "sum": pooled("sum", np.sum),
    "spread": spread(),
    "tiled": tiled(),
}
SIZES = {
    "transposed": transposed(2, False),
    "dilated": dilated(True),
    "pyramid": pyramid(),
    "transformer": Graph(transformer(), (IMAGES, INSIDE)),
    "cropped": cropped(),
}
OTHERS = {
    "upscaled": Graph(
        lambda x: T.extra_ops.repeat(T.extra_ops.repeat(x, 3, 3), 2, 2),
        (IMAGES,),
        IMAGES.repeat(3, axis=3).repeat(2, axis=2),
    ),
    "inverse": inverse(),
    "standardised": Graph(
        standardised,
        (IMAGES,),
        CENTRED / np.sqrt(IMAGES.var((2, 3), keepdims=True) + 1e-4),
    ),
    "leaky": Graph(
        leaky,
        (IMAGES, SLOPES),
        np.where(IMAGES > 0, IMAGES, SLOPES[:, None, None] * IMAGES),
    ),
    "elu": Graph(T.nnet.elu, (MATRIX,), np.where(POSITIVE, MATRIX, np.expm1(MATRIX))),
    "softplus": Graph(T.nnet.softplus, (MATRIX,), np.log1p(np.exp(MATRIX))),
    "selu": Graph(
        lambda x: SCALE * T.switch(x > 0.0, x, ALPHA * T.expm1(x)),
        (MATRIX,),
        SCALE * np.where(POSITIVE, MATRIX, ALPHA * np.expm1(MATRIX)),
    ),
    "last state": last_state(),
    "hinge": Graph(
        binary, (MATRIX,), np.maximum(0, 1 - MATRIX * (2 * (MATRIX > 0.3) - 1))
    ),
    "among the best": Graph(
        among_best, (MATRIX, TARGETS), [1, 1, 1, float(0 in TWO[3])]
    ),
}
HINGE = Graph(
    multiclass,
    (MATRIX, CLASSES),
    np.maximum(REST - MATRIX[np.arange(4), CLASSES] + 1, 0),
)
TABLES = {"bent": BENT, "sizes": SIZES, "others": OTHERS}


@functools.cache
def group(name):
    return Group(TABLES[name], MODE)


@pytest.mark.parametrize("name", TABLES)
def test_graphs_give_what_numpy_gives_and_are_differentiated(name):
    group(name).check()


@pytest.mark.parametrize("name", TABLES)
@in_a_child
def test_all_is_the_same_in_jax_mode(name):
    group(name).check_in("JAX")


def test_hinge_losses_and_transformers():
    flipped = Graph(transformer(), (IMAGES, THETA), IMAGES[:, :, [0, 4], ::-1])
    for graph in HINGE, flipped:
        inputs = [
            T.TensorType(str(v.dtype), shape=(None,) * v.ndim)() for v in graph.values
        ]
        found = theano.function(inputs, graph.build(*inputs), mode=MODE)(*graph.values)
        np.testing.assert_allclose(found, graph.expected, rtol=1e-9, atol=1e-9)


def test_random_slopes_and_masks_shared_over_axes():
    streams = MRG_RandomStreams(7)
    x, images = T.tensor4(), -np.ones((40, 3, 2, 2))
    slopes = streams.uniform(
        (x.shape[0], 3, 1, 1), low=0.3, high=0.8, dtype=theano.config.floatX
    )
    mask = streams.binomial((x.shape[0], 3, 1, 1), p=0.5, dtype=x.dtype)
    leaky = T.nnet.relu(x, T.addbroadcast(slopes, 2, 3))
    outputs = [leaky, x * T.patternbroadcast(mask, (False, False, True, True))]
    leaky, masked = theano.function([x], outputs, mode=MODE)(images)
    assert -0.8 <= leaky.min() < -0.7 < -0.4 < leaky.max() <= -0.3
    assert (leaky == leaky[:, :, :1, :1]).all()
    assert set(np.unique(masked)) == {-1, 0}
    assert (masked == masked[:, :, :1, :1]).all()


def test_what_layers_ask_of_types_and_graphs():
    assert tuple(T.alloc(0, 3, 0, 5).mean(-1).shape.eval()) == (3, 0)
    column = T.TensorType("float64", (False, True))()
    assert column.broadcastable == (False, True)
    given = theano.shared(np.ones((3, 1)), broadcastable=(False, True))
    assert given.broadcastable == (False, True)
    w, x = theano.shared(np.ones((5, 2))), T.matrix()
    found = theano.gof.graph.inputs([T.dot(x, w)])
    assert [v for v in found if isinstance(v, theano.compile.SharedVariable)] == [w]
    with pytest.raises(NotImplementedError, match="unshared"):
        T.nnet.abstract_conv.AbstractConv2d(unshared=True)


def test_update_rules_with_largest_moments():
    """As in Kingma and Ba 2015, algorithm 2, and Reddi et al. 2018."""
    one, updates, params = T.constant(1), {}, {}
    step = theano.shared(np.asarray(0.0))
    t = updates[step] = step + 1
    for rule in "adamax", "amsgrad":
        p = params[rule] = theano.shared(MATRIX.copy())
        mean, second, top = (
            theano.shared(
                np.zeros(p.get_value(borrow=True).shape), broadcastable=p.broadcastable
            )
            for _ in range(3)
        )
        gradient = T.grad((p**2).sum(), p)
        new = updates[mean] = 0.9 * mean + (one - 0.9) * gradient
        if rule == "adamax":
            updates[top] = T.maximum(0.999 * top, abs(gradient) + 1e-8)
            updates[p] = p - 0.1 / (one - 0.9**t) * new / updates[top]
        else:
            updates[second] = 0.999 * second + (one - 0.999) * gradient**2
            updates[top] = T.maximum(top, updates[second])
            rate = 0.1 * T.sqrt(one - 0.999**t) / (one - 0.9**t)
            updates[p] = p - rate * new / (T.sqrt(updates[top]) + 1e-8)
    train = theano.function([], [], updates=updates, mode=MODE)
    values = {rule: (MATRIX.copy(), 0, 0, 0) for rule in params}
    for i in range(1, 4):
        train()
        for rule, (value, m, v, u) in values.items():
            g = 2 * value
            m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
            if rule == "adamax":
                u = np.maximum(0.999 * u, abs(g) + 1e-8)
                moved = 0.1 / (1 - 0.9**i) * m / u
            else:
                u = np.maximum(u, v)
                rate = 0.1 * np.sqrt(1 - 0.999**i) / (1 - 0.9**i)
                moved = rate * m / (np.sqrt(u) + 1e-8)
            values[rule] = value - moved, m, v, u
    for rule, (value, *_) in values.items():
        np.testing.assert_allclose(params[rule].get_value(), value, rtol=1e-9)
