"""Ranks on one GPU, or on several: the numbers, and what happens when one dies."""

from __future__ import annotations

import os
import signal
import time

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from children import in_a_child
from test_device_buffers import (  # noqa: F401  the same, with NCCL
    test_a_training_step_on_devices_is_the_serial_one,
    test_functions_without_a_mode_run_where_the_gpu_is,
    test_shapes_may_change_and_must_agree,
)

import synk
from synk.comm.nccl import NcclTransport
from synk.session import SESSION

OPS = {"sum": np.sum, "prod": np.prod, "min": np.min, "max": np.max}
DTYPES = (
    *("float16", "float32", "float64", "int8", "int32", "int64"),
    *("uint8", "uint32", "uint64"),
)


def worker_all_reduce(session, dtype, op, length):
    """Combine an array of this rank with the others' on the GPU."""
    import jax

    transport = session.device_buffers._transport or NcclTransport(
        session.comm, session.devices[session.rank].sharers > 1
    )
    session.device_buffers._transport = transport
    mine = jax.numpy.asarray(values_of(session.rank, dtype, length))
    into = jax.block_until_ready(jax.numpy.zeros_like(mine))
    return np.asarray(transport.all_reduce(mine, op, into))


def values_of(rank, dtype, length):
    """Return a rank's values: small, so that no product overflows or is rounded."""
    return ((np.arange(length) + rank) % 3 + 1).astype(dtype)


@pytest.mark.parametrize("n", [2, 4])
@in_a_child
def test_nccl_combines_every_dtype_by_every_op(n):
    with synk.session(devices=[0] * n):
        for dtype in DTYPES:
            for op, ufunc in OPS.items():
                for length in (1, 5, 1 << 20):
                    found = SESSION.run(worker_all_reduce, dtype, op, length)
                    given = [values_of(rank, dtype, length) for rank in range(n)]
                    expected = ufunc(given, axis=0).astype(dtype)
                    for of_rank in found:
                        np.testing.assert_array_equal(of_rank, expected)


@pytest.mark.parametrize("n", [2, 4])
@in_a_child
def test_ranks_on_a_gpu_give_the_numbers_of_one(n):
    """Convolution, pooling and dense layers, momentum; float64."""
    random = np.random.default_rng(0)
    images = random.normal(size=(37, 3, 12, 12))
    labels = random.integers(0, 10, 37).astype("int32")
    shapes = [(8, 3, 3, 3), (8 * 36, 10)]
    start = [random.normal(size=shape) * 0.1 for shape in shapes]

    def train(grad, function):
        x, y = pt.tensor4("x", dtype="float64"), pt.ivector("y")
        w, v = (pytensor.shared(value.copy()) for value in start)
        hidden = synk.nn.relu(synk.nn.conv2d(x, w, border_mode="half"))
        hidden = synk.nn.pool_2d(hidden, (2, 2), ignore_border=True).flatten(2)
        p = synk.nn.softmax(hidden @ v)
        loss = synk.nn.categorical_crossentropy(p, y).mean()
        updates = synk.updates.momentum(grad(loss, [w, v]), [w, v], 0.05)
        step = function([x, y], loss, updates=updates)
        return [step(images, labels) for _ in range(10)], [w, v]

    with synk.session(devices=[0] * n):
        losses, params = train(synk.grad, synk.function)
        by_rank = [synk.get_value(rank, params) for rank in range(n)]
        expected_losses, expected = train(pytensor.grad, pytensor.function)
    np.testing.assert_allclose(losses, np.array(expected_losses), rtol=1e-10)
    for values in by_rank:
        for found, param in zip(values, expected, strict=True):
            np.testing.assert_allclose(found, param.get_value(), rtol=1e-10, atol=1e-12)


@in_a_child
def test_a_rank_that_dies_ends_the_call_of_the_others():
    x = pt.vector("x")
    with synk.session(devices=[0, 0]):
        f = synk.function([x], (synk.ops.all_reduce(x.sum(), "sum"), None))
        assert f(np.ones(4)) == 4
        start = time.monotonic()
        with pytest.raises(synk.WorkerDied):
            SESSION.run(worker_die_in_all_reduce)
        assert time.monotonic() - start < 10
        with pytest.raises(synk.WorkerDied):
            f(np.ones(4))


def worker_die_in_all_reduce(session):
    """Wait on the GPU for rank 1, which dies before it comes."""
    if session.rank == 1:
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGKILL)
    import jax

    from synk.engines.jax import _wait

    mine = jax.numpy.ones(5)
    _wait([session.device_buffers._transport.all_reduce(mine, "sum", mine + 1)])
