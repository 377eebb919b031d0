"""Loads a function's arguments: its rows, into reused memory or ahead in a thread."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Generator, Iterable, Sequence
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np

from ..signals import undisturbed
from .partition import Selection
from .rows import RowTaker, arrived, take_rows
from .to_device import DeviceTaker, ToDevice


class RowLoader:
    """Loads arguments of one function: `rows` inputs with rows, `constants` without."""

    def __init__(self, rows: int, constants: int) -> None:
        self._counts = rows, constants
        self._to_device: ToDevice | None = None
        self.renew()

    @property
    def are_on_device(self) -> bool:
        """Whether arguments are copied to a device."""
        return self._to_device is not None

    def use(self, to_device: ToDevice | None) -> None:
        """Copy arguments to a device, or (None) leave them in the host's memory."""
        if to_device is not self._to_device:
            self._to_device = to_device
            self.renew()

    def renew(self) -> None:
        """Load the next rows into new memory, as the last ones may still be in use."""
        make: Callable[[], RowTaker] = RowTaker
        if self._to_device is not None:
            make = partial(DeviceTaker, self._to_device)
        rows, constants = self._counts
        # Two sets: a run of many calls fills one while it uses the other.
        self.rows = [[make() for _ in range(rows)] for _ in range(2)]
        self._constants = [make() for _ in range(constants)]

    def take(
        self, sources: Sequence[Any], selections: Sequence[Selection]
    ) -> list[Any]:
        """Return the selected rows of each source, valid until the next call."""
        return arrived(take_rows(self.rows[0], sources, selections))

    def broadcast(self, constants: Sequence[np.ndarray]) -> list[Any]:
        """Return whole arrays, on the device if rows are taken there."""
        pairs = zip(self._constants, constants, strict=True)
        return arrived([taker.take_whole(array) for taker, array in pairs])


def loaded_ahead(
    takers: Sequence[Sequence[RowTaker]], items: Iterable[Any]
) -> Generator[tuple[Any, list[np.ndarray]], None, None]:
    """Yield items with their rows, while a thread takes the rows of the next item.

    The `task` of an item has `sources`, arrays from which to take rows, and
    `selections`, the rows of each; what was taken is valid until the next item. The
    item's `start` is set to the time at which the wait for its rows began. `takers` are
    two sets of row takers, as in `RowLoader`. The thread ends with the generator, which
    is to be closed.
    """
    thread = JobThread("synk-rows")

    def complete(item: Any) -> tuple[Any, list[np.ndarray]]:
        item.start = perf_counter()
        return item, arrived(thread.wait())

    try:
        turn, waiting = 0, None
        for item in items:
            before = None if waiting is None else complete(waiting)
            # Into the set of the item before last, whose rows are not used any more.
            task = item.task
            thread.begin(take_rows, takers[turn], task.sources, task.selections)
            turn = 1 - turn
            if before is not None:
                yield before
            waiting = item
        if waiting is not None:
            yield complete(waiting)
    finally:
        thread.close()


class JobThread:
    """A thread that does one job at a time, for rows of a run and of files.

    With `is_for_one_job` the thread ends with each job, and the next job has a new one.
    So none is left, even if this object is never closed. Otherwise the thread ends at
    `close`.

    A signal handler of the script may raise between any two lines, also in `threading`
    and `concurrent.futures`: an ``Event`` or a ``Future`` could then keep its lock for
    ever. So this waits only by locks of C code, whose acquire is one step. After an
    interrupt in `begin` or `wait` only `close` may be called.
    """

    def __init__(self, name: str, is_for_one_job: bool = False) -> None:
        self._name, self._is_for_one_job = name, is_for_one_job
        self._thread: threading.Thread | None = None
        self._job: Callable[[], Any] = _NOTHING
        self._result: Any = None
        self._error: BaseException | None = None
        self._is_done, self._is_closed, self._has_ended = True, False, True
        # Both are taken at first. To release one wakes the other side, which then reads
        # the flags. A lock may be released already.
        self._to_do, self._to_be_done = threading.Lock(), threading.Lock()
        self._to_do.acquire()
        self._to_be_done.acquire()

    def begin(self, function: Callable[..., Any], *args: Any) -> None:
        """Have the thread call ``function(*args)``; `wait` for the last job before."""
        self._job, self._is_done = lambda: function(*args), False
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name)
            self._has_ended = False
            # An interrupt in `start` could leave locks of `threading` taken for ever.
            undisturbed(self._thread.start)
        _release(self._to_do)

    def wait(self) -> Any:
        """Wait for the job; return its result, or raise its exception."""
        while not self._is_done:
            self._to_be_done.acquire(timeout=1)  # it may be released from before
        if self._is_for_one_job:
            self._join()
        result, self._result = self._result, None
        error, self._error = self._error, None
        if error is not None:
            raise error
        return result

    def close(self) -> None:
        """Wait for the thread to end; a job that it has not begun is not done."""
        self._is_closed = True
        # After an interrupt in `begin`, the thread may not have been started.
        if self._thread is not None and self._thread.ident is not None:
            _release(self._to_do)
            while self._is_for_one_job and not self._has_ended:
                self._to_be_done.acquire(timeout=1)  # so that Ctrl-C can end the wait
            self._join()

    def _join(self) -> None:
        # After an interrupt in `join`, Python 3.11 and 3.12 take a running thread for
        # ended, and the next `join` returns at once.
        assert self._thread is not None
        undisturbed(self._thread.join)
        self._thread = None

    def _run(self) -> None:
        """Do jobs, in the thread."""
        try:
            while True:
                self._to_do.acquire()
                if self._is_closed:
                    return
                try:
                    self._result = self._job()
                except BaseException as error:
                    self._error = error
                self._job = _NOTHING  # frees the job's arrays
                self._is_done = True
                _release(self._to_be_done)
                if self._is_for_one_job:
                    return
        finally:
            self._has_ended = True
            _release(self._to_be_done)


_NOTHING: Callable[[], Any] = tuple


def _release(lock: threading.Lock) -> None:
    """Release a lock, if it is taken."""
    with contextlib.suppress(RuntimeError):
        lock.release()
