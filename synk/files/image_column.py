"""Images: a part of each, mirrored or not, from which a mean image is subtracted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .columns import NOTHING, Column, Source, native, place
from .fill import fill
from .order import DRAWS


class ImageColumn(Column):
    """Images as they are trained on: of axes (channel, 0, 1), or (0, 1).

    Parameters
    ----------
    sources : sequence of Stored or numpy.ndarray
        For each file.
    dtype : dtype, optional
        Of the rows; by default the files' own.
    layout : str
        The files' axes: "b" is the image, "c" the channel, "0" and "1" the place in it.
    mean, std : array_like, optional
        What is subtracted, and then divided by: a number, one for each channel, or an
        image.
    crop : int or (int, int), optional
        Size of the part that is taken; by default all.
    mirror : bool
        Whether half of them are mirrored, left to right.
    is_random : bool
        Whether part and mirroring are drawn; otherwise it is the part in the centre.

    Raises
    ------
    TypeError, ValueError
        If an argument does not fit the images.
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
                f" {place(sources[0])} has an array of {sources[0].shape}"
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
        self._mean = self._std = NOTHING
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
        """Return how many images a file has."""
        return self._sources[file].shape[self._axes[0]]

    def _as_image(self, name: str, value: Any) -> np.ndarray:
        array = np.asarray(value, self.dtype)
        if array.ndim == 1:
            array = array[:, None, None]
        try:
            return np.ascontiguousarray(np.broadcast_to(array, self._whole))
        except ValueError:
            raise ValueError(
                f"{name} has shape {np.shape(value)}, and images {self._whole}: it is a"
                " number, one for each channel, or an image"
            ) from None

    def is_mapped(self, file: int) -> bool:
        """Tell whether a file's array is there without reading it."""
        source = self._sources[file]
        is_there = getattr(source, "offset", 0) is not None and not self._narrows
        return is_there and source.dtype == native(source.dtype) != np.float16

    def array(self, file: int) -> np.ndarray:
        """Return a file's images as `fill` takes them: axes (image, channel, 0, 1)."""
        found = self._read(file)
        dtype = native(found.dtype)
        if dtype == np.float16:  # of which numba knows nothing
            dtype = np.dtype(np.float32)
        if dtype != found.dtype:
            found = found.astype(dtype)  # in the same order
        if dtype.kind == "b":  # spares a compilation
            found = found.view(np.uint8)
        images = found.transpose(self._axes)
        return images if images.ndim == 4 else images[:, None]

    def fill(
        self,
        arrays: Sequence[np.ndarray],
        starts: np.ndarray,
        rows: np.ndarray,
        out: np.ndarray,
    ) -> None:
        """Write images of arrays that `array` has returned; see `fill.fill`."""
        shape = len(out), self._whole[0], *self.shape[-2:]
        fill(arrays, starts, rows, self._mean, self._std, out.reshape(shape))

    def draw(self, rows: int, seed: int, epoch: int) -> np.ndarray | None:
        """Return first line, first column and mirroring of all images in an epoch.

        They follow from seed, epoch and the image's number alone. All places are as
        likely as each other.
        """
        if not self._is_random:
            return None
        random = np.random.default_rng([seed, epoch, DRAWS])
        limits = [*self._spare, int(self._mirror)]
        return random.integers(0, limits, (rows, 3), np.int32, endpoint=True)

    def picks(self, draws: np.ndarray | None, rows: np.ndarray) -> np.ndarray:
        """Return first line, first column and mirroring of some images."""
        if draws is not None:
            return draws[rows]
        top, left = (spare // 2 for spare in self._spare)
        return np.broadcast_to(np.array([top, left, 0]), (len(rows), 3))
