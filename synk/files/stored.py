"""Arrays as they lie in files: found without reading them, and mapped into memory.

Files of HDF5, hickle's among them, need h5py, and nothing in them is unpickled.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..memory import descriptors


class Place(NamedTuple):
    """An array in a file.

    Attributes
    ----------
    name : str or None
        Of a dataset, in a file that may have several.
    offset : int or None
        Where its elements begin in the file, one after the other; None, if they are
        compressed or in pieces, so that they must be read by the format's library.
    is_fortran : bool
        Whether their first index is the one that changes fastest.
    """

    name: str | None
    shape: tuple[int, ...]
    dtype: np.dtype
    offset: int | None = None
    is_fortran: bool = False


class Format(NamedTuple):
    """A format of files.

    Attributes
    ----------
    find : callable
        Returns the places of arrays in a file, of these names or, if they are None, of
        the one that there is. It raises `ValueError` for what is not there.
    read : callable
        Returns the array of a name, where that cannot be mapped.
    """

    find: Callable[[str, Sequence[str] | None], list[Place]]
    read: Callable[[str, str], np.ndarray]


class Stored(NamedTuple):
    """Where an array lies, in which file; `stamp` tells it from itself after a change.

    See `Place` of the others.
    """

    path: str
    stamp: tuple[int, int]
    name: str | None
    shape: tuple[int, ...]
    dtype: np.dtype
    offset: int | None
    is_fortran: bool = False

    @property
    def absolute(self) -> Stored:
        """The same, for processes in other folders."""
        return self._replace(path=os.path.abspath(self.path))

    def on_this_machine(self) -> Stored:
        """Return where the array lies for this process, which may be on another one."""
        names = None if self.name is None else [self.name]
        (found,) = stored_in(self.path, names)
        if (found.shape, found.dtype) != (self.shape, self.dtype):
            raise ValueError(f"{self.path}: it has {found.dtype} {found.shape}")
        return found

    def array(self) -> np.ndarray:
        """Return the array: mapped, so that what is touched of it is read, or read."""
        with damaged(self.path):
            if _stamp(self.path) != self.stamp:
                raise ValueError("it has changed since it was found")
            if self.offset is not None:
                return self._mapped()
            assert self.name is not None
            return _format_of(self.path).read(self.path, self.name)

    def _mapped(self) -> np.ndarray:
        assert self.offset is not None
        end = self.offset + self.dtype.itemsize * int(np.prod(self.shape))
        with open(self.path, "rb") as file:
            # Touching what is not there would kill the process.
            if os.fstat(file.fileno()).st_size < end:
                raise ValueError(f"it ends before the array does, at byte {end}")
            fd, read = file.fileno(), mmap.ACCESS_READ
            make = partial(mmap.mmap, access=read)
            mapped = descriptors.mapped(make, fd, end)
        mapped.madvise(mmap.MADV_WILLNEED)  # disks begin at once
        shape = self.shape[::-1] if self.is_fortran else self.shape
        array: np.ndarray = np.ndarray(shape, self.dtype, mapped, self.offset)
        return array.T if self.is_fortran else array


def files_of(paths: str | os.PathLike | Sequence) -> list[str]:
    """Return the paths of a folder's files, in the order of names, or of a list."""
    if isinstance(paths, (str, os.PathLike)):
        folder = Path(paths)
        found = [folder]
        if folder.is_dir():
            found = sorted(p for p in folder.iterdir() if p.suffix.lower() in FORMATS)
    else:
        found = [Path(path) for path in paths]
    if not found:
        raise ValueError(f"{paths}: no files that end in {', '.join(FORMATS)}")
    for path in found:
        if path.suffix.lower() not in FORMATS:
            raise ValueError(f"{path}: it does not end in {', '.join(FORMATS)}")
    return list(map(str, found))


def stored_in(path: str, names: Sequence[str] | None) -> list[Stored]:
    """Find the arrays of a file, by its header.

    Names are of datasets, or groups of datasets; by default it must have one array.
    """
    with damaged(path):
        stamp = _stamp(path)
        places = _format_of(path).find(path, names)
        found = [Stored(path, stamp, *place) for place in places]
        for stored in found:
            if stored.dtype.kind not in "biuf" or not stored.shape:
                raise ValueError(
                    f"no rows of numbers, but {stored.dtype} {stored.shape}"
                )
    return found


