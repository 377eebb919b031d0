"""Sessions of a process that cannot be forked: its zygote is kept, or a new Python."""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import signal
import sys
import threading
import time
import warnings

import numpy as np
import psutil
import pytensor
import pytensor.tensor as pt
import pytest
from children import in_a_child
from interrupted import FORKING, InterruptedAt
from processes import (
    ROWS,
    TOTAL,
    acting,
    all_pids,
    assert_works,
    die,
    is_alive,
    links,
    rank_pids,
    run_script,
    running,
    running_in_turn,
    summing,
    wait_until,
)

import synk
from synk.errors import StateError, SynkError, WorkerDied
from synk.ranks.session import SESSION
from synk.workers import preconditions


@contextlib.contextmanager
def with_xla(name: str = "tf_XLATfrtCpuClient"):
    """Have a thread run in this process that looks like one of XLA's."""
    go, done = threading.Event(), threading.Event()

    def run():
        with open("/proc/thread-self/comm", "w") as comm:
            comm.write(name[:15])
        go.set()
        done.wait(60)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert go.wait(10)
        yield
    finally:
        done.set()
        thread.join()
        # A thread is joined a moment before the kernel sees it end.
        wait_until(lambda: not preconditions._xla_is_up(), 5, "end of the thread")


@contextlib.contextmanager
def with_cuda(monkeypatch, device: str):
    """Have a descriptor in this process that looks like one of CUDA's."""
    readlink = os.readlink
    with open(os.devnull) as file, monkeypatch.context() as patch:

        def linked(path, **options):
            if str(path) == f"/proc/self/fd/{file.fileno()}":
                return device
            return readlink(path, **options)

        patch.setattr(os, "readlink", linked)
        yield


def zygote() -> int:
    return all_pids()[0]


# -- what cannot be forked


@pytest.mark.parametrize("name", ["tf_XLATfrtCpuClient", "XLA_run", "py_xla_execute"])
def test_threads_of_xla_are_seen(name):
    assert preconditions.why_no_fork() is None
    with with_xla(name):
        assert "XLA" in preconditions.why_no_fork()


@pytest.mark.parametrize("device", ["/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"])
def test_a_cuda_context_is_seen(device, monkeypatch):
    with with_cuda(monkeypatch, device):
        assert "CUDA" in preconditions.why_no_fork()
    assert preconditions.why_no_fork() is None


# -- the zygote that is kept


def test_a_process_that_can_be_forked_keeps_nothing():
    before = psutil.Process().children()
    with synk.session(2):
        first = zygote()
    assert psutil.Process().children() == before
    with synk.session(2):
        assert zygote() != first


def test_the_zygote_is_kept_where_the_process_cannot_be_forked_any_more():
    call = summing()
    synk.fork(3)
    first, *ranks = all_pids()
    assert call(ROWS) == TOTAL
    with with_xla():
        synk.close()
        assert is_alive(first)
        assert not any(map(is_alive, ranks))
        with synk.session(2):
            assert zygote() == first
            assert call(ROWS) == TOTAL
            assert_works(2)
        with synk.session(1):  # which needs none
            assert call(ROWS) == TOTAL
        synk.fork(5)
        assert zygote() == first
        assert call(ROWS) == TOTAL
        os.kill(rank_pids()[2], signal.SIGKILL)
        with pytest.raises(WorkerDied) as caught:
            acting(1, die, "SIGKILL")(ROWS)
        assert caught.value.rank in (1, 2)
        assert synk.recover() == []
        assert zygote() == first
        assert_works(5)
        synk.close()
        assert is_alive(first)
        synk.close()
    synk.close()  # it can be forked again
    assert not is_alive(first)


def test_ranks_of_a_kept_zygote_have_what_the_script_has_set_since(
    tmp_path, monkeypatch
):
    (tmp_path / "of_the_script.py").write_text("VALUE = 7")
    x = pt.matrix("x", dtype="float64")
    half = pytensor.shared(np.float32(0.5), name="half")
    synk.fork(2)
    with with_xla():
        synk.close()
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("OF_THE_SCRIPT", "7")
        monkeypatch.syspath_prepend(tmp_path)
        with (
            warnings.catch_warnings(),
            np.errstate(divide="raise"),
            pytensor.config.change_flags(floatX="float32"),
        ):
            warnings.filterwarnings("error", "of the script", FutureWarning, __name__)
            synk.fork(2)
            mine, rank = SESSION.run(worker_surroundings)
            assert rank == mine
            assert rank[:3] == [str(tmp_path), "7", 7]
            call = synk.function([x], x.sum() * half, mode="FAST_COMPILE")
            assert call(ROWS) == TOTAL / 2
            synk.close()
    synk.close()


