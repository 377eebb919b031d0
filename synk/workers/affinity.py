"""Cores, threads and memory: what each rank computes with."""

from __future__ import annotations

import contextlib
import math
import os
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

import numba
from numba.np.ufunc import parallel

from ..memory import cgroups
from . import allocator
from .pools import ThreadPools

THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
)
"""For libraries that are yet to be loaded. Not NUMBA_NUM_THREADS: numba is loaded, and
fails to compile anything if that changes while its threads run."""


def usable_cores() -> list[int]:
    """Return the cores this process may use, after affinity and cgroup quota."""
    cores = sorted(os.sched_getaffinity(0))
    quota = _cgroup_quota()
    return cores if quota is None else cores[: max(1, math.ceil(quota))]


def share(cores: list[int], rank: int, size: int) -> list[int]:
    """Return the cores of one rank; ranks share cores only if there are too few.

    >>> share([0, 1, 2, 3, 4], 0, 2), share([0, 1, 2, 3, 4], 1, 2)
    ([0, 1], [2, 3, 4])
    >>> share([0, 1], 2, 3)
    [0]
    """
    if size > len(cores):
        return [cores[rank % len(cores)]]
    return cores[rank * len(cores) // size : (rank + 1) * len(cores) // size]


class Confinement:
    """Pins this process to cores and caps its thread pools; `release` undoes it.

    It also has the process keep the memory of temporary arrays; see `allocator`.

    Libraries that are loaded already are capped through `pools`, and those that come
    later through the environment.

    Attributes
    ----------
    is_wide : bool
        Whether the process computes with all cores for now.
    """

    def __init__(self, cores: list[int], threads: int, pools: ThreadPools) -> None:
        self._cores, self._threads, self._pools = cores, threads, pools
        self._affinity = os.sched_getaffinity(0)
        self._not_ours = set(_tasks()) - {threading.get_native_id()}
        self._environment = {name: os.environ.get(name) for name in THREAD_VARIABLES}
        self._numba = _NumbaThreads()
        self._keeps_memory = self.is_wide = False
        try:
            self.apply()
        except BaseException:
            self.release()
            raise

    def apply(self) -> None:
        """Confine this process."""
        self.is_wide = False
        self._pin()
        os.environ.update(dict.fromkeys(THREAD_VARIABLES, str(self._threads)))
        self._pools.cap(self._threads)
        self._numba.cap(self._threads)
        self._keeps_memory = allocator.keep_memory()

    @contextlib.contextmanager
    def on_all_cores(self) -> Iterator[None]:
        """Have a library start as many threads as there are cores, in a ``with`` block.

        They are confined afterwards, as this thread is, unless the process has all
        cores now: pinned to fewer they take no longer, and `widen` lets them have all.
        """
        os.sched_setaffinity(0, self._affinity)
        try:
            yield
        finally:
            if not self.is_wide:
                self._pin()

    def unpin_thread(self) -> None:
        """Let this thread run on all cores: one that was started meanwhile.

        It was born with ours, and is pinned to them again by the next `narrow`.
        """
        os.sched_setaffinity(0, self._affinity)

    def widen(self) -> None:
        """Let this process compute with all cores, until `narrow`."""
        self.is_wide = True  # before: an interrupt must not leave it unknown
        self._unpin()
        self._pools.lift()
        self._numba.restore()

    def narrow(self) -> None:
        """Have it compute with its own cores again."""
        self._pin()
        self._pools.cap(self._threads)
        self._numba.cap(self._threads)
        self.is_wide = False

    def release(self) -> None:
        """Restore what was before."""
        self._unpin()
        self._pools.restore()
        for name, value in self._environment.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        self._numba.restore()
        if self._keeps_memory:
            allocator.give_back()

    def _unpin(self) -> None:
        """Unpin all threads: those started meanwhile were born with our cores."""
        self._move(_tasks(), set(self._cores), self._affinity)

    def _pin(self) -> None:
        """Pin this thread, and all that were started since the process was confined."""
        os.sched_setaffinity(0, self._cores)
        ours = set(_tasks()) - self._not_ours
        self._move(ours, self._affinity, set(self._cores))

    @staticmethod
    def _move(tasks: Iterable[int], from_cores: set[int], to_cores: set[int]) -> None:
        for task in tasks:
            try:
                if os.sched_getaffinity(task) == from_cores:
                    os.sched_setaffinity(task, to_cores)
            except ProcessLookupError:
                continue  # the thread has ended


def _tasks() -> list[int]:
    """Return the threads of this process."""
    return list(map(int, os.listdir("/proc/self/task")))


class _NumbaThreads:
    """Numba's threads, which must not be started to be capped.

    With its OpenMP layer, a child that is forked after they started is killed by its
    first parallel loop, and the master may fork again. So as long as they do not run,
    the number that they will be started with is changed.
    """

    def __init__(self) -> None:
        self._before = numba.get_num_threads() if _numba_runs() else None
        self._all = parallel.NUM_THREADS

    def cap(self, threads: int) -> None:
        if _numba_runs():
            numba.set_num_threads(min(threads, numba.get_num_threads()))
        else:
            parallel.NUM_THREADS = min(threads, self._all)

    def restore(self) -> None:
        parallel.NUM_THREADS = self._all
        if self._before is not None:
            numba.set_num_threads(self._before)
        elif _numba_runs() and numba.threading_layer() == "omp":
            # Started meanwhile. OpenMP can have more threads later; with the other
            # layers there are only as many as were started.
            numba.set_num_threads(self._all)


def _numba_runs() -> bool:
    """Tell whether numba runs threads; asking it for their number would start them."""
    try:
        numba.threading_layer()
    except ValueError:
        return False
    return True


def _cgroup_quota() -> float | None:
    """Return the CPU quota in cores, the least of all control groups; None for none."""
    quotas = [_quota_of(*group) for group in cgroups.groups("cpu")]
    return min((quota for quota in quotas if quota is not None), default=None)


def _quota_of(version: int, folder: Path) -> float | None:
    """Return the CPU quota of one control group, if it has one."""
    if version == 2:
        numbers = cgroups.read(folder / "cpu.max").split()
    else:
        files = "cpu.cfs_quota_us", "cpu.cfs_period_us"
        numbers = [cgroups.read(folder / name).strip() for name in files]
    # "max" and -1 say that there is none, and an empty file nothing.
    if len(numbers) != 2 or not all(map(str.isdigit, numbers)):
        return None
    quota, period = map(int, numbers)
    return quota / period if quota and period else None
