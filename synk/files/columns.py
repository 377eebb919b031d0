"""`Column`: the rows of one input of the step, from arrays in files; or images."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from .fill import Lines, fill, gather
from .order import DRAWS
from .stored import Stored

Source: TypeAlias = Stored | np.ndarray
"""Rows of one file: a `Stored`, or the array itself."""


class Column:
    """The rows of one input: numbers, of one shape and dtype.

    `sources` has one for each file; `dtype` is by default theirs. Raises TypeError if a
    cast to `dtype` would lose more than digits, and ValueError if the rows of two files
    differ in shape or dtype.
    """

    def __init__(self, sources: Sequence[Source], dtype: Any = None) -> None:
        first = sources[0]
        self.dtype = _native(first.dtype if dtype is None else np.dtype(dtype))
        self.shape = self._shape_of_rows(first)
        for source in sources:
            found = self._shape_of_rows(source), source.dtype
            if found != (self.shape, first.dtype):
                raise ValueError(
                    f"{_label(source)}: rows are {found[1]} {found[0]}, and those of"
                    f" {_label(first)} {first.dtype} {self.shape}"
                )
        self._narrows = self._check_cast(first)
        self._sources: list[Source] = [
            source if isinstance(source, Stored) else self._checked(source, "labels")
            for source in sources
        ]

    def on_this_machine(self) -> Column:
        """Return a copy of this column, of the files on this process's machine."""
        found = copy.copy(self)
        found._sources = [
            source.on_this_machine() if isinstance(source, Stored) else source
            for source in self._sources
        ]
        return found

    def _shape_of_rows(self, source: Source) -> tuple[int, ...]:
        return tuple(source.shape[1:])

    def rows_of(self, file: int) -> int:
        """Return the number of rows of file number `file`."""
        return self._sources[file].shape[0]

    def _check_cast(self, source: Source) -> bool:
        """Raise if a cast is never right; return whether values must be checked."""
        kinds = source.dtype.kind, self.dtype.kind
        if kinds[1] not in "biuf" or (kinds[0] == "f" != kinds[1]):
            raise TypeError(
                f"{_label(source)}: {source.dtype} cannot be {self.dtype} without loss"
            )
        return kinds[1] in "biu" and not np.can_cast(source.dtype, self.dtype, "safe")

    def is_mapped(self, file: int) -> bool:
        """Return whether `open` maps the file, and neither reads nor casts it."""
        source = self._sources[file]
        if isinstance(source, Stored) and (source.offset is None or source.is_fortran):
            return False
        return source.dtype == self.dtype

    def open(self, file: int) -> Any:
        """Return a file's rows, for `fill`."""
        found = [np.ascontiguousarray(a, self.dtype) for a in self._read(file)]
        return Lines(found, self.rows_of(file))

    def _read(self, file: int) -> list[np.ndarray]:
        source = self._sources[file]
        if isinstance(source, Stored):
            return [self._checked(array, source.path) for array in source.arrays()]
        return [source]

    def _checked(self, found: np.ndarray, where: str) -> np.ndarray:
        """Return `found`; raise ValueError if the column's dtype cannot hold it."""
        if self._narrows and found.size:
            low, high = int(found.min()), int(found.max())
            least, most = 0, 1
            if self.dtype.kind != "b":
                least, most = np.iinfo(self.dtype).min, np.iinfo(self.dtype).max
            if low < least or high > most:
                raise ValueError(
                    f"{where}: numbers from {low} to {high}, which {self.dtype} does"
                    " not hold"
                )
        return found

    def fill(
        self,
        files: Sequence[Any],
        starts: np.ndarray,
        picks: np.ndarray,
        out: np.ndarray,
    ) -> None:
        """Write rows of `files`, which `open` has returned; see `fill.gather`."""
        gather(files, starts, picks, out)

    def draw(self, rows: int, seed: int, epoch: int) -> np.ndarray | None:
        """Return an epoch's random numbers for all `rows` rows; None if it has none."""
        return None

    takes_runs = True
    """Whether `fill` has a faster copy for rows with consecutive numbers."""

    def picks(
        self, draws: np.ndarray | None, rows: np.ndarray, places: np.ndarray
    ) -> np.ndarray:
        """Return the argument `picks` of `fill`, here `places`; see `fill.gather`."""
        return places


