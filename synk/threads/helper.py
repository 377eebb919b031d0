"""A thread that does one job after the other, while the script's thread goes on."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

from .undisturbed import undisturbed


class Helper:
    """Does one job at a time, in a thread that begins with the first.

    After an interrupt in `begin` or `wait` nothing may be called but `close`.

    Parameters
    ----------
    name : str
        Of the thread.
    """

    def __init__(self, name: str) -> None:
        self._thread = threading.Thread(target=self._run, name=name)
        self._job: Callable[[], Any] = nothing
        self._result: Any = None
        self._error: BaseException | None = None
        self._is_done, self._is_closed = True, False
        # Both are taken in the beginning, and given by who has something to say: a
        # message that may be there already. What it says is in the flags.
        self._to_do, self._to_be_done = threading.Lock(), threading.Lock()
        self._to_do.acquire()
        self._to_be_done.acquire()

    def begin(self, function: Callable[..., Any], *args: Any) -> None:
        """Have the thread call a function, when the last one was waited for."""
        if self._thread.ident is None:
            # An interrupt within would leave locks of `threading` taken, for ever.
            undisturbed(self._thread.start)
        self._job, self._is_done = lambda: function(*args), False
        _give(self._to_do)

    def wait(self) -> Any:
        """Return what the function has returned, or raise what it has raised."""
        while not self._is_done:
            self._to_be_done.acquire(timeout=1)  # it may be a message of before
        result, self._result = self._result, None
        error, self._error = self._error, None
        if error is not None:
            raise error
        return result

    def close(self) -> None:
        """Wait for the thread to end: a job that it has not begun is not done."""
        self._is_closed = True
        if self._thread.ident is not None:
            _give(self._to_do)
            undisturbed(self._thread.join)

    def _run(self) -> None:
        """Do jobs; called in the thread."""
        while True:
            self._to_do.acquire()
            if self._is_closed:
                return
            try:
                self._result = self._job()
            except BaseException as error:
                self._error = error
            self._job = nothing  # and the arrays that it has
            self._is_done = True
            _give(self._to_be_done)


def nothing() -> None:
    """Do nothing."""


def _give(lock: threading.Lock) -> None:
    """Release a lock, if it is taken."""
    with contextlib.suppress(RuntimeError):
        lock.release()
