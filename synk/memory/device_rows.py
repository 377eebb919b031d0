"""Taking rows straight to a rank's GPU, into memory of JAX's that is used again.

Adjacent rows of a segment are one copy, and so is each run of adjacent rows among
selected ones if these runs are long. Short ones are gathered into pinned memory first,
by several threads: the GPU copies the first of them while the host gathers the next.
"""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np

from .gather import gather
from .mapping import Mapping, address
from .partition import Selection, count
from .rows import RowTaker
from .to_device import Piece, ToDevice, Writing, is_worthwhile

LONG = 1 << 15
"""Bytes from which on a run of rows gets a copy of its own. To start one takes the host
some microseconds, in which it gathers about as much."""

PIECE = 1 << 22
"""Bytes that are gathered before their copy is started, at most."""

LEAST = 1 << 20
"""Bytes that a thread gathers at a time, at least. To tell it to takes time, too."""


class DeviceTaker(RowTaker):
    """Takes rows into one array on the device, which is written anew every time.

    Parameters
    ----------
    to_device : ToDevice
    """

    def __init__(self, to_device: ToDevice) -> None:
        super().__init__()
        self._to_device = to_device
        self._target: Any = None
        self._writing: Writing | None = None
        self._pinned: Mapping | None = None

    def __del__(self) -> None:
        # Neither end of a copy may go before that is made.
        if self._writing is not None and self._to_device.is_open:
            with contextlib.suppress(Exception):
                self._writing.wait()

    def take(self, array: Any, selection: Selection) -> Any:
        """Start to take rows; what is returned may be a `Writing` to wait for.

        What JAX has computed from the last rows must be there.
        """
        if not isinstance(array, np.ndarray):
            return super().take(array, selection)
        shape = (count(selection), *array.shape[1:])
        nbytes = int(np.prod(shape, dtype=np.int64)) * array.itemsize
        if not nbytes or not self._to_device.takes(array.dtype):
            return super().take(array, selection)
        if self._writing is not None:
            self._writing.wait()  # the last call may not have come to use it
            self._writing = None
        if not is_worthwhile(nbytes):
            return self._put(super().take(array, selection))
        starts, stops = _runs(selection)
        room = None
        if (
            (len(starts) > 1 and nbytes < len(starts) * LONG)
            or not array.flags.c_contiguous
            or not self._to_device.is_pinned(array)
        ):
            room = self._gathering_room(shape, nbytes, array.dtype)
            if room is None:
                return super().take(array, selection)
        writing = self._begin(shape, array.dtype)
        if writing is None:
            return super().take(array, selection)
        if room is None:
            width = nbytes // shape[0]
            source, at, pieces = address(array), 0, []
            for start, stop in zip(starts, stops, strict=True):
                length = (stop - start) * width
                pieces.append(Piece(at, source + start * width, length))
                at += length
            writing.copy(pieces)
        else:
            _gather_and_copy(array, selection, room, writing, self._to_device)
        writing.end()
        return writing

    def take_whole(self, array: np.ndarray) -> Any:
        """Start to take a whole array, as `take` does.

        A whole number stays where it is: it may be the size of something.
        """
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
            self._to_device.write(target, values)
        # JAX takes its arrays to be constant. Nobody sees this one change: programs
        # read it, and what they return is in other memory.
        return target

    def _begin(self, shape: tuple[int, ...], dtype: np.dtype) -> Writing | None:
        """Return what writes to an array of a shape, or None if there is no memory."""
        import jax.numpy as jnp

        target, self._target = self._kept(shape, dtype), None
        try:
            if target is None:
                target = jnp.zeros(shape, dtype)
            if target.dtype == dtype:
                self._writing = self._to_device.writing(target)
                self._target = target
        except RuntimeError as error:
            self._to_device.warn(f"some rows go to GPUs by JAX's own copies: {error}")
        return self._writing

    def _kept(self, shape: tuple[int, ...], dtype: np.dtype) -> Any:
        """Return the array of the last call, if this one's is such.

        It is given up if not, so that its memory can be used.
        """
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


def _runs(selection: Selection) -> tuple[list[int], list[int]]:
    """Return where runs of adjacent rows start and stop."""
    if isinstance(selection, slice):
        return [selection.start], [selection.stop]
    ends = np.flatnonzero(np.diff(selection) != 1)
    starts = np.concatenate([selection[:1], selection[ends + 1]])
    stops = np.concatenate([selection[ends], selection[-1:]]) + 1
    return starts.tolist(), stops.tolist()


def _gather_and_copy(
    array: np.ndarray,
    selection: Selection,
    room: np.ndarray,
    writing: Writing,
    to_device: ToDevice,
) -> None:
    """Copy rows through pinned memory, piece by piece."""
    width, pool = room.nbytes // len(room), to_device.gatherers
    fair = room.nbytes // to_device.threads
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
