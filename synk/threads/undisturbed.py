"""Running something that no signal handler of the script may come into.

A handler may raise, as Ctrl-C does, between any two calls. To hold signals back in this
thread is not enough: another thread of the process takes them then, and Python runs the
handler in the main thread all the same. So the handlers themselves are put aside, and
what has come meanwhile is sent once more at the end.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from typing import Any

_NUMBERS = tuple(
    getattr(signal, name)
    for name in (
        *("SIGINT", "SIGTERM", "SIGALRM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2"),
        *("SIGCHLD", "SIGCONT", "SIGVTALRM", "SIGPROF", "SIGWINCH", "SIGTSTP", "SIGIO"),
    )
)
"""Signals that scripts handle. To look through all of them takes longer."""


def undisturbed(function: Callable[..., object], *args: Any) -> None:
    """Call a function; handlers of signals run before or after it.

    What a handler raises before, keeps the function from being called.
    """
    if threading.current_thread() is not threading.main_thread():
        function(*args)  # handlers run in the main thread only
        return
    came: list[int] = []

    def note(number: int, _: object) -> None:
        came.append(number)

    handlers = []
    for number in _NUMBERS:
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
