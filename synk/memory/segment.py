"""Shared-memory segments without names, and arrays in them.

A segment is memory of ``memfd_create``. Other processes open ``/proc/<owner>/fd/<fd>``,
which works for processes of one user on one machine. The kernel frees a segment when
the last process that maps it is gone, however that has ended.

``posix_fallocate`` reserves the memory. But the kernel refuses only with strict
accounting (``vm.overcommit_memory=2``). Otherwise it kills processes to make room. So
synk first checks how much memory is free (`limits`). That finds a segment that is too
large by itself, such as for its container, but not memory that others take meanwhile.
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
    limits_explained,
    why_forbidden,
)

ALIGNMENT = 64
"""Bytes; arrays start at cache lines, so two ranks never write to the same line."""

CHECK_FROM = 1 << 22
"""Bytes from which on synk checks that so much is free before it reserves them. The
check takes a tenth of that time. Programs take and free less memory all the time."""

_serials = itertools.count()


Place: TypeAlias = tuple[int, int, int, int]
"""How another process finds a segment: the owner's number in ``/proc``, the owner's
descriptor, a serial number, and the bytes. A descriptor's number is used again; a pair
(process id, serial) is not."""

Window: TypeAlias = tuple[int, int, int, int, int, "str | list", tuple[int, ...]]
"""An array in a segment, as it is sent between processes: the segment's place, the
offset in bytes, dtype and shape. A plain tuple, as a named one takes 5 us more to
pickle and unpickle, in a call of 15."""


def is_window(value: Any) -> TypeGuard[Window]:
    """Return whether a value is a window, by its form: windows are plain tuples."""
    # The value of a generic shared variable may be another tuple.
    return (
        type(value) is tuple
        and len(value) == 7
        and type(value[6]) is tuple
        and type(value[5]) in (str, list)
        and all(type(each) is int for each in value[:5])
    )


def key_of(window: Window) -> tuple[int, int]:
    """Return the key of a window's segment; see `Segment.key`."""
    pid, _, serial, *_ = window
    return pid, serial


class Segment:
    """Memory that processes share: `nbytes` are mapped, of which `reserved` exist.

    Raises SharedMemoryFull if the machine, or the process's cgroup, does not have as
    much memory left.
    """

    # Owns the descriptor, in the owner and its children; None if attached.
    _file: FileIO | None = None

    def __init__(self, nbytes: int) -> None:
        self._pid, self._serial = proc.number(), next(_serials)
        with limits_explained():
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
        with limits_explained():
            if pid == proc.number():  # the descriptor is this process's own
                self._map = map_file(fd, nbytes)
            else:
                # The mapping stays when the descriptor is closed.
                with _open(pid, fd) as file:
                    self._map = map_file(file.fileno(), nbytes)
        self._map.mark_unread()
        self.nbytes = self.reserved = nbytes
        return self

    @property
    def key(self) -> tuple[int, int]:
        """A key that no other segment has: the owner's process id, and a serial."""
        return self._pid, self._serial

    @property
    def place(self) -> Place:
        """The arguments of `attach` for another process."""
        return self._pid, self._fd, self._serial, self.nbytes

    def grow(self, nbytes: int) -> None:
        """Reserve `nbytes` in all; content and views of it stay valid."""
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
                    mapped.mark_unread()
            else:
                mapped = self._map
            # Huge pages come first, while nothing has to be copied to them, and only
            # where no values lie, as a device may know the addresses of these.
            fill(self._fd, mapped, self.reserved, nbytes)
            os.posix_fallocate(self._fd, 0, nbytes)
        except BaseException as error:
            # Free what was reserved here. (If the process is killed here, the memory
            # goes with its descriptor.)
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
        # Last, in one line: an interrupt before it has changed nothing.
        self._map, self.nbytes = mapped, max(nbytes, self.nbytes)
        self.reserved = nbytes

    def give_back(self, kept: int) -> None:
        """Give memory from byte `kept` on back to the kernel; `grow` undoes that."""
        # All processes then read zeros there. Not for memory that a device has pinned,
        # as it would not notice that the pages are replaced.
        kept = min(self.reserved, _whole_pages(kept))
        if kept < self.nbytes:
            try:
                self._map.madvise(mmap.MADV_REMOVE, kept, self.nbytes - kept)
            except OSError:
                return  # not possible, such as for locked memory
        self.reserved = kept

    def array(self, dtype, shape: tuple[int, ...], offset: int = 0) -> np.ndarray:
        """Return an array in the segment, from byte `offset` on."""
        array = np.ndarray(shape, dtype, self._map, offset)
        # Objects are addresses, which are valid in one process alone. To write one,
        # numpy would release the object at the old address, and crash.
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
        """Return the window of `array`, which lies at byte `offset`."""
        return *self.place, offset, describe(array.dtype), array.shape

    def close(self) -> None:
        """Free the memory once no process maps it; existing views stay valid."""
        if self._file is not None:
            self._file.close()
        self._file, self._fd = None, -1
        self._map = None  # type: ignore[assignment]

    def __del__(self) -> None:
        # The file would close itself, but with a warning.
        if self._file is not None:
            self._file.close()