def worker_surroundings(context):
    import of_the_script

    seen = [os.getcwd(), os.environ["OF_THE_SCRIPT"], of_the_script.VALUE]
    seen += [np.geterr(), pytensor.config.floatX, [f[0] for f in warnings.filters]]
    with warnings.catch_warnings(record=True) as caught:
        try:
            warnings.warn("of the script", FutureWarning, stacklevel=1)
        except FutureWarning:
            return [*seen, "raised"]
    return [*seen, len(caught)]


def test_many_sessions_of_a_kept_zygote_leave_nothing_behind():
    synk.fork(2)
    with with_xla():
        pids = []

        def session():
            synk.close()
            synk.fork(3)
            pids.extend(all_pids()[1:])
            assert summing()(ROWS) == TOTAL
            return sorted(links(os.getpid())), sorted(links(zygote()))

        for _ in range(3):
            before = session()
        for _ in range(5):
            after = session()
        # What earlier tests have left as garbage may be collected meanwhile.
        for each, of_others in zip(after, before, strict=True):
            assert len(each) <= len(of_others)
        synk.close()
        assert not any(map(is_alive, pids))
    synk.close()


def test_a_rank_that_an_interrupt_left_half_forgotten_is_forgotten():
    """Between the two lines that forget it; which the test below meets by chance."""
    synk.fork(2)
    with with_xla():
        known = SESSION.zygote
        (number,) = known._ranks
        known._poll.unregister(number)
        synk.close()
        assert not known._ranks
        with synk.session(2):
            assert SESSION.zygote is known
            assert summing()(ROWS) == TOTAL


def test_sessions_of_a_kept_zygote_can_be_interrupted():
    call = summing()
    synk.fork(2)
    first = zygote()
    assert call(ROWS) == TOTAL
    with with_xla():
        synk.close()
        before = kinds_of_links()
        for k in range(1, 1000, 29):
            interrupted = contextlib.suppress(KeyboardInterrupt)
            with InterruptedAt(k, FORKING) as trace, interrupted:
                synk.fork(2)
                assert call(ROWS) == TOTAL
                synk.close()
            synk.close()
            assert kinds_of_links() == before, trace.raised_at
            if not trace.raised_at:
                break
        assert k > 100
        with synk.session(3):
            assert zygote() == first
            assert call(ROWS) == TOTAL
    synk.close()


def kinds_of_links() -> list[str]:
    """Return what descriptors of this process are of, but for segments."""
    gc.collect()
    kinds = [link.partition(":")[0] for link in links(os.getpid())]
    return sorted(kind for kind in kinds if "memfd" not in kind)


def test_a_kept_zygote_ends_with_the_script(tmp_path):
    body = """
    from test_fork_any_time import with_xla
    synk.fork(2)
    with with_xla():
        synk.close()
        kept = synk.ranks.session.SESSION._zygotes._kept
        print("pids", os.getpid(), kept._pid, flush=True)
        {end}
    """
    ends = ("sys.exit(3)", "os._exit(0)", "os.kill(os.getpid(), 9)")
    with running_in_turn(
        {end: body.format(end=end) for end in ends}, tmp_path
    ) as script:
        for end in ends:
            pids = script.expect_pids()
            script.expect("ended")
            wait_until(lambda pids=pids: not any(map(is_alive, pids)), 5, end)


# -- a new interpreter


def test_a_new_python_is_the_zygote_where_none_was_kept(capfd, monkeypatch):
    monkeypatch.setenv("SYNK_COMPILE_NOTICE", "1")
    call = summing()
    with with_xla():
        with synk.session(2):
            first = zygote()
            assert "python" in psutil.Process(first).name()
            assert call(ROWS) == TOTAL
            assert_works(2)
            os.kill(rank_pids()[1], signal.SIGKILL)
            with pytest.raises(WorkerDied):
                call(ROWS)
            assert synk.recover() == []
            assert zygote() == first
            assert call(ROWS) == TOTAL
        assert is_alive(first)
        with synk.session(3):
            assert zygote() == first
            assert_works(3)
    synk.close()
    assert not is_alive(first)
    said = capfd.readouterr().err
    assert said.count("runs an XLA backend") == 1
    assert "starting a new Python" in said


def test_a_new_python_has_jax_as_the_script_has(monkeypatch):
    # The import of PyTensor's link sets it by floatX, which that Python has otherwise.
    jax = pytest.importorskip("jax", reason="JAX, of the extra synk[jax], is missing")
    importlib.import_module("pytensor.link.jax.dispatch")
    before = jax.config.jax_enable_x64
    try:
        for value in (False, True):
            jax.config.update("jax_enable_x64", value)
            with with_xla(), synk.session(2):
                assert SESSION.run(worker_jax) == [value, value]
            synk.close()
    finally:
        jax.config.update("jax_enable_x64", before)