class ImageColumn(Column):
    """An input of images, of axes (channel, 0, 1) or (0, 1), cropped and normalised.

    The arguments are those of `synk.files.images`. With `is_random`, crop and mirroring
    are drawn for each image and epoch; without, the crop is in the centre.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        dtype: Any,
        layout: str,
        mean: Any,
        std: Any,
        crop: int | tuple[int, int] | None,
        mirror: bool,
        is_random: bool,
    ) -> None:
        if sorted(layout) not in (sorted("bc01"), sorted("b01")):
            raise ValueError(
                f"layout must have 'b', '0', '1' and perhaps 'c', as 'c01b' has: got"
                f" {layout!r}"
            )
        self._axes = [layout.index(axis) for axis in "bc01" if axis in layout]
        if len(sources[0].shape) != len(layout):
            raise ValueError(
                f"layout {layout!r} is of {len(layout)} axes, and"
                f" {_label(sources[0])} has an array of {sources[0].shape}"
            )
        super().__init__(sources, dtype)
        self._whole = (1, *self.shape)[-3:]  # with an axis for the channel
        height, width = self.shape[-2:]
        lines, columns = (height, width) if crop is None else np.broadcast_to(crop, 2)
        if not (1 <= lines <= height and 1 <= columns <= width):
            raise ValueError(f"crop={crop} is no part of images of {height} x {width}")
        self.shape = (*self.shape[:-2], int(lines), int(columns))
        self._spare = height - int(lines), width - int(columns)
        self._mirror, self._is_random = mirror, is_random
        self._mean = self._std = np.empty((0, 0, 0), np.float32)
        if mean is not None or std is not None:
            if self.dtype.kind != "f":
                raise TypeError(f"a mean or std is for floats: dtype is {self.dtype}")
            self._mean = self._as_image("mean", 0 if mean is None else mean)
            self._std = self._as_image("std", 1 if std is None else std)
            if not self._std.all():
                raise ValueError("std has zeros, by which nothing can be divided")

    def _shape_of_rows(self, source: Source) -> tuple[int, ...]:
        if len(source.shape) != len(self._axes):
            return tuple(source.shape)
        return tuple(source.shape[axis] for axis in self._axes[1:])

    def rows_of(self, file: int) -> int:
        """Return the number of images of file number `file`."""
        return self._sources[file].shape[self._axes[0]]

    def _as_image(self, name: str, value: Any) -> np.ndarray:
        array = np.asarray(value, self.dtype)
        if array.ndim == 1:
            array = array[:, None, None]
        try:
            return np.ascontiguousarray(np.broadcast_to(array, self._whole))
        except ValueError:
            raise ValueError(
                f"{name} has shape {np.shape(value)}, and images {self._whole}: give a"
                " number, one for each channel, or an image"
            ) from None

    def is_mapped(self, file: int) -> bool:
        """Return whether `open` maps the file, and neither reads nor casts it."""
        source = self._sources[file]
        is_there = getattr(source, "offset", 0) is not None and not self._narrows
        return is_there and source.dtype == _native(source.dtype) != np.float16

    def open(self, file: int) -> Any:
        """Return a file's images, for `fill`: an array (image, channel, 0, 1)."""
        [found] = self._read(file)
        dtype = _native(found.dtype)
        if dtype == np.float16:  # numba does not know it
            dtype = np.dtype(np.float32)
        if dtype != found.dtype:
            found = found.astype(dtype)  # keeps the order of axes in memory
        if dtype.kind == "b":  # spares a compilation
            found = found.view(np.uint8)
        images = found.transpose(self._axes)
        return images if images.ndim == 4 else images[:, None]

    def fill(
        self,
        files: Sequence[Any],
        starts: np.ndarray,
        picks: np.ndarray,
        out: np.ndarray,
    ) -> None:
        """Write crops of images of `files`, which `open` has returned; see `fill`."""
        images = out.reshape(len(out), self._whole[0], *self.shape[-2:])
        fill(files, starts, picks, self._mean, self._std, images)

    def draw(self, rows: int, seed: int, epoch: int) -> np.ndarray | None:
        """Return the crop's first line and column, and the mirroring, of all images.

        They follow from seed, epoch and the image's number alone.
        """
        if not self._is_random:
            return None
        random = np.random.default_rng([seed, epoch, DRAWS])
        limits = [*self._spare, int(self._mirror)]
        return random.integers(0, limits, (rows, 3), np.int32, endpoint=True)

    takes_runs = False

    def picks(
        self, draws: np.ndarray | None, rows: np.ndarray, places: np.ndarray
    ) -> np.ndarray:
        """Return the argument `picks` of `fill`: places, crop and mirroring."""
        found = np.empty((len(rows), 5), np.int64)
        found[:, :2] = places.T
        found[:, 2:] = *(spare // 2 for spare in self._spare), 0
        if draws is not None:
            found[:, 2:] = draws[rows]
        return found


def _native(dtype: np.dtype) -> np.dtype:
    """Return a dtype in this machine's byte order."""
    return dtype.newbyteorder("=")


def _label(source: Source) -> str:
    """Return the name of a source, for messages."""
    return source.path if isinstance(source, Stored) else "labels"
