"""How synk uses NCCL, with a stand-in for its library; see tests/whole/gpu for NCCL."""

import os
import signal
import subprocess
import sys
import time
import types

import fake_nccl4py
import fake_nvml
import numpy as np
import pytensor.tensor as pt
import pytest
import stand_ins
from children import in_a_child
from fake_nccl4py import REMOTE_ERROR, Communicator, State, log
from places import SUPPORT

import synk
from synk.comm import nccl
from synk.memory import cuda
from synk.ranks.session import SESSION


@pytest.fixture(autouse=True)
def library(monkeypatch):
    """Pretend to have GPUs and NCCL, and keep JAX on the CPU."""
    fake_nvml.install(monkeypatch, [None] * 4)
    fake_nccl4py.install(monkeypatch)
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    # What ranks that share a GPU set.
    for name in ("NCCL_MULTI_RANK_GPU_ENABLE", "NCCL_HOSTID"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


def worker_collectives(context):
    """Return what each collective gives, and what was done for it."""
    import jax.numpy as jnp

    transport = context.device_buffers.transport()
    mine = np.arange(3, dtype="float32") + context.rank
    ways = {
        "sum": lambda: transport.all_reduce(jnp.array(mine), "sum"),
        "max": lambda: transport.all_reduce(jnp.array(mine), "max"),
        "on 1": lambda: transport.reduce(jnp.array(mine), "prod", 1),
        "from 2": lambda: transport.broadcast(jnp.array(mine), 2),
        "all": lambda: transport.all_gather(
            jnp.array(mine), jnp.zeros(3 * context.size, "float32")
        ),
    }
    found = {}
    for name, way in ways.items():
        log.clear()
        value = way()
        found[name] = None if value is None else np.array(value), list(log)
    return found


@in_a_child
def test_collectives_are_made_in_the_order_of_streams():
    rows = np.arange(3, dtype="float32") + np.arange(3, dtype="float32")[:, None]
    with synk.session(devices=[0, 1, 2]):
        by_rank = SESSION.run(worker_collectives)
    for rank, found in enumerate(by_rank):
        for name, right, call in (
            ("sum", rows.sum(axis=0), "reduce"),
            ("max", rows.max(axis=0), "reduce"),
            ("on 1", rows.prod(axis=0) if rank == 1 else None, "reduce"),
            ("from 2", rows[2], "broadcast"),
            ("all", rows.ravel(), "allgather"),
        ):
            value, done = found[name]
            # JAX's arrays are opened for the stream, NCCL uses it, and JAX waits.
            if right is None:
                assert value is None
                assert done == ["open", "open", call, "record"]
            else:
                np.testing.assert_array_equal(value, right)
                assert done == ["open", "open", call, "record", "open", "sync"]


def summing():
    """Return a function that reduces on the devices."""
    x = pt.vector("x")
    return synk.function([x], (synk.ops.all_reduce(x.sum(), "sum"), None))


def die_while_connecting(cls, nranks, rank, unique_id, config=None):
    """End rank 1; the others' connections are never made."""
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    State.looks = 10**9
    return cls()


@in_a_child
def test_a_rank_that_dies_while_ranks_connect_is_reported():
    Communicator.init = classmethod(die_while_connecting)
    with synk.session(3):
        f = summing()
        start = time.monotonic()
        for _ in range(2):
            with pytest.raises(synk.WorkerDied) as caught:
                f(np.ones(6))
            assert caught.value.rank == 1
        assert time.monotonic() - start < 60  # most of it compiles
        assert log.count("abort") == 1


@in_a_child
def test_a_connection_that_is_never_made_is_an_error():
    nccl._CONNECTING = 0.5
    State.looks = 10**9
    with synk.session(2):
        f = summing()
        with pytest.raises(synk.SynkError, match=r"connected the ranks in 0 s.*DEBUG"):
            f(np.ones(4))
        assert log.count("abort") == 1
        SESSION.run(worker_set, "looks", 3)
        assert f(np.ones(4)) == 4


def worker_set(context, name, value, only=None):
    """Set how the stand-in behaves on all ranks or on one."""
    if only in (None, context.rank):
        setattr(State, name, value)


@in_a_child
def test_what_fails_in_the_background_is_an_error_and_ranks_connect_anew():
    with synk.session(3):
        f = summing()
        assert f(np.ones(6)) == 6
        SESSION.run(worker_set, "error", REMOTE_ERROR, 1)
        with pytest.raises(synk.SynkError, match="NCCL failed on rank 1: error 6"):
            f(np.ones(6))
        SESSION.run(worker_set, "error", 0)
        assert f(np.ones(6)) == 6
        assert [log.count(what) for what in ("init", "abort")] == [2, 1]
    assert log.count("abort") == 2  # the end of a session is that of a communicator


@in_a_child
def test_what_is_missing_on_one_rank_is_as_no_nccl():
    with synk.session(2):
        SESSION.run(worker_lose_module)
        with pytest.warns(RuntimeWarning, match="rank 1: .*nccl"):
            assert summing()(np.ones(4)) == 4
    State.library = None
    with synk.session(2):
        f = summing()
        with pytest.warns(RuntimeWarning, match="through the host.*libnccl.so.2, was"):
            assert f(np.ones(4)) == 4
    assert "init" not in log


def worker_lose_module(context):
    """Have no nccl4py on rank 1."""
    if context.rank == 1:
        sys.modules["nccl.core"] = None


def test_ranks_that_share_a_gpu_are_allowed_to(monkeypatch):
    nccl._allow_sharing((2, 30, 3), 0)
    assert os.environ["NCCL_MULTI_RANK_GPU_ENABLE"] == "1"
    assert "NCCL_HOSTID" not in os.environ
    nccl._allow_sharing((2, 29, 7), 0)
    of_master = os.environ["NCCL_HOSTID"]
    nccl._allow_sharing((2, 29, 7), 1)  # forked later, with the master's variables
    assert of_master != os.environ["NCCL_HOSTID"]
    monkeypatch.setenv("NCCL_HOSTID", "mine")
    nccl._allow_sharing((2, 29, 7), 1)
    assert os.environ["NCCL_HOSTID"] == "mine"


@in_a_child
def test_a_process_ends_without_waiting_for_nccl():
    """A communicator that does not come to its end is left behind."""
    nccl._ENDING = 0.2
    Communicator.abort = lambda self: time.sleep(50)
    start = time.monotonic()
    with synk.session(2):
        assert summing()(np.ones(4)) == 4
        start = time.monotonic()
    assert time.monotonic() - start < 10


AT_EXIT = """
import atexit, fake_nccl4py, fake_nvml, numpy as np, pytensor.tensor as pt, pytest, synk
patch = pytest.MonkeyPatch()
fake_nvml.install(patch, [None] * 2)
fake_nccl4py.install(patch)
fake_nccl4py.Communicator.abort = lambda self: print("NCCL ends")
synk.fork(2)
import jax
atexit.register(print, "JAX ends")  # as JAX has registered its own end just now
x = pt.vector("x")
f = synk.function([x], (synk.ops.all_reduce(x.sum(), "sum"), None))
print(f(np.ones(4)))
"""


@pytest.mark.slow
def test_at_the_end_of_a_process_nccl_ends_before_jax():
    pytest.importorskip("jax", reason="JAX, of the extra synk[jax], is missing")
    done = subprocess.run(
        [sys.executable, "-c", AT_EXIT],
        capture_output=True,
        text=True,
        timeout=100,
        env={**os.environ, "PYTHONPATH": str(SUPPORT)},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n") == ["4.0", "NCCL ends", "JAX ends", ""]


def test_xla_has_the_gpu_before_bindings_ask_cuda_for_anything(monkeypatch):
    asked = []
    stand_ins.imports_for_cuda(monkeypatch, lambda name: asked.append(name) or jax)
    jax = types.SimpleNamespace(devices=lambda: asked.append("devices"))
    cuda.import_after_xla("cuda.bindings.driver")
    assert asked == ["jax", "devices", "cuda.bindings.driver"]
