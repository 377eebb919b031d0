"""Cores, threads and memory: what each rank computes with."""

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
"""For libraries that are yet to be loaded. Not NUMBA_NUM_THREADS: numba is loaded, and
fails to compile anything if that changes while its threads run."""


def allowed_cores() -> set[int]:
    """Return the cores that this thread may run on."""
    # All of the machine's where it is forbidden to ask; see `why_not_pinned`.
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
    """Return the cores this process may use, after affinity and cgroup quota."""
    cores = sorted(allowed_cores())
    quota = limits.cpu_quota()
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

    It also has the process keep the memory of temporary arrays. Libraries that are
    loaded already are capped through `pools`, and those that come later through the
    environment; ``os.environ`` of a script stays as it is. Where pinning is forbidden,
    threads stay where they are, and the rest is done.
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
        # Whether it computes with all cores for now, or with one thread.
        self.is_wide = self.is_single = False
        try:
            self.apply()
        except BaseException:
            self.release()
            raise

    @property
    def threads(self) -> int:
        """How many threads it is to compute with now."""
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
        """Let this process use all cores in a ``with`` block, as if not forked."""
        self.release()
        try:
            yield
        finally:
            self.apply()

    @contextlib.contextmanager
    def on_all_cores(self) -> Iterator[None]:
        """Have a library start as many threads as there are cores, in a block."""
        # They are confined afterwards, unless the process has all cores now: pinned to
        # fewer they take no longer, and `widen` lets them have all.
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
        """Let this thread, and the environment, go for `forks`; return the undoing."""
        # Cores are those of this thread, and variables the process's: of two threads
        # that start something, the one that has lifted them sets them again.
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
        """Compute with all cores until `narrow`: the other ranks do nothing."""
        if self.is_wide and not self.is_single:
            return
        was_wide, self.is_wide = self.is_wide, True  # an interrupt leaves it known
        self.is_single = False
        if not was_wide:
            self._unpin()
            self._numba.restore()
        self._pools.lift()

    def narrow(self) -> None:
        """Compute with the process's own cores."""
        if self.is_wide:
            self._narrow()

    def _narrow(self) -> None:
        self._pin()
        self._pools.cap(self._threads)
        self._numba.cap(self._threads)
        # Last: what an interrupt leaves undone, the next `narrow` does.
        self.is_wide = self.is_single = False

    def compute_with(self, one_thread: bool) -> None:
        """Compute with one thread, for the same bits on any ranks, or with all."""
        has_more = self.is_wide or self._threads > 1
        if not one_thread and (self.is_wide or self.is_single):
            self._narrow()
        elif one_thread and has_more and not self.is_single:
            self._compute_with_one()

    def _compute_with_one(self) -> None:
        # BLAS cuts products differently for several, which would give other bits.
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
            give_memory_back()

    def _unpin(self) -> None:
        """Unpin all threads: those started meanwhile were born with our cores."""
        for task in proc.threads() if self._pins else ():
            _pin_thread(task, self._affinity, only_from=set(self._cores))

    def _pin(self) -> None:
        """Pin this thread, and all that were started since the process was confined."""
        if self._pins:
            _pin_thread(0, self._cores)
            for task in set(proc.threads()) - self._not_ours:
                _pin_thread(task, self._cores, only_from=self._affinity)


def _pin_thread(
    task: int, cores: Iterable[int], only_from: set[int] | None = None
) -> None:
    """Pin a thread, 0 for this one, if it is on those cores. It may have ended."""
    try:
        if only_from is None or os.sched_getaffinity(task) == only_from:
            os.sched_setaffinity(task, cores)
    except ProcessLookupError:
        pass
    except OSError as error:  # a sandbox may have begun since that was allowed
        if error.errno not in FORBIDDEN:
            raise


