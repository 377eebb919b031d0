"""Scripts with standard streams closed: no descriptor of synk's becomes one of them."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

STREAMS = 0, 1, 2
ALL_CLOSED = [list(c) for n in range(4) for c in itertools.combinations(STREAMS, n)]

SCRIPT = """
import contextlib, ctypes, json, os, sys, traceback, warnings
import numpy as np, psutil, pytensor, pytensor.tensor as pt
from pathlib import Path
import synk

warnings.simplefilter("ignore")
libc = ctypes.CDLL(None)
x = pt.matrix("x", dtype="float64")
w = pytensor.shared(np.zeros(3), "w")
folder = Path(sys.argv[1])
np.save(folder / "rows.npy", np.ones((1000, 3)))


def shout():
    "Write to all three streams as C libraries do, which look at nothing."
    for fd in (0, 1, 2):
        libc.write(fd, b"X" * 64, 64)
    with contextlib.suppress(OSError):  # which Python raises where it was closed
        print("Y" * 64, flush=True)


class Shout(pytensor.graph.op.Op):
    __props__ = ()

    def make_node(self, x):
        return pytensor.graph.basic.Apply(self, [x], [x.type()])

    def perform(self, node, inputs, outputs):
        for fd in (0, 1, 2):
            libc.write(fd, b"X" * 64, 64)
        outputs[0][0] = inputs[0] * 1


def streams():
    "What the standard streams of this process, the zygote and the ranks are for."
    found = {}
    me = psutil.Process()
    for process in (me, *me.children(recursive=True)):
        for fd in (0, 1, 2):
            try:
                path = f"/proc/{process.pid}/fd/{fd}"
                found[path] = os.readlink(path)
            except OSError:
                pass
    return found


def work():
    before = {to for to in streams().values()}
    rows = synk.data(np.arange(3e5).reshape(-1, 3))
    early = rows.data.copy()
    shout()
    synk.fork(2)
    updates, mode = {w: w + x.mean(axis=0)}, pytensor.compile.mode.Mode("py", None)
    f = synk.function([x], [Shout()(x).sum(), x * 2], updates=updates, mode=mode)
    shout()
    total, doubled = f(rows)
    shout()
    f(rows.data[:50000].copy())   # a large message
    more = synk.data(np.full((2000, 3), 7.0))
    shout()
    opened = set(streams().values()) - before
    sums = [float(f(rows)[0]), float(f(more)[0])]
    try:
        os.kill(psutil.Process().children()[0].children()[0].pid, 9)
        f(more)
    except synk.WorkerDied:
        synk.recover()
    shout()
    sums.append(float(f(more)[0]))
    synk.broadcast(w)
    synk.save(folder / "saved.npz", [w])
    opened |= set(streams().values()) - before
    ok = bool((rows.data == early).all() and (doubled == 2 * early).all()
        and (more.data == 7).all())
    synk.close()
    return {"ok": ok, "sums": sums, "opened": sorted(opened), "total": float(total)}


for closed in json.loads(sys.argv[2]):
    pid = 0 if closed is None else os.fork()
    if pid:
        os.waitpid(pid, 0)
        continue
    for fd in closed or ():
        os.close(fd)
    try:
        found = work()
    except BaseException:
        found = traceback.format_exc()
    (folder / f"found{closed}").write_text(json.dumps(found))
    if closed is not None:
        os._exit(0)
"""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    return path


def run(script: Path, closed: str, shell: str) -> None:
    """Run the script, by a shell that may close streams before it starts."""
    command = f'exec "$0" "$@" {shell}'
    arguments = [sys.executable, script, script.parent, closed]
    subprocess.run(["sh", "-c", command, *map(str, arguments)], timeout=300, check=True)


def check(script: Path, closed: str) -> None:
    found = json.loads((script.parent / f"found{closed}").read_text())
    assert isinstance(found, dict), found
    rows = np.arange(3e5)
    assert found["ok"]
    assert found["total"] == rows.sum()
    assert found["sums"] == [rows.sum(), 42000.0, 42000.0]
    assert found["opened"] == []


@pytest.mark.slow
def test_data_is_right_whichever_streams_are_closed(script):
    run(script, json.dumps(ALL_CLOSED), ">/dev/null 2>&1 </dev/null")
    for closed in ALL_CLOSED:
        check(script, str(closed))


def test_data_is_right_in_a_script_that_was_started_without_streams(script):
    run(script, "[null]", "<&- >&- 2>&-")
    check(script, "None")
