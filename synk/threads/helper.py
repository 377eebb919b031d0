"""A thread that does one job after the other, while the script's thread goes on."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

from .undisturbed import undisturbed


class Helper:
    """Does one job at a time, in a thread.

    After an interrupt in `begin` or `wait` nothing may be called but `close`.

    Parameters
    ----------
    name : str
        Of the thread.
    is_for_one_job : bool
        Whether the thread ends with a job, and the next one has another: so none is
        left, whatever becomes of this object. Otherwise it ends when this is closed.
    """

    def __init__(self, name: str, is_for_one_job: bool = False) -> None:
        self._name, self._is_for_one_job = name, is_for_one_job
        self._thread: threading.Thread | None = None
        self._job: Callable[[], Any] = _nothing
        self._result: Any = None
        self._error: BaseException | None = None
        self._is_done, self._is_closed, self._has_ended = True, False, True
        # Both are taken in the beginning, and given by who has something to say: a
        # message that may be there already. What it says is in the flags. They are no
        # Event: an interrupt in its `wait` may leave its lock taken, and then nobody
        # can set it, nor wait for it again.
        self._to_do, self._to_be_done = threading.Lock(), threading.Lock()
        self._to_do.acquire()
        self._to_be_done.acquire()

    def begin(self, function: Callable[..., Any], *args: Any) -> None:
        """Have the thread call a function, when the last one was waited for."""
        self._job, self._is_done = lambda: function(*args), False
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name)
            self._has_ended = False
            # An interrupt within would leave locks of `threading` taken, for ever.
            undisturbed(self._thread.start)
        _give(self._to_do)

    def wait(self) -> Any:
        """Return what the function has returned, or raise what it has raised."""
        while not self._is_done:
            self._to_be_done.acquire(timeout=1)  # it may be a message of before
        if self._is_for_one_job:
            self._join()
        result, self._result = self._result, None
        error, self._error = self._error, None
        if error is not None:
            raise error
        return result

    def close(self) -> None:
        """Wait for the thread to end: a job that it has not begun is not done."""
        self._is_closed = True
        # An interrupt may have come right before it was started: then it is not.
        if self._thread is not None and self._thread.ident is not None:
            _give(self._to_do)
            while self._is_for_one_job and not self._has_ended:
                self._to_be_done.acquire(timeout=1)  # and Ctrl-C ends a long wait
            self._join()

    def _join(self) -> None:
        # After an interrupt in it, Python 3.11 and 3.12 take a thread for ended that
        # still runs, and the next `join` returns at once.
        assert self._thread is not None
        undisturbed(self._thread.join)
        self._thread = None

    def _run(self) -> None:
        """Do jobs; called in the thread."""
        try:
            while True:
                self._to_do.acquire()
                if self._is_closed:
                    return
                try:
                    self._result = self._job()
                except BaseException as error:
                    self._error = error
                self._job = _nothing  # and the arrays that it has
                self._is_done = True
                _give(self._to_be_done)
                if self._is_for_one_job:
                    return
        finally:
            self._has_ended = True
            _give(self._to_be_done)


def _nothing() -> None:
    """Do nothing."""


def _give(lock: threading.Lock) -> None:
    """Release a lock, if it is taken."""
    with contextlib.suppress(RuntimeError):
        lock.release()
