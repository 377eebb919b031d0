"""Convolution: against sums written out, its gradients against differences."""

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from networks import check_derivatives, compiled, evaluate, few
from pytensor.compile.mode import Mode

import synk

pytestmark = pytest.mark.usefixtures("graphs_in_python")


def reference(x, w, border, stride, flip, dilation, groups):
    """Return the convolution by scipy, one pair of channels at a time."""
    from scipy.signal import correlate  # here: else it takes all workers 50 MB

    ndim = x.ndim - 2
    reach = [(k - 1) * d + 1 for k, d in zip(w.shape[2:], dilation, strict=True)]
    pads = {
        "valid": [(0, 0)] * ndim,
        "half": [(r // 2, r // 2) for r in reach],
        "full": [(r - 1, r - 1) for r in reach],
    }.get(border if isinstance(border, str) else "", border)
    if isinstance(pads, int):
        pads = [pads] * ndim
    pads = [(p, p) if isinstance(p, int) else p for p in pads]
    x = np.pad(x, [(0, 0), (0, 0), *pads])
    spread = np.zeros((*w.shape[:2], *reach))
    spread[(..., *(slice(None, None, d) for d in dilation))] = w
    if flip:
        spread = np.flip(spread, tuple(range(2, ndim + 2)))
    steps = tuple(slice(None, None, s) for s in stride)
    per_group = w.shape[0] // groups
    images = [
        [
            sum(
                correlate(image[o // per_group * w.shape[1] + c], spread[o, c], "valid")
                for c in range(w.shape[1])
            )[steps]
            for o in range(w.shape[0])
        ]
        for image in x
    ]
    return np.array(images)


@st.composite
def convolutions(draw, ndim):
    small = st.integers(1, 2)
    window = [draw(st.integers(1, 3)) for _ in range(ndim)]
    dilation = [draw(small) for _ in range(ndim)]
    reach = [(k - 1) * d + 1 for k, d in zip(window, dilation, strict=True)]
    image = [r + draw(st.integers(0, 3)) for r in reach]
    groups = draw(small)
    channels, filters = draw(small), draw(small) * groups
    pad = st.integers(0, 2)
    border = draw(
        st.sampled_from(["valid", "half", "full"])
        | pad
        | st.tuples(*[pad] * ndim)
        | st.tuples(*[st.tuples(pad, pad)] * ndim)
    )
    parameters = (
        border,
        tuple(draw(small) for _ in range(ndim)),
        draw(st.booleans()),
        tuple(dilation),
        groups,
    )
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    x = rng.normal(size=(draw(small), channels * groups, *image))
    return x, rng.normal(size=(filters, channels, *window)), parameters


CONV = {2: synk.nn.conv2d, 3: synk.nn.conv3d}
NAMED = {
    2: (synk.nn.conv2d_grad_wrt_inputs, synk.nn.conv2d_grad_wrt_weights),
    3: (synk.nn.conv3d_grad_wrt_inputs, synk.nn.conv3d_grad_wrt_weights),
}
TRANSPOSED = {2: synk.nn.conv2d_transpose, 3: synk.nn.conv3d_transpose}


@pytest.mark.parametrize("ndim", [2, 3])
def test_a_convolution_is_the_sum_over_channels_and_pixels(ndim):
    @few
    @given(convolutions(ndim))
    def check(case):
        x, w, parameters = case
        got = evaluate(lambda x, w: CONV[ndim](x, w, *parameters), x, w)
        expected = reference(x, w, *parameters)
        assert got.dtype == "float64"
        assert got.shape == expected.shape
        np.testing.assert_allclose(got, expected, rtol=1e-10, atol=1e-10)

    check()


@pytest.mark.parametrize("ndim", [2, 3])
def test_first_and_second_derivatives_are_those_of_differences(ndim):
    @few
    @given(convolutions(ndim))
    def check(case):
        x, w, parameters = case
        check_derivatives(lambda x, w: CONV[ndim](x, w, *parameters), x, w)

    check()


@few
@given(convolutions(2))
def test_shapes_are_inferred_and_without_computing(case):
    x, w, parameters = case
    xs, ws = pt.tensor4("x"), pt.tensor4("w")
    y = synk.nn.conv2d(xs, ws, *parameters)
    f = pytensor.function([xs, ws], y.shape, mode=Mode("py", "fast_run"))
    assert not any("Conv" in str(node.op) for node in f.maker.fgraph.toposort())
    expected = reference(x, w, *parameters).shape
    assert tuple(f(x, w)) == expected
    known = synk.nn.conv2d(pt.constant(x), pt.constant(w), *parameters)
    assert known.type.shape == expected


@pytest.mark.parametrize("ndim", [2, 3])
def test_the_named_gradients_are_those_of_grad(ndim):
    @few
    @given(convolutions(ndim), st.booleans())
    def check(case, as_shape):
        x, w, parameters = case
        xs, ws, gs = (
            pt.tensor(n, dtype="float64", shape=(None,) * x.ndim) for n in "xwg"
        )
        y = CONV[ndim](xs, ws, *parameters)
        g = np.random.default_rng(0).normal(size=reference(x, w, *parameters).shape)
        shapes = [x.shape, w.shape]
        if not as_shape:
            shapes = [(None, None, *shape[2:]) for shape in shapes]
        by_inputs, by_weights = NAMED[ndim]
        named = [
            by_inputs(gs, ws, shapes[0], *parameters),
            by_weights(xs, gs, shapes[1], *parameters),
        ]
        expected = pytensor.grad((y * gs).sum(), [xs, ws])
        got = compiled([xs, ws, gs], [*named, *expected])(x, w, g)
        for one, other in zip(got[:2], got[2:], strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-10)

    check()


@pytest.mark.parametrize("border", ["valid", "half", ((0, 1), (1, 0)), (0, 1, 0)])
def test_a_transposed_convolution_is_the_adjoint(border):
    """Its product with any x is that of the convolution of x with its input."""
    rng = np.random.default_rng(2)
    ndim = 3 if border == (0, 1, 0) else 2
    stride, more = (2, 3, 2)[:ndim], (0, 0, 1, 2, 1)[: ndim + 2]
    w = rng.normal(size=(3, 2, *(3, 2, 1)[:ndim]))
    y = rng.normal(size=(2, 3, *(4, 5, 2)[:ndim]))

    def build(y, w, shape):
        return TRANSPOSED[ndim](y, w, shape, border_mode=border, subsample=stride)

    smallest = evaluate(lambda y, w: build(y, w, None), y, w).shape
    for shape in (None,) * ndim, tuple(np.add(smallest, more)):
        got = evaluate(lambda y, w, shape=shape: build(y, w, shape), y, w)
        assert got.shape == (smallest if None in shape else shape)
        x = rng.normal(size=got.shape)
        forward = reference(x, w, border, stride, True, (1,) * ndim, 1)
        assert forward.shape == y.shape
        np.testing.assert_allclose((got * x).sum(), (forward * y).sum(), rtol=1e-10)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_results_have_the_dtype_of_the_inputs(dtype):
    x, w = np.ones((1, 1, 3, 3), dtype), np.ones((1, 1, 2, 2), dtype)
    xs, ws = pt.tensor4("x", dtype=dtype), pt.tensor4("w", dtype=dtype)
    y = synk.nn.conv2d(xs, ws)
    for result in compiled([xs, ws], [y, *pytensor.grad(y.sum(), [xs, ws])])(x, w):
        assert result.dtype == dtype


@pytest.mark.parametrize(
    ("x", "w"),
    [((2, 12, 64, 64), (2, 12, 3, 3)), ((40, 2, 24, 24), (3, 2, 3, 3))],
    ids=["rows", "images"],
)
def test_many_rows_and_images_are_cut_into_blocks_that_add_up(x, w):
    """A convolution is linear in both: so gradients times values are its own sum."""
    rng = np.random.default_rng(4)
    x, w = rng.normal(size=x), rng.normal(size=w)
    expected = reference(x, w, (1, 1), (1, 1), True, (1, 1), 1)
    g = rng.normal(size=expected.shape)

    def build(x, w, g):
        y = synk.nn.conv2d(x, w, (1, 1))
        return [y, *pytensor.grad((y * g).sum(), [x, w])]

    got, of_x, of_w = evaluate(build, x, w, g)
    np.testing.assert_allclose(got, expected, rtol=1e-10, atol=1e-10)
    for value, gradient in (x, of_x), (w, of_w):
        np.testing.assert_allclose((value * gradient).sum(), (got * g).sum())


IMAGES, FILTERS = pt.tensor4(), pt.tensor4()


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((IMAGES, FILTERS, "same"), ValueError, "got 'same'"),
        ((IMAGES, FILTERS, -1), ValueError, "at least 0"),
        ((IMAGES, FILTERS, (1, 1, 1)), ValueError, "2 entries"),
        ((IMAGES, FILTERS, 0, 0), ValueError, "at least 1"),
        ((IMAGES, FILTERS, 0, (1, 2, 3)), ValueError, "one int or 2"),
        ((IMAGES, FILTERS, 0, pt.iscalar()), TypeError, "known ints"),
        ((IMAGES, FILTERS, 0, 1, True, 0), ValueError, "at least 1"),
        ((IMAGES, FILTERS, 0, 1, True, 1, 0), ValueError, "at least 1"),
        ((pt.matrix(), FILTERS), TypeError, "takes tensors of 4"),
        ((pt.tensor4(dtype="complex128"), FILTERS), TypeError, "complex"),
    ],
)
def test_parameters_that_make_no_sense_are_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        synk.nn.conv2d(*arguments)


@pytest.mark.parametrize(
    ("x", "w", "message"),
    [
        ((1, 3, 5, 5), (2, 2, 3, 3), "have 3 channels"),
        ((1, 2, 5, 2), (2, 2, 3, 3), "do not fit"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(x, w, message):
    with pytest.raises(ValueError, match=message):
        evaluate(synk.nn.conv2d, np.ones(x), np.ones(w))
    with pytest.raises(ValueError, match=message):
        synk.nn.conv2d(pt.zeros(x), pt.zeros(w))


@pytest.mark.parametrize("mode", ["NUMBA", "CVM"])
def test_other_modes_compute_the_same(mode):
    rng = np.random.default_rng(5)
    x, w = rng.normal(size=(2, 2, 5, 5)), rng.normal(size=(3, 2, 2, 2))
    xs, ws = pt.tensor4("x"), pt.tensor4("w")
    y = pt.tanh(synk.nn.conv2d(xs, ws))
    outputs = [y, *pytensor.grad(y.sum(), [xs, ws])]
    f = pytensor.function([xs, ws], outputs, mode=mode)
    expected = compiled([xs, ws], outputs)(x, w)
    for one, other in zip(f(x, w), expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10)
