"""Processes that are forked or started: synk's own, and the script's.

While there are ranks, what the script starts is as if there were none. A process takes
cores and environment over from the thread that starts it: a program that the script
runs, a worker of a data loader or of joblib would have one core of the machine. So the
thread is let go for as long as it takes to start one:

``os.fork``
    By what `os.register_at_fork` calls. The child, which goes on with what there is in
    memory, gets its thread pools back as well.
``subprocess``, ``os.posix_spawn``, ``os.system``, ``os.exec*``, ``multiprocessing``
    By functions that stand in the place of those that start a program. They are there
    from fork to close. Python has a public way to be told of some of these only, and
    of none when it is over.

A program that a library starts in C, without Python, is not seen.
"""

from __future__ import annotations

import _posixsubprocess
import contextlib
import ctypes
import functools
import os
import select
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from io import FileIO
from typing import Any, NoReturn

from ..memory.descriptors import streams_taken
from ..signals import with_signals_held_back

PR_SET_PDEATHSIG = 1


@contextlib.contextmanager
def forking_quietly() -> Iterator[None]:
    """Have ``os.fork`` in a ``with`` block not warn of threads, nor open streams."""
    flush_streams()
    with warnings.catch_warnings(), streams_taken():
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


def flush_streams() -> None:
    """Write out what this process has printed, as far as that can be done."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (AttributeError, OSError, ValueError):
            pass  # closed or replaced by something that cannot flush


_handled: list[BaseException] = []
"""What this process was forked in the handling of, in an ``except`` of the script say:
it is the context of whatever is raised here, and has nothing to do with it."""


def forget_handled(error: BaseException) -> None:
    """Have an exception not be shown as raised in the handling of the parent's."""
    chain: set[int] = set()
    while error.__context__ is not None and id(error) not in chain:
        if any(error.__context__ is handled for handled in _handled):
            error.__context__ = None
            return
        chain.add(id(error))
        error = error.__context__


def run_to_end(body: Callable[[], object]) -> NoReturn:
    """Run a forked child to its end, without the parent's exit handlers."""
    if (handled := sys.exception()) is not None:
        _handled.append(handled)
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
    """Have the kernel kill this process when the thread that started it ends."""
    # If that has ended already the signal will not come: this ends the process then.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def has_ended(pidfd: FileIO | int, seconds: float = 0) -> bool:
    """Tell whether the process of a pidfd has ended; wait some seconds for that."""
    poll = select.poll()  # not select(), which fails from descriptor 1024 on
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(1000 * seconds))


def forget_handlers() -> None:
    """Undo what the script has made of signals: none of its handlers must run here."""
    # Those for SIGCHLD would reap the ranks before the zygote sees how they ended.
    # Schedulers send SIGUSR1 and SIGUSR2 to all processes of a job whose time is nearly
    # over, for the script to save what it has: ranks must not die of them.
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


# -- what the script starts

_STARTERS: tuple[tuple[Any, str], ...] = (
    (os, "posix_spawn"),
    (os, "posix_spawnp"),
    (os, "system"),
    (os, "execv"),
    (os, "execve"),
    # Private, in Python 3.10 to 3.14: what `subprocess`, and what `multiprocessing` and
    # joblib's loky start their processes by. test_introduction_cores tells if that
    # changes.
    (subprocess, "_fork_exec"),
    (_posixsubprocess, "fork_exec"),
)

Undo = Callable[[], object]

# What confines this process. ``lift()`` lets the calling thread go, and returns what
# confines it again; ``release()`` lets all of the process go, for good.
_confined: list[Any] = []

# What stands in the place of a function of another module: module, name, the function,
# and its stand-in.
_replaced: list[tuple[Any, str, Any, Any]] = []


class _OfThread(threading.local):
    """What a thread that is forking has to undo in the parent."""

    def __init__(self) -> None:
        self.undo: list[list[Undo]] = []


_forking = _OfThread()


def free_what_starts(*confined: Any) -> None:
    """Have processes be born free of `confined` from here on to `free_no_more`."""
    _confined[:] = confined
    for module, name in _STARTERS if not _replaced else ():
        original = getattr(module, name, None)
        if original is not None:
            stand_in = _starting(original)
            # First noted, then done: an interrupt may come between the two.
            _replaced.append((module, name, original, stand_in))
            setattr(module, name, stand_in)


def free_no_more() -> None:
    """End what `free_what_starts` has begun, if anything, or half of it."""
    _confined.clear()
    while _replaced:
        module, name, original, stand_in = _replaced[-1]
        if getattr(module, name) is stand_in:  # and nobody has wrapped it since
            setattr(module, name, original)
        del _replaced[-1]  # last: an interrupt before has this one done again


def _lift() -> list[Undo]:
    """Let this thread go; return what is to be called afterwards, in this order."""
    # Another thread may close the session, and empty the list, between two of them.
    return [each.lift() for each in tuple(_confined)][::-1]


def _confine_again(undo: list[Undo]) -> None:
    for each in undo:
        each()


def _starting(function: Callable) -> Callable:
    """Return a function that starts a program, in a thread that is let go."""

    @functools.wraps(function)
    def start(*args: Any, **kwargs: Any) -> Any:
        if not _confined:
            return function(*args, **kwargs)
        lifted: list[list[Undo]] = []
        try:
            # No interrupt may come between the one and the other.
            with_signals_held_back(lambda: lifted.append(_lift()))
            return function(*args, **kwargs)
        finally:
            for undo in lifted:
                with_signals_held_back(_confine_again, undo)

    return start


# -- os.fork


def _before_fork() -> None:
    if _confined:
        _forking.undo.append(_lift())


def _in_parent() -> None:
    _all.append(None)
    if _forking.undo:
        _confine_again(_forking.undo.pop())


def _in_child() -> None:
    _all.append(None)
    if _forking.undo:
        _forking.undo.clear()
        confined, _confined[:] = tuple(_confined), []
        for each in confined:
            each.release()


os.register_at_fork(
    before=_before_fork, after_in_parent=_in_parent, after_in_child=_in_child
)
