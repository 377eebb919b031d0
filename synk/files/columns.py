"""How the rows of one input are made from arrays in files."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from .fill import fill
from .stored import Stored

Source: TypeAlias = Stored | np.ndarray
"""Rows of one file: where they lie, or the array itself."""

NOTHING = np.empty((0, 0, 0), np.float32)


class Column:
    """Rows of numbers, as they are in the files.

    Parameters
    ----------
    sources : sequence of Stored or numpy.ndarray
        For each file.
    dtype : dtype, optional
        Of the rows; by default the files' own.

    Attributes
    ----------
    shape : tuple of int
        Of one row.
    dtype : numpy.dtype

    Raises
    ------
    TypeError
        If the dtype would lose more than digits.
    ValueError
        If the rows of two files have not one shape and dtype.
    """

    def __init__(self, sources: Sequence[Source], dtype: Any = None) -> None:
        first = sources[0]
        self.dtype = native(first.dtype if dtype is None else np.dtype(dtype))
        self.shape = self._shape_of_rows(first)
        for source in sources:
            found = self._shape_of_rows(source), source.dtype
            if found != (self.shape, first.dtype):
                raise ValueError(
                    f"{place(source)}: rows are {found[1]} {found[0]}, and those of"
                    f" {place(first)} {first.dtype} {self.shape}"
                )
        self._narrows = self._check_cast(first)
        self._sources: list[Source] = [
            source if isinstance(source, Stored) else self._checked(source, "labels")
            for source in sources
        ]

    def _located(self, locate: Callable[[Stored], Stored]) -> Column:
        """Return one like this, whose files lie where `locate` says."""
        found = copy.copy(self)
        found._sources = [
            locate(source) if isinstance(source, Stored) else source
            for source in self._sources
        ]
        return found

    def _shape_of_rows(self, source: Source) -> tuple[int, ...]:
        return tuple(source.shape[1:])

    def rows_of(self, file: int) -> int:
        """Return how many rows a file has."""
        return self._sources[file].shape[0]

    def _check_cast(self, source: Source) -> bool:
        """Raise if the dtype does not do, and tell whether it depends on values."""
        kinds = source.dtype.kind, self.dtype.kind
        if kinds[1] not in "biuf" or (kinds[0] == "f" != kinds[1]):
            raise TypeError(
                f"{place(source)}: {source.dtype} cannot be {self.dtype} without loss"
            )
        return kinds[1] in "biu" and not np.can_cast(source.dtype, self.dtype, "safe")

    def is_mapped(self, file: int) -> bool:
        """Tell whether a file's array is there without reading it."""
        source = self._sources[file]
        if isinstance(source, Stored) and (source.offset is None or source.is_fortran):
            return False
        return source.dtype == self.dtype

    def array(self, file: int) -> np.ndarray:
        """Return a file's rows as `fill` takes them.

        Raises
        ------
        ValueError
            If the file has changed, or has numbers that the dtype does not hold.
        """
        return self._as_bytes(np.ascontiguousarray(self._read(file), self.dtype))

    def _read(self, file: int) -> np.ndarray:
        source = self._sources[file]
        if isinstance(source, Stored):
            return self._checked(source.array(), source.path)
        return source

    def _checked(self, found: np.ndarray, where: str) -> np.ndarray:
        """Return an array whose numbers the dtype holds."""
        if self._narrows and found.size:
            low, high = int(found.min()), int(found.max())
            least, most = (0, 1) if self.dtype.kind == "b" else _limits(self.dtype)
            if low < least or high > most:
                raise ValueError(
                    f"{where}: numbers from {low} to {high}, which {self.dtype} does"
                    " not hold"
                )
        return found

    def fill(
        self,
        arrays: Sequence[np.ndarray],
        starts: np.ndarray,
        rows: np.ndarray,
        out: np.ndarray,
    ) -> None:
        """Write rows of arrays that `array` has returned; see `fill.fill`."""
        fill(arrays, starts, rows, NOTHING, NOTHING, self._as_bytes(out))

    @staticmethod
    def _as_bytes(array: np.ndarray) -> np.ndarray:
        """Return rows as lines of bytes: one loop then serves all dtypes."""
        width = int(np.prod(array.shape[1:])) * array.itemsize
        return array.reshape(-1).view(np.uint8).reshape(len(array), 1, 1, width)

    def draw(self, rows: int, seed: int, epoch: int) -> np.ndarray | None:
        """Return what is drawn for each of all rows in an epoch; None for nothing."""
        return None

    def picks(self, draws: np.ndarray | None, rows: np.ndarray) -> np.ndarray:
        """Return first line, first column and mirroring of rows, shape (rows, 3)."""
        return np.zeros((len(rows), 3), np.int64)


def _limits(dtype: np.dtype) -> tuple[int, int]:
    limits = np.iinfo(dtype)
    return int(limits.min), int(limits.max)


def native(dtype: np.dtype) -> np.dtype:
    """Return a dtype in this machine's order of bytes."""
    return dtype.newbyteorder("=")


def place(source: Source) -> str:
    """Return what messages call a source."""
    return source.path if isinstance(source, Stored) else "labels"