def _format_of(path: str) -> Format:
    return FORMATS[Path(path).suffix.lower()]


def _stamp(path: str) -> tuple[int, int]:
    found = os.stat(path)
    return found.st_size, found.st_mtime_ns


@contextlib.contextmanager
def damaged(path: str) -> Iterator[None]:
    """Have errors name the file, in a ``with`` block that reads it."""
    try:
        yield
    except (FileNotFoundError, IsADirectoryError, PermissionError, ImportError):
        raise
    except (OSError, ValueError, KeyError, RuntimeError, EOFError) as error:
        if str(error).startswith(path):
            raise
        text = str(error) or type(error).__name__
        raise ValueError(f"{path}: {text}") from error


# -- NumPy's files


def _find_npy(path: str, names: Sequence[str] | None) -> list[Place]:
    if names is not None and len(names) > 1:
        raise ValueError(f"it has one array, and no {', '.join(names)}")
    array = np.load(path, mmap_mode="r")
    if not isinstance(array, np.memmap):
        raise ValueError("no array, but an archive of some")
    is_fortran = array.flags.f_contiguous and not array.flags.c_contiguous
    return [Place(None, array.shape, array.dtype, array.offset, is_fortran)]


def _read_npy(path: str, name: str) -> np.ndarray:
    return np.load(path)


# -- HDF5


def _find_hdf5(path: str, names: Sequence[str] | None) -> list[Place]:
    """Return the datasets of these names, or the only one with numbers.

    A group stands for all that are in it, in the order of their names.
    """
    with _opened(path) as file:
        if names is not None:
            return [found for name in names for found in _named(file, name)]
        # Whatever else is there, such as what pickled objects became, is left alone.
        found = [place for place in _below(file) if place.dtype.kind in "biuf"]
        if len(found) != 1:
            there = ", ".join(str(place.name) for place in found) or "none"
            raise ValueError(
                f"one dataset of numbers is expected, there are: {there}; say by names="
                " which are meant"
            )
        return found


def _read_hdf5(path: str, name: str) -> np.ndarray:
    """Return a dataset's values."""
    with _opened(path) as file:
        return file[name][()]


def _named(file: Any, name: str) -> list[Place]:
    if name not in file:
        raise ValueError(f"no dataset or group {name!r}: it has {', '.join(file)}")
    found = file[name]
    places = [_place(found)] if hasattr(found, "dtype") else _below(found)
    if not places:
        raise ValueError(f"no datasets are in the group {name!r}")
    return places


def _below(group: Any) -> list[Place]:
    found = []
    for key in sorted(group):
        member = group.get(key)  # None for a link to nothing
        if hasattr(member, "dtype") and hasattr(member, "shape"):
            found.append(_place(member))
        elif hasattr(member, "keys"):
            found += _below(member)
    return found


def _place(dataset: Any) -> Place:
    import h5py

    shape, offset = dataset.shape or (), None
    nbytes = dataset.dtype.itemsize * int(np.prod(shape))
    layout = dataset.id.get_create_plist().get_layout()
    # What was never written has no place, and h5py may name one all the same.
    if layout == h5py.h5d.CONTIGUOUS and dataset.id.get_storage_size() == nbytes > 0:
        offset = dataset.id.get_offset()
    return Place(dataset.name, tuple(shape), dataset.dtype, offset)


def _opened(path: str) -> Any:
    try:
        import h5py
    except ImportError as error:
        raise ImportError(
            f"{path}: files of HDF5 need the package h5py: pip install 'synk[hdf5]'"
        ) from error
    return h5py.File(path, "r")


_HDF5 = Format(_find_hdf5, _read_hdf5)
FORMATS = {
    ".npy": Format(_find_npy, _read_npy),
    **dict.fromkeys((".hkl", ".h5", ".hdf5"), _HDF5),
}
"""By how a file's name ends."""
