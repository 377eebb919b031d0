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
from interrupted import FORKING, InterruptedAt, lines
from processes import (
    PY,
    ROWS,
    TOTAL,
    Act,
    acting,
    all_pids,
    assert_works,
    die,
    is_alive,
    links,
    rank_pids,
    running,
    summing,
    wait_until,
    with_xla,
)

import synk
from synk.errors import StateError, SynkError, WorkerDied


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


def is_kept() -> bool:
    """Tell whether the zygote of a session that is closed now is still there."""
    synk.fork(2)
    pid = zygote()
    synk.close()
    return is_alive(pid)


# -- the zygote that is kept


@pytest.mark.parametrize("name", ["tf_XLATfrtCpuClient", "XLA_run", "py_xla_execute"])
def test_threads_of_xla_are_seen(name):
    synk.fork(2)
    first = zygote()
    with with_xla(name):
        synk.close()
        assert is_alive(first)
    synk.close()
    assert not is_alive(first)
    assert not is_kept()


@pytest.mark.parametrize("device", ["/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"])
def test_a_cuda_context_is_seen(device, monkeypatch):
    synk.fork(2)
    first = zygote()
    with with_cuda(monkeypatch, device):
        synk.close()
        assert is_alive(first)
    synk.close()
    assert not is_alive(first)


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
            assert_works(2)
        with synk.session(1):  # which needs none
            assert call(ROWS) == TOTAL
        synk.fork(5)
        assert zygote() == first
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


class Surroundings(Act):
    """Returns True if a rank has what the script has set since."""

    def perform(self, node, inputs, outputs):
        outputs[0][0] = np.asarray(self.action(), "float64").reshape(1, 1)


def surroundings() -> bool:
    import of_the_script

    with warnings.catch_warnings(record=True) as caught:
        try:
            warnings.warn("of the script", FutureWarning, stacklevel=1)
        except FutureWarning:
            caught.append(None)
    found = [of_the_script.VALUE, os.environ["OF_THE_SCRIPT"], len(caught)]
    found += [np.geterr()["divide"], pytensor.config.floatX]
    here = os.getcwd() == os.path.dirname(of_the_script.__file__)
    return found == [7, "7", 1, "raise", "float32"] and here


def test_ranks_of_a_kept_zygote_have_what_the_script_has_set_since(
    tmp_path, monkeypatch
):
    (tmp_path / "of_the_script.py").write_text("VALUE = 7")
    x = pt.matrix("x", dtype="float64")
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
            right = Surroundings(None, surroundings)(x)
            assert synk.function([x], (right.sum(), "sum"), mode=PY)(ROWS) == 2
            synk.close()
    synk.close()


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

        before = [session() for _ in range(3)][-1]
        after = [session() for _ in range(4)][-1]
        # What earlier tests have left as garbage may be collected meanwhile.
        for each, of_others in zip(after, before, strict=True):
            assert len(each) <= len(of_others)
        synk.close()
        assert not any(map(is_alive, pids))
    synk.close()


def test_sessions_of_a_kept_zygote_can_be_interrupted():
    call = summing()
    synk.fork(2)
    first = zygote()
    assert call(ROWS) == TOTAL
    with with_xla():
        synk.close()
        before = kinds_of_links()
        for k in lines(61):
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


ENDS = """
import threading
from processes import with_xla, children

def end():
    {end}

def kill():
    while not (found := children(os.getpid())):
        time.sleep(0.01)
    print("pids", os.getpid(), *found, flush=True)
    end()

with with_xla():
    threading.Thread(target=kill).start()
    synk.fork(2)  # of a new Python
    while True:
        time.sleep(1)
"""


@pytest.mark.parametrize("end", ["os._exit(0)", "os.kill(os.getpid(), 9)"])
def test_a_new_python_ends_with_the_script(end, tmp_path):
    with running(ENDS.format(end=end), tmp_path) as script:
        pids = script.expect_pids()
        script.wait()
        wait_until(lambda: not any(map(is_alive, pids)), 5, end)