class Variables:
    """Variables of the environment of this process, set until they are lifted.

    Those that the script has changed meanwhile are the script's. With `for_c_alone`
    they are not in ``os.environ``, which the script reads and gives to its processes.
    """

    def __init__(self, settings: dict[str, str], for_c_alone: bool = False) -> None:
        self._settings, self._for_c_alone = dict(settings), for_c_alone
        self._before = {name: os.environ.get(name) for name in settings}
        self._are_set = False

    def set(self) -> None:
        """Set them."""
        self._are_set = True
        for name, value in self._settings.items():
            if self._for_c_alone:
                os.putenv(name, value)
            else:
                os.environ[name] = value

    def lift(self) -> bool:
        """Restore what was before; tell whether they were set."""
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
        self._are_set = False  # last: what an interrupt leaves, the next one does
        return were_set


class ThreadPools:
    """Threads of BLAS and OpenMP libraries that are loaded: `cap`, then `restore`.

    A fork ends the threads of OpenBLAS, and whoever sets their number then starts them
    again, to watch for work for some 30 ms each: when every rank did that, it was half
    the cost of a session on two cores. The number itself comes through a fork, so the
    master sets it before, and afterwards it is set only where it is another.
    """

    def __init__(self) -> None:
        self._libraries: ThreadpoolController | None = None
        self._before: dict[str, int] = {}

    def cap(self, threads: int) -> None:
        """Have every pool use so many threads."""
        if self._libraries is None:
            # Anew after a `restore`: libraries may have been loaded meanwhile.
            self._libraries = ThreadpoolController()
            self._before = self._numbers()
        self._set(dict.fromkeys(self._before, threads))

    def look_again(self) -> None:
        """Take libraries in that have been loaded since `cap`."""
        self._libraries = ThreadpoolController()
        self._before = self._numbers() | self._before

    def lift(self) -> None:
        """Give every pool its threads again, until it is next capped."""
        if self._libraries is not None:
            self._set(self._before)

    def restore(self) -> None:
        """Give every pool the threads that it had before it was capped."""
        self.lift()
        self._libraries = None

    def _numbers(self) -> dict[str, int]:
        assert self._libraries is not None
        infos = self._libraries.info()
        return {info["filepath"]: info["num_threads"] for info in infos}

    def _set(self, wanted: dict[str, int]) -> None:
        assert self._libraries is not None
        for path, number in self._numbers().items():
            if number != wanted[path]:  # to set the same one would start threads
                self._libraries.select(filepath=[path]).limit(limits=wanted[path])


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


# -- memory of temporary arrays

# Compiled functions make their intermediate arrays anew in every call. The C library
# takes large ones from the kernel and gives them back, and the kernel hands out zeroed
# pages, one fault for each 4 kB: of a step of a network with 2,048 rows of 800 units,
# that was 8 % of the time. Ranks keep the memory instead, as much as a call has needed.

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of <malloc.h>

_KEEP = 2**31 - 1, 2**30
"""Bytes: free memory beyond the first goes back, and arrays from the second on do."""

_USUAL = 64 * 2**20, 32 * 2**20
"""What the GNU C library's own adjustment of these comes to in the end."""

_OF_THE_USER = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


def keep_memory() -> bool:
    """Keep memory from now on; tell whether the C library and the user let us."""
    if any(name in os.environ for name in _OF_THE_USER):
        return False
    return _set_thresholds(*_KEEP)


def give_memory_back() -> None:
    """Give back what is free now, and large arrays from now on."""
    if _set_thresholds(*_USUAL):
        ctypes.CDLL(None).malloc_trim(0)


def _set_thresholds(trim: int, mmap: int) -> bool:
    libc = ctypes.CDLL(None)
    is_gnu = hasattr(libc, "gnu_get_libc_version")  # others have no mallopt, or a stub
    return is_gnu and bool(
        libc.mallopt(_MMAP_THRESHOLD, mmap) and libc.mallopt(_TRIM_THRESHOLD, trim)
    )
