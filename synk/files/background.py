"""A thread that prepares one thing while the script's thread goes on."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

from ..errors import StateError
from ..ranks.session import SESSION


class Background:
    """Does one job at a time, in a thread of its own that ends with the job.

    So no thread outlives what it was started for, whatever becomes of this object.
    """

    def __init__(self) -> None:
        self._thread: _Job | None = None

    def start(self, job: Callable[[], object]) -> None:
        """Begin with a job, when the last one is done."""
        assert self._thread is None
        self._thread = _Job(job)
        self._thread.start()

    def wait(self) -> None:
        """Wait for the job to be done, and raise what it has raised."""
        assert self._thread is not None
        self._thread.wait()
        thread, self._thread = self._thread, None
        error, thread.error = thread.error, None
        if error is not None:
            raise error

    def close(self) -> None:
        """Wait for the last job to be done, whatever it raises."""
        if self._thread is not None and not self._thread.is_given_up():
            self._thread.wait()


class _Job(threading.Thread):
    def __init__(self, job: Callable[[], object]) -> None:
        super().__init__(name="synk-files")
        self._job: Callable[[], object] | None = job
        self.error: BaseException | None = None
        self._is_done = threading.Event()
        self._to_begin = threading.Lock()

    def is_given_up(self) -> bool:
        """Tell whether the job has not begun: then it will not.

        An interrupt may have come right before the thread was started.
        """
        return self._to_begin.acquire(blocking=False)

    def wait(self) -> None:
        """Wait for the job to be done, and then for the thread to end."""
        # Not by `join` alone: after an interrupt in it, Python 3.11 and 3.12 take a
        # thread for ended that still runs, and the next `join` returns at once.
        self._is_done.wait()
        self.join()

    def run(self) -> None:
        """Do the job; called in the thread."""
        assert self._job is not None
        if not self._to_begin.acquire(blocking=False):
            return
        try:
            # It was born with the cores of rank 0, which has work for them.
            with contextlib.suppress(StateError):  # no ranks
                SESSION.context.unpin_thread()
            self._job()
        except BaseException as error:
            self.error = error
        finally:
            self._job = None  # and the views of shared memory that it has
            self._is_done.set()
