"""What code written for Lasagne after 0.1 asks of Theano, call by call.

That version is on no package index, so that its layers can't be tested themselves. Each
test calls Theano as one of them does, and compares with numpy; in JAX mode as well, see
``test_lasagne_jax.py``.
"""

from __future__ import annotations

import numpy as np
import pytest
import theano
import theano.tensor as T
from networks import MODE, check_derivatives, evaluate
from theano.sandbox.rng_mrg import MRG_RandomStreams

RNG = np.random.default_rng(0)
IMAGES, MATRIX = RNG.normal(size=(2, 3, 5, 6)), RNG.normal(size=(4, 5))


def check(build, expected, *values, rtol=1e-9):
    """Compare a graph with numpy's values, its gradients with differences."""
    got = evaluate(build, *values)
    assert got.shape == np.shape(expected)
    np.testing.assert_allclose(got, expected, rtol=rtol, atol=1e-12)
    check_derivatives(build, *values, second=False)


def convolved(x, w, step=1):
    """Return images correlated with filters, the filters' elements `step` apart."""
    from scipy.signal import correlate  # here: else it takes all workers 50 MB

    spread = np.zeros((*w.shape[:2], *((n - 1) * step + 1 for n in w.shape[2:])))
    spread[(..., *[slice(None, None, step)] * (w.ndim - 2))] = w
    return np.array([[correlate(image, f, "valid")[0] for f in spread] for image in x])


# -- convolutions


@pytest.mark.parametrize("size", ["numbers", "variables"])
@pytest.mark.parametrize("ndim", [2, 3])
def test_transposed_convolution(ndim, size):
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
        known = size == "numbers"
        convolution = op(
            imshp=(None, 2, *full) if known else None,
            kshp=w.type.shape,
            subsample=(2,) * ndim,
            border_mode=(0,) * ndim,
            filter_flip=False,
        )
        return convolution(w, x, full if known else [2 * n + 1 for n in x.shape[2:]])

    check(build, expected, x, w)


@pytest.mark.parametrize("size", ["numbers", "variables"])
def test_dilated_convolution_by_the_gradient_of_filters(size):
    w = RNG.normal(size=(3, 4, 2, 2))

    def build(x, w):
        convolution = T.nnet.abstract_conv.AbstractConv2d_gradWeights(
            imshp=(3, None, 5, 6),
            kshp=(4, None, 3, 4),
            subsample=(2, 2),
            border_mode="valid",
            filter_flip=False,
        )
        place = (3, 4) if size == "numbers" else (x.shape[2] - 2, x.shape[3] - 2)
        return convolution(x.transpose(1, 0, 2, 3), w, place).transpose(1, 0, 2, 3)

    check(build, convolved(IMAGES, w.transpose(1, 0, 2, 3), 2), IMAGES, w)


def test_convolution_of_volumes():
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

    check(build, convolved(x, w), x, w)


def test_the_op_of_plain_convolution():
    w = RNG.normal(size=(4, 3, 2, 2))
    for name in "AbstractConv2d", "AbstractConv3d":
        convolution = getattr(T.nnet.abstract_conv, name)(filter_flip=False)
        assert convolution.convdim == int(name[-2])
    convolution = T.nnet.abstract_conv.AbstractConv2d(filter_flip=False)
    check(convolution, convolved(IMAGES, w), IMAGES, w)


def test_unshared_filters_are_refused():
    with pytest.raises(NotImplementedError, match="unshared"):
        T.nnet.abstract_conv.AbstractConv2d(unshared=True)


def test_filters_that_differ_from_place_to_place():
    """Shifted images times weights, added into parts of the result."""
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
    check(build, expected, IMAGES, w)


# -- pooling and its reverse


def test_pooling_of_volumes():
    x = RNG.normal(size=(2, 2, 4, 6, 2))
    parts = x.reshape(2, 2, 2, 2, 3, 2, 1, 2)
    for mode, of in ("max", np.max), ("average_exc_pad", np.mean), ("sum", np.sum):
        check(
            lambda x, mode=mode: T.signal.pool.pool_3d(
                x,
                ws=(2, 2, 2),
                stride=(2, 2, 2),
                ignore_border=True,
                pad=(0, 0, 0),
                mode=mode,
            ),
            of(parts, axis=(3, 5, 7)),
            x,
        )