class Attachments:
    """The segments of other processes that this one has mapped, by their keys."""

    def __init__(self) -> None:
        self._segments: dict[tuple[int, int], Segment] = {}

    def segment(self, pid: int, fd: int, serial: int, nbytes: int) -> Segment:
        """Return a segment by its `Place`, mapped once, and again if it has grown."""
        segment = self._segments.get((pid, serial))
        if segment is None or segment.nbytes < nbytes:
            segment = Segment.attach(pid, fd, serial, nbytes)
            self._segments[pid, serial] = segment
        return segment

    def array(self, window: Window) -> np.ndarray:
        """Return the array of a window."""
        *place, offset, dtype, shape = window
        return self.segment(*place).array(dtype, shape, offset)

    def forget(self, key: tuple[int, int]) -> None:
        """Forget a segment that its owner has dropped; the last view unmaps it."""
        self._segments.pop(key, None)


def layout(sizes: list[int]) -> tuple[list[int], int]:
    """Return offsets at cache lines for pieces of `sizes` bytes, and the total."""
    offsets, end = [], 0
    for size in sizes:
        offsets.append(end)
        end += math.ceil(size / ALIGNMENT) * ALIGNMENT
    return offsets, end


def can_be_shared(value: object) -> bool:
    """Return whether a value is an array without objects, so a segment can hold it."""
    return isinstance(value, np.ndarray) and not value.dtype.hasobject


def describe(dtype: np.dtype) -> str | list:
    """Return an argument of `numpy.dtype` that makes an equal dtype; fast to pickle."""
    return dtype.str if dtype.fields is None else np.lib.format.dtype_to_descr(dtype)


class Forbidden(StateError, PermissionError):
    """Raised if this process may not open another process's memory.

    Also an OSError, on which callers check whether the other process has died.
    """


def _open(pid: int, fd: int) -> FileIO:
    """Open the file of another process's descriptor; raise Forbidden if refused."""
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
    """Raise SharedMemoryFull if less than `nbytes` of memory are free."""
    if nbytes < CHECK_FROM:
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


# -- memory whose changes are tracked

# `Data` registers its memory here by the key of its segment, so that code with a window
# finds it. An entry has its `window`; its `state`, a number that no other values have,
# or None if the values may change at any time; and `is_partial`, whether it has only
# the rows of this machine's ranks. See `variables.data`.
WATCHED: weakref.WeakValueDictionary[tuple[int, int], Any]
WATCHED = weakref.WeakValueDictionary()


def state_of(window: Window) -> int | None:
    """Return the state of a window's values; None if changes are not tracked."""
    found = WATCHED.get(key_of(window))
    if found is None or found.window != window:
        return None
    return found.state


def check_whole(window: Window) -> None:
    """Raise SynkError if a window has rows of this machine's ranks only."""
    found = WATCHED.get(key_of(window))
    if found is not None and found.is_partial:
        raise SynkError("rows are asked for that were read from files elsewhere only")
