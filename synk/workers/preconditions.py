"""What must be so before a process forks ranks; all of it is checked first."""

from __future__ import annotations

import contextlib
import numbers
import operator
import os
import sys
import warnings
from collections.abc import Sequence

from ..errors import OversubscriptionWarning, StateError
from ..memory import proc
from ..user_frames import callers_level
from . import affinity
from .devices import Device
from .forks import pidfd_of


def check_can_fork(state: str, rank: int, size: int) -> None:
    """Raise an error of synk's unless this process can be forked now."""
    if state == "worker":
        raise StateError(f"this is rank {rank}, a worker: it cannot fork ranks")
    if state in ("running", "broken"):
        raise StateError(
            f"synk is forked already, with {size} ranks; call synk.close() first"
        )
    if sys.platform != "linux":
        raise StateError(
            f"synk needs Linux (pidfd, futexes, /proc); got {sys.platform}"
        )
    proc.number()  # which it may not have there
    with contextlib.suppress(OSError):  # a limit, which is told where it matters
        pidfd_of(os.getpid()).close()  # which a sandbox may forbid


def why_no_fork() -> str | None:
    """Return why ranks cannot be forked from this process, or None if they can."""
    if _cuda_is_up():
        return "this process has a CUDA context, which a forked process cannot use"
    if _mpi_is_up():
        return "this process speaks MPI, whose connections a fork does not copy"
    if _xla_is_up():
        return "this process runs an XLA backend, whose threads a fork does not copy"
    return None


def _mpi_is_up() -> bool:
    """Tell whether this process has initialized MPI, by mpi4py."""
    mpi = sys.modules.get("mpi4py.MPI")
    return mpi is not None and mpi.Is_initialized()


def _cuda_is_up() -> bool:
    """Tell whether a CUDA context exists, made by whatever library.

    CUDA keeps /dev/nvidia-uvm open from the first context on; NVML does not open it.
    """
    for fd in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{fd}").startswith("/dev/nvidia-uvm"):
                return True
        except OSError:
            continue  # the descriptor that listdir itself had open
    return False


def _xla_is_up() -> bool:
    """Tell whether XLA runs threads here; they carry its name."""
    for task in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{task}/comm") as comm:
                if comm.read().startswith(("tf_XLA", "XLA", "py_xla")):
                    return True
        except OSError:
            continue  # the thread has ended
    return False


def warn_of_few_cores(devices: Sequence[Device], cores: Sequence[int]) -> None:
    """Warn where ranks have to take turns on a core, and say what follows."""
    ranks, usable, there = len(devices), len(cores), os.cpu_count() or 0
    if ranks <= usable:
        return
    has = f"{usable} usable core{'s' * (usable != 1)}"
    if there > usable:
        has += f" (of {there}: CPU affinity or a container's quota leaves no more)"
    if devices[0].is_gpu:
        text = f"{ranks} ranks on GPUs and {has}: they take turns to start work on them"
    else:
        text = (
            f"{ranks} ranks on {has}: they take turns, so that calls are slower than"
            f" with synk.fork({usable})"
        )
    warnings.warn(text, OversubscriptionWarning, stacklevel=callers_level())


def warn_if_not_pinned() -> None:
    """Warn where a sandbox forbids that ranks are pinned to cores."""
    why = affinity.why_not_pinned()
    if why is not None:
        text = f"ranks are not pinned to cores, and may be slower: {why}"
        warnings.warn(text, RuntimeWarning, stacklevel=callers_level())


def check_size(n: int | None) -> int | None:
    """Return the number of ranks to fork, or None for one on each device."""
    return None if n is None else _check_count("n", n)


def check_threads(threads: int | None) -> int | None:
    """Return the number of threads a rank may use, or None for its cores."""
    return None if threads is None else _check_count("threads", threads)


def check_timeout(timeout: float | None) -> float | None:
    """Return the seconds a command may take, or None for no limit."""
    if timeout is None:
        return None
    if not isinstance(timeout, numbers.Real):
        raise TypeError(f"timeout must be a number of seconds, got {timeout!r}")
    if not timeout > 0:
        raise ValueError(f"timeout must be a positive number of seconds, got {timeout}")
    return float(timeout)


def check_restarts(restarts: int) -> int:
    """Return how often a session may come back by itself."""
    return _check_count("restarts", restarts, least=0)


def _check_count(what: str, value: int, least: int = 1) -> int:
    try:
        count = operator.index(value)
    except TypeError:
        raise TypeError(f"{what} must be an int, got {value!r}") from None
    if count < least:
        raise ValueError(f"{what} must be at least {least}, got {count}")
    return count
