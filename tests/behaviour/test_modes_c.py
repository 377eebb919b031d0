"""C mode: what synk compiles has the numbers that there are without its settings.

It leaves PyTensor's own settings, and plain functions, as they are.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor import config
from pytensor.compile.builders import OpFromGraph
from pytensor.compile.mode import Mode
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
from pytensor.link.c.op import COp
from pytensor.link.vm import VMLinker
from pytensor.tensor.elemwise import Elemwise
from threadpoolctl import threadpool_info

import synk

pytestmark = pytest.mark.skipif(not config.cxx, reason="no C compiler")


def in_c(inputs, outputs, **options):
    """Return a function of one process that synk has compiled to C."""
    f = synk.function(
        [],
        [(output, None) for output in outputs],
        bcast_inputs=inputs,
        mode="CVM",
        on_unused_input="ignore",
        **options,
    )
    return f.as_theano


# -- vector functions

GROUPS = ["exp log log1p", "expm1 arctanh tanh", "erf erfc sinh"]
"""Three to a loop: gcc makes no vector code of a loop with many results."""


def graph_of(names: list[str], dtype: str):
    x = pt.vector("x", dtype=dtype)
    return [x], [getattr(pt, name)(x) for name in names]


def exact(name: str, x: np.ndarray) -> np.ndarray:
    """Return values, with more digits than float64 where numpy can."""
    if name in ("erf", "erfc"):
        return np.vectorize(getattr(math, name))(x)
    return getattr(np, name)(x.astype(np.longdouble))


def ordinary(dtype: str) -> np.ndarray:
    """Return numbers of all sizes: where exponentials are finite, and near 0 and 1."""
    random = np.random.default_rng(0)
    n, largest = 2001, 0.98 * np.log(np.finfo(dtype).max)
    small = 10 ** random.uniform(-12, 0, n)
    parts = [random.normal(size=n), random.uniform(-1, 1, n), small, -small, 1 + small]
    return np.concatenate([*parts, random.uniform(-largest, largest, n)]).astype(dtype)


def special(dtype: str) -> np.ndarray:
    """Return numbers at which something changes, each at several places of a vector."""
    f = np.finfo(dtype)
    sizes = [0, f.smallest_subnormal, f.tiny / 4, f.tiny, f.eps, 0.5, 1 - f.epsneg, 1]
    sizes += [1 + f.eps, 20, 37, 88.8, 104, 709.8, 746, f.max, np.inf, np.nan]
    signed = [sign * size for size in sizes for sign in (1, -1)]
    return np.tile(np.array(signed, dtype), 5)[:-3]


def assert_close(value: np.ndarray, right: np.ndarray, name: str) -> None:
    """Assert the same within 3 eps, and NaN, infinities and the signs of zeros."""
    tolerance = 3 * float(np.finfo(value.dtype).eps)
    with np.errstate(over="ignore"):
        right = right.astype(value.dtype)
    np.testing.assert_allclose(value, right, rtol=tolerance, atol=0, err_msg=name)
    known = ~np.isnan(right)
    np.testing.assert_array_equal(np.signbit(value[known]), np.signbit(right[known]))


@pytest.mark.parametrize(
    ("group", "dtype"),
    [*((group, "float64") for group in GROUPS), ("exp log tanh", "float32")],
)
def test_functions_are_exact_and_have_their_limits(group, dtype):
    names = group.split()
    f = in_c(*graph_of(names, dtype))
    for x in ordinary(dtype), special(dtype):
        with np.errstate(all="ignore"):
            right = [exact(name, x) for name in names]
        for value, expected, name in zip(f(x), right, names, strict=True):
            assert_close(value, expected, name)
    tiny = np.finfo(np.float64).tiny  # as with a module linked with -ffast-math
    assert np.float64(tiny) / 4 * 4 == tiny


def test_functions_with_cases_are_as_in_a_plain_function():
    names = ["sigmoid", "softplus", "log1mexp"]
    plain = pytensor.function(*graph_of(names, "float64"), mode="CVM")
    f = in_c(*graph_of(names, "float64"))
    for x in ordinary("float64"), special("float64"):
        for value, right, name in zip(f(x), plain(x), names, strict=True):
            assert_close(value, right, name)


def test_values_do_not_depend_on_where_an_array_begins():
    # which differs from rank to rank, and what each computes alike must stay alike
    x = pt.dvector("x")
    f = in_c([x], [Elemwise(pytensor.scalar.exp)(x)])
    values, memory = ordinary("float64")[:1001], np.empty(1024)
    first = (-memory.ctypes.data) % 64 // 8
    results = set()
    for place in range(first, first + 8):
        array = memory[place:][:1001]
        array[:] = values
        results.add(f(array)[0].tobytes())
    assert len(results) == 1


# -- sums and elementwise loops


def test_sums_and_elementwise_loops_take_arrays_of_any_layout():
    axes = {"float32": [None, -1, (0, 2, 3)], "float64": [(1, 3), 0]}
    inputs, outputs, n = [], [], pt.imatrix("n")
    for dtype, some in axes.items():
        x, b = pt.tensor4("x", dtype=dtype), pt.vector("b", dtype=dtype)
        inputs += [x, b]
        outputs += [x.sum(axis=axis) for axis in some]
        outputs.append(pt.maximum(x + b[:, None, None], 0) * x - pt.exp(-(x**2)))
    f = in_c([*inputs, n], [*outputs, n.sum(axis=1)])
    rng = np.random.default_rng(0)
    whole = rng.normal(size=(8, 3, 4, 90))
    transposed, numbers = np.asfortranarray(whole), np.array([[-5, 2, 3]], "int32")
    for value in (
        *(whole, transposed, whole[::2, :, ::-1], whole[..., :5].copy()),
        *(whole[:0], whole[..., ::2], whole[:1]),
    ):
        given, expected = [], []
        for dtype, some in axes.items():
            given += [value.astype(dtype), np.ones(3, dtype)]
            wide = given[-2].astype("float64")
            right = np.maximum(wide + 1, 0) * wide - np.exp(-(wide**2))
            expected += [*(wide.sum(axis=axis) for axis in some), right]
        *found, of_whole = f(*given, numbers)
        assert of_whole == [0]
        for one, other, output in zip(found, expected, outputs, strict=True):
            assert one.dtype == output.type.dtype
            assert one.shape == other.shape
            tolerance = 1e-6 if one.dtype == "float32" else 1e-13
            np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)
    given[0] = given[0][:, :2]
    with pytest.raises(ValueError, match=r"dimension mismatch|broadcast"):
        f(*given, numbers)


def test_a_sum_of_float32_is_added_up_in_float64_and_finds_nan_and_infinity():
    x = pt.fmatrix("x")
    f = in_c([x], [x.sum(axis=1)])
    value = np.full((4, 40_001), 0.1, "float32")
    value[1, 40_000], value[2, 3], value[3, :2] = np.nan, np.inf, [np.inf, -np.inf]
    expected = [np.float32(40_001 * float(np.float32(0.1))), np.nan, np.inf, np.nan]
    np.testing.assert_array_equal(f(value)[0], np.array(expected, "float32"))


def test_updates_in_place_are_right_call_after_call():
    y = pt.tensor4("y")
    rng = np.random.default_rng(1)
    w = pytensor.shared(rng.normal(size=(3, 4, 5, 7)))
    before, y_value = w.get_value(), rng.normal(size=(3, 4, 5, 7))
    f = in_c([y], [w.sum()], updates=[(w, w - 0.5 * y)])
    for k in range(1, 4):
        f(y_value)
        np.testing.assert_allclose(w.get_value(), before - 0.5 * k * y_value)


# -- products


@pytest.mark.parametrize(("dtype", "eps"), [("float32", 1e-5), ("float64", 1e-13)])
def test_products_are_numpys(dtype, eps):
    a, v = pt.matrix("a", dtype=dtype), pt.vector("v", dtype=dtype)
    c = pt.tensor3("c", dtype=dtype)
    made = [a @ a.T, a + 2 * a @ a, a.T @ v, pt.outer(v, v) + a, c @ c, v @ v]
    f = in_c([a, v, c], made)
    random = np.random.default_rng(0)
    x, u, d = (random.normal(size=n).astype(dtype) for n in ((7, 7), 7, (3, 7, 7)))
    right = [x @ x.T, x + 2 * x @ x, x.T @ u, np.outer(u, u) + x, d @ d, u @ u]
    for value, expected in zip(f(x, u, d), right, strict=True):
        np.testing.assert_allclose(value, expected, rtol=0, atol=50 * eps)


def blas_threads() -> dict[str, int]:
    """Return the numbers of threads of the libraries with a thread pool."""
    return {info["filepath"]: info["num_threads"] for info in threadpool_info()}


class Threads(Op):
    """Returns, for every row, the most threads of any library here."""

    __props__ = ()

    def make_node(self, x):
        return Apply(self, [x], [pt.dvector()])

    def perform(self, node, inputs, outputs):
        most = max(blas_threads().values())
        outputs[0][0] = np.full(len(inputs[0]), float(most))


def test_products_of_a_rank_use_its_cores_and_no_other_library_is_loaded():
    x, b = pt.dmatrix("x"), pt.dvector("b")
    before = set(blas_threads())
    with synk.session(2):
        product = synk.function([x], (x.T @ x, "sum"), mode="CVM")
        np.testing.assert_allclose(product(np.ones((4, 2))), np.full((2, 2), 4))
        threads = synk.function([x], (Threads()(x), "gather"), mode="CVM")
        cores = max(1, len(os.sched_getaffinity(0)))  # of rank 0, and of each
        assert threads(np.ones((4, 2))).tolist() == [cores] * 4
        # The numbers of the serial run, too
        loss = pt.softplus(x @ b).mean()
        outputs = [loss, pt.grad(loss, b), (pt.tanh(x), "gather")]
        f = synk.function([x], outputs, bcast_inputs=[b], mode="CVM")
        random = np.random.default_rng(0)
        f(random.normal(size=(1001, 5)), random.normal(size=5), check="serial")
    assert set(blas_threads()) == before


# -- settings: those of the user, and those of plain functions


class Compiled(COp):
    """Returns 1 if it was compiled with the flags, 0 if without, -1 in Python."""

    __props__ = ()

    def make_node(self, x):
        return Apply(self, [pt.as_tensor(x)], [pt.dscalar()])

    def c_code_cache_version(self):
        return (1,)

    def c_code(self, node, name, inputs, outputs, sub):
        (out,) = outputs
        return f"""
        Py_XDECREF({out});
        {out} = (PyArrayObject *) PyArray_ZEROS(0, NULL, NPY_DOUBLE, 0);
        if (!{out}) {{ {sub["fail"]} }}
        #ifdef __FAST_MATH__
        *(double *) PyArray_DATA({out}) = 1;
        #endif
        """

    def perform(self, node, inputs, outputs):
        outputs[0][0] = np.asarray(-1.0)


def flags_are_known() -> bool:
    """Tell whether synk's functions are compiled with flags: by gcc, for glibc."""
    x = pt.dscalar("x")
    return in_c([x], [Compiled()(x)])(0.0) == [1]


