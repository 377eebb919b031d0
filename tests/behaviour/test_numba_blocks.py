"""Blocks of rows in a loop that numba compiles."""

from __future__ import annotations

import re

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.raise_op import Assert

import synk
from synk.engines import host, numba_blocks
from synk.engines.numba_blocks import loop_over_blocks
from synk.programs import block_trial, blocks

X, Y, W = pt.matrix("X"), pt.fvector("Y"), pt.vector("W")
ROWS = 101


def values():
    rng = np.random.default_rng(5)
    x, y = rng.normal(size=(ROWS, 3)), rng.normal(size=ROWS).astype("f4")
    return x, y, rng.normal(size=3)


def made(outputs, mode="NUMBA"):
    return host.compile_graph([X, Y, W], outputs, [], mode, None, {})


def test_outputs_are_added_up():
    shared = pytensor.shared(np.ones(3))
    eta = X @ (W + shared)
    of_rows = {
        "sum": [(Y * eta).sum(), X.T @ (Y - eta), Y.sum(), (eta > 0).sum()],
        "avg": [eta.mean(), pt.cast(eta, "float32").mean()],
        None: [W * 2],
    }
    ops = [op for op, some in of_rows.items() for _ in some]
    outputs = [output for some in of_rows.values() for output in some]
    function, args = made(outputs), values()
    dtypes = [output.dtype for output in outputs]
    loop = loop_over_blocks(function, [True, True, False], ops, dtypes)
    for value in (np.ones(3), np.arange(3.0)):  # not what it was when it was compiled
        shared.set_value(value)
        expected = function(*args)
        for size in (7, ROWS - 1, ROWS, 1000):
            for mine, theirs in zip(loop(size, *args), expected, strict=True):
                rtol = 1e-6 if theirs.dtype == "float32" else 1e-12
                assert mine.shape == theirs.shape
                np.testing.assert_allclose(mine, theirs, rtol=rtol, atol=rtol)


def test_float32_is_added_up_in_float64():
    function = made([Y.sum(), Y.mean()])
    y = np.full(ROWS, 2**-14, "f4")
    y[:10] = 2.0**20
    given = np.zeros((ROWS, 3)), y, np.zeros(3)
    loop = loop_over_blocks(
        function, [True, True, False], ["sum", "avg"], ["float32"] * 2
    )
    total, mean = loop(10, *given)
    assert total.dtype == mean.dtype == "float64"
    assert total == y.sum(dtype="float64")
    assert mean == pytest.approx(y.mean(dtype="float64"), rel=1e-15)


@pytest.mark.parametrize(
    ("output", "op", "mode"),
    [
        (Y.sum(), "sum", "FAST_COMPILE"),
        (Y.max(), "max", "NUMBA"),
        (pt.cast(Y, "int64").sum(), "avg", "NUMBA"),
        ((Y > 9).sum(dtype="bool"), "sum", "NUMBA"),
    ],
)
def test_what_cannot_be_looped_is_not(output, op, mode):
    function = made([output], mode)
    are_rows = [True, True, False]
    assert loop_over_blocks(function, are_rows, [op], [output.dtype]) is None


def test_its_code_is_found_by_the_next_run(monkeypatch):
    output, args = (Y * (X @ W)).sum() - 12345.5, values()  # of this test alone

    def loop():
        function = made([output])
        function(*args)
        found = loop_over_blocks(function, [True, True, False], ["sum"], ["float64"])
        is_on_disk = found.is_on_disk
        (result,) = found(50, *args)
        hits = sum(found._compiled.stats.cache_hits.values())
        assert hits == is_on_disk, "PyTensor keeps its code elsewhere"
        return result, is_on_disk

    with pytensor.config.change_flags(numba__cache=False):
        assert not loop()[1]
    first, _ = loop()
    again, is_on_disk = loop()
    assert is_on_disk
    assert again == first
    monkeypatch.setattr(numba_blocks, "_VERSION", "of this test")
    assert loop()[0] == first


@pytest.fixture
def tried_soon(monkeypatch):
    """Have a loop over blocks of some rows compiled after a few calls, and taken."""
    monkeypatch.setattr(blocks, "is_to_repeat", lambda spec: False)
    monkeypatch.setattr(blocks, "FROM", 1)
    monkeypatch.setattr(blocks, "BYTES", 5 * 28)
    monkeypatch.setattr(block_trial, "GAIN", np.inf)
    monkeypatch.setattr(block_trial, "COMPILING", 1e-5)
    # Whatever earlier tests have left.
    monkeypatch.setattr(numba_blocks.Loop, "is_on_disk", False)
    with synk.session(2):
        yield


CALLS = 3 * block_trial.TRIALS + 4


def trial_of(f):
    (trial,) = f._engines.present.local().blocks.trials.values()
    return trial


def test_a_function_takes_the_loop(tried_soon):
    scale = pytensor.shared(2.0, "scale")
    loss = ((Y - scale * (X @ W)) ** 2).mean()
    outputs = [loss, pt.grad(loss, W), (pt.gammaln(Y**2 + 1) * (X @ W)).sum()]
    f = synk.function([X, Y], outputs, bcast_inputs=[W], mode="NUMBA")
    plain = pytensor.function([X, Y, W], outputs)
    args = values()
    data = [synk.data(value) for value in args[:2]]
    for i in range(CALLS):
        scale.set_value(1.0 + i)
        for mine, theirs in zip(f(*data, args[2]), plain(*args), strict=True):
            assert mine.dtype == theirs.dtype
            np.testing.assert_allclose(mine, theirs, rtol=1e-12)
    trial = trial_of(f)
    assert set(trial.seconds) == {"whole", "blocks", "loop"}
    trial.chosen = "loop"  # whatever was measured here
    assert ", in a compiled loop: " in str(f.explain())
    for mine, theirs in zip(f(*data, args[2]), plain(*args), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-12)


def test_one_that_is_on_disk_is_tried_at_once(tried_soon, monkeypatch):
    monkeypatch.setattr(block_trial, "COMPILING", 1e5)
    f = synk.function([X, Y], (Y * X.sum(1)).sum(), mode="NUMBA")
    g = synk.function([X, Y], (Y * X.sum(1)).sum(), mode="NUMBA")
    f(*values()[:2])
    assert "loop" not in trial_of(f).seconds
    monkeypatch.setattr(numba_blocks.Loop, "is_on_disk", True)
    g(*values()[:2])
    assert "loop" in trial_of(g).seconds


def test_what_an_op_raises_in_the_loop_is_as_without_it(tried_soon):
    y = Assert("y is too large")(Y, pt.all(Y < 10))
    f = synk.function([X, Y], (y * X.sum(1)).sum(), mode="NUMBA")
    x, y, _ = values()

    def told():
        y[ROWS // 3] = 11
        with pytest.raises(AssertionError, match="y is too large") as error:
            f(x, y)
        y[ROWS // 3] = 0
        # PyTensor 2 tells the shapes of what the Op was given: a block of the rows.
        words = re.sub(
            r"(?s)Inputs shapes: .*(?=Outputs clients)", "", str(error.value)
        )
        return words, getattr(error.value, "__notes__", [])

    right, before = f(x, y), told()
    for _ in range(CALLS):
        f(x, y)
    assert "loop" in trial_of(f).seconds
    trial_of(f).chosen = "loop"
    assert told() == before
    assert "loop" not in trial_of(f).seconds
    y[ROWS // 3] = 1
    assert f(x, y) != right
    np.testing.assert_allclose(f(x, y), (y * x.sum(1)).sum(), rtol=1e-12)
