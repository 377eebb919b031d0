"""`Stored`: an array in a file, found by the file's header, and mapped or read later.

Files of HDF5, which hickle writes too, need h5py, and nothing in them is unpickled.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from . import places, tables
from .cache import Cache, Place, map_array


class Format(NamedTuple):
    """A format of files; CONTRIBUTING.rst shows how one is added.

    ``find(path, names)`` returns for each array the fields of `Stored` from `name` on.
    The arrays are those named in `names`, or with None the file's only one. It raises
    ValueError if there is none. ``read(path, name)`` returns an array that cannot be
    mapped, or a list of arrays: the columns of its rows.
    """

    find: Callable[[str, Sequence[str] | None], list[tuple]]
    read: Callable[[str, Any], np.ndarray | list[np.ndarray]]


class Stored(NamedTuple):
    """An array in a file: where it lies, and its shape and dtype."""

    path: str
    stamp: tuple[int, int]  # of the file; see `places.stamp`
    name: Any  # of a dataset, in a file that may have several; or a `tables.Piece`
    shape: tuple[int, ...]
    dtype: np.dtype
    offset: int | None
    """The byte of the file where its elements begin, if they are contiguous. None if
    they are compressed or in pieces, so that the format's library must read them."""
    is_fortran: bool = False  # Fortran order: the first index changes fastest
    cache: Cache | None = None  # keeps the array once it has been read

    def on_this_machine(self) -> Stored:
        """Find the array again on this process's machine; ValueError if it differs."""
        names = None if self.name is None else [self.name]
        (found,) = stored_in(self.path, names)
        if (found.shape, found.dtype) != (self.shape, self.dtype):
            raise ValueError(
                f"{self.path}: here it has {found.dtype} {found.shape}, and on the"
                f" first machine {self.dtype} {self.shape}"
            )
        return found._replace(cache=self.cache)

    def arrays(self) -> list[np.ndarray]:
        """Return the array, mapped or read, in a list.

        A list of several arrays has the columns of the array's rows.
        """
        if self.cache is None:
            return self._read()
        # The key has the file's stamp, so the cache has the file as it was found.
        key = self[:-1]
        arrays = self.cache.find(key)
        if arrays is None:
            arrays = self._read()
            self.cache.keep(key, arrays)
        return arrays

    def _read(self) -> list[np.ndarray]:
        with damaged(self.path):
            if places.stamp(self.path) != self.stamp:
                raise ValueError("it has changed since it was found")
            if self.offset is not None:
                place = Place(self.offset, self.shape, self.dtype, self.is_fortran)
                with open(self.path, "rb") as file:
                    return [map_array(file, place)]
            found = _format(self.path).read(self.path, self.name)
        return found if isinstance(found, list) else [found]


def files_of(paths: str | os.PathLike | Sequence, of_tables: bool = False) -> list[str]:
    """Return the paths of a folder's files, sorted by name, or those of a list.

    The files are tables with `of_tables`, and files of arrays without.
    """
    ends = [end for end in FORMATS if (end in tables.SUFFIXES) == of_tables]
    if isinstance(paths, (str, os.PathLike)):
        found = [places.absolute(os.fspath(paths))]
        # A folder may be a table itself, as those of zarr are.
        if places.ending(found[0], ends) is None:
            there = places.listed(found[0])
            if there is not None:
                found = sorted(path for path in there if places.ending(path, ends))
    else:
        found = [places.absolute(os.fspath(path)) for path in paths]
    if not found:
        raise ValueError(f"{paths}: no files that end in {', '.join(ends)}")
    for path in found:
        if places.ending(path, ends) is None:
            raise ValueError(
                f"{path}: it does not end in {', '.join(ends)}, and is no folder"
            )
        if places.is_url(path) and not of_tables:
            raise ValueError(f"{path}: of files behind URLs, only tables are read")
    return found


