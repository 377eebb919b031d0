"""Loading the arguments of a function: into memory that is used again, and ahead."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np

from ..signals import undisturbed
from .partition import Selection
from .rows import RowTaker, arrived, take_rows
from .to_device import DeviceTaker, ToDevice


class RowLoader:
    """Takes the arguments of one function: those that have rows, and constants."""

    def __init__(self, rows: int, constants: int) -> None:
        self._counts = rows, constants
        self._to_device: ToDevice | None = None
        self.renew()

    @property
    def are_on_device(self) -> bool:
        """Whether arguments are taken to a device."""
        return self._to_device is not None

    def use(self, to_device: ToDevice | None) -> None:
        """Take arguments to a device, or leave them in the host's memory."""
        if to_device is not self._to_device:
            self._to_device = to_device
            self.renew()

    def renew(self) -> None:
        """Take the next rows into other memory, as the last ones may yet be read."""
        make: Callable[[], RowTaker] = RowTaker
        if self._to_device is not None:
            make = partial(DeviceTaker, self._to_device)
        rows, constants = self._counts
        # Two sets: a run of many calls fills one while the other is in use.
        self.rows = [[make() for _ in range(rows)] for _ in range(2)]
        self._constants = [make() for _ in range(constants)]

    def take(
        self, sources: Sequence[Any], selections: Sequence[Selection]
    ) -> list[Any]:
        """Return selected rows; valid until the next call."""
        return arrived(take_rows(self.rows[0], sources, selections))

    def broadcast(self, constants: Sequence[np.ndarray]) -> list[Any]:
        """Return whole arrays, where a function computes with them."""
        pairs = zip(self._constants, constants, strict=True)
        return arrived([taker.take_whole(array) for taker, array in pairs])


class Prefetcher:
    """Goes through items, while a thread takes the rows of the next one.

    An item has `sources`, arrays that rows are taken from, `selections`, which rows of
    each, and `start`: when the wait for its rows began. For `takers` see `RowLoader`.
    """

    def __init__(self, takers: Sequence[Sequence[RowTaker]]) -> None:
        self._thread = JobThread("synk-rows")
        self._takers = takers

    def __enter__(self) -> Prefetcher:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Wait for the thread to end."""
        self._thread.close()

    def through(self, items: Iterable[Any]) -> Iterator[tuple[Any, list[np.ndarray]]]:
        """Return every item with its rows; these are valid until the next one."""
        turn, waiting = 0, None
        for item in items:
            before = None
            if waiting is not None:
                before = self._arrived(waiting)
            # Into the set of the item before last: who had its rows has come back here.
            self._thread.begin(
                take_rows, self._takers[turn], item.sources, item.selections
            )
            turn = 1 - turn
            if before is not None:
                yield before
            waiting = item
        if waiting is not None:
            yield self._arrived(waiting)

    def _arrived(self, item: Any) -> tuple[Any, list[np.ndarray]]:
        item.start = perf_counter()
        return item, arrived(self._thread.wait())


class JobThread:
    """A thread that does one job at a time, for rows of a run and of files.

    If it is for one job it ends with that, and the next one has another: so none is
    left, whatever becomes of this object. Otherwise it ends when this is closed.

    A signal handler of the script may raise between any two lines, those of `threading`
    and `concurrent.futures` among them: an ``Event`` or a ``Future`` would keep its
    lock then, for ever. What waits here does so by locks of compiled code alone, which
    are taken or are not. After an interrupt in `begin` or `wait` nothing may be called
    but `close`.
    """

    def __init__(self, name: str, is_for_one_job: bool = False) -> None:
        self._name, self._is_for_one_job = name, is_for_one_job
        self._thread: threading.Thread | None = None
        self._job: Callable[[], Any] = _NOTHING
        self._result: Any = None
        self._error: BaseException | None = None
        self._is_done, self._is_closed, self._has_ended = True, False, True
        # Both are taken in the beginning, and given by who has something to say: a
        # message that may be there already. What it says is in the flags.
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
                self._job = _NOTHING  # and the arrays that it has
                self._is_done = True
                _give(self._to_be_done)
                if self._is_for_one_job:
                    return
        finally:
            self._has_ended = True
            _give(self._to_be_done)


_NOTHING: Callable[[], Any] = tuple


def _give(lock: threading.Lock) -> None:
    """Release a lock, if it is taken."""
    with contextlib.suppress(RuntimeError):
        lock.release()
