"""A rank's way to its GPU and back: rows go straight into memory of JAX's.

A GPU reads the host's memory at its full rate where that is pinned. A rank has its own
mapping of a segment pinned when it first takes rows from that, and undoes it before the
mapping goes. What cannot be pinned goes through a buffer that is; where there is none
either, rows are left to JAX's own copy.

Adjacent rows of a segment are one copy (`cuda`), and so is each long run of adjacent
rows among selected ones. Short ones are gathered into pinned memory first, by several
threads: the GPU copies the first of them while the host gathers the next.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from typing import Any

import numpy as np

from .cuda import CudaCopier, CudaWriting, Piece
from .mapping import Mapping, address, mapping_of
from .partition import Selection, count
from .rows import RowTaker, gather

WORTHWHILE = 1 << 18
"""Bytes from which on the host does not wait until rows have been copied. For fewer, to
have JAX wait in its place takes longer than the copy."""

LONG = 1 << 15
"""Bytes from which on a run of rows gets a copy of its own. To start one takes the host
some microseconds, in which it gathers about as much."""

PIECE = 1 << 22
"""Bytes that are gathered before their copy is started, at most."""

LEAST = 1 << 20
"""Bytes that a thread gathers at a time, at least. To tell it to takes time, too."""

_THREADS = 8
"""That gather rows, at most."""


class ToDevice:
    """One rank's way to its device.

    `connect` makes the copier, when one is first needed; it raises ImportError,
    RuntimeError or OSError if there is none. What fails is warned of once, and not on
    every rank (`warns`).
    """

    def __init__(
        self, connect: Callable[[], CudaCopier], warns: bool = True, threads: int = 1
    ) -> None:
        self._connect: Callable[[], CudaCopier] | None = connect
        self._warns = warns
        self.threads = min(threads, _THREADS)
        self._copier: CudaCopier | None = None
        self._has_given_up = False
        self._pinned: set[int] = set()  # where pinned mappings begin
        self._pid = os.getpid()

    @property
    def copier(self) -> CudaCopier:
        """What copies, once `takes` has said that something is."""
        assert self._copier is not None
        return self._copier

    def takes(self, dtype: np.dtype) -> bool:
        """Tell whether arrays of a dtype are copied by this."""
        if dtype.kind not in "biufc" or not dtype.isnative:
            return False
        if self._connect is not None:
            try:
                self._copier = self._connect()
            except (ImportError, RuntimeError, OSError) as error:
                self._has_given_up = True
                self.warn(f"rows go to GPUs by JAX's own copies, slowly: {error}")
            self._connect = None
        return self._copier is not None and not self._has_given_up

    def read(self, array: Any) -> np.ndarray:
        """Return a copy of an array of JAX's that is there."""
        if not array.nbytes or not self.takes(array.dtype):
            # Several times as long: JAX has a thread of its own do it.
            return np.array(array)
        out = np.empty(array.shape, array.dtype)
        self.copier.read(array, address(out), out.nbytes)
        return out

    @property
    def is_open(self) -> bool:
        """Whether copies may be under way: not in a child that the user has forked."""
        return self._copier is not None and os.getpid() == self._pid

    def is_pinned(self, array: np.ndarray) -> bool:
        """Tell whether an array lies in pinned memory; pins a segment if it can be."""
        mapping = mapping_of(array)
        if mapping is None:
            return False
        if mapping.asked_by is not self:
            self._pin(
                mapping,
                f"{len(mapping):,} bytes of shared memory were not pinned, so that rows"
                " go to GPUs in two steps",
            )
        return mapping.before_unmapping is not None

    @cached_property
    def gatherers(self) -> ThreadPoolExecutor | None:
        """Threads that gather rows; None where this one does it as well."""
        # One core copies rows at a tenth of the rate at which a GPU reads them.
        if self.threads == 1:
            return None
        return ThreadPoolExecutor(self.threads, thread_name_prefix="synk-gather")

    def buffer(self, nbytes: int) -> Mapping | None:
        """Return pinned memory for rows to be gathered in, if there can be any."""
        mapping = Mapping(-1, nbytes)
        if not self._pin(mapping, "rows go to GPUs by JAX's own copies, slowly"):
            self._has_given_up = True
            return None
        return mapping

    def close(self) -> None:
        """Undo what was pinned; from now on nothing is taken."""
        for start in list(self._pinned):
            self._unpin(start)
        self._connect = self._copier = None
        if pool := self.__dict__.pop("gatherers", None):
            pool.shutdown()

    def _pin(self, mapping: Mapping, what_follows: str) -> bool:
        """Pin memory; tell whether that could be done, and warn of what follows."""
        mapping.asked_by, mapping.before_unmapping = self, None
        start = address(np.frombuffer(mapping, np.uint8))
        try:
            self.copier.register(start, len(mapping))
        except OSError as error:
            self.warn(f"{what_follows}: {error}")
            return False
        self._pinned.add(start)
        mapping.before_unmapping = partial(self._unpin, start)
        return True

    def _unpin(self, start: int) -> None:
        # Called when a mapping goes, which may be after `close`, or in a forked child
        # that has the mapping but no CUDA.
        if start in self._pinned and self.is_open:
            self._pinned.discard(start)
            self.copier.unregister(start)

    def warn(self, text: str) -> None:
        """Warn of what has failed, if nothing has before."""
        if self._warns:
            self._warns = False
            warnings.warn(text, RuntimeWarning, stacklevel=2)


