"""`Cache`: arrays that were slow to read, kept in a folder as they are in memory.

A file of the cache has a checksum and the arrays of one `Stored`, one after the other,
each in the format of ``.npy``. The file's name is a hash of that `Stored`, so all
scripts of a machine may share a folder. A script locks the folder while it adds and
removes files. A file gets its name when it is complete.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import mmap
import os
import warnings
import weakref
import zlib
from collections.abc import Iterator, Sequence
from functools import partial
from typing import BinaryIO, NamedTuple

import numpy as np
from numpy.lib import format as npy

from ..memory import descriptors
from ..user_frames import callers_level

_LIVE: weakref.WeakSet[Cache] = weakref.WeakSet()

_END, _NEW = ".synk-rows", ".synk-new"


class Cache:
    """A folder on a local disk that keeps at most `most_bytes`.

    To make room, files not in use are removed, the least recently used first. A file is
    in use if a live `Cache` of this process has read or written it. So if a table is
    larger than `most_bytes`, each epoch finds the same part of it.
    """

    def __init__(self, folder: str | os.PathLike[str], most_bytes: int) -> None:
        if most_bytes < 1:
            raise ValueError(f"cache_bytes must be at least 1, got {most_bytes}")
        self.folder, self._most_bytes = os.path.abspath(folder), most_bytes
        self._in_use: set[str] = set()
        self._is_usable = True
        _LIVE.add(self)

    def __reduce__(self) -> tuple:
        return Cache, (self.folder, self._most_bytes)

    def find(self, key: object) -> list[np.ndarray] | None:
        """Return the arrays kept for `key`, mapped, or None if there are none."""
        name = _name(key)
        try:
            with open(os.path.join(self.folder, name), "rb") as file:
                with contextlib.suppress(OSError):  # the folder may be read-only
                    os.utime(file.fileno())  # the time of the last use
                # `_add` does not flush a file to the disk, so after a power failure it
                # may have zeros.
                is_known = name in self._in_use
                if not is_known and file.read(npy.ARRAY_ALIGN) != _checksum(file):
                    return None
                found = [map_array(file, place) for place in _places(file)]
        except (OSError, ValueError):  # it is not there, or damaged
            return None
        self._in_use.add(name)
        return found or None

    def keep(self, key: object, arrays: Sequence[np.ndarray]) -> None:
        """Keep arrays for `key` if there is room; after an OSError warn, and stop."""
        if not self._is_usable:
            return
        try:
            self._add(_name(key), arrays)
        except OSError as error:
            self._is_usable = False
            warnings.warn(
                f"nothing more is kept in the cache {self.folder}: {error}",
                RuntimeWarning,
                stacklevel=callers_level(),
            )

    def _add(self, name: str, arrays: Sequence[np.ndarray]) -> None:
        os.makedirs(self.folder, exist_ok=True)
        with open(os.path.join(self.folder, "lock"), "a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # until it is closed
            new = os.path.join(self.folder, name + _NEW)
            try:
                if self._make_room(sum(array.nbytes + 256 for array in arrays)):
                    _write(new, arrays)
                    os.replace(new, os.path.join(self.folder, name))
                    self._in_use.add(name)
            except BaseException:
                with contextlib.suppress(FileNotFoundError):
                    os.remove(new)
                raise

    def _make_room(self, nbytes: int) -> bool:
        """Remove files until `nbytes` are free; if they cannot be, return False."""
        free, unused = self._most_bytes, []
        in_use = {
            name
            for cache in list(_LIVE)
            if cache.folder == self.folder
            for name in cache._in_use.copy()  # another thread may add to it
        }
        with os.scandir(self.folder) as entries:
            for entry in entries:
                found = entry.stat()
                if entry.name.endswith(_NEW):  # left by a process that was killed
                    os.remove(entry)
                elif entry.name.endswith(_END):
                    free -= found.st_size
                    if entry.name not in in_use:
                        unused.append((found.st_mtime_ns, entry.path, found.st_size))
        if free + sum(size for *_, size in unused) < nbytes:
            return False
        for _, path, size in sorted(unused):
            if free >= nbytes:
                break
            os.remove(path)
            free += size
        return True


def _name(key: object) -> str:
    return hashlib.sha256(repr(key).encode()).hexdigest()[:40] + _END


def _write(path: str, arrays: Sequence[np.ndarray]) -> None:
    with open(path, "w+b") as file:
        file.write(bytes(npy.ARRAY_ALIGN))
        for array in arrays:
            file.write(bytes(-file.tell() % npy.ARRAY_ALIGN))
            npy.write_array(file, array, version=(1, 0), allow_pickle=False)
        file.flush()
        checksum = _checksum(file)
        file.seek(0)
        file.write(checksum)


def _checksum(file: BinaryIO) -> bytes:
    """Return the checksum of a file's arrays, all after the place of the checksum."""
    mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    with mapped, memoryview(mapped) as whole, whole[npy.ARRAY_ALIGN :] as arrays:
        return zlib.crc32(arrays).to_bytes(npy.ARRAY_ALIGN, "little")


def _places(file: BinaryIO) -> Iterator[Place]:
    """Yield the places of the arrays in an open file."""
    size, end = os.fstat(file.fileno()).st_size, npy.ARRAY_ALIGN
    while end < size:
        file.seek(end + -end % npy.ARRAY_ALIGN)
        npy.read_magic(file)
        shape, is_fortran, dtype = npy.read_array_header_1_0(file)
        place = Place(file.tell(), shape, dtype, is_fortran)
        yield place
        end = place.end


# -- arrays mapped into memory: a page is read when it is first used


class Place(NamedTuple):
    """Where a contiguous array lies in a file."""

    offset: int
    shape: tuple[int, ...]
    dtype: np.dtype
    is_fortran: bool = False  # Fortran order: the first index changes fastest

    @property
    def end(self) -> int:
        """The byte after the last element."""
        return self.offset + self.dtype.itemsize * int(np.prod(self.shape))


def map_array(file: BinaryIO, place: Place) -> np.ndarray:
    """Return an array mapped from an open file, which may be closed afterwards."""
    # Reading a mapped page beyond the file's end would kill the process.
    if os.fstat(file.fileno()).st_size < place.end:
        raise ValueError(f"it ends before the array does, at byte {place.end}")
    make = partial(mmap.mmap, access=mmap.ACCESS_READ)
    mapped = descriptors.mapped(make, file.fileno(), place.end)
    mapped.madvise(mmap.MADV_WILLNEED)  # the disk begins to read at once
    shape = place.shape[::-1] if place.is_fortran else place.shape
    array: np.ndarray = np.ndarray(shape, place.dtype, mapped, place.offset)
    return array.T if place.is_fortran else array