def test_spatial_pyramids():
    """The largest of each of 2 x 2 parts, whatever the size of the images."""

    def build(x):
        rows, columns = x.shape[2:]
        found = []
        for i in range(2):
            for j in range(2):
                top, bottom = T.floor(i / 2.0 * rows), T.ceil((i + 1) / 2.0 * rows)
                left, right = (
                    T.floor(j / 2.0 * columns),
                    T.ceil((j + 1) / 2.0 * columns),
                )
                top, bottom, left, right = (
                    place.astype("int32") for place in (top, bottom, left, right)
                )
                found.append(T.max(x[:, :, top:bottom, left:right], axis=(2, 3)))
        return T.stack(found, axis=-1)

    parts = [(slice(0, 3), slice(2, 5)), (slice(0, 3), slice(3, 6))]
    expected = [IMAGES[:, :, r, c].max(axis=(2, 3)) for r in parts[0] for c in parts[1]]
    check(build, np.stack(expected, axis=-1), IMAGES)


def test_upscaling():
    repeated = IMAGES.repeat(3, axis=3).repeat(2, axis=2)
    check(
        lambda x: T.extra_ops.repeat(T.extra_ops.repeat(x, 3, 3), 2, 2),
        repeated,
        IMAGES,
    )

    def spread(x):
        shape = (x.shape[0], x.shape[1], x.shape[2] * 2, x.shape[3] * 3)
        zeros = T.zeros(shape=shape, dtype=x.dtype)
        return T.set_subtensor(zeros[:, :, ::2, ::3], x)

    expected = np.zeros((2, 3, 10, 18))
    expected[:, :, ::2, ::3] = IMAGES
    check(spread, expected, IMAGES)


# -- normalisation


