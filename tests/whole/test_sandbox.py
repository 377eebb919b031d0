"""Sandboxes that forbid system calls, by real filters: said, or done without."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sandbox
from processes import ROWS, TOTAL, summing

import synk
from synk.commands import info

pytestmark = pytest.mark.skipif(not sandbox.NUMBERS, reason="the calls' numbers")

NEEDED = "memfd_create", "pidfd_open", "fallocate"
PINNING = "sched_setaffinity", "sched_getaffinity"
ERRORS = "EPERM", "ENOSYS"


def in_a_sandbox(calls: list[str], error: str, work: Callable[[], Any]) -> Any:
    """Return what a child that may not use some calls makes of some work."""
    reads, writes = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            sandbox.forbid(calls, getattr(errno, error))
            found = work()
        except BaseException:
            found = traceback.format_exc()
        os.write(writes, json.dumps(found).encode())
        os._exit(0)
    os.close(writes)
    with open(reads) as file:
        found = json.load(file)
    os.waitpid(pid, 0)
    return found


def fork_and_compute() -> dict[str, Any]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with synk.session(2):
            data = synk.data(ROWS)
            right = [summing()(ROWS), summing()(data)] == [TOTAL, TOTAL]
    told = [str(w.message) for w in caught if w.category is RuntimeWarning]
    files = [w.filename for w in caught if w.category is RuntimeWarning]
    return {"right": bool(right), "told": told, "files": files}


def refused() -> dict[str, Any]:
    found: dict[str, Any] = {"refusal": info.refusal(), "status": info.main([])}
    for name, ask in (
        ("fork", lambda: synk.fork(2)),
        ("data", lambda: synk.data(ROWS)),
    ):
        try:
            ask()
        except synk.SynkError as error:
            found[name] = str(error)
    return found


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
class TestForbidden:
    @pytest.mark.parametrize("error", ERRORS)
    @pytest.mark.parametrize("call", NEEDED)
    def test_what_is_needed_is_an_error_of_one_sentence(self, call, error, capfd):
        found = in_a_sandbox([call], error, refused)
        assert found["status"] == 1
        expected = f"the system call {call}, "
        for name in ("refusal", "fork", "data"):
            if name == "data" and call == "pidfd_open":
                assert name not in found  # it needs no process
                continue
            assert found[name].startswith(expected)
            assert error in found[name]
            assert "seccomp" in found[name]
            assert "\n" not in found[name]
        out, err = capfd.readouterr()
        assert expected in " ".join(out.split())  # of info
        assert "Traceback" not in err  # of another process

    @pytest.mark.parametrize("error", ERRORS)
    @pytest.mark.parametrize("call", PINNING)
    def test_ranks_that_cannot_be_pinned_compute_all_the_same(self, call, error):
        found = in_a_sandbox([call], error, fork_and_compute)
        assert found["right"], found
        (told,) = found["told"]
        assert f"not pinned to cores, and may be slower: the system call {call}" in told
        assert "seccomp" in told
        assert Path(found["files"][0]).name == Path(__file__).name

    @pytest.mark.parametrize("call", PINNING)
    def test_info_says_that_ranks_are_not_pinned(self, call, capfd):
        assert in_a_sandbox([call], "EPERM", lambda: info.main(["-n", "2"])) == 0
        text = " ".join(capfd.readouterr().out.split())
        assert f"ranks are not pinned: the system call {call}, by which" in text

    def test_a_call_that_synk_does_not_use_may_be_forbidden(self):
        found = in_a_sandbox(["pidfd_send_signal"], "EPERM", fork_and_compute)
        assert found == {"right": True, "told": [], "files": []}

    def test_programs_that_the_script_starts_where_nothing_is_pinned(self):
        def start() -> list[Any]:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                with synk.session(2):
                    return [
                        subprocess.run(["true"], check=True).returncode,
                        os.system("true"),
                    ]

        assert in_a_sandbox([*PINNING], "EPERM", start) == [0, 0]

    def test_a_sandbox_that_begins_with_the_session(self):
        def close_the_door() -> list[Any]:
            with synk.session(2):
                f = summing()
                first = f(ROWS)
                sandbox.forbid([*NEEDED, *PINNING], errno.EPERM)
                try:
                    synk.data(np.ones(10))
                except synk.SynkError as error:
                    return [bool(first == f(ROWS) == TOTAL), str(error)]
            return []

        right, told = in_a_sandbox([], "EPERM", close_the_door)
        assert right
        assert told.startswith("the system call memfd_create")


def test_a_script_in_a_sandbox_from_its_start(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import numpy as np, pytensor.tensor as pt, synk\n"
        "x = pt.matrix('x', dtype='float64')\n"
        "synk.fork(2)\n"
        "f = synk.function([x], x.sum(), mode='FAST_COMPILE')\n"
        "print(f(np.ones((5, 2))))\n"
    )
    # Numba asks for the cores as it is imported.
    command = [sandbox.__file__, "ENOSYS", ",".join(PINNING), str(script)]
    folder = Path(synk.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, *command],
        capture_output=True,
        text=True,
        timeout=100,
        env={**os.environ, "PYTHONPATH": str(folder)},
    )
    assert done.stdout == "10.0\n", done.stderr
    assert done.stderr.count("RuntimeWarning: ranks are not pinned") == 1
