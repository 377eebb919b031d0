"""A thread that prepares one thing while the script's thread goes on."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

from ..errors import StateError
from ..ranks.session import SESSION
from ..threads.undisturbed import undisturbed


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
        # An interrupt within would leave locks of `threading` taken, for ever.
        undisturbed(self._thread.start)

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
        thread = self._thread
        # An interrupt may have come right before it was started: then it is not.
        if thread is not None and thread.ident is not None:
            thread.wait()


class _Job(threading.Thread):
    def __init__(self, job: Callable[[], object]) -> None:
        super().__init__(name="synk-files")
        self._job: Callable[[], object] | None = job
        self.error: BaseException | None = None
        # Not an Event: an interrupt in its `wait` may leave its lock taken, and then
        # nobody can set it, nor wait for it again.
        self._is_done, self._to_be_done = False, threading.Lock()
        self._to_be_done.acquire()

    def wait(self) -> None:
        """Wait for the job to be done, and then for the thread to end."""
        while not self._is_done:
            self._to_be_done.acquire(timeout=1)  # an interrupt may have kept it taken
        # After an interrupt in it, Python 3.11 and 3.12 take a thread for ended that
        # still runs, and the next `join` returns at once.
        undisturbed(self.join)

    def run(self) -> None:
        """Do the job; called in the thread."""
        assert self._job is not None
        try:
            # It was born with the cores of rank 0, which has work for them.
            with contextlib.suppress(StateError):  # no ranks
                SESSION.context.unpin_thread()
            self._job()
        except BaseException as error:
            self.error = error
        finally:
            self._job = None  # and the views of shared memory that it has
            self._is_done = True
            self._to_be_done.release()
