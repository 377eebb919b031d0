"""A PID namespace whose ``/proc`` is that of another one, or is missing."""

from __future__ import annotations

import subprocess
import sys

import pytest
from places import ROOT, SUPPORT

import synk
from synk.memory import proc

SCRIPT = """
import os, subprocess, sys, threading
import numpy as np
from processes import ROWS, TOTAL, acting, summing
import synk
from synk.ranks.session import SESSION

assert os.readlink("/proc/self") != str(os.getpid())  # as it was not mounted anew
cores = os.sched_getaffinity(0)
done = threading.Event()
with synk.session(3):
    f, rows = summing(), synk.data(np.ones((20_000, 2)))
    assert f(ROWS) == TOTAL
    assert f(rows) == rows.data.sum()
    try:
        acting(1, os._exit, 3)(ROWS)
    except synk.WorkerDied as death:
        print(death.rank)
    synk.recover()
    assert f(rows) == rows.data.sum()
    thread = threading.Thread(target=done.wait)
    thread.start()
    listed = subprocess.run([sys.executable, "-m", "synk", "ps"], capture_output=True)
    print(listed.returncode, listed.stdout.decode().strip())
assert os.sched_getaffinity(thread.native_id) == cores
done.set()
print("right")
"""


def in_a_namespace(*words: str) -> subprocess.CompletedProcess:
    command = ["unshare", "--pid", "--fork", *words]
    if subprocess.run([*command, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no namespaces here")
    return subprocess.run(
        [*command, sys.executable, "-c", SCRIPT],
        env={"PYTHONPATH": f"{SUPPORT}:{ROOT}", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_a_namespace_without_a_proc_of_its_own_has_ranks():
    done = in_a_namespace()
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    # Others of this user may run sessions beside; ours has other numbers there.
    assert lines[0] == "1"
    assert lines[1].startswith("0 ")
    assert lines[-1] == "right"


def test_a_process_that_is_not_in_proc_says_so(monkeypatch):
    def gone(path, *args, **kwargs):
        raise FileNotFoundError(2, "No such file or directory", path)

    monkeypatch.setattr(proc.os, "readlink", gone)
    for ask in (lambda: synk.fork(2), lambda: synk.data([1.0])):
        with pytest.raises(synk.SynkError, match=r"not in /proc.*mount -t proc"):
            ask()