def stored_in(path: str, names: Sequence[Any] | None) -> list[Stored]:
    """Find the arrays of a file, by its header.

    `names` has names of datasets or of groups of datasets, or pieces of tables. With
    None the file must have exactly one array.
    """
    with damaged(path):
        stamp = places.stamp(path)
        there = _format(path).find(path, names)
        found = [Stored(path, stamp, *place) for place in there]
        for stored in found:
            if stored.dtype.kind not in "biuf" or not stored.shape:
                raise ValueError(
                    f"rows of numbers are expected: {stored.dtype} {stored.shape}"
                )
    return found


@contextlib.contextmanager
def damaged(path: str) -> Iterator[None]:
    """Raise errors of a ``with`` block that reads a file as ValueError naming it."""
    try:
        yield
    except (FileNotFoundError, IsADirectoryError, PermissionError, ImportError):
        raise
    except (OSError, ValueError, KeyError, RuntimeError, EOFError) as error:
        if str(error).startswith(path):
            raise
        text = str(error) or type(error).__name__
        raise ValueError(f"{path}: {text}") from error


# -- the formats: functions that find arrays, and return fields of `Stored` from `name`


def _find_npy(path: str, names: Sequence[str] | None) -> list[tuple]:
    if names is not None and len(names) > 1:
        raise ValueError(f"it has one array, and no {', '.join(names)}")
    array = np.load(path, mmap_mode="r")
    if not isinstance(array, np.memmap):
        raise ValueError("one array is expected, and it is an archive of arrays")
    is_fortran = array.flags.f_contiguous and not array.flags.c_contiguous
    return [(None, array.shape, array.dtype, array.offset, is_fortran)]


def _find_hdf5(path: str, names: Sequence[str] | None) -> list[tuple]:
    """Return the datasets named, or with None the only one with numbers.

    The name of a group stands for all datasets in it, sorted by name.
    """
    with _opened(path) as file:
        if names is None:
            # Other datasets, such as pickled objects, are left alone.
            found = [each for each in _below(file) if each.dtype.kind in "biuf"]
            if len(found) != 1:
                known = ", ".join(dataset.name for dataset in found) or "none"
                raise ValueError(
                    f"one dataset of numbers is expected, there are: {known}; say by"
                    " names= which are meant"
                )
            return [_place(found[0])]
        there: list[tuple] = []
        for name in names:
            if name not in file:
                known = ", ".join(file)
                raise ValueError(f"no dataset or group {name!r}: it has {known}")
            found = [file[name]] if hasattr(file[name], "dtype") else _below(file[name])
            if not found:
                raise ValueError(f"no datasets are in the group {name!r}")
            there += map(_place, found)
        return there


def _below(group: Any) -> list[Any]:
    found = []
    for key in sorted(group):
        member = group.get(key)  # None for a link to nothing
        if hasattr(member, "dtype") and hasattr(member, "shape"):
            found.append(member)
        elif hasattr(member, "keys"):
            found += _below(member)
    return found


def _place(dataset: Any) -> tuple:
    import h5py

    shape, offset = dataset.shape or (), None
    nbytes = dataset.dtype.itemsize * int(np.prod(shape))
    layout = dataset.id.get_create_plist().get_layout()
    # A dataset that was never written has no place, but h5py may return one.
    if layout == h5py.h5d.CONTIGUOUS and dataset.id.get_storage_size() == nbytes > 0:
        offset = dataset.id.get_offset()
    return dataset.name, tuple(shape), dataset.dtype, offset


def _opened(path: str) -> Any:
    try:
        import h5py
    except ImportError as error:
        raise ImportError(
            f"{path}: files of HDF5 need the package h5py: pip install 'synk[hdf5]'"
        ) from error
    return h5py.File(path, "r")


def _read_hdf5(path: str, name: str) -> np.ndarray:
    with _opened(path) as file:
        return file[name][()]


_HDF5 = Format(_find_hdf5, _read_hdf5)

FORMATS = {
    ".npy": Format(_find_npy, lambda path, _: np.load(path)),
    **dict.fromkeys((".hkl", ".h5", ".hdf5"), _HDF5),
    **dict.fromkeys(tables.SUFFIXES, Format(tables.find, tables.read)),
}
"""By the end of a file's name."""


def _format(path: str) -> Format:
    end = places.ending(path, FORMATS)
    assert end is not None
    return FORMATS[end]
