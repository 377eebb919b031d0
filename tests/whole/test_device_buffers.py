"""All-reduces of values on devices: JAX on the CPU, ranks that believe to have GPUs.

What stands in for NCCL is in fake_nccl; see tests/whole/gpu for NCCL.
"""

from __future__ import annotations

import fake_nvml
import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from children import in_a_child
from fake_nccl import UNKNOWN, ByExchange, without_nccl
from reference import assert_same, ops_of

import synk
from synk.engines.jax import as_output, look_about_with, set_value
from synk.ranks import context as context_module
from synk.ranks.session import SESSION

DTYPES = ("float32", "float64", "int32", "int64", "uint8", "bool", "complex64", "int16")


@pytest.fixture(autouse=True)
def gpus(monkeypatch):
    """Pretend to have GPUs, and keep JAX on the CPU."""
    fake_nvml.install(monkeypatch, [None] * 4)
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.setattr(context_module, "NcclTransport", ByExchange)


def worker_calls(context):
    """Return how many arrays this rank's transport has combined."""
    return context.device_buffers._transport.calls


@in_a_child
def test_functions_without_a_mode_run_where_the_gpu_is():
    x = pt.vector("x")
    s = pytensor.shared(np.zeros(()))
    with synk.session(devices=[0, 0]):
        assert pytensor.config.mode == "JAX"
        f = synk.function([x], x.sum(), updates=[(s, s + 1)])
        assert f(np.arange(5.0)) == 10
        value = s.get_value(borrow=True, return_internal_type=True)
        assert not isinstance(value, np.ndarray)
    assert pytensor.config.mode == "Mode"


@pytest.mark.slow
@in_a_child
def test_every_dtype_is_reduced_as_on_the_host():
    """In one function, with what the transport cannot combine beside what it can."""
    inputs = [
        pt.tensor(f"x_{dtype}", dtype=dtype, shape=(None, None)) for dtype in DTYPES
    ]
    pairs = [(x, op) for x in inputs for op in ops_of(x.dtype)]
    # A rank's first row, and something of no dimensions.
    reduced = [
        (synk.ops.all_reduce(value, op), None)
        for x, op in pairs
        for value in (x[0], x[0, 0])
    ]
    random = np.random.default_rng(0)
    rows = [(random.normal(size=(7, 3)) * 3 + 5).astype(dtype) for dtype in DTYPES]
    with synk.session(devices=[0] * (n := 2)):
        on_devices = synk.function(inputs, reduced)
        on_host = synk.function(inputs, reduced, mode="FAST_COMPILE")
        for count in (3, n - 1, 3):  # fewer rows than ranks: one has none
            part = [array[:count] for array in rows]
            for found, expected in zip(on_devices(*part), on_host(*part), strict=True):
                assert found.dtype == expected.dtype
                np.testing.assert_allclose(found, expected, rtol=2e-6)
        calls = SESSION.run(worker_calls)
    groups = [
        x
        for x, op in pairs
        # Averages of integers are rounded once, on the host.
        if x.dtype not in UNKNOWN and (op != "avg" or x.dtype.startswith("float"))
    ]
    assert calls == [3 * len(groups)] * n


@pytest.mark.parametrize("n", [2, 3])
@in_a_child
def test_a_training_step_on_devices_is_the_serial_one(n):
    random = np.random.default_rng(0)
    x, y = pt.matrix("x"), pt.vector("y")
    start = [random.normal(size=(4, 5)), random.normal(size=5)]
    rows, targets = random.normal(size=(11, 4)), random.normal(size=11)

    def make(grad, function, **options):
        w, v = (pytensor.shared(value.copy()) for value in start)
        loss = ((pt.tanh(x @ w) @ v - y) ** 2).mean()
        dw, dv = grad(loss, [w, v])
        updates = [(w, w - 0.1 * dw), (v, v - 0.1 * dv)]
        return function([x, y], loss, updates=updates, **options), (w, v)

    plain, expected = make(pytensor.grad, pytensor.function, mode="FAST_COMPILE")
    with synk.session(devices=[0] * n):
        step, params = make(synk.grad, synk.function)
        for count, num_slices in ((11, 1), (11, 2), (1, 1), (7, 1)):
            loss = step(rows[:count], targets[:count], num_slices=num_slices)
            np.testing.assert_allclose(loss, plain(rows[:count], targets[:count]))
        for rank in range(n):
            for param, value in zip(params, expected, strict=True):
                found = synk.get_value(rank, param)
                np.testing.assert_allclose(found, value.get_value(), rtol=1e-12)


@in_a_child
def test_shapes_may_change_and_must_agree():
    x = pt.matrix("x")
    with synk.session(devices=[0, 0]):
        f = synk.function([x], (synk.ops.all_reduce(x.sum(axis=0), "sum"), None))
        for width in (3, 5, 3):
            assert_same(f(np.ones((4, width))), np.full(width, 4.0))
        g = synk.function([x], (synk.ops.all_reduce(x.sum(axis=1), "sum"), None))
        with pytest.raises(synk.ShapeMismatch):
            g(np.ones((5, 2)))
        assert_same(g(np.ones((4, 2))), np.full(2, 4.0))


def worker_made(context):
    """Return how many transports this rank has made."""
    return ByExchange.made


@in_a_child
def test_after_an_error_on_one_rank_all_connect_anew():
    x = pt.vector("x")
    checked = pt.specify_shape(x, (None,))
    with synk.session(2):
        f = synk.function([x], (synk.ops.all_reduce(checked.sum(), "sum"), None))
        assert f(np.ones(4)) == 4
        assert SESSION.run(worker_made) == [1, 1]
        with pytest.raises(ZeroDivisionError):
            SESSION.run(worker_fail)
        assert f(np.ones(6)) == 6
        assert f(np.ones(4)) == 4
        assert SESSION.run(worker_made) == [2, 2]


def worker_fail(context):
    """Fail on rank 1."""
    if context.rank == 1:
        raise ZeroDivisionError


class Pending:
    """An array that is never computed, as where a rank of NCCL's is gone."""

    def is_ready(self):
        return False


@in_a_child
def test_what_the_user_gets_is_not_waited_for_in_vain():
    s = pytensor.shared(np.ones(3))
    look_about_with(lambda: 1 / 0)
    try:
        for way in (lambda: as_output(Pending()), lambda: set_value(s, Pending())):
            with pytest.raises(ZeroDivisionError):
                way()
    finally:
        look_about_with(None)
    assert_same(s.get_value(), np.ones(3))


@in_a_child
def test_without_nccl_the_host_reduces_and_a_warning_says_so():
    x = pt.vector("x")
    context_module.NcclTransport = without_nccl  # in this child
    with synk.session(2):
        f = synk.function([x], (synk.ops.all_reduce(x.sum(), "sum"), None))
        with pytest.warns(RuntimeWarning, match="through the host.*'nccl'"):
            assert f(np.ones(4)) == 4
        assert f(np.ones(6)) == 6
