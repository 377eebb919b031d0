"""Cores and threads of the ranks, and of the master until it closes."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import itertools
import os
import resource
import threading

import numba
import numpy as np
import pytest
from processes import ROWS, TOTAL, run_script, summing
from threadpoolctl import threadpool_info

import synk
from synk.memory import cgroups
from synk.ranks.session import SESSION
from synk.workers import affinity, allocator

CORES = sorted(os.sched_getaffinity(0))


def threads_of_pools() -> dict[str, int]:
    """Return the threads of every BLAS and OpenMP library that is loaded."""
    return {pool["filepath"]: pool["num_threads"] for pool in threadpool_info()}


def in_c(name: str) -> str | None:
    """Return a variable of the environment as a library in C sees it."""
    getenv = ctypes.CDLL(None).getenv
    getenv.restype = ctypes.c_char_p
    value = getenv(name.encode())
    return None if value is None else value.decode()


def worker_confinement(context):
    return (
        sorted(os.sched_getaffinity(0)),
        threads_of_pools(),
        {name: in_c(name) for name in affinity.THREAD_VARIABLES},
        numba.get_num_threads() if context.rank else None,
    )


@pytest.mark.parametrize("n", [2, 3, 5])
def test_every_rank_has_its_share_of_the_cores_and_no_more_threads(n):
    with synk.session(n):
        seen = SESSION.run(worker_confinement)
    for rank, (cores, pools, variables, numbas) in enumerate(seen):
        share = affinity.share(CORES, rank, n)
        assert cores == share
        assert pools
        assert set(pools.values()) == {len(share)}
        assert set(variables.values()) == {str(len(share))}
        assert numbas == (len(share) if rank else None)


def test_the_ranks_share_all_cores_without_overlap_if_there_are_enough():
    for cores, n in (([0, 1, 2, 3, 4], 2), ([3, 5, 7], 3), (list(range(64)), 7)):
        shares = [affinity.share(cores, rank, n) for rank in range(n)]
        assert list(itertools.chain(*shares)) == cores
        sizes = {len(share) for share in shares}
        assert max(sizes) - min(sizes) <= 1
    assert {tuple(affinity.share([4, 6], rank, 5)) for rank in range(5)} == {(4,), (6,)}


def test_threads_can_be_chosen():
    with synk.session(2, threads=2):
        seen = SESSION.run(worker_confinement)
    for _, pools, variables, _ in seen:
        assert set(pools.values()) == {2}
        assert set(variables.values()) == {"2"}


def worker_count_threads(context):
    return len(os.listdir("/proc/self/task"))


def test_ranks_start_no_threads_that_they_are_not_to_use():
    """A pool that is started watches for work, for 30 ms of a core for each thread."""
    with synk.session(3, threads=1):
        _, *of_ranks = SESSION.run(worker_count_threads)
    assert of_ranks == [1, 1]


@pytest.mark.parametrize("end", ["close", "failure", "death"])
def test_close_restores_cores_threads_and_environment(end, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    before = CORES, threads_of_pools(), dict(os.environ)
    if end == "failure":

        def fail(*_, **__):
            raise ZeroDivisionError

        monkeypatch.setattr(atexit, "register", fail)
        with pytest.raises(ZeroDivisionError):
            synk.fork(3)
    else:
        synk.fork(3)
        assert in_c("OMP_NUM_THREADS") == in_c("MKL_NUM_THREADS") == "1"
        assert os.environ["OMP_NUM_THREADS"] == "7"
        if end == "death":
            os.kill(SESSION.zygote.pids[1], 9)
        synk.close()
    after = sorted(os.sched_getaffinity(0)), threads_of_pools(), dict(os.environ)
    assert after == before
    assert in_c("OMP_NUM_THREADS") == "7"
    assert in_c("MKL_NUM_THREADS") is None


def test_threads_started_in_a_session_are_not_left_pinned():
    go, done = threading.Event(), threading.Event()
    seen = []

    def run():
        seen.append(sorted(os.sched_getaffinity(0)))
        go.set()
        done.wait(20)
        seen.append(sorted(os.sched_getaffinity(0)))

    with synk.session(2):
        thread = threading.Thread(target=run)
        thread.start()
        assert go.wait(10)
    done.set()
    thread.join()
    assert seen == [affinity.share(CORES, 0, 2), CORES]


def test_threads_for_all_cores_are_confined_until_rank_0_computes_alone():
    """Of XLA, which takes no longer with them on one core; a user's own stay theirs."""
    done = threading.Event()
    known: dict[str, threading.Thread] = {}

    def start(name):
        known[name] = threading.Thread(target=done.wait, args=(20,))
        known[name].start()

    def cores():
        return [sorted(os.sched_getaffinity(t.native_id)) for t in known.values()]

    start("the user's")
    try:
        with synk.session(2):
            own, context = affinity.share(CORES, 0, 2), SESSION.context
            with context._confinement.on_all_cores():
                assert sorted(os.sched_getaffinity(0)) == CORES
                start("a library's")
            assert cores() == [CORES, own]
            for how in (context.unconfined, contextlib.nullcontext):
                with how():
                    context.widen()
                    assert cores() == [CORES, CORES]
                context.narrow()
                assert cores() == [CORES, own]
                assert sorted(os.sched_getaffinity(0)) == own
            context.widen()
            with context._confinement.on_all_cores():  # a library that is loaded now
                start("another's")
            assert cores() == [CORES] * 3
            assert sorted(os.sched_getaffinity(0)) == CORES
            with context.unconfined():
                pass
            context.widen()
            assert cores() == [CORES] * 3
            context.narrow()
            assert cores() == [CORES, own, own]
        assert cores() == [CORES] * 3
    finally:
        done.set()


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
        synk.ranks.session.SESSION.context.widen()
        assert threads() == [cores] * len(cores), threads()
    print("done")