def worker_jax(context):
    assert "jax" in sys.modules
    return sys.modules["jax"].config.jax_enable_x64


def test_ctrl_c_ends_a_new_python_that_is_being_started():
    with with_xla():
        before = psutil.Process().children()

        def interrupt():
            wait_until(lambda: SESSION._zygotes.current, 5, "the new Python")
            zygote = SESSION._zygotes.current
            wait_until(lambda: zygote.pid > 0, 5, "the new Python")
            os.kill(os.getpid(), signal.SIGINT)

        thread = threading.Thread(target=interrupt)
        thread.start()
        start = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            synk.fork(2)
        assert time.monotonic() - start < 1
        thread.join()
        assert psutil.Process().children() == before
        assert not synk.is_forked()


def test_a_new_python_that_fails_is_said_to(monkeypatch, capfd):
    monkeypatch.setattr(SESSION._zygotes, "_main", "synk.no_such_module")
    with with_xla():
        with pytest.raises(SynkError, match=r"XLA.* new Python.* ended with 1"):
            synk.fork(2)
        assert "No module named 'synk.no_such_module'" in capfd.readouterr().err
        assert not synk.is_forked()
        monkeypatch.setattr(sys, "executable", "")
        with pytest.raises(StateError, match=r"XLA.* own executable"):
            synk.fork(2)


def test_a_new_python_ends_with_a_master_that_is_killed(tmp_path):
    body = """
    import threading, psutil
    from test_fork_any_time import with_xla

    def kill():
        while not (children := psutil.Process().children()):
            time.sleep(0.01)
        print("pids", os.getpid(), children[0].pid, flush=True)
        os.kill(os.getpid(), 9)

    with with_xla():
        threading.Thread(target=kill).start()
        synk.fork(2)
    """
    with running(body, tmp_path) as script:
        pids = script.expect_pids()
        script.wait()
        wait_until(lambda: not any(map(is_alive, pids)), 5, "end of both")


OPS_OF_A_SCRIPT = """
import warnings
from test_fork_any_time import with_xla
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op

def define(factor):
    class Scale(Op):
        __props__ = ()
        def make_node(self, x):
            return Apply(self, [x], [x.type()])
        def perform(self, node, inputs, outputs):
            outputs[0][0] = factor * inputs[0]
    synk.register_sharding(Scale, "rowwise")
    return Scale

def summing(scale):
    x = pt.matrix("x", dtype="float64")
    return synk.function([x], scale()(x).sum(), mode=PY)

warnings.simplefilter("ignore", synk.SplitWarning)
before = summing(define(2))
if {first}:
    synk.fork(2)
with with_xla():
    synk.close()
    after = summing(define(3))
    for n in (2, 3):
        with synk.session(n):
            assert before(ROWS) == 2 * TOTAL, before(ROWS)
            assert after(ROWS) == 3 * TOTAL
            print("kept", synk.ranks.session.SESSION.zygote._process is None)
"""


@pytest.mark.parametrize("first", [True, False], ids=["kept", "new"])
def test_ops_of_the_script_are_known_to_the_ranks(first, tmp_path):
    result = run_script(OPS_OF_A_SCRIPT.format(first=first), tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stdout == f"kept {first}\n" * 2


# -- JAX


@in_a_child
def test_jax_mode_has_as_many_sessions_as_one_likes():
    x = pt.matrix("x")
    total = pytensor.shared(np.zeros(()), name="total")
    call = synk.function([x], x.sum(), updates={total: total + x.sum()}, mode="JAX")
    with synk.session(2):
        first = zygote()
        assert call(ROWS) == TOTAL
        os.kill(rank_pids()[1], signal.SIGKILL)
        with pytest.raises(WorkerDied):
            call(ROWS)
        assert synk.recover() == []
        assert call(ROWS) == TOTAL
    with synk.session(3):
        assert zygote() == first
        assert call(ROWS) == TOTAL
        os.kill(first, signal.SIGKILL)
        with pytest.raises(WorkerDied, match="zygote"):
            call_for_a_second(call)
        start = time.monotonic()
        assert synk.recover() == []
        assert time.monotonic() - start < 30
        before = total.get_value()
        assert call(ROWS) == TOTAL
        assert total.get_value() == synk.get_value(2, total) == before + TOTAL


def call_for_a_second(call) -> None:
    # Ranks outlive their zygote for a moment, and may do one more call.
    deadline = time.monotonic() + 1
    while time.monotonic() < deadline:
        call(ROWS)
