"""Run code without signal handlers, or without Python's garbage collector, in between.

A signal handler of the script may raise, as Ctrl-C does, between any two calls that
Python code makes in the main thread. `with_signals_held_back` takes about 1 us, and is
enough where an object owns each descriptor or process as soon as it is made (see
`memory.descriptors`). `undisturbed` takes longer, and lets no handler run at all.
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
    """Call ``function(*args)`` with all signals blocked in this thread."""
    # Another thread of the process, such as one of OpenBLAS's, may take a signal. Its
    # handler then runs in the main thread all the same, between any two calls. So a
    # `finally` restores the mask, by its first call and with arguments made before. A
    # context manager would not do: Python runs handlers as it enters `__exit__`.
    before = ctypes.byref(_SignalMask())
    _set_mask(_SIG_SETMASK, None, before)
    try:
        _set_mask(_SIG_SETMASK, _ALL_SIGNALS, None)
        function(*args)
    finally:
        _set_mask(_SIG_SETMASK, before, None)


# C's function, as Python's signal.pthread_sigmask runs handlers itself, and builds sets
# of enumeration members, which takes 8 to 120 us instead of 1.
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
"""The signals that scripts handle; to look at all signals would take longer."""


def undisturbed(function: Callable[..., object], *args: Any) -> None:
    """Call ``function(*args)``; signal handlers run before or after it only."""
    # To block signals in this thread is not enough: another thread takes them then, and
    # Python runs the handler in the main thread all the same. So this replaces the
    # handlers, and raises the signals that came meanwhile once more at the end. If a
    # handler raises while handlers are being replaced, `function` is not called.
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
        # From here on only `function` itself can raise.
        function(*args)
    finally:
        _set_back(left)
        for number in came:
            signal.raise_signal(number)


def _set_back(left: list[tuple[int, Any]]) -> None:
    """Restore the handlers `left`, even if one that is restored already raises."""
    try:
        while left:
            signal.signal(*left[-1])
            del left[-1]
    except BaseException:
        _set_back(left)
        raise


@contextlib.contextmanager
def without_collection() -> Iterator[None]:
    """Disable garbage collection in a ``with`` block that makes many objects."""
    # The collector goes through all objects again each time their number has grown.
    # That took a sixth of the time of placing ResNet-50's training step, and a fifth of
    # loading a graph or of a first call by JAX (imports, rewriting, tracing).
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
