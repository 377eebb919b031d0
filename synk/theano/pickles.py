"""`theano.misc.pkl_utils`: objects in zip files, with their arrays by name.

``numpy.load`` reads the arrays of such a file. Arrays of shared variables have the
variables' names.
"""

from __future__ import annotations

import functools
import io
import pickle
import zipfile
from typing import Any

import numpy as np
from pytensor.compile import SharedVariable

_PICKLE = "pkl"
"""The member of the zip file with everything but the arrays."""


class _Pickler(pickle.Pickler):
    """Leaves arrays out, and names them: by their shared variables, or numbers."""

    def __init__(self, file: io.BytesIO, protocol: int) -> None:
        super().__init__(file, protocol)
        self.arrays: dict[str, np.ndarray] = {}
        self._of: dict[int, str] = {}
        self._wanted: dict[int, str] = {}

    def persistent_id(self, found: Any) -> str | None:
        """Return an array's name, None for other objects."""
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


def dump(obj: Any, file_handler: Any, protocol: int = pickle.DEFAULT_PROTOCOL) -> None:
    """Write an object to an open zip file, from which `load` reads it.

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
    text = io.BytesIO()
    pickler = _Pickler(text, protocol)
    pickler.dump(obj)
    with zipfile.ZipFile(file_handler, "w", zipfile.ZIP_DEFLATED, True) as archive:
        archive.writestr(_PICKLE, text.getvalue())
        for name, array in pickler.arrays.items():
            data = io.BytesIO()
            np.lib.format.write_array(data, np.asanyarray(array), allow_pickle=False)
            archive.writestr(f"{name}.npy", data.getvalue())


def load(f: Any) -> Any:
    """Read an object that `dump` has written. Loading a pickle runs its code."""
    with np.load(f, allow_pickle=False) as archive:
        unpickler: Any = pickle.Unpickler(io.BytesIO(archive[_PICKLE]))
        # Each array is one object.
        unpickler.persistent_load = functools.cache(archive.__getitem__)
        return unpickler.load()
