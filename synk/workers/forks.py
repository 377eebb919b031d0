"""Forking a process, and what every forked process of synk does."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import select
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from io import FileIO
from typing import NoReturn

from ..forbidden import in_words
from ..memory.descriptors import above_streams, opened, opened_for_life

_PR_SET_PDEATHSIG = 1


def fork_quietly() -> int:
    """``os.fork`` without the warnings for threads of a process that we leave alone."""
    with forking_quietly():
        return os.fork()


@contextlib.contextmanager
def forking_quietly() -> Iterator[None]:
    """Have ``os.fork`` in a ``with`` block not warn of threads."""
    flush_streams()
    with warnings.catch_warnings():
        # Python 3.12+ and JAX warn of threads. The child never touches what those
        # threads may hold: it computes with numpy and PyTensor, which are fork-safe.
        warnings.simplefilter("ignore")
        yield
        _ours.append(None)  # not if it was interrupted: then it counts as the script's


_all: list[None] = []
_ours: list[None] = []
"""An entry for each fork: to append takes one step, whatever other threads do."""


def by_the_script() -> int:
    """Return how many forks this process was in that synk has not made."""
    return len(_all) - len(_ours)


def _note_fork() -> None:
    _all.append(None)


os.register_at_fork(after_in_parent=_note_fork, after_in_child=_note_fork)


def flush_streams() -> None:
    """Write out what this process has printed, as far as that can be done."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (AttributeError, OSError, ValueError):
            pass  # closed or replaced by something that cannot flush


def run_to_end(body: Callable[[], object]) -> NoReturn:
    """Run a forked child to its end, without the parent's exit handlers."""
    status = 1
    try:
        body()
        status = 0
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        flush_streams()
        os._exit(status)


def end_with_parent(parent: int) -> None:
    """Have the kernel kill this process when the thread that started it ends.

    If that has ended already the signal will not come: this ends the process then.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def outlive_parent() -> None:
    """Undo `end_with_parent`."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, 0)


def end_without(master: int) -> None:
    """End this process if the one of a pidfd is gone."""
    poll = select.poll()
    poll.register(master, select.POLLIN)
    if poll.poll(0):
        os._exit(1)


def forget_handlers() -> None:
    """Undo what the script has made of signals: none of its handlers must run here.

    Those for SIGCHLD would reap the ranks before the zygote sees how they ended.
    Schedulers send SIGUSR1 and SIGUSR2 to all processes of a job whose time is nearly
    over, for the script to save what it has: ranks must not die of them.
    """
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    for number in (signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        if signal.getsignal(number) is signal.SIG_DFL:  # not faulthandler's
            signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def open_pipe() -> tuple[FileIO, FileIO]:
    """Return the ends of a new pipe: where it is read and where it is written to.

    They are objects that own their descriptors from the first moment on. Holding
    signals back is not enough: another thread may take one, and the handler runs here
    after any call that Python code makes. These calls are made in C.
    """
    ends = itertools.chain.from_iterable(itertools.starmap(os.pipe, [()]))
    reads, writes = map(FileIO, ends, "rw")
    return above_streams(reads), above_streams(writes)


def pidfd_of(pid: int) -> FileIO:
    """Return a pidfd of a process, owned as the ends of `open_pipe` are."""
    with in_words("pidfd_open"):
        return opened(_pidfd_opener(), pid)


def open_pidfd(pid: int) -> int:
    """Return a descriptor that can be read from when a process has ended."""
    with in_words("pidfd_open"):
        return opened_for_life(_pidfd_opener(), pid)


def _pidfd_opener() -> Callable[[int], int]:
    """Return ``os.pidfd_open``, or what does the same.

    A Python built with old kernel headers does not have it. Conda's is such a one: it
    is made for kernels that lack the call, and runs on others.
    """
    return getattr(os, "pidfd_open", _open_pidfd_by_number)


def _open_pidfd_by_number(pid: int) -> int:
    fd = ctypes.CDLL(None, use_errno=True).syscall(_SYS_PIDFD_OPEN, pid, 0)
    if fd < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"pidfd_open: {os.strerror(number)}")
    return fd


_SYS_PIDFD_OPEN = 434
"""The same on all architectures but Alpha."""