def test_stored_averages_by_default_updates_of_clones():
    mean = theano.shared(np.zeros(3), name="mean")
    x = T.tensor4()
    batch = x.mean((0, 2, 3))
    running = theano.clone(mean, share_inputs=False)
    running.default_update = 0.9 * running + 0.1 * batch
    centre = (batch + 0 * running).dimshuffle("x", 0, "x", "x")
    scale = T.inv(T.sqrt(x.var((0, 2, 3)) + 1e-4)).dimshuffle("x", 0, "x", "x")
    train = theano.function([x], (x - centre) * scale, mode=MODE)
    for _ in range(2):
        result = train(IMAGES)
    axes = (0, 2, 3)
    expected = IMAGES - IMAGES.mean(axes, keepdims=True)
    expected /= np.sqrt(IMAGES.var(axes, keepdims=True) + 1e-4)
    np.testing.assert_allclose(result, expected, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(mean.get_value(), 0.19 * IMAGES.mean(axes))


def test_standardisation_of_each_image():
    def build(x):
        centred = x - x.mean((2, 3), keepdims=True)
        return centred / T.sqrt(T.sqr(centred).mean((2, 3), keepdims=True) + 1e-4)

    centred = IMAGES - IMAGES.mean((2, 3), keepdims=True)
    expected = centred / np.sqrt(IMAGES.var((2, 3), keepdims=True) + 1e-4)
    check(build, expected, IMAGES)


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


def test_an_affine_transformer():
    """Half as many rows, and mirrored columns."""

    def build(x, theta):
        rows, columns = T.cast(x.shape[2] / 2.5, "int64"), T.cast(x.shape[3], "int64")
        places = T.dot(T.reshape(theta, (-1, 2, 3)), grid(rows, columns))
        return sampled(x, T.clip(places, -1, 1), rows, columns)

    theta = np.tile([-1.0, 0, 0, 0, 1, 0], (2, 1))
    got = evaluate(build, IMAGES, theta)
    np.testing.assert_allclose(got, IMAGES[:, :, [0, 4], ::-1], rtol=1e-9, atol=1e-9)
    # Where no place is on a pixel, where the slope jumps.
    inside = np.array(
        [[0.5, 0.1, 0.03, -0.2, 0.6, 0.12], [0.4, -0.3, 0, 0.12, 0.7, 0.02]]
    )
    check_derivatives(build, IMAGES, inside, second=False)


def test_a_precomputed_grid_for_each_image():
    """As thin plate splines have it: a known matrix, tiled to the batch."""
    fixed = RNG.normal(size=(3, 7))

    def build(x):
        tiled = T.tile(
            T.as_tensor_variable(fixed).dimshuffle("x", 0, 1), (x.shape[0], 1, 1)
        )
        return T.batched_dot(x[:, 0, :, :3], tiled)

    check(build, IMAGES[:, 0, :, :3] @ fixed, IMAGES)


# -- other layers


def test_the_inverse_of_a_layer_is_its_gradient():
    def build(x, g):
        y = T.tanh(x)
        return theano.grad(None, wrt=x, known_grads={y: g})

    other = RNG.normal(size=MATRIX.shape)
    check(build, other * (1 - np.tanh(MATRIX) ** 2), MATRIX, other)


def test_shapes_are_tried_out_on_empty_tensors():
    shape = T.alloc(0, 3, 0, 5).mean(-1).shape.eval()
    assert tuple(shape) == (3, 0)


def test_cropping_to_the_smallest():
    def build(x, y):
        least = T.min(T.as_tensor_variable([x.shape, y.shape]), axis=0)
        first = (y.shape[3] - least[3]) // 2
        return (
            x[:, :, : least[2], : least[3]]
            + y[:, :, : least[2], slice(first, first + least[3])]
        )

    wide = RNG.normal(size=(2, 3, 4, 9))
    check(build, IMAGES[:, :, :4] + wide[:, :, :, 1:7], IMAGES, wide)


def test_leaky_rectifiers_with_slopes_of_their_own():
    slopes = np.array([0.25, 0.5, 0.0])
    expected = np.where(IMAGES > 0, IMAGES, slopes[:, None, None] * IMAGES)
    check(
        lambda x, a: T.nnet.relu(x, a.dimshuffle(["x", 0, "x", "x"])),
        expected,
        IMAGES,
        slopes,
    )


def test_random_slopes_and_masks_shared_over_axes():
    streams = MRG_RandomStreams(7)

    def build(x):
        slopes = streams.uniform(
            (x.shape[0], 3, 1, 1), low=0.3, high=0.8, dtype=theano.config.floatX
        )
        mask = streams.binomial((x.shape[0], 3, 1, 1), p=0.5, dtype=x.dtype)
        leaky = T.nnet.relu(x, T.addbroadcast(slopes, 2, 3))
        return T.stack(
            [leaky, x * T.patternbroadcast(mask, (False, False, True, True))]
        )

    images = -np.ones((40, 3, 2, 2))
    leaky, masked = evaluate(build, images)
    assert -0.8 <= leaky.min() < -0.7 < -0.4 < leaky.max() <= -0.3
    assert (leaky == leaky[:, :, :1, :1]).all()
    assert set(np.unique(masked)) == {-1, 0}
    assert (masked == masked[:, :, :1, :1]).all()


def test_nonlinearities():
    scale, alpha = 1.0507009873554805, 1.6732632423543772
    for function, expected in (
        (T.nnet.elu, np.where(MATRIX > 0, MATRIX, np.expm1(MATRIX))),
        (T.nnet.softplus, np.log1p(np.exp(MATRIX))),
        (lambda x: 1.7159 * T.tanh(2 / 3 * x), 1.7159 * np.tanh(2 / 3 * MATRIX)),
        (
            lambda x: scale * T.switch(x > 0.0, x, alpha * T.expm1(x)),
            scale * np.where(MATRIX > 0, MATRIX, alpha * np.expm1(MATRIX)),
        ),
    ):
        check(function, expected, MATRIX)


def test_a_loop_that_ends_in_its_last_state_and_skips_what_is_masked():
    sequences = RNG.normal(size=(3, 6, 4))
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

    w = RNG.normal(size=(4, 4))
    hidden = np.zeros((3, 4))
    for i in range(6):
        new = np.tanh(sequences[:, i] + hidden @ w)
        hidden = np.where(mask[:, i : i + 1] > 0, new, hidden)
    check(build, hidden, sequences, w)