"""


def test_xla_has_threads_for_all_cores_on_rank_0(tmp_path):
    pytest.importorskip("jax")
    done = run_script(XLA, tmp_path)
    assert done.stdout.split() == ["done"], done.stderr


def test_unconfined_gives_the_master_all_cores_for_a_while():
    with synk.session(2):
        confined = worker_confinement(SESSION.context)
        with SESSION.context.unconfined():
            assert sorted(os.sched_getaffinity(0)) == CORES
        assert worker_confinement(SESSION.context) == confined


NUMBA = """
import numba

@numba.njit(parallel=True)
def total(x):
    result = 0.0
    for i in numba.prange(x.size):
        result += x[i]
    return result

def compile_something():
    # numba reads its environment at each compilation.
    @numba.njit
    def twice(x):
        return 2 * x
    assert twice(3) == 6

ones = np.ones(1000)
cores = numba.config.NUMBA_NUM_THREADS
"""


@pytest.mark.parametrize("started", ["before", "meanwhile", "never"])
def test_numba_compiles_and_is_capped_whenever_its_threads_start(started, tmp_path):
    result = run_script(
        NUMBA
        + f"""
started = {started!r}
if started == "before":
    assert total(ones) == 1000
synk.fork(2)
share = len(os.sched_getaffinity(0))
assert summing()(ROWS) == TOTAL
if started == "meanwhile":
    assert total(ones) == 1000
compile_something()
if started != "never":
    assert numba.get_num_threads() == share, numba.get_num_threads()
synk.close()
compile_something()
assert total(ones) == 1000
# All layers but OpenMP's keep the number that they were started with.
fixed = started == "meanwhile" and numba.threading_layer() != "omp"
assert numba.get_num_threads() == (share if fixed else cores), numba.get_num_threads()
print("done", cores)
""",
        tmp_path,
        seconds=120,
    )
    assert result.stdout == f"done {numba.config.NUMBA_NUM_THREADS}\n", result


def test_numba_in_parallel_on_the_ranks(tmp_path):
    result = run_script(
        NUMBA
        + """
synk.fork(2)

class Total(Act):
    def perform(self, node, inputs, outputs):
        x = np.ascontiguousarray(inputs[0]).ravel()
        outputs[0][0] = np.full((len(inputs[0]), 1), total(x) / len(inputs[0]))
        assert numba.get_num_threads() == len(os.sched_getaffinity(0))

