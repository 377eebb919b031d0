"""Shared-memory segments that have no name, and arrays in them.

A segment is memory of ``memfd_create``. Whoever needs it opens
``/proc/<owner>/fd/<fd>``, which works for processes of one user on one machine. The
kernel frees it when its last process is gone, however that ended.

Space is reserved with ``posix_fallocate``: what a segment has is really there. But the
kernel refuses to reserve only where it counts what it promises
(``vm.overcommit_memory=2``), and elsewhere kills processes to make room. So there is a
look at what is free before (`limits`). It finds what is too large by itself, such as
data for which a container is too small, and not what others take meanwhile.
"""

from __future__ import annotations

import itertools
import math
import mmap
import os
import weakref
from io import FileIO
from typing import Any, TypeAlias, TypeGuard

import numpy as np

from ..errors import SharedMemoryFull, StateError, SynkError
from . import limits, proc
from .descriptors import new_memory, open_again
from .mapping import Mapping, file_size, fill, map_file
from .refusals import (
    FORBIDDEN,
    TOO_MANY_FILES,
    explain_limit,
    limits_in_words,
    why_forbidden,
)

ALIGNMENT = 64
"""Bytes; arrays start on cache lines so that two ranks never write to the same one."""

LOOK_FROM = 1 << 22
"""Bytes from which on there is a look at what is free before they are reserved. To look
takes a tenth of that time, and any program takes and frees less memory all the time."""

_serials = itertools.count()


Place: TypeAlias = tuple[int, int, int, int]
"""Where a segment is: its owner's number in ``/proc`` and file descriptor, a serial
number and its bytes. Descriptors are used again; (process id, serial) never is."""

Window: TypeAlias = tuple[int, int, int, int, int, "str | list", tuple[int, ...]]
"""An array inside a segment, as it travels between processes: the segment's place, the
offset in bytes, dtype and shape. A plain tuple: named ones take 5 us more to pickle and
back, in a call of 15."""


def is_window(value: Any) -> TypeGuard[Window]:
    """Tell whether a value is a window: a plain tuple, with no name of its own."""
    # Values of generic shared variables may be tuples as well, of other things.
    return (
        type(value) is tuple
        and len(value) == 7
        and type(value[6]) is tuple
        and type(value[5]) in (str, list)
        and all(type(each) is int for each in value[:5])
    )


def key_of(window: Window) -> tuple[int, int]:
    """Return what tells the segment of a window from all others."""
    pid, _, serial, *_ = window
    return pid, serial


class Segment:
    """A piece of memory that processes share; `nbytes` are mapped, `reserved` there.

    Raises SharedMemoryFull if the machine, or the process's cgroup, has not that much
    memory left.
    """

    # Owns the descriptor, in the owner and in its children; None where it is attached.
    _file: FileIO | None = None

    def __init__(self, nbytes: int) -> None:
        self._pid, self._serial = proc.number(), next(_serials)
        with limits_in_words():
            self._file = new_memory(f"synk-{self._pid}-{self._serial}")
            self._fd = self._file.fileno()
        self.nbytes = self.reserved = 0
        self._map: Mapping
        try:
            self.grow(nbytes)
        except BaseException:
            self.close()
            raise

    @classmethod
    def attach(cls, pid: int, fd: int, serial: int, nbytes: int) -> Segment:
        """Map a segment that another process owns, by its `Place`."""
        self = cls.__new__(cls)
        self._pid, self._serial, self._fd = pid, serial, -1
        with limits_in_words():
            if pid == proc.number():  # inherited or received
                self._map = map_file(fd, nbytes)
            else:
                # The mapping stays when the descriptor is closed.
                with _open(pid, fd) as file:
                    self._map = map_file(file.fileno(), nbytes)
        self._map.written_elsewhere()
        self.nbytes = self.reserved = nbytes
        return self

    @property
    def key(self) -> tuple[int, int]:
        """What tells this segment from all others."""
        return self._pid, self._serial

    @property
    def place(self) -> Place:
        """What another process needs to attach."""
        return self._pid, self._fd, self._serial, self.nbytes

    def grow(self, nbytes: int) -> None:
        """Make room for `nbytes`; the bytes before stay, and so do views of them."""
        nbytes = _whole_pages(nbytes)
        if nbytes <= self.reserved:
            return
        _check_room(nbytes - self.reserved)
        try:
            # A new mapping of the same pages: views of the old one stay valid.
            if nbytes > self.nbytes:
                os.ftruncate(self._fd, file_size(nbytes))
                mapped = map_file(self._fd, nbytes)
                if self.reserved:
                    mapped.written_elsewhere()
            else:
                mapped = self._map
            # Huge pages come first, as long as there is nothing to be copied to them,
            # and only where no values lie: a device may know the addresses of these.
            fill(self._fd, mapped, self.reserved, nbytes)
            os.posix_fallocate(self._fd, 0, nbytes)
        except BaseException as error:
            # Nothing stays reserved that is not used. (What is killed here leaves
            # nothing either: its descriptor goes with it.)
            os.ftruncate(self._fd, self.nbytes)
            os.ftruncate(self._fd, file_size(self.nbytes))
            self.give_back(self.reserved)
            if not isinstance(error, OSError):
                raise
            if error.errno in FORBIDDEN:
                raise SynkError(why_forbidden("fallocate", error)) from error
            what = f"no room for {nbytes - self.reserved:,} bytes of shared memory"
            kind = SynkError if error.errno in TOO_MANY_FILES else SharedMemoryFull
            raise kind(f"{what}: {explain_limit(error) or error}") from error
        # Only now, in one line: until here an interrupt has changed nothing.
        self._map, self.nbytes = mapped, max(nbytes, self.nbytes)
        self.reserved = nbytes

    def give_back(self, kept: int) -> None:
        """Give memory from byte `kept` on back, whoever maps it; it can grow again."""
        # What lay there reads as zeros. A device that was told where these pages are
        # must not use them any more: it would not notice that they are others later.
        kept = min(self.reserved, _whole_pages(kept))
        if kept < self.nbytes:
            try:
                self._map.madvise(mmap.MADV_REMOVE, kept, self.nbytes - kept)
            except OSError:
                return  # it is locked in memory, for example, and stays
        self.reserved = kept

    def array(self, dtype, shape: tuple[int, ...], offset: int = 0) -> np.ndarray:
        """Return an array that lies in the segment from byte `offset` on."""
        array = np.ndarray(shape, dtype, self._map, offset)
        # Objects are addresses that mean something in one process alone: to write one,
        # numpy lets go of the object that it takes to be there, and the process dies.
        if array.dtype.hasobject:
            raise TypeError(
                f"an array of {array.dtype} has Python objects of one process, and"
                " cannot lie in memory that processes share"
            )
        return array

    def memory(self) -> memoryview:
        """Return the bytes of the segment."""
        return memoryview(self._map)[: self.nbytes]

    def window(self, array: np.ndarray, offset: int = 0) -> Window:
        """Describe `array`, which lies at byte `offset`, to other processes."""
        return *self.place, offset, describe(array.dtype), array.shape

    def close(self) -> None:
        """Give the memory back once nobody maps it; views that exist stay valid."""
        if self._file is not None:
            self._file.close()
        self._file, self._fd = None, -1
        self._map = None  # type: ignore[assignment]

    def __del__(self) -> None:
        # Else the file would close itself, with a warning.
        if self._file is not None:
            self._file.close()


