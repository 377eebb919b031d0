"""Arrays mapped into memory from files: what is touched of them is read."""

from __future__ import annotations

import mmap
import os
from functools import partial
from typing import BinaryIO, NamedTuple

import numpy as np

from ..memory import descriptors


class Place(NamedTuple):
    """Where an array's elements are in a file, one after the other."""

    offset: int
    shape: tuple[int, ...]
    dtype: np.dtype
    is_fortran: bool = False  # the first index is the one that changes fastest

    @property
    def end(self) -> int:
        """Where they end."""
        return self.offset + self.dtype.itemsize * int(np.prod(self.shape))


def map_array(file: BinaryIO, place: Place) -> np.ndarray:
    """Return an array of an open file, which may be closed then."""
    # Touching what is not there would kill the process.
    if os.fstat(file.fileno()).st_size < place.end:
        raise ValueError(f"it ends before the array does, at byte {place.end}")
    make = partial(mmap.mmap, access=mmap.ACCESS_READ)
    mapped = descriptors.mapped(make, file.fileno(), place.end)
    mapped.madvise(mmap.MADV_WILLNEED)  # disks begin at once
    shape = place.shape[::-1] if place.is_fortran else place.shape
    array: np.ndarray = np.ndarray(shape, place.dtype, mapped, place.offset)
    return array.T if place.is_fortran else array