@pytest.mark.filterwarnings("ignore:Scan return signature:DeprecationWarning")
def test_plain_functions_and_settings_stay_and_inner_graphs_are_compiled_alike():
    settings = {name: getattr(config, name) for name in ("gcc__cxxflags", "mode")}
    if not flags_are_known():
        pytest.skip("needs gcc, and glibc on x86-64")
    x = pt.dscalar("x")
    inner = OpFromGraph([x], [Compiled()(x)])
    nested = OpFromGraph([x], [inner(x) + 0 * x])
    steps, _ = pytensor.scan(lambda last: Compiled()(last), outputs_info=x, n_steps=2)
    # twice: from the compiler or from the cache, in any order
    for _ in range(2):
        assert pytensor.function([x], Compiled()(x), mode="CVM")(0.0) == 0
        f = in_c([x], [Compiled()(x), inner(x), nested(x), steps[-1]])
        np.testing.assert_array_equal(f(0.0), 1)
    default = Mode("cvm", "fast_run").excluding("fusion")
    with config.change_flags(mode=default):
        f = synk.function([], (Compiled()(x), None), bcast_inputs=[x])
        assert f.as_theano(0.0) == 1
        assert config.mode is default
    assert settings == {name: getattr(config, name) for name in settings}


SAID = """
import pytensor, pytensor.tensor as pt, synk
from pytensor import config
from test_modes_c import Compiled

x = pt.dscalar("x")
f = synk.function([], (Compiled()(x), None), bcast_inputs=[x], mode="CVM")
print(float(f.as_theano(0.0)), config.gcc__cxxflags, config.blas__ldflags)
"""


