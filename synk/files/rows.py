"""`Rows`: rows that lie in files, and come in an order of the epoch's own.

1. `Rows.parts` settles the order of an epoch (`order`), and cuts it into parts.
2. For each part `Rows._job` finds which rows of which files go where, and opens the
   files, which reads nothing yet (`stored`).
3. A thread (`JobThread`) reads them, and writes rows to shared memory (`columns`,
   `fill`), while the script trains on the part before.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from ..errors import StateError
from ..memory.loading import JobThread
from ..ranks.session import SESSION
from ..user_frames import entry
from ..variables.data import Data, data
from .columns import Column
from .order import (
    Order,
    Part,
    batches_of_part,
    cut,
    is_consecutive,
    most_rows,
    sorting,
)


def check_batch_size(batch_size: int) -> None:
    """Raise ValueError unless batches of so many rows can be made."""
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")


def new_reader() -> JobThread:
    """Return what reads files while the script trains: a thread for each part."""
    return JobThread("synk-files", is_for_one_job=True)


def read_on_any_core(job: Callable[[], None]) -> None:
    """Do a job; called in a thread that was born with the cores of rank 0."""
    with contextlib.suppress(StateError):  # no ranks
        SESSION.context.confinement.unpin_thread()
    job()


class Rows:
    """Rows in files; made by :func:`synk.files.arrays` and :func:`synk.files.images`.

    A `Trainer` is given it in place of arrays. ``len(rows)`` is how many there are, in
    the order of the files.

    Attributes
    ----------
    categories : dict of str to tuple
        Of columns of categories in tables the values that their numbers stand for.
    """

    def __init__(self, columns: Sequence[Column], files: int, window: int) -> None:
        self._columns, self._window = list(columns), window
        self.categories: dict[str, tuple] = {}
        self.kind = "files"  # what messages call them
        counts = [columns[0].rows_of(file) for file in range(files)]
        self._counts = counts
        self._starts = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
        # Those with most bytes first: the thread may have to wait between two.
        by_size = [int(np.prod(c.shape)) * c.dtype.itemsize for c in self._columns]
        self._turns = sorted(range(len(by_size)), key=by_size.__getitem__, reverse=True)
        self._takes_runs = all(column.takes_runs for column in self._columns)
        self._spare: list[tuple[Data, ...]] = []
        # In which session machines know it, and as what; see `on_nodes`.
        self._known: tuple[Any, int | None] | None = None

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __repr__(self) -> str:
        of = ", ".join(f"{column.dtype} {column.shape}" for column in self._columns)
        where = f"{len(self._counts)} {self.kind}"
        return f"<synk.files.Rows {len(self)} in {where}: {of}>"

    @entry
    def take(self, rows: Any, epoch: int = 0, *, seed: int = 0) -> list[np.ndarray]:
        """Return some rows as they are in an epoch.

        Parameters
        ----------
        rows : array_like of int
            Their numbers, in the order of the files.
        epoch, seed : int
            Settle which part of an image is taken, and whether it is mirrored.

        Returns
        -------
        list of numpy.ndarray
            For each input.
        """
        numbers = np.asarray(rows, np.int64).reshape(-1)
        if numbers.size and not 0 <= numbers.min() <= numbers.max() < len(self):
            raise IndexError(f"rows are from 0 to {len(self) - 1}, got {rows!r}")
        out = [np.empty((len(numbers), *c.shape), c.dtype) for c in self._columns]
        draws = self._draws(seed, epoch)
        # One file after the other: of all together there may be too much for memory.
        files = np.searchsorted(self._starts, numbers, side="right")
        order = np.argsort(files, kind="stable")
        for places in np.split(order, np.flatnonzero(np.diff(files[order])) + 1):
            self._job(numbers[places], draws, out, {}, places)()
        return out

    def parts(
        self, epoch: int, batch_size: int, *, seed: int = 0, shuffle: bool = True
    ) -> Iterator[Part]:
        """Return the batches of an epoch, in parts that lie in memory one at a time.

        While the script has one, a thread reads the next. The order of rows, and what
        is drawn for each image, follow from `seed` and `epoch`, and not from
        `batch_size` or the number of ranks.

        Parameters
        ----------
        epoch : int
            From 0 on.
        batch_size : int
            Rows of one step, of all ranks together; the last batch has what is left.
        seed : int
            Of the order, and of what is drawn.
        shuffle : bool
            Whether not to take rows as they lie.

        Yields
        ------
        Part
            Valid until the next one is asked for.

        Raises
        ------
        ValueError
            If a file is damaged, or has changed since it was found.
        SharedMemoryFull
            If there is no room for two parts.
        """
        check_batch_size(batch_size)
        order = Order(self._counts, self._window, seed, epoch, shuffle)
        draws = self._draws(seed, epoch)
        opened: dict[tuple[int, int], Any] = {}
        reader = new_reader()

        def begin(low: int, high: int, room: tuple[Data, ...]) -> None:
            arrays = [array.data for array in room]
            job = self._job(order.between(low, high), draws, arrays, opened)
            if low:
                reader.begin(read_on_any_core, job)
            else:  # nothing goes on yet beside it: loops are compiled here
                job()

        def end(low: int, high: int, room: tuple[Data, ...]) -> None:
            if low:
                reader.wait()

        return self._in_turns(order.ends, batch_size, begin, end, reader.close)

    def _in_turns(
        self,
        ends: np.ndarray,
        batch_size: int,
        begin: Callable[[int, int, tuple[Data, ...]], None],
        end: Callable[[int, int, tuple[Data, ...]], None],
        close: Callable[[], None],
    ) -> Iterator[Part]:
        """Yield an epoch's parts: while the script has one, the next is read.

        `begin` begins to read rows, from one place in the epoch's order to another,
        into shared memory, and `end` waits for them; `close` does, too, whatever came
        in between.
        """
        bounds = list(cut(ends, batch_size))
        rooms: list[tuple[Data, ...]] = []

        def begin_part(part: int) -> None:
            if part < 2:
                rooms.append(self._room(batch_size))
            low, high = bounds[part]
            for array in rooms[part % 2]:
                array.set_length(high - low)
            begin(low, high, rooms[part % 2])

        try:
            begin_part(0)
            for part, (low, high) in enumerate(bounds):
                room = rooms[part % 2]
                end(low, high, room)
                if part + 1 < len(bounds):
                    begin_part(part + 1)
                yield Part(batches_of_part(high - low, batch_size), room)
        finally:
            close()
            # Not if an interrupt came meanwhile: a thread may be writing there.
            self._spare += rooms

    # -- for who goes through an epoch

    def _draws(self, seed: int, epoch: int) -> list[np.ndarray | None]:
        """Return what is drawn for all rows of an epoch, of each column."""
        return [column.draw(len(self), seed, epoch) for column in self._columns]

    def _room(self, batch_size: int) -> tuple[Data, ...]:
        """Return shared memory for a part."""
        most = most_rows(self._counts, self._window, batch_size)
        while self._spare:
            room = self._spare.pop()
            if all(
                array.alloc_size >= most * np.prod(column.shape)
                for array, column in zip(room, self._columns, strict=True)
            ):
                return room
        return tuple(
            data(shape=(most, *column.shape), dtype=column.dtype)
            for column in self._columns
        )

    def _job(
        self,
        rows: np.ndarray,
        draws: Sequence[np.ndarray | None],
        out: Sequence[np.ndarray],
        opened: dict[tuple[int, int], Any],
        into: np.ndarray | None = None,
    ) -> Callable[[], None]:
        """Return what writes rows to `out`, after all that Python can do before.

        `draws` are of each column, for all rows of the epoch. `opened` has the files
        of the part before, by column and file, which are replaced by those of this one.
        Rows come to the places `into` of `out`, by default in their order.
        """
        in_order = None
        if into is not None or not (self._takes_runs and is_consecutive(rows)):
            in_order = sorting(rows)
            rows = rows[in_order]
        bounds = np.searchsorted(rows, self._starts)
        files = np.flatnonzero(np.diff(bounds))
        starts = np.append(bounds[files], len(rows))
        if in_order is None:
            common = rows[starts[:-1]] - self._starts[files]
        else:
            before_file = np.repeat(self._starts[files], np.diff(starts))
            places = in_order if into is None else into[in_order]
            common = np.stack([rows - before_file, places])
        before = dict(opened)
        opened.clear()
        for i, column in enumerate(self._columns):
            for f in files.tolist():
                if (i, f) in before:
                    opened[i, f] = before[i, f]
                elif column.is_mapped(f):
                    opened[i, f] = column.open(f)
        picks = [
            column.picks(of_column, rows, common)
            for column, of_column in zip(self._columns, draws, strict=True)
        ]

        def job() -> None:
            for i in self._turns:
                column = self._columns[i]
                for f in files.tolist():
                    if (i, f) not in opened:
                        opened[i, f] = column.open(f)
                there = [opened[i, f] for f in files.tolist()]
                column.fill(there, starts, picks[i], out[i])

        return job
