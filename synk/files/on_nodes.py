"""Rows in files on several machines: each node reads the rows of its own ranks.

1. `worker_open`: the first rank of each node finds the files there, once in a session.
2. `parts` goes through an epoch as `Rows.parts` does. For each part `worker_begin`: the
   first rank of each node begins to read in a thread, on node 0 into `Data`, on others
   into a `Copy` of it. No rows are sent: their order follows from the epoch.
3. `worker_end`: each waits for its thread. From then on the other nodes have the rows
   that calls on this `Data` would send them (see `cluster.cache`).

Such `Data` on node 0 is *partial*: it has the rows of node 0's ranks only. It serves
calls whose ranks read their own rows; sending other nodes' rows raises an error.
"""

from __future__ import annotations

import itertools
import socket
import warnings
import weakref
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..cluster.inbox import Copy
from ..cluster.message import Here
from ..memory.segment import key_of, state_of
from ..ranks.context import RankContext
from ..ranks.session import SESSION
from ..ranks.to_nodes import CODECS, Codec, Encoder
from ..user_frames import callers_level
from ..variables.data import Data
from .columns import Column
from .order import Order, Part, batches_of_part
from .rows import Rows, check_batch_size, new_reader, read_on_any_core

_numbers = itertools.count()


class Epoch(NamedTuple):
    """The arguments of `Rows.parts`, which settle an epoch's rows."""

    epoch: int
    seed: int
    shuffle: bool
    batch_size: int


class Reader:
    """Reads the rows of one node's ranks, in that node's first rank."""

    def __init__(self, rows: Rows, here: Here) -> None:
        self._rows, self._here = rows, here
        self._reader = new_reader()
        self._opened: dict[tuple[int, int], np.ndarray] = {}
        self._epoch: Epoch | None = None
        self.order: Order  # of the present epoch
        self._draws: list[np.ndarray | None] = []
        # On other nodes than 0, those that the part begun last is read into.
        self.copies: list[Copy] = []

    def go_to(self, epoch: Epoch) -> None:
        """Make `epoch` the present one: set its order and its random numbers."""
        if epoch != self._epoch:
            rows, how = self._rows, (epoch.seed, epoch.epoch, epoch.shuffle)
            self.order = Order(rows._counts, rows._window, *how)
            self._draws = rows._draws(epoch.seed, epoch.epoch)
            self._epoch, self._opened = epoch, {}

    def begin(
        self, epoch: Epoch, low: int, high: int, out: Sequence[np.ndarray] | None
    ) -> None:
        """Begin to read this node's rows of the part from `low` to `high` of the order.

        `out` (node 0) has a place for every row of the part. With None, new `copies`
        are made for this node's rows only.
        """
        self.close()
        self.go_to(epoch)
        batches = batches_of_part(high - low, epoch.batch_size)
        own = self._here.spans([(batch.stop - batch.start, 1) for batch in batches])
        places = np.concatenate(
            [
                np.arange(batch.start + first, batch.start + stop)
                for batch, (first, stop) in zip(batches, own, strict=True)
            ]
        )
        into = places
        if out is None:
            out = self._new_copies(batches, own)
            into = np.arange(len(places))
        numbers = self.order.between(low, high)[places]
        job = self._rows._job(numbers, self._draws, out, self._opened, into)
        self._reader.begin(read_on_any_core, job)

    def _new_copies(
        self, batches: Sequence[slice], own: Sequence[tuple[int, int]]
    ) -> list[np.ndarray]:
        lengths = [stop - first for first, stop in own]
        starts = itertools.accumulate(lengths, initial=0)
        spans = [(batch.start, batch.stop, 1) for batch in batches]
        where = dict(zip(spans, starts, strict=False))
        self.copies, arrays = [], []
        for column in self._rows._columns:
            copy = Copy(column.dtype, column.shape)
            arrays.append(copy.add(sum(lengths)))
            copy.starts.update(where)
            self.copies.append(copy)
        return arrays

    def read_all(self, low: int, high: int, out: Sequence[np.ndarray]) -> None:
        """Read all rows of a part of the present epoch, those of all nodes' ranks."""
        self._rows._job(self.order.between(low, high), self._draws, out, {})()

    def wait(self) -> None:
        """Wait for the part begun last, and raise an error of its reading."""
        self._reader.wait()

    def close(self) -> None:
        """Wait for the thread of a part that nobody has waited for, if there is one."""
        self._reader.close()
        self._reader = new_reader()


# -- commands


