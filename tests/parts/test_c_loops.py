"""Sums and elementwise Ops that replace PyTensor's in what synk compiles to C."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

from synk.engines.c_compiler import c_is_there
from synk.engines.c_elemwise import VectorElemwise
from synk.engines.c_settings import compile_in_c
from synk.engines.c_sums import VectorSum

pytestmark = pytest.mark.skipif(not c_is_there(), reason="no C compiler")

SHAPE = (3, 4, 5, 7)


def in_c(inputs, outputs):
    """Compile as synk does."""
    return compile_in_c("CVM", pytensor.function, inputs, outputs, mode="CVM")


def ops(function):
    return [type(node.op) for node in function.maker.fgraph.toposort()]


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_sums_over_the_last_axes_and_others(dtype, rng):
    axes = [None, -1, (0, 2, 3), (1, 3), (2, 3)]
    x = pt.tensor4("x", dtype=dtype)
    f = in_c([x], [x.sum(axis=axis) for axis in axes])
    assert ops(f).count(VectorSum) == len(axes)
    whole = rng.normal(size=(8, 3, 4, 90)).astype(dtype)
    for value in whole, whole.T, whole[::2, :, ::-1], whole[..., :5].copy(), whole[:0]:
        expected = [value.astype("float64").sum(axis=axis) for axis in axes]
        for one, other in zip(f(value), expected, strict=True):
            assert one.dtype == dtype
            assert one.shape == other.shape
            tolerance = 1e-6 if dtype == "float32" else 1e-13
            np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)


def test_a_sum_is_added_up_in_float64_and_finds_nan_and_infinity():
    x = pt.fmatrix("x")
    f = in_c([x], x.sum(axis=1))
    value = np.full((4, 40_001), 0.1, "float32")
    value[1, 40_000], value[2, 3], value[3, :2] = np.nan, np.inf, [np.inf, -np.inf]
    expected = [np.float32(40_001 * float(np.float32(0.1))), np.nan, np.inf, np.nan]
    np.testing.assert_array_equal(f(value), np.array(expected, "float32"))


def test_what_is_no_such_sum_stays_pytensors():
    x, n = pt.ftensor3("x"), pt.imatrix("n")
    single = x.sum(axis=2, acc_dtype="float32")
    f = in_c([x, n], [x.sum(axis=0), x.prod(axis=2), n.sum(axis=1), single])
    assert VectorSum not in ops(f)


GRAPHS = [
    lambda x, y, b: [pt.maximum(x + b[:, None, None], 0) * y],
    lambda x, y, b: [pt.switch(pt.eq(x, y), x * y, 0), pt.exp(-(x**2)) + y],
    lambda x, y, b: [x * b[:, None, None] + y[0, 0]],
]


@pytest.mark.parametrize("graph", GRAPHS)
def test_elementwise_ops_with_and_without_axes_of_length_1(graph, rng):
    x, y, b = pt.tensor4("x"), pt.tensor4("y"), pt.vector("b")
    inputs, outputs = [x, y, b], graph(x, y, b)
    f, python = (
        make(
            "CVM",
            pytensor.function,
            inputs,
            outputs,
            mode=mode,
            on_unused_input="ignore",
        )
        for make, mode in [(compile_in_c, "CVM"), (uncompiled, "FAST_COMPILE")]
    )
    assert VectorElemwise in ops(f)
    x, y = rng.integers(-2, 3, (2, *SHAPE)).astype("float64")
    x[0, 0, 0, :3], y[0, 0, 0, :3] = [np.nan, np.inf, -np.inf], [1, np.inf, np.nan]
    b = rng.normal(size=4)
    wide = np.zeros((3, 4, 5, 14))
    wide[..., ::2] = x
    for given in (x, wide[..., ::2], np.asfortranarray(x), x[:1]):
        values = given, y[: len(given)], b
        for one, other in zip(f(*values), python(*values), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-14)


def uncompiled(_, make, *args, **kwargs):
    return make(*args, **kwargs)


def test_they_work_in_place(rng):
    y = pt.tensor4("y")
    w = pytensor.shared(rng.normal(size=SHAPE))
    before, step = w.get_value(), [(w, w - 0.5 * y)]
    f = compile_in_c("CVM", pytensor.function, [y], [], updates=step, mode="CVM")
    (node,) = f.maker.fgraph.toposort()
    assert type(node.op) is VectorElemwise
    assert node.op.inplace_pattern
    array, y = w.get_value(borrow=True), rng.normal(size=SHAPE)
    for k in range(1, 3):
        f(y)
        np.testing.assert_allclose(w.get_value(), before - 0.5 * k * y)
        assert w.get_value(borrow=True) is array


def test_shapes_that_do_not_fit_are_refused_as_pytensor_does():
    x, y = pt.tensor4("x"), pt.tensor4("y")
    f = in_c([x, y], x + y)
    assert VectorElemwise in ops(f)
    for other in [(3, 4, 5, 6), (3, 4, 1, 7)]:
        with pytest.raises(ValueError, match=r"dimension mismatch|broadcast"):
            f(np.ones(SHAPE), np.ones(other))


def test_several_results_of_one_op_and_other_dtypes(rng):
    x, n = pt.tensor3("x", dtype="float32"), pt.ltensor3("n")
    f = in_c([x, n], [pt.isnan(x), n // 2, pt.cast(n, "int8") + x, x > n])
    x = rng.normal(size=(2, 3, 4)).astype("float32")
    n = rng.integers(-5, 5, (2, 3, 4))
    expected = [np.isnan(x), n // 2, n.astype("int8") + x, x > n]
    for one, other in zip(f(x, n), expected, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_plain_function_compiles_as_without_synk():
    x = pt.tensor4("x")
    plain = pytensor.function([x], (x + 1).sum(axis=(2, 3)), mode="CVM")
    assert not {VectorSum, VectorElemwise} & set(ops(plain))
