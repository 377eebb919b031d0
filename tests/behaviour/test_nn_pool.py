"""Pooling: against windows looked at one by one, its gradients against differences.

Windows, strides and padding may be variables, too.
"""

from itertools import product

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from children import in_a_child
from hypothesis import given
from hypothesis import strategies as st
from networks import MODE, check_derivatives, compiled, evaluate, few
from pytensor.compile.mode import Mode
from reference import PY

import synk

pytestmark = pytest.mark.usefixtures("graphs_in_python")

POOL = {2: synk.nn.pool_2d, 3: synk.nn.pool_3d}
MODES = ["max", "sum", "average_inc_pad", "average_exc_pad"]


def starts(size, window, stride, pad, ignore_border):
    """Return where windows begin in a padded axis.

    Without ``ignore_border``, one more as long as pixels are unseen and it has some.
    """
    found = []
    end = size + 2 * pad
    at = 0
    while at + window <= end if ignore_border else at < end:
        found.append(at)
        if not ignore_border and at + window >= end:
            break
        at += stride
    return found


def reference(x, window, ignore_border, stride, pad, mode):
    """Return the reduction of each window by itself."""
    ndim = len(window)
    places = [
        starts(n, w, s, p, ignore_border)
        for n, w, s, p in zip(x.shape[-ndim:], window, stride, pad, strict=True)
    ]
    y = np.empty((*x.shape[:-ndim], *map(len, places)))
    margins = [(0, 0)] * (x.ndim - ndim) + [(p, p) for p in pad]
    fill = -np.inf if mode == "max" else 0
    padded = np.pad(x, margins, constant_values=fill)
    inside = np.pad(np.ones_like(x), margins)
    reduce = {"max": np.max, "average_inc_pad": np.mean}.get(mode, np.sum)
    axes = tuple(range(-ndim, 0))
    for index in product(*(range(len(axis)) for axis in places)):
        corners = zip(places, index, window, strict=True)
        where = (..., *(slice(axis[i], axis[i] + w) for axis, i, w in corners))
        value = reduce(padded[where], axis=axes)
        if mode == "average_exc_pad":
            value = value / inside[where].sum(axis=axes)
        y[(..., *index)] = value
    return y


@st.composite
def poolings(draw, ndim):
    """Draw images without ties, and parameters."""
    window = tuple(draw(st.integers(1, 3)) for _ in range(ndim))
    stride = tuple(draw(st.integers(1, 4)) for _ in range(ndim))
    ignore_border = draw(st.booleans())
    pad = tuple(draw(st.integers(0, w - 1)) if ignore_border else 0 for w in window)
    image = [w + draw(st.integers(0, 4)) for w in window]
    # With eight channels, JAX moves them on the CPU.
    shape = (*draw(st.sampled_from([(), (2,), (8,), (2, 2), (2, 9)])), *image)
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    x = rng.permutation(np.linspace(-1, 1, int(np.prod(shape)))).reshape(shape)
    return x, (window, ignore_border, stride, pad)


def in_all_modes(x, ws, *parameters):
    """Return the poolings of all modes, one beside the other."""
    return pt.stack([POOL[len(ws)](x, ws, *parameters, mode) for mode in MODES])


@pytest.mark.parametrize("ndim", [2, 3])
def test_pooling_reduces_each_window(ndim):
    @few
    @given(poolings(ndim))
    def check(case):
        x, parameters = case
        found = evaluate(lambda x: in_all_modes(x, *parameters), x)
        for mode, got in zip(MODES, found, strict=True):
            expected = reference(x, *parameters, mode)
            assert got.shape == expected.shape
            # Sums of up to 27 numbers below 1, added in any order, may be 0 in one.
            atol = 0 if mode == "max" else 1e-14
            np.testing.assert_allclose(got, expected, rtol=1e-12, atol=atol)

    check()


@pytest.mark.parametrize("ndim", [2, 3])
def test_first_and_second_derivatives_are_those_of_differences(ndim):
    @few
    @given(poolings(ndim))
    def check(case):
        x, parameters = case
        check_derivatives(lambda x: in_all_modes(x, *parameters), x)

    check()


@few
@given(poolings(2))
def test_shapes_are_inferred_and_without_computing(case):
    x, parameters = case
    xs = pt.tensor("x", shape=(None,) * x.ndim)
    f = pytensor.function(
        [xs], synk.nn.pool_2d(xs, *parameters).shape, mode=Mode("py", "fast_run")
    )
    assert not any("Pool" in str(node.op) for node in f.maker.fgraph.toposort())
    expected = reference(x, *parameters, "max").shape
    assert tuple(f(x)) == expected
    assert synk.nn.pool_2d(pt.constant(x), *parameters).type.shape == expected


def test_windows_of_more_pixels_than_are_unrolled():
    x = np.random.default_rng(0).normal(size=(2, 12, 11))
    parameters = ((9, 8), True, (2, 3), (1, 0))
    found = evaluate(lambda x: in_all_modes(x, *parameters), x)
    for mode, got in zip(MODES, found, strict=True):
        np.testing.assert_allclose(got, reference(x, *parameters, mode), rtol=1e-12)
    check_derivatives(lambda x: in_all_modes(x, *parameters), x)