def worker_open(
    context: RankContext, number: int, columns: list[Column], files: int, window: int
) -> str | None:
    """Find the files on this node, and make its `Reader`; return an error's text."""
    if context.local_rank:
        return None
    try:
        here = columns
        if context.rank:  # the master has found them when it made the `Rows`
            here = [each.on_this_machine() for each in columns]
    except (OSError, ValueError, ImportError) as error:
        return f"{socket.gethostname()}: {error}"
    rows = Rows(here, files, window)
    comm = context.comm
    ranks = Here(comm.node, comm.first, comm.first + context.local.size, comm.size)
    context.readers[number] = Reader(rows, ranks)
    return None


def worker_begin(
    context: RankContext,
    number: int,
    epoch: Epoch,
    low: int,
    high: int,
    out: Sequence[np.ndarray] | None,
) -> None:
    """Begin to read this node's rows of a part; see `Reader.begin`."""
    if context.local_rank == 0:
        context.readers[number].begin(epoch, low, high, out)


def worker_end(context: RankContext, number: int, told: object) -> None:
    """Wait for this node's rows; the master has waited before the command."""
    if context.local_rank == 0 and context.rank:
        context.readers[number].wait()


def _encode_end(args: tuple, encoder: Encoder) -> tuple:
    """On node 0, note in its cache table the rows that other nodes now have."""
    number, (windows, batches) = args
    copies = []
    for window in windows:
        width = encoder.context.array(window)[:1].nbytes
        spans = {
            (batch.start, batch.stop, 1): width
            * encoder.most_rows([(batch.stop - batch.start, 1)])
            for batch in batches
        }
        state = state_of(window)
        assert state is not None
        copies.append(encoder.cache.add_read(key_of(window), state, spans))
    return number, copies


def _decode_end(args: tuple, here: Here, copies: Any) -> tuple:
    """On another node, keep the reader's copies as if node 0 had sent their rows."""
    number, numbers = args
    reader: Reader = SESSION.context.readers[number]
    copies.update(zip(numbers, reader.copies, strict=True))
    reader.copies = []
    return args


CODECS[worker_end] = Codec(_encode_end, _decode_end)


# -- in the script's process


def can_read(rows: Rows) -> bool:
    """Return whether all nodes can read the files; if not, warn once in a session."""
    known = rows._readers
    if known is None or not SESSION.is_of(known[0]):
        number = next(_numbers)
        told = number, rows._columns, len(rows._counts), rows._window
        why = [each for each in SESSION.run(worker_open, *told) if each is not None]
        known = rows._readers = weakref.ref(SESSION.pool), None if why else number
        weakref.finalize(rows, SESSION.notify, "reader", number).atexit = False
        if why:
            warnings.warn(
                f"the first machine reads {rows!r} for all, as one cannot: {why[0]}",
                RuntimeWarning,
                stacklevel=callers_level(),
            )
    return known[1] is not None


def parts(rows: Rows, epoch: Epoch) -> Iterator[Part]:
    """Return an epoch's batches as `Rows.parts` does, if all nodes `can_read` them.

    The inputs are for calls whose ranks read their own rows.
    """
    check_batch_size(epoch.batch_size)
    assert rows._readers is not None
    _, number = rows._readers
    assert number is not None
    reader: Reader = SESSION.context.readers[number]
    reader.go_to(epoch)
    memories: dict[int, tuple[Data, ...]] = {}

    def begin(low: int, high: int, memory: tuple[Data, ...]) -> None:
        """Have all nodes begin to read a part."""
        memories[id(memory)] = memory
        what = number, epoch, low, high
        mine = *what, [array.data for array in memory]
        SESSION.run(worker_begin, *what, None, mine=mine)

    def end(low: int, high: int, memory: tuple[Data, ...]) -> None:
        """Wait until all nodes have read a part."""
        reader.wait()
        windows = [array._window() for array in memory]
        is_partial = all(state_of(window) is not None for window in windows)
        _mark(memory, is_partial)
        if is_partial:
            batches = batches_of_part(high - low, epoch.batch_size)
            SESSION.run(worker_end, number, (windows, batches), mine=(number, None))
        else:  # a child of the script may write there: each call sends all rows
            reader.read_all(low, high, [array.data for array in memory])

    def close() -> None:
        reader.close()
        for memory in memories.values():
            _mark(memory, is_partial=False)

    return rows._iterate_parts(reader.order.ends, epoch.batch_size, begin, end, close)


def _mark(memory: tuple[Data, ...], is_partial: bool) -> None:
    """Mark whether a part's memory on node 0 is partial: has only its ranks' rows."""
    for array in memory:
        array._lending.is_partial = is_partial
