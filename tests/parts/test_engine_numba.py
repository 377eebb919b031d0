"""Numba: code over vectors, products without copies, and loops over blocks of rows."""

import re
import warnings

import numba
import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from numba.core import event
from pytensor.compile.mode import Mode, get_mode

from synk.engines import host
from synk.engines.conversions import own_mode
from synk.engines.fixes.numba_arrays import IS_NEEDED
from synk.engines.numba_blocks import loop_over_blocks

NUMBA = get_mode("NUMBA")


def code_of(function) -> str:
    """Return what LLVM made of a function that was called."""
    return "\n".join(function.vm.jit_fn.inspect_llvm().values())


def test_a_negative_binomial_is_one_loop_over_vectors(monkeypatch):
    # What lies on disk has no code of LLVM's with it.
    monkeypatch.setattr(pytensor.config, "numba__cache", False)
    eta, counts, alpha = (pt.vector(name, dtype="float64") for name in ("e", "c", "a"))
    terms = pt.gammaln(counts + alpha) - pt.gammaln(alpha)
    terms -= (alpha + counts) * pt.log(alpha + pt.exp(eta)) - counts * eta
    inputs, outputs = [eta, counts, alpha], [terms, pt.grad(terms.sum(), eta)]
    function = pytensor.function(inputs, outputs, mode=own_mode(NUMBA))
    plain = pytensor.function(inputs, outputs, mode=NUMBA)
    values = np.random.default_rng(2).uniform(1, 5, (3, 100))
    for found, expected in zip(function(*values), plain(*values), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-12)
    calls = r"call[^@\n]* double @\"?(?:llvm\.)?(?:exp|log|lgamma|numba_gammaln)[.\"(]"
    assert re.search(calls, code_of(plain)), (
        "the test sees no call where there are some"
    )
    assert not re.search(calls, code_of(function))
    assert len(re.findall(r"fmul[^\n]* <\d+ x double>", code_of(function))) > 50


def copies(compile_it, monkeypatch) -> list[str]:
    """Return what numba says of products of strided arrays while a function is made."""
    monkeypatch.setattr(pytensor.config, "numba__cache", False)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always", numba.NumbaPerformanceWarning)
        compile_it()(np.ones((5, 3)), np.ones(5))
    return [str(each.message) for each in found if "contiguous" in str(each.message)]


def test_a_product_copies_no_rows_which_numba_would_warn_of(monkeypatch):
    x, r = pt.matrix("x", dtype="float64"), pt.vector("r", dtype="float64")
    graph, as_written = x.T @ r, Mode("numba", None)

    def made(mode):
        return pytensor.function([x, r], graph, mode=mode, trust_input=True)

    assert copies(lambda: made(own_mode(as_written)), monkeypatch) == []
    if IS_NEEDED:  # otherwise both are PyTensor's
        assert copies(lambda: made(as_written), monkeypatch)


# -- loops over blocks of rows

X, Y, W = pt.matrix("X"), pt.fvector("Y"), pt.vector("W")
ROWS, CUTS = 101, ["rows", "rows", None]


def made(outputs, mode="NUMBA"):
    return host.compile_graph([X, Y, W], outputs, [], mode, None, {})


def test_outputs_are_combined_over_blocks():
    shared = pytensor.shared(np.ones(3))
    eta = X @ (W + shared)
    takes = {
        "sum tree": [(Y * eta).sum(), X.T @ (Y - eta), Y.sum()],
        "avg tree": [Y.mean()],
        "prod tree": [pt.exp(Y / 99).prod()],
        "sum": [(eta > 0).sum()],
        "max": [Y.max()],
        "min": [X.min(axis=0)],
        "rows": [eta * Y],
        None: [W * 2],
    }
    outputs = [output for some in takes.values() for output in some]
    ways = [way for way, some in takes.items() for _ in some]
    rng, function = np.random.default_rng(5), made(outputs)
    args = rng.normal(size=(ROWS, 3)), rng.normal(size=ROWS).astype("f4"), np.ones(3)
    dtypes = [output.dtype for output in outputs]
    loop = loop_over_blocks(function, CUTS, dtypes, list(enumerate(ways)))
    for value in (np.ones(3), np.arange(3.0)):  # not what it was when it was compiled
        shared.set_value(value)
        expected = function(*args)
        for size in (7, ROWS - 1, ROWS, 1000):
            entries, shapes, others = loop(size, 0, ROWS, *args)
            assert shapes == [(), (3,), (), (), ()]
            total = entries.prod(axis=0)
            total[:6] = entries[:, :6].sum(axis=0)
            total[5] /= ROWS
            found = [total[0], total[1:4], *total[4:7], *others]
            for mine, theirs in zip(found, expected, strict=True):
                rtol = 1e-6 if theirs.dtype == "float32" else 1e-12
                assert np.shape(mine) == theirs.shape
                np.testing.assert_allclose(mine, theirs, rtol=rtol, atol=rtol)
    # float32 is added up in float64
    y = np.full(ROWS, 2**-14, "f4")
    y[:10] = 2.0**20
    entries, *_ = loop(10, 0, ROWS, np.zeros((ROWS, 3)), y, np.zeros(3))
    assert entries[:, 4].sum() == y.sum(dtype="float64")


def test_blocks_are_put_beside_each_other_without_code_for_an_errors_text(monkeypatch):
    """Numba takes 2 to 5 s for that in each process, where an array is assigned."""
    monkeypatch.setattr(pytensor.config, "numba__cache", False)
    outputs = [X[::-1, ::2], X.T[:, ::-1].T, X.sum(axis=0), Y.sum(), X]
    dtypes = [output.dtype for output in outputs]
    takes = list(enumerate(["rows", "rows", "stack", "stack"]))
    loop = loop_over_blocks(made(outputs), CUTS, dtypes, takes)
    x, y = np.arange(36.0).reshape(12, 3), np.arange(12, dtype="f4")
    with event.install_recorder("numba:compile") as recorder:
        _, _, (strided, backwards, sums, scalars) = loop(4, 0, 12, x, y, np.ones(3))
    in_blocks = x.reshape(3, 4, 3)
    np.testing.assert_array_equal(backwards, in_blocks[:, ::-1].reshape(12, 3))
    np.testing.assert_array_equal(strided, backwards[:, ::2])
    np.testing.assert_array_equal(sums, in_blocks.sum(axis=1))
    np.testing.assert_array_equal(scalars, y.reshape(3, 4).sum(axis=1))
    compiled = [each.data["dispatcher"].py_func for _, each in recorder.buffer]
    names = " ".join(made.__qualname__ for made in compiled)
    assert "loop" in names  # the recorder sees what is compiled
    assert "raise_with_shape" not in names


def test_blocks_whose_rows_are_too_few_are_an_error():
    loop = loop_over_blocks(made([X[1:]]), CUTS, ["float64"], [(0, "rows")])
    with pytest.raises(ValueError, match="blocks of rows give outputs of different"):
        loop(4, 0, 12, np.zeros((12, 3)), np.zeros(12, "f4"), np.ones(3))


def test_what_cannot_be_looped_is_not():
    refused = [(pt.cast(Y, "int64").sum(), "avg tree")]
    for output, way in [*refused, ((Y > 9).sum(dtype="bool"), "sum")]:
        function = made([output])
        assert loop_over_blocks(function, CUTS, [output.dtype], [(0, way)]) is None
    function = made([Y.sum()], "FAST_COMPILE")
    assert loop_over_blocks(function, CUTS, ["float32"], [(0, "sum tree")]) is None
