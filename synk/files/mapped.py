"""Arrays mapped into memory from files: a page is read when it is first used."""

from __future__ import annotations

import mmap
import os
from functools import partial
from typing import BinaryIO, NamedTuple

import numpy as np

from ..memory import descriptors


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
