"""What a person who waits for a compilation is told; and nothing else is printed."""

from __future__ import annotations

import os
import re

import pytest
from children import run_python
from processes import TOTAL, running

import synk

SLOW = """
    import io, threading
    from pytensor.compile.mode import Mode
    from pytensor.link.basic import PerformLinker

    class SlowLinker(PerformLinker):
        seconds = 0

        def make_all(self, *args, **kwargs):
            time.sleep(self.seconds if synk.rank() == 0 else 0)
            return super().make_all(*args, **kwargs)

    def slow(name, seconds):
        SlowLinker.seconds = seconds
        x = pt.matrix("x", dtype="float64")
        mode = Mode(SlowLinker(), None)
        return synk.function([x], (x.sum(), "sum"), mode=mode, name=name)

    synk.fork(2)
    print("fast", slow("fast", 0)(ROWS), flush=True)
"""

IN_TERMINAL = """
    f, g = slow("total", 3), slow("other" * 20, 3)  # the line comes after two
    synk.distribute()
    print("done", f(ROWS), [t.name for t in threading.enumerate()], flush=True)
    SlowLinker.seconds = 30
    try:
        f(ROWS, check="serial")
    except KeyboardInterrupt:
        print("end", [t.name for t in threading.enumerate()])
    synk.close()
"""

IN_FILE = """
    print("unasked", slow("unasked", 3)(ROWS), flush=True)
    synk.compile_notice(True)
    print("asked", slow("total", 3)(ROWS), flush=True)
    stderr, sys.stderr = sys.stderr, None
    print("nowhere", slow("nowhere", 0)(ROWS), flush=True)
    sys.stderr = io.StringIO()
    sys.stderr.close()
    print("closed", slow("closed", 3)(ROWS), flush=True)
    sys.stderr = stderr
    synk.close()
"""

COMPILING = (
    r"synk: compiling total\(x\) for 2 ranks, a mode of its own \(Python\): \d+ s"
)
COMPILED = COMPILING.replace("compiling", "compiled").replace(r"\d+", r"\d+\.\d")


def lines_to(script, start: str) -> list[str]:
    """Return what comes before a line that starts so."""
    before = len(script.seen)
    script.expect(start, 60)
    return [line.rstrip() for line in script.seen[before:-1] if line.strip()]


def test_a_terminal_sees_the_function_the_ranks_the_mode_and_the_seconds(tmp_path):
    with running(SLOW + IN_TERMINAL, tmp_path, terminal=True, COLUMNS="100") as script:
        assert lines_to(script, f"fast {TOTAL}") == []
        told = lines_to(script, "done")
        *notice, last = [line for line in told if "total(x)" in line]
        assert notice
        for line in notice:  # each rewriting is one
            assert re.fullmatch(COMPILING, line), line
        assert re.fullmatch(COMPILED, last), last
        assert float(last.split()[-2]) >= 3.0
        cut = r"synk: compiled (other)+\w*\.\.\.: \d\.\d s"
        assert [line for line in told if re.fullmatch(cut, line)]
        assert max(map(len, told)) == 99
        # The thread has ended, and a call that compiles nothing says nothing.
        assert script.seen[-1].endswith("['MainThread']")
        script.expect("synk: compiling total(x) for 1 rank")
        os.write(script.terminal, b"\x03")
        script.expect("synk: stopped compiling total(x) for 1 rank")
        assert script.expect("end") == "['MainThread']"
        assert script.wait() == 0


def test_a_file_sees_nothing_and_two_lines_if_asked_for(tmp_path):
    with running(SLOW + IN_FILE, tmp_path, SYNK_COMPILE_NOTICE="") as script:
        assert lines_to(script, "unasked") == [f"fast {TOTAL}"]
        first, last = lines_to(script, "asked")
        assert re.fullmatch(COMPILING, first)
        assert re.fullmatch(COMPILED, last)
        # A stream that is not there, or is gone, does no harm.
        assert lines_to(script, f"nowhere {TOTAL}") == []
        assert lines_to(script, f"closed {TOTAL}") == []
        assert script.wait() == 0


def test_what_is_no_answer_is_refused():
    for asked in ("yes", 2, 0.5):
        with pytest.raises(TypeError, match="True, False or None"):
            synk.compile_notice(asked)


# -- nothing else, with empty caches

STEP = """
import numpy as np, pytensor, pytensor.tensor as pt, synk
x, y = pt.matrix("x"), pt.lvector("y")
w = pytensor.shared(np.full((6, 3), 0.1))
loss = LOSS
updates = synk.updates.sgd(synk.grad(loss, [w]), [w], 0.1)
step = synk.function([x, y], loss, updates=updates, mode="MODE")
synk.fork(2)
rng = np.random.default_rng(0)
print(step(rng.normal(size=(8, 6)), rng.integers(0, 3, 8)) > 0)
synk.close()
"""

LOSSES = {
    # Few Ops: each takes long to compile.
    "NUMBA": "((pt.tanh(x @ w).sum(axis=1) - y) ** 2).mean()",
    "JAX": "-synk.nn.log_softmax(x @ w)[pt.arange(y.shape[0]), y].mean()",
}


@pytest.mark.parametrize("mode", [pytest.param("NUMBA", marks=pytest.mark.slow), "JAX"])
def test_a_step_of_a_network_prints_nothing(mode, tmp_path):
    if mode == "JAX":
        pytest.importorskip("jax")
    script = STEP.replace("LOSS", LOSSES[mode]).replace("MODE", mode)
    flags = f"{os.environ.get('PYTENSOR_FLAGS', '')},base_compiledir={tmp_path}/code"
    done = run_python("-c", script, PYTENSOR_FLAGS=flags.lstrip(","))
    assert (done.stdout, done.stderr) == ("True\n", "")
