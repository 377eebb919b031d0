"""Cores, threads and memory: what each rank computes with."""

from __future__ import annotations

import contextlib
import importlib
import math
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numba
from numba.np.ufunc import parallel

from .. import forbidden
from ..memory import cgroups, proc
from . import allocator
from .pools import ThreadPools

THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
)
"""For libraries that are yet to be loaded. Not NUMBA_NUM_THREADS: numba is loaded, and
fails to compile anything if that changes while its threads run."""


def allowed_cores() -> set[int]:
    """Return the cores that this thread may run on.

    All of the machine's where it is forbidden to ask; see `why_not_pinned`.
    """
    try:
        return os.sched_getaffinity(0)
    except OSError as error:
        if error.errno not in forbidden.ERRORS:
            raise
        return set(range(os.cpu_count() or 1))


def why_not_pinned() -> str | None:
    """Return why threads cannot be pinned to cores here, or None if they can."""
    call = "sched_getaffinity"
    try:
        cores = os.sched_getaffinity(0)
        call = "sched_setaffinity"
        os.sched_setaffinity(0, cores)
    except OSError as error:
        if error.errno not in forbidden.ERRORS:
            raise
        return forbidden.sentence(call, error)
    return None


def usable_cores() -> list[int]:
    """Return the cores this process may use, after affinity and cgroup quota."""
    cores = sorted(allowed_cores())
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
    later through the environment. Where pinning is forbidden, threads stay where they
    are, and the rest is done.

    Parameters
    ----------
    cores : list of int
    threads : int
    pools : ThreadPools
    is_script : bool
        Whether this is the script's process, whose ``os.environ`` stays as it is.

    Attributes
    ----------
    is_wide, is_single : bool
        Whether the process computes with all cores for now, or with one thread.
    """

    def __init__(
        self,
        cores: list[int],
        threads: int,
        pools: ThreadPools,
        is_script: bool = False,
    ) -> None:
        self._cores, self._threads, self._pools = cores, threads, pools
        self._pins = why_not_pinned() is None
        self._affinity = allowed_cores()
        self._not_ours = set(proc.threads()) - {threading.get_native_id()}
        self._variables = _Variables(threads, is_script)
        self._numba = _NumbaThreads()
        self._keeps_memory = self._is_applied = False
        self.is_wide = self.is_single = False
        try:
            self.apply()
        except BaseException:
            self.release()
            raise

    def apply(self) -> None:
        """Confine this process."""
        self.is_wide, self.is_single, self._is_applied = False, False, True
        self._knows_blas = False
        self._pin()
        self._variables.set()
        self._pools.cap(self._threads)
        self._numba.cap(self._threads)
        self._keeps_memory = allocator.keep_memory()

    @contextlib.contextmanager
    def on_all_cores(self) -> Iterator[None]:
        """Have a library start as many threads as there are cores, in a ``with`` block.

        They are confined afterwards, as this thread is, unless the process has all
        cores now: pinned to fewer they take no longer, and `widen` lets them have all.
        """
        self.unpin_thread()
        try:
            yield
        finally:
            if not self.is_wide:
                self._pin()

    def unpin_thread(self) -> None:
        """Let this thread run on all cores: one that was started meanwhile.

        It was born with ours, and is pinned to them again by the next `narrow`.
        """
        if self._pins:
            _pin_thread(0, self._affinity)

    def lift(self) -> Callable[[], None]:
        """Let this thread go, and the environment; return what confines them again.

        See `children`.
        """
        is_pinned = self._pins and allowed_cores() == set(self._cores)
        if is_pinned:
            self.unpin_thread()
        were_set = self._variables.lift()

        def confine_again() -> None:
            if not self._is_applied:  # another thread has closed the session
                return
            if is_pinned:
                _pin_thread(0, self._cores)
            if were_set:
                self._variables.set()

        return confine_again

    def widen(self) -> None:
        """Let this process compute with all cores, until `narrow`."""
        was_wide, self.is_wide = self.is_wide, True  # an interrupt leaves it known
        self.is_single = False
        if not was_wide:
            self._unpin()
            self._numba.restore()
        self._pools.lift()

    def narrow(self) -> None:
        """Have it compute with its own cores again."""
        self._pin()
        self._pools.cap(self._threads)
        self._numba.cap(self._threads)
        self.is_wide = self.is_single = False

    def single(self) -> None:
        """Have BLAS compute with one thread, until `narrow` or `widen`.

        Products are cut differently for several, which would give other bits.
        """
        if not self._knows_blas:  # numba's, which may be loaded by now, or not yet
            importlib.import_module("scipy.linalg.cython_blas")
            self._pools.look_again()
            self._knows_blas = True
        self._pools.cap(1)
        self.is_single = True

    def release(self) -> None:
        """Restore what was before."""
        self._is_applied = False
        self._unpin()
        self._pools.restore()
        self._variables.lift()
        self._numba.restore()
        if self._keeps_memory:
            allocator.give_back()

    def _unpin(self) -> None:
        """Unpin all threads: those started meanwhile were born with our cores."""
        if self._pins:
            _move(proc.threads(), set(self._cores), self._affinity)

    def _pin(self) -> None:
        """Pin this thread, and all that were started since the process was confined."""
        if self._pins:
            _pin_thread(0, self._cores)
            ours = set(proc.threads()) - self._not_ours
            _move(ours, self._affinity, set(self._cores))


def _move(tasks: Iterable[int], from_cores: set[int], to_cores: set[int]) -> None:
    for task in tasks:
        try:
            if os.sched_getaffinity(task) == from_cores:
                _pin_thread(task, to_cores)
        except ProcessLookupError:
            continue  # the thread has ended
        except OSError as error:
            if error.errno not in forbidden.ERRORS:
                raise


def _pin_thread(task: int, cores: Iterable[int]) -> None:
    """Pin a thread; 0 is this one. A sandbox may have begun since that was allowed."""
    try:
        os.sched_setaffinity(task, cores)
    except OSError as error:
        if error.errno not in forbidden.ERRORS:
            raise


class _Variables:
    """The variables by which libraries that are loaded later know of the threads.

    In the script's process they are set for C alone: what the script reads, or gives
    its own processes as a copy of ``os.environ``, is its own environment.
    """

    def __init__(self, threads: int, is_script: bool) -> None:
        self._value, self._is_script = str(threads), is_script
        self._before = {name: os.environ.get(name) for name in THREAD_VARIABLES}
        self._are_set = False

    def set(self) -> None:
        """Tell libraries of the threads."""
        self._are_set = True
        for name in THREAD_VARIABLES:
            if self._is_script:
                os.putenv(name, self._value)
            else:
                os.environ[name] = self._value

    def lift(self) -> bool:
        """Restore what was before, or what the script has set since; tell if any."""
        were_set = self._are_set
        before = os.environ if self._is_script else self._before
        for name in THREAD_VARIABLES if were_set else ():
            value = before.get(name)
            if value is None:
                os.environ.pop(name, None)
                os.unsetenv(name)
            else:
                os.environ[name] = value
        self._are_set = False  # last: what an interrupt leaves, the next one does
        return were_set


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