def test_what_the_user_has_set_stays_even_if_that_is_empty():
    others = os.environ.get("PYTENSOR_FLAGS", "")
    flags = f"{others},gcc__cxxflags=,blas__ldflags=".lstrip(",")
    path = os.pathsep.join(sys.path)
    done = subprocess.run(
        [sys.executable, "-c", SAID],
        env={**os.environ, "PYTENSOR_FLAGS": flags, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.stdout.split() == ["0.0"], done.stderr


def test_without_a_compiler_it_runs_in_python():
    # PyTensor's CVM mode as it is where there was none at its import
    as_there = Mode(VMLinker(use_cloop=True, c_thunks=False), "fast_run")
    x = pt.dvector("x")
    with config.change_flags(cxx=""):
        f = synk.function([x], (pt.exp(x).sum(), "sum"), mode=as_there)
        assert f.as_theano(np.zeros(3)) == 3


# -- convolutions and poolings of images, whose code in C is synk's


def conv_case(rng, dtype):
    """Draw a convolution at a stride of 1, with inputs and filters."""
    pairs = [tuple(map(int, rng.integers(0, 4, 2))) for _ in range(2)]
    border = ["half", "full", tuple(pairs)][rng.integers(3)]
    window, dilation = rng.integers(1, 5, 2), rng.integers(1, 3, 2)
    groups = int(rng.integers(1, 4))
    image = (window - 1) * dilation + 1 + rng.integers(0, (20, 40))
    channels, filters = rng.integers(1, 12), rng.integers(1, 40)
    x = rng.normal(size=(rng.integers(1, 4), groups * channels, *image)).astype(dtype)
    w = rng.normal(size=(groups * filters, channels, *window)).astype(dtype)
    options = {
        "border_mode": border,
        "filter_dilation": tuple(map(int, dilation)),
        "filter_flip": bool(rng.integers(2)),
        "num_groups": groups,
    }
    return options, x, w


def pool_case(rng, dtype):
    """Draw a pooling, with images that have ties."""
    window, stride = rng.integers(1, 5, 2), rng.integers(1, 5, 2)
    ignore_border = bool(rng.integers(2))
    pad = rng.integers(0, window) if ignore_border else (0, 0)
    modes = ["max", "sum", "average_inc_pad", "average_exc_pad"]
    options = {
        "ws": tuple(map(int, window)),
        "ignore_border": ignore_border,
        "stride": tuple(map(int, window if rng.integers(2) else stride)),
        "pad": tuple(map(int, pad)),
        "mode": modes[rng.integers(4)],
    }
    shape = (*rng.integers(1, 4, 2), *rng.integers(1, (20, 40)))
    return options, rng.integers(-3, 3, shape).astype(dtype)


def both(inputs, outputs, *values):
    """Return what C mode makes of a graph, and what numpy's kernels do."""
    found = []
    for mode in ("CVM", "FAST_COMPILE"):
        with np.errstate(invalid="ignore"):
            f = pytensor.function(inputs, outputs, mode=mode, on_unused_input="ignore")
            found.append(f(*values))
    return zip(*found, strict=True)


def spoiled(rng, x):
    """Return a copy with some infinities and NaN."""
    bad = x.copy()
    bad[rng.random(x.shape) < 0.05] = np.inf
    bad[rng.random(x.shape) < 0.02] = np.nan
    return bad


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_convolutions_and_their_gradients_are_those_of_numpy(dtype):
    rng = np.random.default_rng(0)
    tolerance = {"float32": 1e-3, "float64": 1e-10}[dtype]
    for k in range(4):
        options, x, w = conv_case(rng, dtype)
        xs, ws = pt.tensor4("x", dtype=dtype), pt.tensor4("w", dtype=dtype)
        y = synk.nn.conv2d(xs, ws, **options)
        outputs = [y, *pytensor.grad((y * pt.cast(pt.eq(y, y), dtype)).sum(), [xs, ws])]
        if k == 2:
            x, w = np.asfortranarray(x), w[::-1]
        if k == 3:
            x = spoiled(rng, x)
        for one, other in both([xs, ws], outputs, x, w):
            assert one.dtype == dtype
            np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_poolings_and_their_gradients_are_those_of_numpy(dtype):
    rng = np.random.default_rng(6)
    tolerance = {"float32": 1e-4, "float64": 1e-12}[dtype]
    for k in range(8):
        options, x = pool_case(rng, dtype)
        xs = pt.tensor4("x", dtype=dtype)
        y = synk.nn.pool_2d(xs, **options)
        outputs = [y, pytensor.grad((y**2).sum(), xs)]
        for value in (x, np.asfortranarray(x), spoiled(rng, x), x[:0])[k % 4 :][:1]:
            for one, other in both([xs], outputs, value):
                assert one.dtype == dtype
                np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)


def test_what_has_no_code_in_c_is_computed_all_the_same():
    """A stride, volumes, nothing at all; and whoever chooses numpy gets it."""
    x, w = pt.tensor4("x"), pt.tensor4("w")
    outputs = [
        synk.nn.conv2d(x, w, subsample=(2, 1)),
        synk.nn.pool_3d(x[:, None], (1, 2, 2)),
    ]
    rng = np.random.default_rng(4)
    values = rng.normal(size=(2, 3, 6, 5)), rng.normal(size=(4, 3, 3, 3))
    for one, other in both([x, w], outputs, *values):
        np.testing.assert_allclose(one, other, rtol=1e-10)
    synk.nn.set_kernels("numpy")
    try:
        for one, other in both([x, w], [synk.nn.conv2d(x, w, "half")], *values):
            np.testing.assert_array_equal(one, other)
    finally:
        synk.nn.set_kernels("c")
    f = pytensor.function([x, w], synk.nn.conv2d(x, w, "half"), mode="CVM")
    assert f(values[0][:0], values[1]).shape == (0, 4, 6, 5)
    for shape, message in (((1, 2, 5, 5), "channels"), ((1, 3, 5, 1), "fit")):
        with pytest.raises(ValueError, match=message):
            pytensor.function([x, w], synk.nn.conv2d(x, w), mode="CVM")(
                np.ones(shape), values[1]
            )