# -- a new interpreter


def has_x64() -> bool:
    return sys.modules["jax"].config.jax_enable_x64


def test_a_new_python_is_the_zygote_where_none_was_kept(capfd, monkeypatch):
    # The import of PyTensor's link sets it by floatX, which that Python has otherwise.
    jax = pytest.importorskip("jax", reason="JAX, of the extra synk[jax], is missing")
    importlib.import_module("pytensor.link.jax.dispatch")
    monkeypatch.setenv("SYNK_COMPILE_NOTICE", "1")
    before = jax.config.jax_enable_x64
    x = pt.matrix("x", dtype="float64")
    enabled = Surroundings(None, has_x64)(x).sum()
    call = summing()
    try:
        jax.config.update("jax_enable_x64", not before)
        with with_xla():
            with synk.session(2):
                first = zygote()
                assert "python" in psutil.Process(first).name()
                assert_works(2)
                f = synk.function([x], (enabled, "sum"), mode=PY)
                assert f(ROWS) == 2 * (not before)
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
    finally:
        jax.config.update("jax_enable_x64", before)
    said = capfd.readouterr().err
    assert said.count("runs an XLA backend") == 1
    assert "starting a new Python" in said


def test_ctrl_c_ends_a_new_python_that_is_being_started():
    with with_xla():
        children = psutil.Process().children
        before = children()

        def interrupt():
            wait_until(lambda: len(children()) > len(before), 5, "the new Python")
            os.kill(os.getpid(), signal.SIGINT)

        thread = threading.Thread(target=interrupt)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            synk.fork(2)
        thread.join()
        assert children() == before
        assert not synk.is_forked()


def test_a_new_python_that_cannot_be_started_is_said_to(monkeypatch, tmp_path):
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\nexit 3\n")
    broken.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(broken))
    with with_xla():
        with pytest.raises(SynkError, match=r"XLA.* new Python.* ended with 3"):
            synk.fork(2)
        assert not synk.is_forked()
        monkeypatch.setattr(sys, "executable", "")
        with pytest.raises(StateError, match=r"XLA.* own executable"):
            synk.fork(2)


OPS_OF_A_SCRIPT = """
from processes import with_xla
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
for is_forked_first in (True, False):  # a zygote that is kept, and a new Python
    if is_forked_first:
        synk.fork(2)
    with with_xla():
        synk.close()
        after = summing(define(3))
        for n in (2, 3):
            with synk.session(n):
                assert before(ROWS) == 2 * TOTAL, before(ROWS)
                assert after(ROWS) == 3 * TOTAL
                with open(f"/proc/{processes.all_pids()[0]}/cmdline") as file:
                    print("kept", "script.py" in file.read(), flush=True)
    synk.close()
"""


def test_ops_of_the_script_are_known_to_the_ranks(tmp_path):
    with running(OPS_OF_A_SCRIPT, tmp_path) as script:
        for kept in ("True", "True", "False", "False"):
            assert script.expect("kept", 40) == kept
        assert script.wait(20) == 0


# -- JAX


@in_a_child
def test_jax_mode_has_as_many_sessions_as_one_likes():
    x = pt.matrix("x")
    total = pytensor.shared(np.zeros(()), name="total")
    call = synk.function([x], x.sum(), updates={total: total + x.sum()}, mode="JAX")
    with synk.session(2):
        first = zygote()
        assert call(ROWS) == TOTAL
    with synk.session(2):
        assert zygote() == first
        assert call(ROWS) == TOTAL
        os.kill(first, signal.SIGKILL)
        with pytest.raises(WorkerDied, match="zygote"):
            call_for_a_second(call)
        assert synk.recover() == []
        before = total.get_value()
        assert call(ROWS) == TOTAL
        assert total.get_value() == synk.get_value(1, total) == before + TOTAL


def call_for_a_second(call) -> None:
    # Ranks outlive their zygote for a moment, and may do one more call.
    deadline = time.monotonic() + 1
    while time.monotonic() < deadline:
        call(ROWS)
