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
        self._thread.join()
        thread, self._thread = self._thread, None
        if thread.error is not None:
            raise thread.error

    def close(self) -> None:
        """Wait for the last job to be done, whatever it raises."""
        if self._thread is not None:
            self._thread.join()


class _Job(threading.Thread):
    def __init__(self, job: Callable[[], object]) -> None:
        super().__init__(name="synk-files")
        self._job: Callable[[], object] | None = job
        self.error: BaseException | None = None

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
