"""Cores, threads and the environment: of ranks, of the master, of what it starts."""

import ctypes
import json
import multiprocessing
import os
import resource
import shlex
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
import pytensor.tensor as pt
import pytest
from places import NAMES, put_state, state
from processes import PY, ROWS, TOTAL, Act, all_pids, run_script, summing
from threadpoolctl import threadpool_info

import synk

CORES = sorted(os.sched_getaffinity(0))


# -- ranks


def threads_of_pools() -> dict[str, int]:
    """Return the threads of every BLAS and OpenMP library that is loaded."""
    return {pool["filepath"]: pool["num_threads"] for pool in threadpool_info()}


def in_c(name: str) -> str | None:
    """Return a variable of the environment as a library in C sees it."""
    getenv = ctypes.CDLL(None).getenv
    getenv.restype = ctypes.c_char_p
    value = getenv(name.encode())
    return None if value is None else value.decode()


class Confinement(Act):
    """Returns cores, threads of pools, of the environment, of numba, and all threads.

    Threads of pools are -1 if they are not all alike.
    """

    def perform(self, node, inputs, outputs):
        pools, variables = {*threads_of_pools().values()}, {*map(in_c, NAMES[:3])}
        seen = [len(os.sched_getaffinity(0)), min(os.sched_getaffinity(0))]
        seen += [pools.pop() if len(pools) == 1 else -1]
        seen += [int(variables.pop()) if len(variables) == 1 else -1]
        seen += [numba.get_num_threads(), len(os.listdir("/proc/self/task"))]
        outputs[0][0] = np.array([seen], "float64")


def confinement() -> synk.Function:
    x = pt.matrix("x", dtype="float64")
    return synk.function([x], (Confinement(None, id)(x), "gather"), mode=PY)


def share(rank: int, n: int) -> list[int]:
    """Return the cores of a rank: an n-th of them, or one that others have, too."""
    if n > len(CORES):
        return [CORES[rank % len(CORES)]]
    size, more = divmod(len(CORES), n)
    start = rank * size + min(rank, more)
    return CORES[start : start + size + (rank < more)]


@pytest.mark.parametrize("n", [2, 3])
def test_every_rank_has_its_share_of_the_cores_and_no_more_threads(n):
    look = confinement()
    with synk.session(n):
        seen = look(ROWS).astype(int).tolist()
        pids = all_pids()
        for rank, found in enumerate(seen[1:], 1):
            assert sorted(os.sched_getaffinity(pids[rank])) == share(rank, n)
            cores, first, pools, variables, numbas, threads = found
            assert [cores, first] == [len(share(rank, n)), share(rank, n)[0]]
            assert pools == variables == numbas == cores
            # A pool that is started watches for work, 30 ms of a core for each thread.
            assert threads == 1 or cores > 1
        assert seen[0][:4] == [len(share(0, n)), CORES[0], *[len(share(0, n))] * 2]


def test_threads_can_be_chosen():
    look = confinement()
    with synk.session(2, threads=2):
        for found in look(ROWS).tolist():
            assert found[2:4] == [2, 2]


