"""A rank's CPU cores, its number of threads, and how it keeps freed memory."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import math
import os
import threading
from collections.abc import Callable, Iterable, Iterator

import numba
from numba.np.ufunc import parallel
from threadpoolctl import ThreadpoolController

from ..memory import limits, proc
from ..memory.refusals import FORBIDDEN, why_forbidden

THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
)
"""Variables that libraries read when they are loaded. NUMBA_NUM_THREADS is not one of
them: numba is loaded already, and cannot compile if it changes while threads run."""


def allowed_cores() -> set[int]:
    """Return the cores that this thread may run on; all if a sandbox forbids to ask."""
    try:
        return os.sched_getaffinity(0)
    except OSError as error:
        if error.errno not in FORBIDDEN:
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
        if error.errno not in FORBIDDEN:
            raise
        return why_forbidden(call, error)
    return None


def usable_cores() -> list[int]:
    """Return the cores that affinity and the cgroup's quota leave to this process."""
    cores = sorted(allowed_cores())
    quota = limits.cpu_quota()
    return cores if quota is None else cores[: max(1, math.ceil(quota))]


def share(cores: list[int], rank: int, size: int) -> list[int]:
    """Return those of `cores` that `rank` of `size` gets; shared only if too few.

    >>> share([0, 1, 2, 3, 4], 0, 2), share([0, 1, 2, 3, 4], 1, 2)
    ([0, 1], [2, 3, 4])
    >>> share([0, 1], 2, 3)
    [0]
    """
    if size > len(cores):
        return [cores[rank % len(cores)]]
    return cores[rank * len(cores) // size : (rank + 1) * len(cores) // size]


class Confinement:
    """Pins this process to `cores` and caps its thread pools, until `release`.

    The process also keeps freed memory for its next arrays. `pools` caps libraries that
    are loaded already, and environment variables those that are loaded later. If this
    process `is_script`, these variables are not in its ``os.environ``. Where pinning is
    forbidden, threads run on any core.
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
        settings = dict.fromkeys(THREAD_VARIABLES, str(threads))
        self._variables = Variables(settings, for_c_alone=is_script)
        self._numba = _NumbaThreads()
        self._keeps_memory = self._is_applied = False
        # Whether the process computes with all cores now; whether with one thread.
        self.is_wide = self.is_single = False
        try:
            self.apply()
        except BaseException:
            self.release()
            raise

    @property
    def threads(self) -> int:
        """The number of threads that this process computes with now."""
        wide = len(self._affinity) if self.is_wide else self._threads
        return 1 if self.is_single else wide

    def apply(self) -> None:
        """Confine this process."""
        self._is_applied, self._knows_blas = True, False
        self._narrow()
        self._variables.set()
        self._keeps_memory = keep_memory()

    @contextlib.contextmanager
    def unconfined(self) -> Iterator[None]:
        """Lift the confinement in a ``with`` block, as if synk was not forked."""
        self.release()
        try:
            yield
        finally:
            self.apply()

    @contextlib.contextmanager
    def on_all_cores(self) -> Iterator[None]:
        """Unpin this thread in a block, so that a library starts a thread per core."""
        # Afterwards the new threads are pinned, unless the process has all cores now:
        # pinned to fewer cores they take no longer, and `widen` gives them all.
        self.unpin_thread()
        try:
            yield
        finally:
            if not self.is_wide:
                self._pin()

    def unpin_thread(self) -> None:
        """Let this thread run on all cores, until the next `narrow`."""
        if self._pins:
            _pin_thread(0, self._affinity)

    def lift(self) -> Callable[[], None]:
        """Unpin this thread and restore variables, for `forks`; return the undoing."""
        # Cores belong to this thread, variables to the process: if two threads start
        # processes, the one that has lifted the variables sets them again.
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
        """Compute with all cores until `narrow`, while the other ranks are idle."""
        if self.is_wide and not self.is_single:
            return
        was_wide, self.is_wide = self.is_wide, True  # first: an interrupt may follow
        self.is_single = False
        if not was_wide:
            self._unpin()
            self._numba.restore()
        self._pools.lift()

    def narrow(self) -> None:
        """Compute with this rank's own cores again."""
        if self.is_wide:
            self._narrow()

    def _narrow(self) -> None:
        self._pin()
        self._pools.cap(self._threads)
        self._numba.cap(self._threads)
        # Last: after an interrupt before this line, the next `narrow` does it all.
        self.is_wide = self.is_single = False

    def compute_with(self, one_thread: bool) -> None:
        """Compute with one thread (the same bits on any ranks), or with the rank's."""
        has_more = self.is_wide or self._threads > 1
        if not one_thread and (self.is_wide or self.is_single):
            self._narrow()
        elif one_thread and has_more and not self.is_single:
            # BLAS divides products among several threads, which gives other bits.
            if not self._knows_blas:  # the BLAS that numba calls may not be loaded yet
                importlib.import_module("scipy.linalg.cython_blas")
                self._pools.look_again()
                self._knows_blas = True
            self._pools.cap(1)
            self.is_single = True

    def release(self) -> None:
        """Undo the confinement: cores, threads, variables and memory as before."""
        self._is_applied = False
        self._unpin()
        self._pools.restore()
        self._variables.lift()
        self._numba.restore()
        if self._keeps_memory:
            give_memory_back()

    def _unpin(self) -> None:
        """Unpin all threads; those started meanwhile have inherited our cores."""
        for task in proc.threads() if self._pins else ():
            _pin_thread(task, self._affinity, only_from=set(self._cores))

    def _pin(self) -> None:
        """Pin this thread, and all threads started since the process was confined."""
        if self._pins:
            _pin_thread(0, self._cores)
            for task in set(proc.threads()) - self._not_ours:
                _pin_thread(task, self._cores, only_from=self._affinity)


def _pin_thread(
    task: int, cores: Iterable[int], only_from: set[int] | None = None
) -> None:
    """Pin thread `task` (0: this one), if it runs, and on `only_from` if given."""
    try:
        if only_from is None or os.sched_getaffinity(task) == only_from:
            os.sched_setaffinity(task, cores)
    except ProcessLookupError:
        pass
    except OSError as error:  # a sandbox may have begun since `why_not_pinned`
        if error.errno not in FORBIDDEN:
            raise


class Variables:
    """Environment variables of this process, from `set` to `lift`.

    A variable that the script has changed meanwhile keeps the script's value. With
    `for_c_alone` only C's ``getenv`` sees the variables: ``os.environ``, which the
    script reads and passes to its processes, does not have them.
    """

    def __init__(self, settings: dict[str, str], for_c_alone: bool = False) -> None:
        self._settings, self._for_c_alone = dict(settings), for_c_alone
        self._before = {name: os.environ.get(name) for name in settings}
        self._are_set = False

    def set(self) -> None:
        """Set the variables."""
        self._are_set = True
        for name, value in self._settings.items():
            if self._for_c_alone:
                os.putenv(name, value)
            else:
                os.environ[name] = value

    def lift(self) -> bool:
        """Restore the values from before; return whether the variables were set."""
        were_set = self._are_set
        for name, ours in tuple(self._settings.items()) if were_set else ():
            value = os.environ.get(name)
            if not self._for_c_alone:
                if value != ours:
                    del self._settings[name]
                    continue
                value = self._before[name]
            if value is None:
                os.environ.pop(name, None)
                os.unsetenv(name)
            else:
                os.environ[name] = value
        self._are_set = False  # last: after an interrupt, the next `lift` does it all
        return were_set


class ThreadPools:
    """Thread pools of the loaded BLAS and OpenMP libraries: `cap`, then `restore`.

    A fork ends the threads of OpenBLAS. To set their number in the child starts them
    again, and each watches for work for some 30 ms: when every rank did that, it was
    half the cost of a session on two cores. A child inherits the number. So the master
    sets it before the fork, and ranks set it only where it differs.
    """

    def __init__(self) -> None:
        self._libraries: ThreadpoolController | None = None
        self._before: dict[str, int] = {}

    def cap(self, threads: int) -> None:
        """Have every pool use `threads` threads."""
        if self._libraries is None:
            # Looked for again after a `restore`: some may have been loaded meanwhile.
            self._libraries = ThreadpoolController()
            self._before = self._numbers()
        self._set(dict.fromkeys(self._before, threads))

    def look_again(self) -> None:
        """Include libraries that have been loaded since `cap`."""
        self._libraries = ThreadpoolController()
        self._before = self._numbers() | self._before

    def lift(self) -> None:
        """Give every pool its former number of threads, until the next `cap`."""
        if self._libraries is not None:
            self._set(self._before)

    def restore(self) -> None:
        """Give every pool its former number of threads, and forget the libraries."""
        self.lift()
        self._libraries = None

    def _numbers(self) -> dict[str, int]:
        assert self._libraries is not None
        infos = self._libraries.info()
        return {info["filepath"]: info["num_threads"] for info in infos}

    def _set(self, wanted: dict[str, int]) -> None:
        assert self._libraries is not None
        for path, number in self._numbers().items():
            if number != wanted[path]:  # setting an equal number would start threads
                self._libraries.select(filepath=[path]).limit(limits=wanted[path])


class _NumbaThreads:
    """The number of numba's threads, set without starting them.

    With numba's OpenMP layer, a child that is forked after the threads have started is
    killed by its first parallel loop, and the master may fork again. So while the
    threads do not run, `cap` changes the number that they will be started with.
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
            # The threads were started since `cap`. OpenMP can have more later; other
            # layers keep the number that they were started with.
            numba.set_num_threads(self._all)


def _numba_runs() -> bool:
    """Return whether numba's threads run, without starting them."""
    try:
        numba.threading_layer()
    except ValueError:
        return False
    return True


# -- memory of temporary arrays

# Compiled functions allocate their intermediate arrays in every call. By default the C
# library takes large ones from the kernel and gives them back, and the kernel zeroes
# each page of 4 kB at a fault: 8 % of the time of a network's step with 2,048 rows of
# 800 units. So ranks keep freed memory, as much as a call has needed.

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of <malloc.h>

_KEEP = 2**31 - 1, 2**30
"""Trim and mmap threshold in bytes: free memory beyond the first goes back to the
kernel, and so do arrays of at least the second when they are freed."""

_USUAL = 64 * 2**20, 32 * 2**20
"""The thresholds at which the GNU C library's own adjustment ends."""

_USERS_SETTINGS = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


def keep_memory() -> bool:
    """Keep freed memory from now on; return whether C library and user allow it."""
    if any(name in os.environ for name in _USERS_SETTINGS):
        return False
    return _set_thresholds(*_KEEP)


def give_memory_back() -> None:
    """Give free memory back to the kernel now, and large arrays when they are freed."""
    if _set_thresholds(*_USUAL):
        ctypes.CDLL(None).malloc_trim(0)


def _set_thresholds(trim: int, mmap: int) -> bool:
    libc = ctypes.CDLL(None)
    is_gnu = hasattr(libc, "gnu_get_libc_version")  # others lack mallopt, or stub it
    return is_gnu and bool(
        libc.mallopt(_MMAP_THRESHOLD, mmap) and libc.mallopt(_TRIM_THRESHOLD, trim)
    )