class Attachments:
    """The segments of other processes that this one has mapped, by their serial."""

    def __init__(self) -> None:
        self._segments: dict[tuple[int, int], Segment] = {}

    def segment(self, pid: int, fd: int, serial: int, nbytes: int) -> Segment:
        """Return a segment, mapped once, and again when it grew."""
        segment = self._segments.get((pid, serial))
        if segment is None or segment.nbytes < nbytes:
            segment = Segment.attach(pid, fd, serial, nbytes)
            self._segments[pid, serial] = segment
        return segment

    def array(self, window: Window) -> np.ndarray:
        """Return the array that a window describes."""
        *place, offset, dtype, shape = window
        return self.segment(*place).array(dtype, shape, offset)

    def forget(self, key: tuple[int, int]) -> None:
        """Unmap a segment that its owner has given up."""
        self._segments.pop(key, None)


def layout(sizes: list[int]) -> tuple[list[int], int]:
    """Return offsets that put pieces of `sizes` bytes on cache lines, and the total."""
    offsets, end = [], 0
    for size in sizes:
        offsets.append(end)
        end += math.ceil(size / ALIGNMENT) * ALIGNMENT
    return offsets, end


def can_lie_here(value: object) -> bool:
    """Tell whether a value is an array that may lie in a segment: none of objects."""
    return isinstance(value, np.ndarray) and not value.dtype.hasobject


def describe(dtype: np.dtype) -> str | list:
    """Return what `numpy.dtype` takes to make an equal dtype, cheap to pickle."""
    return dtype.str if dtype.fields is None else np.lib.format.dtype_to_descr(dtype)


class Forbidden(StateError, PermissionError):
    """Another process's memory that this one may not open.

    An OSError too, for who attaches looks then whether the process has died.
    """


def _open(pid: int, fd: int) -> FileIO:
    """Open what a descriptor of another process is for."""
    try:
        return open_again(pid, fd)
    except PermissionError as error:
        raise Forbidden(
            f"process {os.getpid()} (uid {os.geteuid()}) may not open memory of process"
            f" {pid}, another rank: the user id of one of them has changed, or changed"
            " after that memory was made. Drop privileges (os.setuid) before you make"
            " synk.Data and call synk.fork()"
        ) from error


def _check_room(nbytes: int) -> None:
    """Raise SharedMemoryFull if there is not so much memory that nobody uses."""
    if nbytes < LOOK_FROM:
        return
    limit = limits.tightest()
    if limit is not None and nbytes > limit.free:
        raise SharedMemoryFull(
            f"no room for {nbytes:,} bytes of shared memory: {limit.free:,} bytes are"
            f" free of {limit}. Free some Data, use smaller batches or fewer ranks, or"
            " give it more memory (docker run --memory=...)"
        )


def _whole_pages(nbytes: int) -> int:
    return max(1, math.ceil(nbytes / mmap.PAGESIZE)) * mmap.PAGESIZE


# -- memory whose changes are seen

# `Data` registers its own here, for those who have no more than a window, by the key of
# its segment. Each has a `window`; a `state`, a number that no other values have, or
# None if they may change at any time; and `is_partial`: whether it has rows of this
# machine's ranks only. See `variables.data`.
WATCHED: weakref.WeakValueDictionary[tuple[int, int], Any]
WATCHED = weakref.WeakValueDictionary()


def state_of(window: Window) -> int | None:
    """Return the state of what is in a window; None where nobody sees changes of it."""
    found = WATCHED.get(key_of(window))
    if found is None or found.window != window:
        return None
    return found.state


def check_whole(window: Window) -> None:
    """Raise SynkError if a window has rows of this machine's ranks only."""
    found = WATCHED.get(key_of(window))
    if found is not None and found.is_partial:
        raise SynkError("rows are asked for that were read from files elsewhere only")