@pytest.mark.parametrize("end", ["close", "failure", "death"])
def test_close_restores_cores_threads_and_environment(end, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    before = CORES, threads_of_pools(), dict(os.environ)
    if end == "failure":
        with monkeypatch.context() as patch:
            patch.setattr(os, "fork", lambda: os.stat("/no/such/file"))
            with pytest.raises(FileNotFoundError):
                synk.fork(3)
    else:
        synk.fork(3)
        assert in_c("OMP_NUM_THREADS") == in_c("MKL_NUM_THREADS") == "1"
        assert os.environ["OMP_NUM_THREADS"] == "7"
        if end == "death":
            os.kill(all_pids()[1], 9)
        synk.close()
    after = sorted(os.sched_getaffinity(0)), threads_of_pools(), dict(os.environ)
    assert after == before
    assert in_c("OMP_NUM_THREADS") == "7"
    assert in_c("MKL_NUM_THREADS") is None


def test_threads_started_in_a_session_are_not_left_pinned():
    done, seen = threading.Event(), []

    def run():
        seen.append(sorted(os.sched_getaffinity(0)))
        done.wait(20)
        seen.append(sorted(os.sched_getaffinity(0)))

    thread = threading.Thread(target=run)
    with synk.session(2):
        thread.start()
        while not seen:
            done.wait(0.001)
    done.set()
    thread.join()
    assert seen == [share(0, 2), CORES]


XLA = """
import os
import numpy as np
import pytensor.tensor as pt
import synk

def threads():
    names = {}
    for task in os.listdir("/proc/self/task"):
        name = open(f"/proc/self/task/{task}/comm").read().strip()
        names.setdefault(name, []).append(os.sched_getaffinity(int(task)))
    return names["tf_XLAEigen"]

if __name__ == "__main__":
    cores, x = os.sched_getaffinity(0), pt.dvector("x")
    with synk.session(2):
        own = os.sched_getaffinity(0)
        assert synk.function([x], x.sum(), mode="JAX")(np.arange(10.0)) == 45
        assert threads() == [own] * len(cores), threads()
    assert threads() == [cores] * len(cores), threads()
    print("done")
"""


def test_xla_has_threads_for_all_cores_on_rank_0(tmp_path):
    pytest.importorskip("jax")
    done = run_script(XLA, tmp_path)
    assert done.stdout.split() == ["done"], done.stderr


NUMBA = """
import numba

@numba.njit(parallel=True)
def total(x):
    result = 0.0
    for i in numba.prange(x.size):
        result += x[i]
    return result

def compile_something():  # numba reads its environment then
    assert numba.njit(lambda x: 2 * x)(3) == 6

class Total(Act):
    def perform(self, node, inputs, outputs):
        (rows,) = inputs
        mean = total(np.ascontiguousarray(rows).ravel()) / len(rows)
        outputs[0][0] = np.full((len(rows), 1), mean)
        assert numba.get_num_threads() == len(os.sched_getaffinity(0))

ones, cores = np.ones(1000), numba.config.NUMBA_NUM_THREADS
x = pt.matrix("x", dtype="float64")
f = synk.function([x], (Total(None, processes.nothing)(x).sum(), "sum"), mode=PY)
with synk.session(2):
    share = len(os.sched_getaffinity(0))
    assert total(ones) == 1000
    assert numba.get_num_threads() == share
    assert f(ROWS) == TOTAL
    compile_something()
compile_something()
assert total(ones) == 1000
# All layers but OpenMP's keep the number that they were started with.
after = cores if numba.threading_layer() == "omp" else share
assert numba.get_num_threads() == after, numba.get_num_threads()
with synk.session(2):  # its ranks are forked from threads, and cannot start more
    assert numba.get_num_threads() == share
    assert summing()(ROWS) == TOTAL
    compile_something()
assert total(ones) == 1000
assert numba.get_num_threads() == after, numba.get_num_threads()
print("done")
"""


def test_numba_compiles_and_is_capped_with_its_threads_started_and_without(tmp_path):
    result = run_script(NUMBA, tmp_path, seconds=120)
    assert result.stdout == "done\n", result


# -- memory of temporary arrays


class Faults(Act):
    """Returns how often the kernel has to provide a page for ten arrays of 8 MB."""

    def perform(self, node, inputs, outputs):
        for _ in range(3):
            np.ones(1_000_000)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(10):
            np.ones(1_000_000)
        after = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        outputs[0][0] = np.array([[after - before]], "float64")


def test_ranks_keep_the_memory_of_temporary_arrays(two_ranks):
    x = pt.matrix("x", dtype="float64")
    faults = synk.function([x], (Faults(None, id)(x), "gather"), mode=PY)
    assert (faults(ROWS) < 100).all()  # of 20,000 pages, or of 40 large ones


# -- what the script starts

PROGRAM = f"""
import json, os
names = {NAMES!r}
print(json.dumps([sorted(os.sched_getaffinity(0)), [*map(os.environ.get, names)]]))
"""
COMMAND = [sys.executable, "-S", "-c", PROGRAM]


def by_subprocess(**options: Any) -> list[Any]:
    done = subprocess.run(COMMAND, stdout=subprocess.PIPE, check=True, **options)
    return json.loads(done.stdout)


def by_system() -> list[Any]:
    with tempfile.NamedTemporaryFile("r") as file:
        assert os.system(f"{shlex.join(COMMAND)} >{file.name}") == 0
        return json.load(file)


def by_pipe(start: Callable[[int], int]) -> list[Any]:
    """Return what a process says that starts with a pipe to write to."""
    reads, writes = os.pipe()
    pid = start(writes)
    os.close(writes)
    with open(reads) as file:
        found = json.load(file)
    assert os.waitpid(pid, 0)[1] == 0
    return found


def posix_spawn(writes: int) -> int:
    actions = [(os.POSIX_SPAWN_DUP2, writes, 1)]
    return os.posix_spawn(COMMAND[0], COMMAND, os.environ, file_actions=actions)


def fork(writes: int) -> int:
    pid = os.fork()
    if not pid:
        pools = sorted(pool["num_threads"] for pool in threadpool_info())
        os.write(writes, json.dumps([*state(), pools]).encode())
        os._exit(0)
    return pid


def fork_and_exec(writes: int) -> int:
    pid = os.fork()
    if not pid:
        os.dup2(writes, 1)
        os.execv(COMMAND[0], COMMAND)
    return pid


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
    "posix_spawn": lambda: by_pipe(posix_spawn),
    "system": by_system,
    "exec": lambda: by_pipe(fork_and_exec),
    "fork": lambda: by_pipe(fork),
    "multiprocessing fork": lambda: by_multiprocessing("fork"),
    "multiprocessing spawn": lambda: by_multiprocessing("spawn"),
}


@pytest.fixture
def environment(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    for name in NAMES[1:]:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_processes_are_born_with_all_cores_and_the_scripts_environment(environment):
    expected = {name: start() for name, start in WAYS.items()}
    assert expected["subprocess"] == [CORES, ["7", None, None, None]]
    originals = os.system, os.posix_spawn, os.execv
    with synk.session(2):
        f, own = summing(), CORES[: len(CORES) // 2 or 1]
        for name, start in WAYS.items():
            assert (name, start()) == (name, expected[name])
            assert sorted(os.sched_getaffinity(0)) == own
            assert f(ROWS) == TOTAL
        found: list[Any] = []
        thread = threading.Thread(target=lambda: found.append(by_subprocess()))
        thread.start()
        thread.join()
        assert found == [expected["subprocess"]]
    assert (os.system, os.posix_spawn, os.execv) == originals
    assert by_subprocess() == expected["subprocess"]


def test_what_a_script_says_of_the_environment_stands(environment, monkeypatch):
    with synk.session(2):
        given = {**os.environ, "MKL_NUM_THREADS": "1"}
        _, (omp, openblas, mkl, _) = by_subprocess(env=given)
        assert (omp, openblas, mkl) == ("7", None, "1")
        monkeypatch.setenv("OPENBLAS_NUM_THREADS", "3")  # while there are ranks
        assert by_subprocess() == [CORES, ["7", "3", None, None]]
    assert by_subprocess() == [CORES, ["7", "3", None, None]]
