"""Keeping signals, their handlers and Python's collector from what they would disturb.

A signal handler of the script may raise, as Ctrl-C does, between any two calls that
Python code makes in the main thread. `with_signals_held_back` is quick and enough where
objects own what is made (see `memory.descriptors`); `undisturbed` lets nothing through.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any


def with_signals_held_back(function: Callable[..., object], *args: Any) -> None:
    """Call a function with all signals held back in this thread."""
    # Another thread of the process may take one (one of OpenBLAS's), and its handler
    # runs in the main thread all the same, between any two calls. So the mask is set
    # back by a `finally` whose first call does it, with arguments that were made
    # before. A context manager would not do: Python looks for handlers as it enters
    # `__exit__`.
    before = ctypes.byref(_SignalMask())
    _set_mask(_SIG_SETMASK, None, before)
    try:
        _set_mask(_SIG_SETMASK, _ALL_SIGNALS, None)
        function(*args)
    finally:
        _set_mask(_SIG_SETMASK, before, None)


# Not signal.pthread_sigmask, which runs handlers itself, and builds sets of enumeration
# members: 8 to 120 us, not 1.
_SignalMask = ctypes.c_byte * 128
_ALL_SIGNALS = ctypes.byref(_SignalMask(*[-1] * 128))
_SIG_SETMASK = int(signal.SIG_SETMASK)
_set_mask = ctypes.PyDLL(None).pthread_sigmask


_HANDLED = tuple(
    getattr(signal, name)
    for name in (
        *("SIGINT", "SIGTERM", "SIGALRM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2"),
        *("SIGCHLD", "SIGCONT", "SIGVTALRM", "SIGPROF", "SIGWINCH", "SIGTSTP", "SIGIO"),
    )
)
"""Signals that scripts handle. To look through all of them takes longer."""


def undisturbed(function: Callable[..., object], *args: Any) -> None:
    """Call a function; handlers of signals run before or after it."""
    # To hold signals back in this thread is not enough: another thread takes them then,
    # and Python runs the handler in the main thread all the same. So the handlers
    # themselves are put aside, and what has come meanwhile is sent once more at the
    # end. What a handler raises before, keeps the function from being called.
    if threading.current_thread() is not threading.main_thread():
        function(*args)  # handlers run in the main thread only
        return
    came: list[int] = []

    def note(number: int, _: object) -> None:
        came.append(number)

    handlers = []
    for number in _HANDLED:
        handler = signal.getsignal(number)
        if callable(handler):
            handlers.append((number, handler))
    left = list(handlers)
    try:
        for number, _ in handlers:
            signal.signal(number, note)
        # From here on nothing raises but the function itself.
        function(*args)
    finally:
        _set_back(left)
        for number in came:
            signal.raise_signal(number)


def _set_back(left: list[tuple[int, Any]]) -> None:
    """Set handlers back, all of them, whatever one raises that is back already."""
    try:
        while left:
            signal.signal(*left[-1])
            del left[-1]
    except BaseException:
        _set_back(left)
        raise


@contextlib.contextmanager
def without_collection() -> Iterator[None]:
    """Have Python's collector wait in a block in which much is made and little dies."""
    # It looks at all objects again and again as they become more. That took a sixth of
    # the time of placing ResNet-50's training step, and a fifth of loading a graph or
    # of a first call by JAX: imports, rewriting, tracing.
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