x = pt.matrix("x", dtype="float64")
y = Total(None, processes.nothing)(x)
print("total", synk.function([x], (y.sum(), "sum"), mode=PY)(ROWS) == TOTAL)
""",
        tmp_path,
        seconds=120,
    )
    assert result.stdout == "total True\n", result


def test_the_quota_of_a_control_group_limits_the_cores(tmp_path, monkeypatch):
    quotas = iter([1.5, 0.2, None, 64.0])
    monkeypatch.setattr(affinity, "_cgroup_quota", lambda: next(quotas))
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {4, 2, 9, 7})
    assert affinity.usable_cores() == [2, 4]
    assert affinity.usable_cores() == [2]
    assert affinity.usable_cores() == [2, 4, 7, 9]
    assert affinity.usable_cores() == [2, 4, 7, 9]


QUOTA, PERIOD = "cpu.cfs_quota_us", "cpu.cfs_period_us"


@pytest.mark.parametrize(
    ("groups", "files", "quota"),
    [
        ("0::/", {"cpu.max": "150000 100000\n"}, 1.5),
        ("0::/", {"cpu.max": "max 100000\n"}, None),
        ("0::/", {"cpu.max": "\n"}, None),
        ("0::/a/b", {"a/b/cpu.max": "150000 100000\n"}, 1.5),
        ("0::/a/b", {"a/cpu.max": "50000 100000", "a/b/cpu.max": "max 100000"}, 0.5),
        ("0::/a/b", {"a/cpu.max": "50000 100000", "a/b/cpu.max": "200000 100000"}, 0.5),
        ("0::/a/b", {"a/cpu.max": "300000 100000", "a/b/cpu.max": "200000 100000"}, 2),
        ("0::/docker/1/b", {"cpu.max": "50000 100000"}, 0.5),
        ("0::/../b", {"cpu.max": "50000 100000"}, 0.5),
        ("0::/a", {"unified/a/cpu.max": "50000 100000"}, 0.5),
        ("4:cpu:/", {f"cpu/{QUOTA}": "50000\n", f"cpu/{PERIOD}": "100000\n"}, 0.5),
        ("4:cpu:/", {f"cpu/{QUOTA}": "-1\n", f"cpu/{PERIOD}": "100000\n"}, None),
        ("4:cpu:/", {f"cpu/{QUOTA}": "", f"cpu/{PERIOD}": "100000\n"}, None),
        ("4:cpu:/", {f"cpu/{QUOTA}": "50000", f"cpu/{PERIOD}": ""}, None),
        ("4:cpu:/", {f"cpu/{QUOTA}": "50000"}, None),
        (
            "4:cpu,cpuacct:/a/b\n0::/",
            {
                f"cpu/a/{QUOTA}": "250000",
                f"cpu/a/{PERIOD}": "100000",
                f"cpu/a/b/{QUOTA}": "-1",
                f"cpu/a/b/{PERIOD}": "100000",
            },
            2.5,
        ),
        (
            "4:cpu,cpuacct:/a",
            {f"cpu,cpuacct/a/{QUOTA}": "50000", f"cpu,cpuacct/a/{PERIOD}": "100000"},
            0.5,
        ),
        ("", {}, None),
    ],
)
def test_quotas_are_read_from_control_groups_of_both_versions(
    groups, files, quota, tmp_path, monkeypatch
):
    files = {f"cgroup/{name}": text for name, text in files.items()}
    for name, text in {**files, "proc/self/cgroup": groups}.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.setattr(cgroups, "CGROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(cgroups, "PROC", tmp_path / "proc")
    assert affinity._cgroup_quota() == quota


def test_blas_gives_the_right_numbers_within_and_after_a_session():
    matrix = np.arange(40_000.0).reshape(200, 200)
    expected = (matrix @ matrix).sum()
    with synk.session(3):
        assert summing()(ROWS) == TOTAL
        assert (matrix @ matrix).sum() == expected
    assert (matrix @ matrix).sum() == expected


# -- memory of temporary arrays


def worker_faults(context) -> int:
    """Return how often the kernel has to provide a page for ten arrays of 8 MB."""
    for _ in range(3):
        np.ones(1_000_000)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        np.ones(1_000_000)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def test_ranks_keep_the_memory_of_temporary_arrays(two_ranks):
    for faults in SESSION.run(worker_faults):
        assert faults < 100  # of 20,000 pages, or of 40 large ones


def test_the_master_gives_memory_back_in_the_end():
    with synk.session(2):
        arrays = [np.ones(1_000_000) for _ in range(20)]
        peak = resident()
        del arrays
        kept = resident()
        assert kept > peak - 20_000_000
    assert resident() < peak - 100_000_000


def test_a_users_setting_of_the_allocator_stands(monkeypatch):
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "100000")
    assert not allocator.keep_memory()
