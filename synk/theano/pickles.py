"""`theano.misc.pkl_utils`: objects in zip files, with their arrays by name.

``numpy.load`` reads the arrays of such a file. Arrays of shared variables have the
variables' names.
"""

from __future__ import annotations

import functools
import io
import pickle
import zipfile
from collections.abc import Callable
from typing import Any

import numpy as np
from pytensor.compile import SharedVariable

_PICKLE = "pkl"
"""The member of the zip file with everything but the arrays."""


class _Names:
    """Gives arrays names: those of their shared variables, or numbers."""

    def __init__(self) -> None:
        self.arrays: dict[str, np.ndarray] = {}
        self._of: dict[int, str] = {}
        self._wanted: dict[int, str] = {}

    def __call__(self, found: Any) -> str | None:
        if isinstance(found, SharedVariable) and found.name and found.name != _PICKLE:
            self._wanted[id(found.container.storage[0])] = found.name
        if type(found) is not np.ndarray or found.dtype.hasobject:
            return None
        if id(found) not in self._of:
            self._of[id(found)] = self._free(self._wanted.get(id(found), ""))
            self.arrays[self._of[id(found)]] = found
        return self._of[id(found)]

    def _free(self, name: str) -> str:
        number = 2 if name else 0
        made = name or "array_0"
        while made in self.arrays:
            made = f"{name or 'array'}_{number}"
            number += 1
        return made


def dump(
    obj: Any,
    file_handler: Any,
    protocol: int = pickle.DEFAULT_PROTOCOL,
    persistent_id: Callable | None = None,
) -> None:
    """Write an object to an open zip file, from which `load` reads it.

    `persistent_id` returns the name of an object that the caller stores, or None; by
    default arrays get names and are stored in the file.

    Examples
    --------
    >>> import io, numpy as np, synk, theano
    >>> from theano.misc.pkl_utils import dump, load
    >>> w, file = theano.shared(np.arange(3.0), name="w"), io.BytesIO()
    >>> dump([w, np.array(2)], file)
    >>> _ = file.seek(0)
    >>> sorted(np.load(file).files)
    ['array_0', 'pkl', 'w']
    >>> load(file)[0].get_value()
    array([0., 1., 2.])
    """
    names, text = _Names(), io.BytesIO()
    named = persistent_id or names

    class Pickler(pickle.Pickler):
        def persistent_id(self, found: Any) -> Any:
            return named(found)

    Pickler(text, protocol).dump(obj)
    with zipfile.ZipFile(file_handler, "w", zipfile.ZIP_DEFLATED, True) as archive:
        archive.writestr(_PICKLE, text.getvalue())
        for name, array in names.arrays.items():
            data = io.BytesIO()
            np.lib.format.write_array(data, np.asanyarray(array), allow_pickle=False)
            archive.writestr(f"{name}.npy", data.getvalue())


def load(f: Any, persistent_load: Callable | None = None) -> Any:
    """Read an object that `dump` has written. Loading a pickle runs its code.

    `persistent_load` returns an object by the name that `persistent_id` gave to it.
    """
    with np.load(f, allow_pickle=False) as archive:
        array = functools.cache(archive.__getitem__)  # each array is one object

        class Unpickler(pickle.Unpickler):
            def persistent_load(self, name: Any) -> Any:
                return (persistent_load or array)(name)

        return Unpickler(io.BytesIO(archive[_PICKLE])).load()
