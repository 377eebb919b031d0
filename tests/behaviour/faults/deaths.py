"""Ways for a process to end, and for a rank to fail; each is done where it happens."""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import tempfile
from functools import partial

from processes import arrive_and_stay, stamp

import synk


def by_signal(number: int) -> None:
    """Send a signal to this process, and wait until it has come."""
    stamp()
    os.kill(os.getpid(), number)
    signal.pause()


def by_exit(code: int) -> None:
    """End at once."""
    stamp()
    os._exit(code)


def by_segfault() -> None:
    """Read where nothing is."""
    stamp()
    ctypes.string_at(0)


def by_bus_error() -> None:
    """Read a mapped file beyond its end, as in shared memory that was cut."""
    with tempfile.TemporaryFile() as file:
        file.truncate(mmap.PAGESIZE)
        mapped = mmap.mmap(file.fileno(), mmap.PAGESIZE)
        file.truncate(0)
        stamp()
        mapped[0]


def by_abort() -> None:
    """Call ``abort()``, as C libraries do."""
    stamp()
    os.abort()


DEATHS = {
    "SIGKILL": (partial(by_signal, signal.SIGKILL), "SIGKILL"),
    "SIGTERM": (partial(by_signal, signal.SIGTERM), "SIGTERM"),
    "SIGSEGV": (by_segfault, "SIGSEGV"),
    "SIGBUS": (by_bus_error, "SIGBUS"),
    "SIGFPE": (partial(by_signal, signal.SIGFPE), "SIGFPE"),
    "abort": (by_abort, "SIGABRT"),
    "os._exit(0)": (partial(by_exit, 0), "exited with code 0"),
    "os._exit(3)": (partial(by_exit, 3), "exited with code 3"),
}
"""Name -> what is done, and how the message says it."""


# -- exceptions


class NotPicklable(Exception):
    def __init__(self, code, reason):
        super().__init__(f"{reason} ({code})")
        self.hook = lambda: code


class Unprintable(Exception):
    def __str__(self):
        raise ZeroDivisionError("in __str__")


class BadNotes(Exception):
    @property
    def __notes__(self):
        raise ZeroDivisionError("in __notes__")


class ExitsInReduce(Exception):
    def __reduce__(self):
        raise SystemExit(9)


class Base(BaseException):
    pass


def raise_(kind: type, *args: object) -> None:
    raise kind(*args)


def raise_by_rank() -> None:
    raise (ValueError, LookupError, TypeError)[synk.rank()](f"rank {synk.rank()}")


def raise_with_100_mb() -> None:
    raise ValueError("m" * 100_000_000)


def recurse(depth: int = 0) -> int:
    return recurse(depth + 1) + 1


def take_all_memory() -> None:
    """Take more than RLIMIT_AS leaves, as where a machine has no more."""
    import resource

    import numpy as np

    with open("/proc/self/statm") as sizes:
        used = int(sizes.read().split()[0]) * mmap.PAGESIZE
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20), before[1]))
    try:
        np.ones(1 << 27)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


# -- ranks that do not come back


def hold_the_gil() -> None:
    """Sleep in C without letting Python go on, signal handlers included."""
    stamp()
    ctypes.PyDLL(None).sleep(60)


def loop_for_ever() -> None:
    stamp()
    while True:
        pass


def stop() -> None:
    """Be stopped, as by Ctrl-Z or a debugger."""
    stamp()
    os.kill(os.getpid(), signal.SIGSTOP)


def stay() -> None:
    """Stay in Python code until a signal raises."""
    stamp()
    arrive_and_stay()


def write_much() -> None:
    """Write 10 MB to the standard output."""
    with open(1, "w", closefd=False) as stdout:
        for _ in range(10):
            stdout.write("x" * (1 << 20))


def die_with_the_compile_lock() -> None:
    """Be killed while PyTensor's cache of compiled code is locked."""
    from pytensor.compile.compilelock import lock_ctx

    lock_ctx().__enter__()
    by_signal(signal.SIGKILL)
