"""What other users of the machine can do to a session: nothing."""

from __future__ import annotations

import os
import pickle
import stat
from pathlib import Path

import numpy as np
import pytensor
import pytest
from processes import ROWS, TOTAL, all_pids, links, summing

import synk

NOBODY = 65534


@pytest.fixture
def everyone():
    """Fork a session that has shared memory of every kind; its processes."""
    with synk.session(3):
        rows = synk.data(ROWS)
        values = pytensor.shared(np.ones(5))
        synk.all_reduce(values, "sum")
        assert summing()(rows) == TOTAL
        yield [os.getpid(), *all_pids()]


def shared_memory(pid: int) -> list[Path]:
    """Return the descriptors of a process that are segments."""
    found = Path(f"/proc/{pid}/fd").iterdir()
    # That of the folder itself is closed by now.
    return [p for p in found if p.exists() and "memfd:synk-" in os.readlink(p)]


def test_shared_memory_has_no_name_and_is_its_users_alone(everyone):
    segments = [path for pid in everyone for path in shared_memory(pid)]
    assert len(segments) > 3
    for path in segments:
        seen = path.stat()
        assert seen.st_nlink == 0
        assert seen.st_uid == os.geteuid()
        assert stat.S_IMODE(seen.st_mode) == 0o600
    opened = [link for pid in everyone for link in links(pid)]
    assert not [link for link in opened if link.startswith("/dev/shm")]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_can_open_none_of_it(everyone):
    segments = [path for pid in everyone for path in shared_memory(pid)]
    child = os.fork()
    if child == 0:
        opened = 200
        try:
            os.setgroups([])
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
            opened = sum(can_open(path) for path in segments)
        finally:
            os._exit(opened)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def can_open(path: Path) -> bool:
    try:
        os.close(os.open(path, os.O_RDWR))
    except PermissionError:
        return False
    return True


def test_checkpoints_are_saved_and_loaded_without_pickling(tmp_path, monkeypatch):
    def refuse(*args, **options):
        raise AssertionError("something is pickled")

    w = pytensor.shared(np.ones(3), "w")
    rng = pytensor.shared(np.random.default_rng(1), "rng")
    with monkeypatch.context() as patch:
        for name in ("dump", "dumps", "load", "loads", "Pickler", "Unpickler"):
            patch.setattr(pickle, name, refuse)
        synk.save(tmp_path / "file.npz", [w, rng])
        synk.load(tmp_path / "file.npz", [w, rng])
