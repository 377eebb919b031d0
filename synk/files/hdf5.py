"""Arrays in HDF5 files, hickle's among them: what h5py is needed for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

SUFFIXES = (".hkl", ".h5", ".hdf5")

Place: TypeAlias = tuple[str, tuple[int, ...], np.dtype, int | None]
"""A dataset's name, shape and dtype, and where its elements begin in the file."""


def find(path: str, names: Sequence[str] | None) -> list[Place]:
    """Return the datasets of these names, or the only one with numbers.

    A group stands for all that are in it, in the order of their names.

    Raises
    ------
    KeyError, ValueError
        If there are none of these names, or not one only.
    """
    with _opened(path) as file:
        if names is not None:
            return [found for name in names for found in _named(file, name)]
        # Whatever else is there, such as what pickled objects became, is left alone.
        found = [place for place in _below(file) if place[2].kind in "biuf"]
        if len(found) != 1:
            there = ", ".join(place[0] for place in found) or "none"
            raise ValueError(
                f"one dataset of numbers is expected, there are: {there}; say by names="
                " which are meant"
            )
        return found


def read(path: str, name: str) -> np.ndarray:
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
    return dataset.name, tuple(shape), dataset.dtype, offset


def _opened(path: str) -> Any:
    try:
        import h5py
    except ImportError as error:
        raise ImportError(
            f"{path}: files of HDF5 need the package h5py: pip install 'synk[hdf5]'"
        ) from error
    return h5py.File(path, "r")
