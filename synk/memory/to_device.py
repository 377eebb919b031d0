"""Copies of rows to a rank's GPU, directly into arrays of JAX, and of arrays back.

A GPU reads the host's memory at full rate only if that is pinned. A rank pins its
mapping of a segment when it first takes rows from it, and unpins it before the mapping
goes. Rows that cannot be pinned go through a pinned buffer. Without such a buffer, JAX
copies them.

Adjacent rows of a segment are one copy (`cuda`). If the runs of adjacent rows in a
selection are long, each run is a copy. Otherwise several threads first gather the rows
in pinned memory: the GPU copies the first rows while the host gathers the next.
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
"""Bytes from which on JAX waits for the copy, in place of the host. For fewer bytes,
JAX's wait takes longer than the copy."""

LONG = 1 << 15
"""Average bytes of the runs from which on each run is copied by itself. To start a copy
takes the host some microseconds, in which it gathers about as many bytes."""

PIECE = 1 << 22
"""Most bytes that are gathered before their copy is started."""

LEAST = 1 << 20
"""Least bytes that a thread gathers at a time, as to start it takes time."""

_THREADS = 8
"""Most threads that gather rows."""


class ToDevice:
    """One rank's copies to and from its device.

    `connect` makes the copier at first need, or raises ImportError, RuntimeError or
    OSError. The first failure is warned of, if this rank `warns`.
    """

    def __init__(
        self, connect: Callable[[], CudaCopier], warns: bool = True, threads: int = 1
    ) -> None:
        self._connect: Callable[[], CudaCopier] | None = connect
        self._warns = warns
        self.threads = min(threads, _THREADS)
        self._copier: CudaCopier | None = None
        self._has_given_up = False
        self._pinned: set[int] = set()  # addresses of pinned mappings
        self._pid = os.getpid()

    @property
    def copier(self) -> CudaCopier:
        """The copier, after `takes` has returned True."""
        assert self._copier is not None
        return self._copier

    def takes(self, dtype: np.dtype) -> bool:
        """Return whether this copies arrays of a dtype; otherwise JAX does."""
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
        """Return a copy, in the host's memory, of an array that JAX has computed."""
        if not array.nbytes or not self.takes(array.dtype):
            # By a thread of JAX, which takes several times as long.
            return np.array(array)
        out = np.empty(array.shape, array.dtype)
        self.copier.read(array, address(out), out.nbytes)
        return out

    @property
    def is_open(self) -> bool:
        """Whether there may be copies that were started; never in a forked child."""
        return self._copier is not None and os.getpid() == self._pid

    def is_pinned(self, array: np.ndarray) -> bool:
        """Return whether an array lies in pinned memory, after an attempt to pin it."""
        mapping = mapping_of(array)
        if mapping is None:
            return False
        if mapping.tried_by is not self:
            self._pin(
                mapping,
                f"{len(mapping):,} bytes of shared memory were not pinned, so that rows"
                " go to GPUs in two steps",
            )
        return mapping.before_unmapping is not None

    @cached_property
    def gatherers(self) -> ThreadPoolExecutor | None:
        """Threads that gather rows; None if this thread is to gather them."""
        # One core gathers rows at a tenth of the rate at which a GPU reads them.
        if self.threads == 1:
            return None
        return ThreadPoolExecutor(self.threads, thread_name_prefix="synk-gather")

    def buffer(self, nbytes: int) -> Mapping | None:
        """Return pinned memory in which to gather rows; None if it cannot be pinned."""
        mapping = Mapping(-1, nbytes)
        if not self._pin(mapping, "rows go to GPUs by JAX's own copies, slowly"):
            self._has_given_up = True
            return None
        return mapping

    def close(self) -> None:
        """Unpin all memory; from now on nothing is copied."""
        for start in list(self._pinned):
            self._unpin(start)
        self._connect = self._copier = None
        if pool := self.__dict__.pop("gatherers", None):
            pool.shutdown()

    def _pin(self, mapping: Mapping, what_follows: str) -> bool:
        """Pin memory; return whether that worked. If not, warn of `what_follows`."""
        mapping.tried_by, mapping.before_unmapping = self, None
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
        # Called when a mapping goes, maybe after `close`, or in a forked child, which
        # has the mapping but cannot use CUDA.
        if start in self._pinned and self.is_open:
            self._pinned.discard(start)
            self.copier.unregister(start)

    def warn(self, text: str) -> None:
        """Warn of a failure, if it is the first one."""
        if self._warns:
            self._warns = False
            warnings.warn(text, RuntimeWarning, stacklevel=2)


class DeviceTaker(RowTaker):
    """Takes rows into an array on the device, which is overwritten at each call."""

    def __init__(self, to_device: ToDevice) -> None:
        super().__init__()
        self._to_device = to_device
        self._target: Any = None
        self._writing: CudaWriting | None = None
        self._pinned: Mapping | None = None

    def __del__(self) -> None:
        # Source and target of a copy must live until it is done.
        if self._writing is not None and self._to_device.is_open:
            with contextlib.suppress(Exception):
                self._writing.wait()

    def take(self, array: Any, selection: Selection) -> Any:
        """Start to copy rows; return an array, or a `CudaWriting` for `arrived`."""
        # JAX's results from the last rows must be computed, as these are overwritten.
        if not isinstance(array, np.ndarray):
            return super().take(array, selection)
        shape = (count(selection), *array.shape[1:])
        nbytes = int(np.prod(shape, dtype=np.int64)) * array.itemsize
        if not nbytes or not self._to_device.takes(array.dtype):
            return super().take(array, selection)
        if self._writing is not None:
            self._writing.wait()  # the last call may have failed before it used it
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
        """Start to copy a whole array, as `take` does."""
        # An integer scalar stays on the host, as it may be the size of something.
        if array.ndim:
            return self.take(array, slice(0, len(array)))
        if array.dtype.kind in "biu" or not self._to_device.takes(array.dtype):
            return array
        return self._put(array)

    def _put(self, values: np.ndarray) -> Any:
        """Copy few values to the array on the device, and wait; return the array."""
        import jax

        target = self._kept(values.shape, values.dtype)
        if target is None:
            # A copy, and not JAX's view of the user's array. It is committed to its
            # device, as arrays from DLPack are; for another, JAX would compile again.
            target = jax.device_put(
                jax.numpy.array(values, copy=True), jax.local_devices()[0]
            )
            if target.dtype != values.dtype:
                return values
            self._target = target
        else:
            self._to_device.copier.write(target, address(values), values.nbytes)
        # JAX takes its arrays to be constant. That this one changes does no harm:
        # programs only read it, and return values in other memory.
        return target

    def _begin(self, shape: tuple[int, ...], dtype: np.dtype) -> CudaWriting | None:
        """Return a writer to the array on the device; None if there is no memory."""
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
        """Return the array of the last call if it fits; otherwise drop it."""
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
        # In order, each piece as soon as it is gathered.
        filled = map(fill, starts) if pool is None else pool.map(fill, starts)
        for at, nbytes in filled:
            writing.copy([Piece(at, source + at, nbytes)])


def _runs(selection: Selection) -> tuple[list[int], list[int]]:
    """Return the starts and the stops of a selection's runs of adjacent rows."""
    if isinstance(selection, slice):
        return [selection.start], [selection.stop]
    ends = np.flatnonzero(np.diff(selection) != 1)
    starts = np.concatenate([selection[:1], selection[ends + 1]])
    stops = np.concatenate([selection[ends], selection[-1:]]) + 1
    return starts.tolist(), stops.tolist()
