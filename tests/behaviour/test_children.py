"""What the script starts while there are ranks: as if there were none."""

from __future__ import annotations

import json
import multiprocessing
import os
import shlex
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from typing import Any

import pytest
from born import NAMES, put_state, state
from processes import ROWS, TOTAL, summing
from threadpoolctl import threadpool_info

import synk
from synk.workers.affinity import share

CORES = sorted(os.sched_getaffinity(0))
PROGRAM = f"""
import json, os
names = {NAMES!r}
print(json.dumps([sorted(os.sched_getaffinity(0)), [*map(os.environ.get, names)]]))
"""
COMMAND = [sys.executable, "-S", "-c", PROGRAM]


def by_subprocess(**options: Any) -> list[Any]:
    done = subprocess.run(COMMAND, stdout=subprocess.PIPE, check=True, **options)
    return json.loads(done.stdout)


def by_posix_spawn(environment: Mapping[str, str]) -> list[Any]:
    reads, writes = os.pipe()
    actions = [(os.POSIX_SPAWN_DUP2, writes, 1)]
    pid = os.posix_spawn(COMMAND[0], COMMAND, environment, file_actions=actions)
    return read_from(reads, writes, pid)


def by_system() -> list[Any]:
    with tempfile.NamedTemporaryFile("r") as file:
        assert os.system(f"{shlex.join(COMMAND)} >{file.name}") == 0
        return json.load(file)


def by_fork() -> list[Any]:
    reads, writes = os.pipe()
    pid = os.fork()
    if not pid:
        pools = sorted(pool["num_threads"] for pool in threadpool_info())
        os.write(writes, json.dumps([*state(), pools]).encode())
        os._exit(0)
    return read_from(reads, writes, pid)


def by_exec() -> list[Any]:
    reads, writes = os.pipe()
    pid = os.fork()
    if not pid:
        os.dup2(writes, 1)
        os.execv(COMMAND[0], COMMAND)
    return read_from(reads, writes, pid)


def read_from(reads: int, writes: int, pid: int) -> list[Any]:
    os.close(writes)
    with open(reads) as file:
        found = json.load(file)
    assert os.waitpid(pid, 0)[1] == 0
    return found


def by_multiprocessing(method: str) -> list[Any]:
    context = multiprocessing.get_context(method)
    queue = context.SimpleQueue()
    process = context.Process(target=put_state, args=(queue,))
    process.start()
    found = queue.get()
    process.join()
    return found


WAYS = {
    "subprocess": by_subprocess,
    "close_fds": lambda: by_subprocess(close_fds=False),
    "preexec_fn": lambda: by_subprocess(preexec_fn=os.getpid),
    "posix_spawn": lambda: by_posix_spawn(os.environ),
    "system": by_system,
    "exec": by_exec,
    "fork": by_fork,
    "multiprocessing fork": lambda: by_multiprocessing("fork"),
    "multiprocessing spawn": lambda: by_multiprocessing("spawn"),
}


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    for name in NAMES[1:]:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_processes_are_born_with_all_cores_and_the_scripts_environment():
    expected = {name: start() for name, start in WAYS.items()}
    assert expected["subprocess"] == [CORES, ["7", None, None, None]]
    originals = os.system, os.posix_spawn, subprocess._fork_exec
    with synk.session(2):
        f, own = summing(), share(CORES, 0, 2)
        for name, start in WAYS.items():
            assert (name, start()) == (name, expected[name])
            assert sorted(os.sched_getaffinity(0)) == own
            assert f(ROWS) == TOTAL
        found: list[Any] = []
        thread = threading.Thread(target=lambda: found.append(by_subprocess()))
        thread.start()
        thread.join()
        assert found == [expected["subprocess"]]
    assert (os.system, os.posix_spawn, subprocess._fork_exec) == originals
    assert by_subprocess() == expected["subprocess"]


def test_what_a_script_says_of_the_environment_stands(monkeypatch):
    with synk.session(2):
        given = {**os.environ, "MKL_NUM_THREADS": "1"}
        _, (omp, openblas, mkl, _) = by_subprocess(env=given)
        assert (omp, openblas, mkl) == ("7", None, "1")
        monkeypatch.setenv("OPENBLAS_NUM_THREADS", "3")  # while there are ranks
        assert by_subprocess() == [CORES, ["7", "3", None, None]]
    assert by_subprocess() == [CORES, ["7", "3", None, None]]


def test_a_program_that_does_not_start_leaves_rank_0_confined():
    with synk.session(2):
        own = share(CORES, 0, 2)
        with pytest.raises(FileNotFoundError):
            subprocess.run(["/no/such/program"], check=False)
        with pytest.raises(FileNotFoundError):
            os.posix_spawn("/no/such/program", ["no"], os.environ)
        with pytest.raises(FileNotFoundError):
            os.execv("/no/such/program", ["no"])
        assert sorted(os.sched_getaffinity(0)) == own


def test_a_function_that_others_have_wrapped_meanwhile_stays(monkeypatch):
    ours = os.system
    with synk.session(2):
        wrapped = os.system

        def other(command):
            return wrapped(command)

        monkeypatch.setattr(os, "system", other)
    assert os.system is other
    assert os.system("true") == 0
    monkeypatch.setattr(os, "system", ours)
    with synk.session(2):
        assert by_system() == [CORES, ["7", None, None, None]]


def test_a_forked_child_may_have_ranks_of_its_own_on_all_cores():
    with synk.session(2):
        reads, writes = os.pipe()  # now, so that no rank has it
        pid = os.fork()
        if not pid:
            try:
                with synk.session(len(CORES)):
                    found = [summing()(ROWS) == TOTAL, sorted(os.sched_getaffinity(0))]
                found.append(sorted(os.sched_getaffinity(0)))
                os.write(writes, json.dumps([bool(found[0]), *found[1:]]).encode())
            finally:
                os._exit(0)
        found = read_from(reads, writes, pid)
    assert found == [True, share(CORES, 0, len(CORES)), CORES]
