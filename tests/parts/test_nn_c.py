"""Kernels in C against those in numpy."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

import synk
from synk.engines.c_compiler import c_is_there
from synk.nn.convops import Conv, ConvFilters, ConvInputs
from synk.nn.pool_op import MODES
from synk.nn.poolops import Pool, PoolGrad
from synk.nn.runtime import set_kernels

pytestmark = pytest.mark.skipif(not c_is_there(), reason="no C compiler")

DTYPES = ["float32", "float64"]
TOLERANCE = {"float32": 1e-3, "float64": 1e-10}


def in_c(op, *arrays):
    """Return what an Op's code in C computes; NotImplementedError if it has none.

    The code is compiled once for a class of Op and a dtype.
    """
    inputs = [pt.tensor(dtype=a.dtype, shape=(None,) * a.ndim) for a in arrays]
    node = op.make_node(*inputs)
    storage = {var: [None] for var in (*inputs, *node.outputs)}
    thunk = op.make_c_thunk(node, storage, None, [])
    for var, array in zip(inputs, arrays, strict=True):
        storage[var][0] = array
    thunk()
    return storage[node.outputs[0]][0]


def compare(op, *arrays):
    """Compare an Op in C with it in numpy; return it."""
    with np.errstate(invalid="ignore"):
        expected = op.numpy_kernel(*arrays)
    got = in_c(op, *arrays)
    assert got.dtype == expected.dtype
    tolerance = TOLERANCE[str(got.dtype)]
    np.testing.assert_allclose(got, expected, rtol=tolerance, atol=tolerance)
    return got


def conv_case(rng, dtype):
    """Draw a convolution, with inputs, filters and outputs."""
    pairs = [tuple(map(int, rng.integers(0, 4, 2))) for _ in range(2)]
    border = ["half", "full", tuple(pairs)][rng.integers(3)]
    window, dilation = rng.integers(1, 5, 2), rng.integers(1, 3, 2)
    groups = int(rng.integers(1, 4))
    op = Conv(border, (1, 1), tuple(map(int, dilation)), bool(rng.integers(2)), groups)
    image = (window - 1) * dilation + 1 + rng.integers(0, (20, 40))
    channels, filters = rng.integers(1, 12), rng.integers(1, 40)
    x = rng.normal(size=(rng.integers(1, 4), groups * channels, *image)).astype(dtype)
    w = rng.normal(size=(groups * filters, channels, *window)).astype(dtype)
    y = rng.normal(size=op.outputs_shape(x.shape, w.shape)).astype(dtype)
    return op, x, w, y


@pytest.mark.parametrize("dtype", DTYPES)
def test_convolutions_and_their_adjoints_are_those_of_numpy(dtype):
    rng = np.random.default_rng(0)
    for _ in range(20):
        op, x, w, y = conv_case(rng, dtype)
        compare(op, x, w)
        compare(op.sibling(ConvInputs), x, w, y)
        compare(op.sibling(ConvFilters), x, w, y)


def test_images_of_many_rows_are_computed_in_parts():
    rng = np.random.default_rng(1)
    op = Conv("half", (1, 1), (1, 1))
    x, w, y = (
        rng.normal(size=s) for s in [(1, 9, 200, 50), (3, 9, 5, 3), (1, 3, 200, 50)]
    )
    compare(op, x, w)
    compare(op.sibling(ConvInputs), x, w, y)
    compare(op.sibling(ConvFilters), x, w, y)


def test_what_is_not_finite_stays_where_it_is():
    rng = np.random.default_rng(2)
    for _ in range(10):
        op, x, w, y = conv_case(rng, "float64")
        for one in (x, w, y):
            bad = one.copy()
            bad[rng.random(one.shape) < 0.05] = np.inf
            bad[rng.random(one.shape) < 0.02] = np.nan
            given = [bad if array is one else array for array in (x, w, y)]
            compare(op, *given[:2])
            compare(op.sibling(ConvInputs), *given)
            compare(op.sibling(ConvFilters), *given)


def test_arrays_of_any_layout_are_taken():
    rng = np.random.default_rng(3)
    op = Conv("half", (1, 1), (1, 1))
    x, w = rng.normal(size=(6, 7, 3, 2)).T, rng.normal(size=(4, 3, 3, 6))[..., ::2]
    y = np.broadcast_to(1.5, op.outputs_shape(x.shape, w.shape))
    compare(op, x, w)
    compare(op.sibling(ConvInputs), np.broadcast_to(0.0, x.shape), w, y)
    compare(op.sibling(ConvFilters), x, np.broadcast_to(0.0, w.shape), y)


def test_nothing_is_convolved_to_nothing():
    op = Conv("half", (1, 1), (1, 1))
    for x, w in [((0, 2, 5, 5), (3, 2, 3, 3)), ((2, 0, 5, 5), (3, 0, 3, 3))]:
        y = op.outputs_shape(x, w)
        x, w, y = np.ones(x), np.ones(w), np.ones(y)
        compare(op, x, w)
        compare(op.sibling(ConvInputs), x, w, y)
        compare(op.sibling(ConvFilters), x, w, y)


@pytest.mark.parametrize(
    ("x", "w", "message"),
    [
        ((1, 3, 5, 5), (2, 2, 3, 3), "have 3 channels.* need 2"),
        ((1, 2, 5, 2), (2, 2, 3, 3), "do not fit into images"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(x, w, message):
    op = Conv(((0, 0), (0, 0)), (1, 1), (1, 1))
    with pytest.raises(ValueError, match=message):
        in_c(op, np.ones(x), np.ones(w))


def test_outputs_of_another_shape_are_refused():
    op = ConvInputs("half", (1, 1), (1, 1))
    with pytest.raises(
        ValueError, match=r"another shape.*outputs of shape \(1, 1, 5, 4"
    ):
        in_c(op, np.ones((1, 1, 5, 5)), np.ones((1, 1, 3, 3)), np.ones((1, 1, 5, 4)))


def test_a_stride_is_left_to_numpy():
    op = Conv("half", (2, 1), (1, 1))
    with pytest.raises(NotImplementedError):
        in_c(op, np.ones((1, 1, 5, 5)), np.ones((1, 1, 3, 3)))
    x, w = pt.tensor4("x"), pt.tensor4("w")
    f = pytensor.function([x, w], op(x, w), mode="CVM")
    rng = np.random.default_rng(4)
    x, w = rng.normal(size=(2, 3, 5, 5)), rng.normal(size=(4, 3, 3, 3))
    np.testing.assert_allclose(f(x, w), op.numpy_kernel(x, w), rtol=1e-10)


def test_who_chooses_numpy_gets_it():
    op = Conv("half", (1, 1), (1, 1))
    arrays = np.ones((1, 1, 5, 5)), np.ones((1, 1, 3, 3))
    set_kernels("numpy")
    try:
        with pytest.raises(NotImplementedError):
            in_c(op, *arrays)
    finally:
        set_kernels("c")
    assert in_c(op, *arrays)[0, 0, 2, 2] == 9


def test_a_step_in_c_is_that_in_numpy():
    rng = np.random.default_rng(5)
    x, w = pt.tensor4("x", dtype="float32"), pt.tensor4("w", dtype="float32")
    y = synk.nn.pool_2d(synk.nn.conv2d(x, w, "half"), (2, 2))
    outputs = [y, *pytensor.grad((y**2).sum(), [x, w])]
    in_c, in_python = (
        pytensor.function([x, w], outputs, mode=mode)
        for mode in ("CVM", "FAST_COMPILE")
    )
    x = rng.normal(size=(3, 2, 9, 8)).astype("float32")
    w = rng.normal(size=(5, 2, 3, 3)).astype("float32")
    for one, other in zip(in_c(x, w), in_python(x, w), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)


# -- pooling


def pool_case(rng, dtype):
    """Draw a pooling, with images that have ties, and gradients by what is pooled."""
    window, stride = rng.integers(1, 5, 2), rng.integers(1, 5, 2)
    if rng.integers(2):
        stride = window
    ignore_border = bool(rng.integers(2))
    pad = rng.integers(0, window) if ignore_border else (0, 0)
    ways = [tuple(map(int, pair)) for pair in (window, stride, pad)]
    op = Pool(*ways, ignore_border, MODES[rng.integers(4)])
    shape = (*rng.integers(1, 4, rng.integers(0, 3)), *rng.integers(1, (20, 40)))
    x = rng.integers(-3, 3, shape).astype(dtype)
    pooled = (*shape[:-2], *op.pooled(shape))
    return op, x, rng.normal(size=pooled).astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_poolings_and_their_gradients_are_those_of_numpy(dtype):
    rng = np.random.default_rng(6)
    for _ in range(60):
        op, x, g = pool_case(rng, dtype)
        y = compare(op, x)
        compare(op.sibling(PoolGrad), x, y, g)


def test_a_window_with_nan_is_nan_and_its_gradient_goes_nowhere():
    rng = np.random.default_rng(7)
    for _ in range(30):
        op, x, g = pool_case(rng, "float64")
        x[rng.random(x.shape) < 0.1] = rng.choice([np.nan, np.inf, -np.inf])
        g[rng.random(g.shape) < 0.1] = rng.choice([np.nan, np.inf, -np.inf])
        y = compare(op, x)
        compare(op.sibling(PoolGrad), x, y, g)


def test_an_infinite_gradient_leaves_pixels_that_are_no_maximum_at_0():
    op = PoolGrad((2, 2), (2, 2), (0, 0), True, "max")
    x, y, g = np.arange(4.0).reshape(2, 2), np.array([[3.0]]), np.array([[np.inf]])
    for way in (op.numpy_kernel, lambda *arrays: in_c(op, *arrays)):
        np.testing.assert_array_equal(way(x, y, g), [[0, 0], [0, np.inf]])


def test_pooled_images_of_any_layout_are_taken():
    rng = np.random.default_rng(8)
    op = Pool((2, 3), (2, 1), (0, 1), True, "max")
    x = rng.normal(size=(12, 7, 3)).T
    y = compare(op, x)
    compare(op.sibling(PoolGrad), x, y, np.broadcast_to(2.0, y.shape))


def test_nothing_is_pooled_to_nothing():
    for shape, border in [((2, 0, 5), True), ((0, 4, 5), False), ((2, 3, 1), True)]:
        op = Pool((2, 2), (2, 2), (0, 0), border, "max")
        x = np.ones(shape)
        y = compare(op, x)
        assert not y.size
        compare(op.sibling(PoolGrad), x, y, y)


def test_pooled_images_of_another_shape_are_refused():
    op = PoolGrad((2, 2), (2, 2), (0, 0), True, "max")
    x, y = np.ones((4, 4)), np.ones((2, 2))
    for others in [(y[:1], y), (y, y[:, :1])]:
        with pytest.raises(ValueError, match="another shape"):
            in_c(op, x, *others)


def test_pooling_of_volumes_is_left_to_numpy():
    with pytest.raises(NotImplementedError):
        in_c(Pool((1, 2, 2), (1, 2, 2), (0, 0, 0), True, "max"), np.ones((2, 2, 2)))
