"""Sessions of a process that cannot be forked: its zygote is kept, or a new Python."""

import contextlib
import importlib
import os
import signal
import sys
import threading

import numpy as np
import psutil
import pytensor
import pytensor.tensor as pt
import pytest
from children import in_a_child
from processes import (
    PY,
    ROWS,
    TOTAL,
    Act,
    acting,
    all_pids,
    assert_works,
    call_for_a_second,
    die,
    is_alive,
    kill,
    running,
    summing,
    wait_until,
    with_xla,
)

import synk
from synk.errors import StateError, SynkError, WorkerDied


def zygote() -> int:
    return all_pids()[0]


# -- the zygote that is kept


@contextlib.contextmanager
def with_cuda(monkeypatch):
    """Have a descriptor in this process that looks like one of CUDA's."""
    readlink = os.readlink
    with open(os.devnull) as file, monkeypatch.context() as patch:

        def linked(path, **options):
            if str(path) == f"/proc/self/fd/{file.fileno()}":
                return "/dev/nvidia-uvm-tools"
            return readlink(path, **options)

        patch.setattr(os, "readlink", linked)
        yield


@pytest.mark.parametrize("name", ["tf_XLATfrtCpuClient", "XLA_run", "py_xla", "CUDA"])
def test_threads_of_xla_and_a_cuda_context_are_seen(name, monkeypatch):
    synk.fork(2)
    first = zygote()
    with with_cuda(monkeypatch) if name == "CUDA" else with_xla(name):
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
        kill(2)
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


# -- a new interpreter


class X64(Act):
    """Returns whether JAX computes by 64 bits on a rank."""

    def perform(self, node, inputs, outputs):
        is_set = sys.modules["jax"].config.jax_enable_x64
        outputs[0][0] = np.array([[is_set]], "float64")


def test_a_new_python_is_the_zygote_where_none_was_kept(capfd, monkeypatch):
    # The import of PyTensor's link sets it by floatX, which that Python has otherwise.
    jax = pytest.importorskip("jax", reason="JAX, of the extra synk[jax], is missing")
    importlib.import_module("pytensor.link.jax.dispatch")
    monkeypatch.setenv("SYNK_COMPILE_NOTICE", "1")
    before = jax.config.jax_enable_x64
    x = pt.matrix("x", dtype="float64")
    enabled = X64(None, id)(x).sum()
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
                kill()
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
    """Also when it comes as that is just there, and another thread has taken it."""
    with with_xla():
        children = psutil.Process().children
        before = children()

        def interrupt():
            wait_until(lambda: len(children()) > len(before), 5, "the new Python", 0)
            os.kill(os.getpid(), signal.SIGINT)

        for _ in range(8):
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


SETS_SINCE = """
from processes import with_xla
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op

def looks():
    import of_the_script

    try:
        warnings.warn("of the script", FutureWarning)
        warned = False
    except FutureWarning:
        warned = True
    assert warned and of_the_script.VALUE == 7 and os.environ["OF_THE_SCRIPT"] == "7"
    assert (np.geterr()["divide"], pytensor.config.floatX) == ("raise", "float32")
    assert os.getcwd() == os.path.dirname(of_the_script.__file__)

def define(factor, look):
    class Scale(Op):
        __props__ = ()
        def make_node(self, x):
            return Apply(self, [x], [x.type()])
        def perform(self, node, inputs, outputs):
            look()
            outputs[0][0] = factor * inputs[0]
    synk.register_sharding(Scale, "rowwise")
    return Scale

def summing(scale):
    x = pt.matrix("x", dtype="float64")
    return synk.function([x], scale()(x).sum(), mode=PY)

warnings.simplefilter("ignore", synk.SplitWarning)
before = summing(define(2, int))
for is_forked_first in (True, False):  # a zygote that is kept, and a new Python
    if is_forked_first:
        synk.fork(2)
        os.chdir(os.path.dirname(__file__) + "/there")
        sys.path.insert(0, os.getcwd())
        os.environ["OF_THE_SCRIPT"] = "7"
        np.seterr(divide="raise")
        pytensor.config.floatX = "float32"
        warnings.filterwarnings("error", "of the script", FutureWarning)
    with with_xla():
        synk.close()
        after = summing(define(3, looks))
        with synk.session(2):
            assert before(ROWS) == 2 * TOTAL, before(ROWS)
            assert after(ROWS) == 3 * TOTAL
            with open(f"/proc/{processes.all_pids()[0]}/cmdline") as file:
                print("kept", "script.py" in file.read(), flush=True)
    synk.close()
"""


def test_ranks_have_the_ops_of_the_script_and_what_it_has_set_since(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "there/of_the_script.py").write_text("VALUE = 7")
    with running(SETS_SINCE, tmp_path) as script:
        assert script.expect("kept", 40) == "True"
        assert script.expect("kept", 40) == "False"
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
        kill(-1)
        with pytest.raises(WorkerDied, match="zygote"):
            call_for_a_second(call)
        assert synk.recover() == []
        before = total.get_value()
        assert call(ROWS) == TOTAL
        assert total.get_value() == synk.get_value(1, total) == before + TOTAL
