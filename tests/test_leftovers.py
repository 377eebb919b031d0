"""Names in /dev/shm: those of dead processes are removed, and no others."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import synk
from synk.memory import leftovers

BETWEEN = """
import os, posix_ipc, signal, sys
from synk.memory.segment import Segment
from synk.workers.waiting import make_semaphore

def killed(name):
    os.kill(os.getpid(), signal.SIGKILL)

posix_ipc.unlink_shared_memory = posix_ipc.unlink_semaphore = killed
Segment(10_000) if sys.argv[1] == "segment" else make_semaphore()
"""


def names(pid: int) -> list[Path]:
    return [path for path in Path("/dev/shm").iterdir() if f"synk-{pid}-" in path.name]


@pytest.mark.parametrize("what", ["segment", "semaphore"])
def test_fork_removes_the_name_of_a_process_that_was_killed_while_it_had_one(what):
    process = subprocess.Popen([sys.executable, "-c", BETWEEN, what])
    assert process.wait(60) == -signal.SIGKILL
    (name,) = names(process.pid)
    if what == "segment":
        assert name.stat().st_size == 0  # nothing but a name is left
    with synk.session(1):
        assert not name.exists()


def test_names_of_the_living_and_of_others_stay(tmp_path, monkeypatch):
    monkeypatch.setattr(leftovers, "FOLDER", str(tmp_path))
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait(60)
    kept = [
        f"synk-{os.getpid()}-0",
        f"sem.synk-{os.getpid()}-1",
        f"synk-{gone.pid}",
        f"synk-{gone.pid}-x",
        f"other-synk-{gone.pid}-1",
    ]
    for name in (*kept, f"synk-{gone.pid}-1", f"sem.synk-{gone.pid}-99"):
        (tmp_path / name).touch()
    (tmp_path / f"synk-{gone.pid}-7").mkdir()  # cannot be unlinked: no error
    leftovers.remove_leftovers()
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {*kept, f"synk-{gone.pid}-7"}
    monkeypatch.setattr(leftovers, "FOLDER", str(tmp_path / "missing"))
    leftovers.remove_leftovers()
