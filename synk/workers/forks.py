"""Forks of synk's own processes, and unconfined processes for the script.

A process inherits cores and environment from the thread that starts it. While synk has
ranks, the script's thread is confined to rank 0's cores, so a program that it runs, or
a worker of a data loader or of joblib, would have one core of the machine. So synk
lifts the confinement of the thread while it starts a process:

``os.fork``
    By functions that `os.register_at_fork` calls. The child, which runs on with the
    script's memory, gets its thread pools back as well.
``subprocess``, ``os.posix_spawn``, ``os.system``, ``os.exec*``, ``multiprocessing``
    By wrappers, which replace the functions that start a program, from `synk.fork` to
    `synk.close`. Python has public hooks for the start of some of these only, and for
    the end of the start of none.

A program that a library starts in C, without Python, is started confined.
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

from ..memory.descriptors import stream_numbers_taken
from ..signals import with_signals_held_back

PR_SET_PDEATHSIG = 1


@contextlib.contextmanager
def forking_quietly() -> Iterator[None]:
    """Flush the streams, and have ``os.fork`` not warn of threads, in a ``with`` block.

    The fork counts as synk's. The block takes the numbers of closed streams, too.
    """
    flush_streams()
    with warnings.catch_warnings(), stream_numbers_taken():
        # Python 3.12+ and JAX warn if there are threads. The child uses no lock that
        # these may hold: it computes with numpy and PyTensor, which are fork-safe.
        warnings.simplefilter("ignore")
        yield
        _own_forks.append(None)  # if interrupted before, it counts as the script's


_all_forks: list[None] = []
_own_forks: list[None] = []
"""An entry for each fork: `append` is one step, whatever other threads do."""


def forks_by_script() -> int:
    """Return how many forks not by synk this process was in, as parent or child."""
    return len(_all_forks) - len(_own_forks)


def flush_streams() -> None:
    """Flush standard output and error, if they can be flushed."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (AttributeError, OSError, ValueError):
            pass  # closed, or replaced by an object that cannot flush


_handled: list[BaseException] = []
"""The exception that the parent was handling when it forked this process, if any. It is
the context of all exceptions raised here, and has not caused them."""


def forget_handled(error: BaseException) -> None:
    """Remove the exception that the parent was handling from the context of `error`."""
    chain: set[int] = set()
    while error.__context__ is not None and id(error) not in chain:
        if any(error.__context__ is handled for handled in _handled):
            error.__context__ = None
            return
        chain.add(id(error))
        error = error.__context__


def run_to_end(body: Callable[[], object]) -> NoReturn:
    """Call `body` in a forked child, and exit without the parent's exit handlers."""
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
    # If the process `parent` has ended already, no signal comes, so this exits.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def has_ended(pidfd: FileIO | int, seconds: float = 0) -> bool:
    """Return whether the process of `pidfd` has ended; wait `seconds` for that."""
    poll = select.poll()  # not select(), which fails from descriptor 1024 on
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(1000 * seconds))


def forget_handlers() -> None:
    """Remove the script's signal handlers, in a process of synk's."""
    # A handler for SIGCHLD would reap the ranks before the zygote sees how they ended.
    # Schedulers send SIGUSR1 and SIGUSR2 to all processes of a job whose time is nearly
    # over, so that the script saves its state. Ranks must not die of these signals.
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
    # Private, in Python 3.10 to 3.14: `subprocess` calls the first, `multiprocessing`
    # and joblib's loky the second. test_introduction_cores fails if that changes.
    (subprocess, "_fork_exec"),
    (_posixsubprocess, "fork_exec"),
)

Undo = Callable[[], object]

# The objects that confine this process. ``lift()`` frees the calling thread and returns
# a function that confines it again; ``release()`` frees the whole process, for good.
_confined: list[Any] = []

# Functions of other modules that have a wrapper now: module, name, function, wrapper.
_replaced: list[tuple[Any, str, Any, Any]] = []


class _OfThread(threading.local):
    """For each ``os.fork`` that this thread is in, what the parent has to undo."""

    def __init__(self) -> None:
        self.undo: list[list[Undo]] = []


_forking = _OfThread()


def free_new_processes(*confined: Any) -> None:
    """Start the script's processes without `confined` until `confine_new_processes`."""
    _confined[:] = confined
    for module, name in _STARTERS if not _replaced else ():
        original = getattr(module, name, None)
        if original is not None:
            wrapper = _unconfined(original)
            # Noted before it is done, as an interrupt may come between the two.
            _replaced.append((module, name, original, wrapper))
            setattr(module, name, wrapper)


def confine_new_processes() -> None:
    """Undo `free_new_processes`, as far as it got before an interrupt."""
    _confined.clear()
    while _replaced:
        module, name, original, wrapper = _replaced[-1]
        if getattr(module, name) is wrapper:  # and nobody has wrapped it since
            setattr(module, name, original)
        del _replaced[-1]  # last: after an interrupt before, this one is done again


def _lift() -> list[Undo]:
    """Free this thread; return the functions that confine it again, in this order."""
    # A copy: another thread may close the session, and empty the list, meanwhile.
    return [each.lift() for each in tuple(_confined)][::-1]


def _confine_again(undo: list[Undo]) -> None:
    for each in undo:
        each()


def _unconfined(function: Callable) -> Callable:
    """Return a wrapper that frees its thread while `function` starts a program."""

    @functools.wraps(function)
    def start(*args: Any, **kwargs: Any) -> Any:
        if not _confined:
            return function(*args, **kwargs)
        lifted: list[list[Undo]] = []
        try:
            # No interrupt may come between `_lift` and `append`.
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
    _all_forks.append(None)
    if _forking.undo:
        _confine_again(_forking.undo.pop())


def _in_child() -> None:
    _all_forks.append(None)
    if _forking.undo:
        _forking.undo.clear()
        confined, _confined[:] = tuple(_confined), []
        for each in confined:
            each.release()


os.register_at_fork(
    before=_before_fork, after_in_parent=_in_parent, after_in_child=_in_child
)