@pytest.mark.parametrize(
    ("channels", "window", "stride"),
    [
        *((2, (2, 2), (1, 1)), (8, (3, 3), (1, 1))),
        *((2, (3, 3), (7, 9)), (8, (7, 6), (2, 3))),
    ],
)
def test_gradients_of_ties_and_of_what_is_no_number(window, stride, channels):
    random = np.random.default_rng(3)
    x = random.integers(0, 3, size=(channels, 15, 17)).astype("float64")
    x[0, 4, 5], x[1, 0, 0], x[1, 9:] = np.nan, np.inf, -np.inf
    places = [
        starts(n, w, s, 0, True)
        for n, w, s in zip(x.shape[1:], window, stride, strict=True)
    ]
    g = random.normal(size=(channels, *map(len, places)))
    expected = np.zeros_like(x)
    for image, (i, top), (j, left) in product(range(channels), *map(enumerate, places)):
        at = image, slice(top, top + window[0]), slice(left, left + window[1])
        expected[at] += np.where(x[at] == x[at].max(), g[image, i, j], 0)
    got = evaluate(
        lambda x, g: pytensor.grad(
            None, x, known_grads={synk.nn.pool_2d(x, window, True, stride): g}
        ),
        x,
        g,
    )
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("window", [(2, 2), (3, 3), (6, 6)])
def test_the_gradient_of_every_window_arrives(window):
    # XLA may round pixels otherwise in the gradient than in the maximum: those that
    # do not come eight at a time, for one.
    random = np.random.default_rng(0)
    scale, shift = random.normal(size=(2, 8)).astype("float32")

    def gradient(x):
        h, *_ = synk.nn.batch_normalization_train(x, scale, shift, axes="spatial")
        h = pt.maximum(h, 0) + 1
        return pytensor.grad(synk.nn.pool_2d(h, window, True, window).sum(), h)

    for rows, width in ((4, 13), (5, 15), (7, 17)):
        shape = (rows, 8, 3 * window[0], width)
        found = evaluate(gradient, random.integers(-9, 9, shape).astype("float32"))
        n = width // window[1]
        windows = found[..., : n * window[1]].reshape(
            rows, 8, 3, window[0], n, window[1]
        )
        assert windows.any(axis=(3, 5)).all()
        assert set(np.unique(found)) <= {0, 1}


def test_windows_are_side_by_side_and_images_smaller_than_one_have_none():
    x = np.arange(16.0).reshape(4, 4)
    got = evaluate(lambda x: synk.nn.pool_2d(x, 2), x)
    np.testing.assert_array_equal(got, [[5, 7], [13, 15]])

    def build(x):
        pooled = synk.nn.pool_2d(x, 4)
        return [pooled, pytensor.grad(pooled.sum(), x)]

    value, gradient = evaluate(build, np.ones((2, 3, 3)))
    assert value.shape == (2, 0, 0)
    np.testing.assert_array_equal(gradient, np.zeros((2, 3, 3)))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_results_have_the_dtype_of_the_inputs(dtype):
    x = pt.matrix("x", dtype=dtype)
    pooled = [synk.nn.pool_2d(x, 2, mode=mode) for mode in MODES]
    outputs = [*pooled, *(pytensor.grad(y.sum(), x) for y in pooled)]
    results = compiled([x], outputs)(np.ones((4, 4), dtype))
    assert {str(result.dtype) for result in results} == {dtype}


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"ws": 0}, ValueError, "at least 1"),
        ({"ws": 2, "stride": 0}, ValueError, "at least 1"),
        ({"ws": 2, "pad": 2}, ValueError, "less than ws"),
        ({"ws": 2, "pad": 1, "ignore_border": False}, ValueError, "without ignore_bo"),
        ({"ws": 2, "mode": "average"}, ValueError, "got 'average'"),
        ({"input": pt.vector(), "ws": 2}, TypeError, "have them"),
        ({"ws": pt.vector()}, TypeError, "ws must be ints"),
        ({"ws": (2, pt.dscalar())}, TypeError, "ws must be ints"),
        ({"ws": pt.lmatrix()}, ValueError, "ws must be one int or 2"),
        ({"ws": (2, pt.lscalar(), 2)}, ValueError, "ws must be one int or 2"),
    ],
)
def test_parameters_that_make_no_sense_are_refused(options, error, message):
    with pytest.raises(error, match=message):
        synk.nn.pool_2d(**{"input": pt.tensor4()} | options)


# -- windows, strides and padding that are variables

IMAGES = np.random.default_rng(0).permutation(np.linspace(-1, 1, 2 * 7 * 9))
IMAGES = IMAGES.reshape(2, 7, 9)
VOLUMES = IMAGES.reshape(1, 3, 6, 7)
CASES = [
    (IMAGES, (2, 3), True, (1, 2), (1, 0)),
    (IMAGES, (3, 2), False, (2, 2), (0, 0)),
    (IMAGES, (2, 2), False, (1, 3), (0, 0)),
    (IMAGES, (8, 2), True, (1, 1), (0, 1)),  # a window too large: nothing
    (VOLUMES, (1, 2, 3), True, (1, 2, 2), (0, 1, 1)),
]


