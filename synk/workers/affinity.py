"""Cores and threads: each rank computes on its own share of the cores."""

from __future__ import annotations

import math
import os
from pathlib import Path

import numba
from threadpoolctl import ThreadpoolController

THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMBA_NUM_THREADS",
)


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

    Libraries that are loaded already are capped through threadpoolctl, and those that
    come later through the environment.
    """

    def __init__(self, cores: list[int], threads: int) -> None:
        self._cores, self._threads = cores, threads
        self._affinity = os.sched_getaffinity(0)
        self._environment = {name: os.environ.get(name) for name in THREAD_VARIABLES}
        self._numba_threads = numba.get_num_threads() if _numba_started() else None
        self.apply()

    def apply(self) -> None:
        """Confine this process."""
        os.sched_setaffinity(0, self._cores)
        os.environ.update(dict.fromkeys(THREAD_VARIABLES, str(self._threads)))
        self._limits = ThreadpoolController().limit(limits=self._threads)
        if self._numba_threads is not None:
            numba.set_num_threads(min(self._threads, self._numba_threads))

    def release(self) -> None:
        """Restore what was before."""
        os.sched_setaffinity(0, self._affinity)
        self._limits.restore_original_limits()
        for name, value in self._environment.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        if self._numba_threads is not None:
            numba.set_num_threads(self._numba_threads)


def _numba_started() -> bool:
    """Tell whether numba runs threads; asking it for their number would start them.

    With the OpenMP layer that matters: a child forked afterwards is killed by its first
    parallel loop, and the master may fork again.
    """
    try:
        numba.threading_layer()
    except ValueError:
        return False
    return True


def _cgroup_quota() -> float | None:
    """Return the CPU quota in cores, from cgroup v2 or v1, or None for no limit."""
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            folder = Path("/sys/fs/cgroup/cpu")
            quota = (folder / "cpu.cfs_quota_us").read_text().strip()
            period = (folder / "cpu.cfs_period_us").read_text().strip()
        except OSError:
            return None
    if quota == "max" or int(quota) <= 0:
        return None
    return int(quota) / int(period)
