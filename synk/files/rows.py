"""`Rows`: the rows of files, which an iterator gives part by part, in an epoch's order.

1. `Rows.parts` makes the order of an epoch (`order`), and cuts it into parts.
2. For each part `Rows._job` finds the rows, files and places in memory, and maps the
   files, which reads nothing yet (`stored`).
3. A thread (`JobThread`) reads the files, and writes rows to shared memory (`columns`,
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
    """Raise ValueError unless `batch_size` is at least 1."""
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")


def new_reader() -> JobThread:
    """Return a new `JobThread` to read files while the script trains."""
    return JobThread("synk-files", is_for_one_job=True)


def read_on_any_core(job: Callable[[], None]) -> None:
    """Do a job on any core; the thread that calls this was pinned as rank 0 is."""
    with contextlib.suppress(StateError):  # no ranks
        SESSION.context.confinement.unpin_thread()
    job()


class Rows:
    """Rows in files; made by :func:`synk.files.arrays` and :func:`synk.files.images`.

    A `Trainer` takes it in place of arrays. ``len(rows)`` is the number of rows of all
    files.

    Attributes
    ----------
    categories : dict of str to tuple
        By column of categories in a table: the values that its numbers stand for.
    """

    def __init__(self, columns: Sequence[Column], files: int, window: int) -> None:
        self._columns, self._window = list(columns), window
        self.categories: dict[str, tuple] = {}
        self.kind = "files"  # their name in messages; "pieces" for tables
        counts = [columns[0].rows_of(file) for file in range(files)]
        self._counts = counts
        self._starts = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
        # Columns with most bytes first: the thread may have to wait between two.
        sizes = [int(np.prod(c.shape)) * c.dtype.itemsize for c in self._columns]
        self._by_size = sorted(range(len(sizes)), key=sizes.__getitem__, reverse=True)
        self._takes_runs = all(column.takes_runs for column in self._columns)
        self._spare: list[tuple[Data, ...]] = []
        # The session's pool, and the number of the nodes' readers; see `on_nodes`.
        self._readers: tuple[Any, int | None] | None = None

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
            Determine an image's crop, and whether it is mirrored.

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
        # One file after the other: all together may be too large for memory.
        files = np.searchsorted(self._starts, numbers, side="right")
        order = np.argsort(files, kind="stable")
        for places in np.split(order, np.flatnonzero(np.diff(files[order])) + 1):
            self._job(numbers[places], draws, out, {}, places)()
        return out

    def parts(
        self, epoch: int, batch_size: int, *, seed: int = 0, shuffle: bool = True
    ) -> Iterator[Part]:
        """Return the batches of an epoch, in parts that lie in memory one at a time.

        While the script uses a part, a thread reads the next. The order of rows, and
        the crop of each image, follow from `seed` and `epoch`, and not from
        `batch_size` or the number of ranks.

        Parameters
        ----------
        epoch : int
            From 0 on.
        batch_size : int
            Rows of one step, of all ranks together; the last batch has what is left.
        seed : int
            Seed of the order, and of crops and mirroring.
        shuffle : bool
            Whether to shuffle rows; without, they come in the order of the files.

        Yields
        ------
        Part
            Valid until the next one is asked for.

        Raises
        ------
        ValueError
            If a file is damaged, or has changed since it was found.
        SharedMemoryFull
            If there is not enough shared memory for two parts.
        """
        check_batch_size(batch_size)
        order = Order(self._counts, self._window, seed, epoch, shuffle)
        draws = self._draws(seed, epoch)
        opened: dict[tuple[int, int], Any] = {}
        reader = new_reader()

        def begin(low: int, high: int, memory: tuple[Data, ...]) -> None:
            arrays = [array.data for array in memory]
            job = self._job(order.between(low, high), draws, arrays, opened)
            reader.begin(read_on_any_core, job)

        def end(low: int, high: int, memory: tuple[Data, ...]) -> None:
            reader.wait()

        return self._iterate_parts(order.ends, batch_size, begin, end, reader.close)

    def _iterate_parts(
        self,
        ends: np.ndarray,
        batch_size: int,
        begin: Callable[[int, int, tuple[Data, ...]], None],
        end: Callable[[int, int, tuple[Data, ...]], None],
        close: Callable[[], None],
    ) -> Iterator[Part]:
        """Yield an epoch's parts: while the script uses one, the next is read.

        ``begin(low, high, memory)`` begins to read the rows from place `low` to `high`
        of the order into `memory`, and `end` waits for them. `close` waits for a
        reading that nobody has waited for.
        """
        bounds = list(cut(ends, batch_size))
        memories: list[tuple[Data, ...]] = []

        def begin_part(part: int) -> None:
            if part < 2:
                memories.append(self._part_memory(batch_size))
            low, high = bounds[part]
            for array in memories[part % 2]:
                array.set_length(high - low)
            begin(low, high, memories[part % 2])

        try:
            begin_part(0)
            for part, (low, high) in enumerate(bounds):
                memory = memories[part % 2]
                end(low, high, memory)
                if part + 1 < len(bounds):
                    begin_part(part + 1)
                yield Part(batches_of_part(high - low, batch_size), memory)
        finally:
            close()
            # Not reached if `close` was interrupted: a thread may still write there.
            self._spare += memories

    # -- for `parts` here and in `on_nodes`

    def _draws(self, seed: int, epoch: int) -> list[np.ndarray | None]:
        """Return an epoch's random numbers for all rows, by column; see `Column`."""
        return [column.draw(len(self), seed, epoch) for column in self._columns]

    def _part_memory(self, batch_size: int) -> tuple[Data, ...]:
        """Return shared memory for the largest part: a `Data` for each column."""
        most = most_rows(self._counts, self._window, batch_size)
        while self._spare:
            memory = self._spare.pop()
            if all(
                array.alloc_size >= most * np.prod(column.shape)
                for array, column in zip(memory, self._columns, strict=True)
            ):
                return memory
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
        """Return a function that reads rows, by number, into `out`, by column.

        The work that needs Python is done before it returns. `draws` has each column's
        random numbers for all rows of the epoch. `opened` has the open files of the
        part before, by column and file; they are replaced by this part's. The rows go
        to the places `into` of `out`, by default 0, 1, ...
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
            for i in self._by_size:
                column = self._columns[i]
                for f in files.tolist():
                    if (i, f) not in opened:
                        opened[i, f] = column.open(f)
                there = [opened[i, f] for f in files.tolist()]
                column.fill(there, starts, picks[i], out[i])

        return job