def sized(x, ws, ignore_border, stride, pad, mode="max"):
    """Return the pooling, by an Op that has yet to learn its sizes."""
    none = x.shape[-1] - x.shape[-1]  # which PyTensor cannot know before it has images
    ws, stride, pad = (tuple(n + none for n in some) for some in (ws, stride, pad))
    found = POOL[len(ws)](x, ws, ignore_border, stride, pad, mode)
    assert not isinstance(found.owner.inputs[-1], pt.TensorConstant)
    return found


@pytest.mark.parametrize("case", range(len(CASES)))
def test_the_numbers_are_those_of_given_sizes(case):
    x, *parameters = CASES[case]
    expected = evaluate(lambda x: in_all_modes(x, *parameters), x)
    got = evaluate(lambda x: pt.stack([sized(x, *parameters, m) for m in MODES]), x)
    assert got.shape == expected.shape
    np.testing.assert_array_equal(got, expected)
    if case != 3:  # which has no window
        mode = MODES[case % len(MODES)]
        check_derivatives(lambda x: sized(x, *parameters, mode), x)


def test_sizes_may_be_vectors_numbers_or_inputs_of_the_function():
    x, n, *sizes = pt.tensor3("x"), pt.iscalar("n"), *(pt.lvector() for _ in range(3))
    ws, stride, pad = sizes
    pooled = [
        synk.nn.pool_2d(x, ws, stride=stride, pad=pad),
        synk.nn.pool_2d(x, (n, 3), stride=n),
    ]
    f = pytensor.function([x, n, *sizes], pooled, mode=MODE)
    for *right, number in ((2, 3), (1, 2), (1, 0), 1), ((3, 1), (3, 1), (0, 0), 4):
        (ws, stride, pad), both = right, (number, number)
        by_vectors, by_number = f(IMAGES, number, *map(np.array, right))
        expected = reference(IMAGES, ws, True, stride, pad, "max")
        np.testing.assert_array_equal(by_vectors, expected)
        expected = reference(IMAGES, (number, 3), True, both, (0, 0), "max")
        np.testing.assert_array_equal(by_number, expected)
    for wrong, message in (
        (([0, 2], [1, 1], [0, 0]), r"ws must be at least 1, got \(0, 2\)"),
        (([2, 2], [1, 0], [0, 0]), r"stride must be at least 1, got \(1, 0\)"),
        (([2, 2], [1, 1], [0, 2]), r"less than ws, got \(0, 2\) and \(2, 2\)"),
    ):
        with pytest.raises(ValueError, match=message):
            f(IMAGES, 1, *map(np.array, wrong))


def pyramid(x):
    """Return the largest of 4, 9 parts of images, of whatever size they are."""
    found = []
    for parts in 2, 3:
        window = tuple((n + parts - 1) // parts for n in x.shape[2:])
        stride = tuple(n // parts for n in x.shape[2:])
        found.append(synk.nn.pool_2d(x, window, stride=stride).flatten(3))
    return pt.concatenate(found, axis=2)


def test_ranks_give_the_serial_numbers(two_ranks):
    x = pt.tensor4("x")
    w = pytensor.shared(np.random.default_rng(1).normal(size=(13, 3)))
    loss = pt.sqr(pyramid(x) @ w).mean()
    outputs = [pyramid(x), loss, *synk.grad(loss, [w, x])[:1]]
    f = synk.function([x], outputs, mode=PY, strict=True)
    assert f.output_modes == ["gather", "avg", None]
    plain = pytensor.function([x], outputs, mode=PY)
    for shape in (5, 2, 6, 7), (1, 2, 9, 4):
        images = np.random.default_rng(2).normal(size=shape)
        for got, expected in zip(f(images), plain(images), strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-11, atol=1e-13)


@pytest.mark.slow
@in_a_child
def test_jax_mode_takes_what_follows_from_shapes():
    x, w = pt.tensor4("x"), pytensor.shared(0.7, "w")
    window = tuple((n + 1) // 2 for n in x.shape[2:])
    halves = synk.nn.pool_2d(x * w, window, stride=1)
    with synk.session(2):
        for pooled, pad in (pyramid(x * w), False), (halves, True):
            loss = pt.sqr(pooled).mean()
            outputs = [loss, synk.grad(loss, w)]
            f = synk.function([x], outputs, mode="JAX", pad=pad)
            plain = pytensor.function([x], outputs, mode="FAST_COMPILE")
            for n in 6, 5:
                images = np.random.default_rng(n).normal(size=(n, 2, 6, 7))
                np.testing.assert_allclose(f(images), plain(images), rtol=1e-9)
    window = pt.lvector()
    f = pytensor.function([x, window], synk.nn.pool_2d(x, window), mode="JAX")
    with pytest.raises(NotImplementedError, match="JAX needs the windows, strides and"):
        f(images, np.array([2, 2]))
