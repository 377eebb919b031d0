"""Ranks on one GPU, or on several: the numbers, and what happens when one dies."""

import os
import signal
import time

import compat_models as models
import numpy as np
import pytensor.tensor as pt
import pytest
import stand_ins
from children import in_a_child
from compat_models import serial, told, train, vector
from fake_nccl import Watched
from test_device_collectives import (  # noqa: F401  the same, with NCCL
    test_an_error_on_one_rank_ends_a_collective_on_all,
    test_collectives_of_three_ranks_on_devices,
    test_functions_without_a_mode_run_where_the_gpu_is,
    test_reductions_of_every_op_and_dtype_equal_numpys,
)
from test_gpu_padding import (  # noqa: F401  the same, where JAX is on a GPU
    check_epochs,
    test_jax_gives_for_padded_rows_what_pytensor_gives_without,
    test_what_one_rank_pads_compiles_and_explains,
)

import synk
from synk.comm.nccl import NcclTransport
from synk.compat import BSP
from synk.ranks.session import SESSION
from synk.workers.devices import find_gpus

OPS = {"sum": np.sum, "prod": np.prod, "min": np.min, "max": np.max}
DTYPES = (
    *("float16", "bfloat16", "float32", "float64", "int8", "int32", "int64"),
    *("uint8", "uint32", "uint64"),
)


class WatchedNccl(Watched, NcclTransport):
    """NCCL, for tests that count what it does or step in."""


@pytest.fixture(autouse=True)
def watched(monkeypatch):
    """Have tests that were written for a stand-in watch NCCL."""
    stand_ins.transport(monkeypatch, WatchedNccl)


def spread(n):
    """Return a GPU for each of n ranks, which share those that there are."""
    count = len(find_gpus())
    return [rank % count for rank in range(n)]


def values_of(rank, dtype, length):
    """Return a rank's values: small, so that no product overflows or is rounded."""
    return ((np.arange(length) + rank) % 3 + 1).astype(dtype)


def worker_compare(context, dtype, length):
    """Compare what every collective gives on this rank."""
    import jax
    import jax.numpy as jnp

    jax.config.update("jax_enable_x64", True)
    transport, last = context.device_buffers.transport(), context.size - 1
    given = [values_of(rank, dtype, length) for rank in range(context.size)]
    wide = [values.astype("float64") for values in given]

    def mine():
        return jnp.asarray(given[context.rank])

    def same(found, right):
        np.testing.assert_array_equal(np.asarray(found).astype("float64"), right)

    for op, ufunc in OPS.items():
        same(transport.all_reduce(mine(), op), ufunc(wide, axis=0))
        found = transport.reduce(mine(), op, last)
        if context.rank == last:
            same(found, ufunc(wide, axis=0))
        else:
            assert found is None
    same(transport.broadcast(mine(), last), wide[last])
    room = jnp.zeros(context.size * length, dtype)
    same(transport.all_gather(mine(), room), np.concatenate(wide))


@pytest.mark.parametrize("n", [2, 4])
@in_a_child
def test_nccl_combines_and_moves_every_dtype(n):
    import ml_dtypes  # noqa: F401  makes bfloat16 a dtype

    with synk.session(devices=spread(n)):
        for dtype in DTYPES:
            for length in (1, 5, 1 << 20):
                SESSION.run(worker_compare, dtype, length)


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


def worker_die_in_all_reduce(context):
    """Wait on the GPU for rank 1, which dies before it comes."""
    if context.rank == 1:
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGKILL)
    import jax

    from synk.engines.jax import wait

    wait([context.device_buffers.transport().all_reduce(jax.numpy.ones(5), "sum")])


# -- padded calls: few compilations


@pytest.mark.parametrize("n", [1, 2])
@in_a_child
def test_an_epoch_is_compiled_once_on_each_rank(n):
    check_epochs(n, devices=spread(n))


@pytest.mark.parametrize("n", [1, 2])
@in_a_child
def test_bsp_on_gpus_is_the_serial_step_on_the_mean_gradient(n, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rule = train(BSP, models.InParts, devices=[f"cuda{gpu}" for gpu in spread(n)])
    np.testing.assert_allclose(vector(rule), serial(n, 2)[-1], rtol=1e-9)
    assert [told(worker)["platform"] for worker in range(n)] == ["gpu"] * n
