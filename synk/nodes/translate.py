"""Commands and replies as bytes for other nodes, with the arrays that they name.

Within a node an array travels as a window of shared memory. To another node its bytes
go, and the master there puts them into shared memory of its own: where a command says
"the array in this window", its ranks get it with a window of theirs. In replies, which
only the script's master reads, an array stands in the place of its window.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Sequence
from typing import Any

import cloudpickle
import numpy as np

from ..memory.segment import Window
from ..ranks.homes import NewHome

_WINDOW, _HOME = "window", "home"

Locate = Callable[[Window], np.ndarray]


def is_window(value: Any) -> bool:
    """Tell whether a value is a window: a plain tuple, with no name of its own."""
    return (
        type(value) is tuple
        and len(value) == 7
        and type(value[6]) is tuple
        and all(type(each) is int for each in value[:5])
        and type(value[5]) in (str, list)
    )


def dumps(message: Any, locate: Locate | None = None) -> bytes:
    """Return a message as bytes, with the arrays that its windows describe.

    What the other end cannot import is pickled by value.

    Parameters
    ----------
    message : object
    locate : callable, optional
        Returns the array that a window describes.
    """
    try:
        data, windows = _pickled(_Plain, message)
    except (pickle.PicklingError, AttributeError, TypeError):
        data, windows = _pickled(_ByValue, message)
    else:
        if b"__main__" in data:
            data, windows = _pickled(_ByValue, message)
    arrays: list[np.ndarray] = []
    if windows:
        assert locate is not None
        arrays = [np.asarray(locate(window), order="C") for window in windows]
    return pickle.dumps((data, arrays), protocol=5)


def loads(
    data: bytes,
    put: Callable[[Sequence[np.ndarray]], Sequence] = tuple,
    house: Callable | None = None,
) -> Any:
    """Return a message.

    Parameters
    ----------
    data : bytes
    put : callable
        Takes all its arrays, and returns what is to stand for each: a window, or by
        default the array itself.
    house : callable, optional
        Makes the home that a command names, for the ranks of this node.
    """
    message, arrays = pickle.loads(data)
    return _Unpickler(message, put(arrays) if arrays else (), house).load()


def _pickled(make: Any, message: Any) -> tuple[bytes, list[Window]]:
    file = io.BytesIO()
    pickler = make(file, protocol=5)
    pickler.windows = {}
    pickler.dump(message)
    return file.getvalue(), list(pickler.windows.values())


class _Windows:
    """Puts windows aside: a part of both picklers."""

    windows: dict[str, Window]

    def persistent_id(self, value: Any) -> tuple | None:
        """Return what stands for a window, or for a home of shared variables."""
        if type(value) is NewHome:
            return _HOME, value.number, value.window[6][1], value.slots
        if not is_window(value):
            return None
        key = repr(value)  # the dtype of records is a list
        self.windows.setdefault(key, value)
        return _WINDOW, list(self.windows).index(key)


class _Plain(_Windows, pickle.Pickler):
    """Pickles by name what has one."""


class _ByValue(_Windows, cloudpickle.Pickler):
    """Pickles by value what only this process has."""


class _Unpickler(pickle.Unpickler):
    def __init__(self, data: bytes, places: Sequence, house: Callable | None) -> None:
        super().__init__(io.BytesIO(data))
        self._places, self._house = places, house

    def persistent_load(self, pid: tuple) -> Any:
        """Return what takes the place of a window or a home."""
        kind, *what = pid
        if kind == _HOME:
            assert self._house is not None
            return self._house(*what)
        return self._places[what[0]]