class DeviceTaker(RowTaker):
    """Takes rows into one array on the device, which is written anew every time."""

    def __init__(self, to_device: ToDevice) -> None:
        super().__init__()
        self._to_device = to_device
        self._target: Any = None
        self._writing: CudaWriting | None = None
        self._pinned: Mapping | None = None

    def __del__(self) -> None:
        # Neither end of a copy may go before that is made.
        if self._writing is not None and self._to_device.is_open:
            with contextlib.suppress(Exception):
                self._writing.wait()

    def take(self, array: Any, selection: Selection) -> Any:
        """Start to take rows; what is returned may be a `CudaWriting`, to wait for."""
        # What JAX has computed from the last rows must be there.
        if not isinstance(array, np.ndarray):
            return super().take(array, selection)
        shape = (count(selection), *array.shape[1:])
        nbytes = int(np.prod(shape, dtype=np.int64)) * array.itemsize
        if not nbytes or not self._to_device.takes(array.dtype):
            return super().take(array, selection)
        if self._writing is not None:
            self._writing.wait()  # the last call may not have come to use it
            self._writing = None
        if nbytes < WORTHWHILE:
            return self._put(super().take(array, selection))
        starts, stops = _runs(selection)
        gathers = (
            (len(starts) > 1 and nbytes < len(starts) * LONG)
            or not array.flags.c_contiguous
            or not self._to_device.is_pinned(array)
        )
        room = writing = None
        if gathers:
            room = self._gathering_room(shape, nbytes, array.dtype)
        if room is not None or not gathers:
            writing = self._begin(shape, array.dtype)
        if writing is None:
            return super().take(array, selection)
        if room is not None:
            self._gather_and_copy(array, selection, room, writing)
        else:
            width = nbytes // shape[0]
            source, at, pieces = address(array), 0, []
            for start, stop in zip(starts, stops, strict=True):
                length = (stop - start) * width
                pieces.append(Piece(at, source + start * width, length))
                at += length
            writing.copy(pieces)
        writing.end()
        return writing

    def take_whole(self, array: np.ndarray) -> Any:
        """Start to take a whole array, as `take` does."""
        # A whole number stays where it is: it may be the size of something.
        if array.ndim:
            return self.take(array, slice(0, len(array)))
        if array.dtype.kind in "biu" or not self._to_device.takes(array.dtype):
            return array
        return self._put(array)

    def _put(self, values: np.ndarray) -> Any:
        """Return few values on the device, in memory that is used again."""
        import jax

        target = self._kept(values.shape, values.dtype)
        if target is None:
            # A copy, and not JAX's view of the user's array. It is told its device, as
            # arrays are that come by DLPack: for one that is not, JAX would compile
            # another time.
            target = jax.device_put(
                jax.numpy.array(values, copy=True), jax.local_devices()[0]
            )
            if target.dtype != values.dtype:
                return values
            self._target = target
        else:
            self._to_device.copier.write(target, address(values), values.nbytes)
        # JAX takes its arrays to be constant. Nobody sees this one change: programs
        # read it, and what they return is in other memory.
        return target

    def _begin(self, shape: tuple[int, ...], dtype: np.dtype) -> CudaWriting | None:
        """Return what writes to an array of a shape, or None if there is no memory."""
        import jax.numpy as jnp

        target, self._target = self._kept(shape, dtype), None
        try:
            if target is None:
                target = jnp.zeros(shape, dtype)
            if target.dtype == dtype:
                self._writing = self._to_device.copier.writing(target)
                self._target = target
        except RuntimeError as error:
            self._to_device.warn(f"some rows go to GPUs by JAX's own copies: {error}")
        return self._writing

    def _kept(self, shape: tuple[int, ...], dtype: np.dtype) -> Any:
        """Return the array of the last call, if this one's is such."""
        # It is given up if not, so that its memory can be used.
        target = self._target
        if target is not None and (target.shape, target.dtype) != (shape, dtype):
            self._target = None
        return self._target

    def _gathering_room(
        self, shape: tuple[int, ...], nbytes: int, dtype: np.dtype
    ) -> np.ndarray | None:
        if self._pinned is None or len(self._pinned) < nbytes:
            self._pinned = None
            self._pinned = self._to_device.buffer(nbytes)
        return None if self._pinned is None else np.ndarray(shape, dtype, self._pinned)

    def _gather_and_copy(
        self,
        array: np.ndarray,
        selection: Selection,
        room: np.ndarray,
        writing: CudaWriting,
    ) -> None:
        """Copy rows through pinned memory, piece by piece."""
        width, pool = room.nbytes // len(room), self._to_device.gatherers
        fair = room.nbytes // self._to_device.threads
        rows = max(1, min(PIECE, max(LEAST, fair)) // width)
        if isinstance(selection, slice):
            array, selection = array[selection], slice(0, len(room))

        def fill(start: int) -> tuple[int, int]:
            piece = room[start : start + rows]
            if isinstance(selection, slice):
                piece[...] = array[start : start + rows]
            else:
                gather(array, selection[start : start + rows], piece)
            return start * width, piece.nbytes

        source, starts = address(room), range(0, len(room), rows)
        # In their order, each as soon as it is there.
        filled = map(fill, starts) if pool is None else pool.map(fill, starts)
        for at, nbytes in filled:
            writing.copy([Piece(at, source + at, nbytes)])


def _runs(selection: Selection) -> tuple[list[int], list[int]]:
    """Return where runs of adjacent rows start and stop."""
    if isinstance(selection, slice):
        return [selection.start], [selection.stop]
    ends = np.flatnonzero(np.diff(selection) != 1)
    starts = np.concatenate([selection[:1], selection[ends + 1]])
    stops = np.concatenate([selection[ends], selection[-1:]]) + 1
    return starts.tolist(), stops.tolist()
