"""Commands and replies as bytes for other nodes, and the arrays that they name.

Within a node an array travels as a window of shared memory. To another node its bytes
go, which follow the command (`message`), into shared memory of that node (`inbox`):
where a command says "the array in this window", ranks there get it with a window of
theirs. In replies, which only the script's master reads, arrays come along, and stand
in the places of their windows.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import cloudpickle
import numpy as np

from ..memory.partition import cuts
from ..memory.segment import Window, is_window
from ..workers import channel

_WINDOW, _SENT, _KEPT, _BOUNDS = range(4)

Locate = Callable[[Window], np.ndarray]


class Sent(NamedTuple):
    """Stands for an array that a node gets alone: in its place comes a window, or None.

    Attributes
    ----------
    place : int
        Among all such arrays of the command.
    """

    place: int


class Bounds(NamedTuple):
    """Stands for where the parts of rows begin and end, as `cuts` returns them.

    Attributes
    ----------
    rows, parts, block : int
    """

    rows: int
    parts: int
    block: int = 1


FEW = 4096
"""Bytes up to which arrays travel in stacks: node 0 reads those of all ranks."""

Stack = tuple[np.ndarray, list[int]]
"""Arrays of one dtype and shape as one, or one array, with their numbers."""


class Pickled(NamedTuple):
    """A command without its arrays.

    Attributes
    ----------
    data : bytes
    windows : list of Window
        What the bytes name by numbers.
    """

    data: bytes
    windows: list[Window]


def pickled(command: Any, keep: Callable[[Window], int | None]) -> Pickled:
    """Return a command without its arrays.

    What the other end cannot import is pickled by value.

    Parameters
    ----------
    command : object
    keep : callable
        Returns by which number nodes have a copy of what is in a window, or None. It
        may be asked more than once.
    """
    windows: dict[str, tuple[int, Window]] = {}
    by_name, by_value = (
        partial(_pickled, make, windows, keep) for make in (_Plain, _ByValue)
    )
    data = channel.dumps(command, by_name, by_value)
    return Pickled(data, [window for _, window in windows.values()])


def unpickled(
    data: bytes,
    windows: Sequence,
    sent: Sequence = (),
    copies: Mapping[int, Any] = MappingProxyType({}),
) -> Any:
    """Return the command that has come.

    Parameters
    ----------
    data : bytes
    windows, sent : sequence
        What is to stand for the arrays of all nodes, and for those of this.
    copies : mapping
        By number, what has the `window` of rows that the node keeps.
    """
    return _Unpickler(data, windows, sent, copies).load()


def dumps(reply: Any, locate: Locate | None = None) -> bytes:
    """Return a reply as bytes, with the arrays that its windows describe.

    Parameters
    ----------
    reply : object
    locate : callable, optional
        Returns the array that a window describes.
    """
    data, windows = pickled(reply, lambda _: None)
    assert locate is not None or not windows
    arrays = [np.asarray(locate(w), order="C") for w in windows] if locate else []
    return pickle.dumps((data, _stacked(arrays)), protocol=5)


def loads(data: bytes | memoryview) -> Any:
    """Return what a reply says, arrays in the place of windows."""
    given, stacks = pickle.loads(data)
    # Node 0 reads a thousand: what names no arrays is a plain pickle, read faster.
    return unpickled(given, _apart(stacks)) if stacks else pickle.loads(given)


def _stacked(arrays: Sequence[np.ndarray]) -> list[Stack]:
    """Return arrays as stacks: to read one takes as long as to read an array."""
    alike: dict[Any, list[int]] = {}
    for number, array in enumerate(arrays):
        kind = (array.dtype, array.shape) if array.nbytes <= FEW else number
        alike.setdefault(kind, []).append(number)
    found = []
    for numbers in alike.values():
        one = stack = arrays[numbers[0]]
        if len(numbers) > 1:
            stack = np.empty((len(numbers), *one.shape), one.dtype)
            for row, number in enumerate(numbers):
                stack[row] = arrays[number]
        found.append((stack, numbers))
    return found


def _apart(stacks: Sequence[Stack]) -> list[np.ndarray]:
    """Return the arrays that `_stacked` was given."""
    found: dict[int, np.ndarray] = {}
    for stack, numbers in stacks:
        if len(numbers) == 1:
            found[numbers[0]] = stack
            continue
        for row, number in enumerate(numbers):
            found[number] = stack[row, ...]  # not a scalar, if they have no dimensions
    return [found[number] for number in range(len(found))]


def _pickled(
    make: Any,
    windows: dict[str, tuple[int, Window]],
    keep: Callable[[Window], int | None],
    message: object,
) -> bytes:
    """Pickle a message; `windows` takes those that it names, with their numbers."""
    windows.clear()
    file = io.BytesIO()
    pickler = make(file, protocol=5)
    pickler.windows, pickler.keep = windows, keep
    pickler.dump(message)
    return file.getvalue()


class _Windows:
    """Puts windows aside: a part of both picklers."""

    windows: dict[str, tuple[int, Window]]
    keep: Callable[[Window], int | None]

    def persistent_id(self, value: Any) -> tuple | None:
        """Return what stands for a window, and for what nodes find by themselves."""
        kind = type(value)
        if kind is Sent:
            return _SENT, value.place
        if kind is Bounds:
            return _BOUNDS, *value
        if not is_window(value):
            return None
        number = self.keep(value)
        if number is not None:
            return _KEPT, number
        key = repr(value)  # the dtype of records is a list
        number, _ = self.windows.setdefault(key, (len(self.windows), value))
        return _WINDOW, number


class _Plain(_Windows, pickle.Pickler):
    """Pickles by name what has one."""


class _ByValue(_Windows, cloudpickle.Pickler):
    """Pickles by value what only this process has."""


class _Unpickler(pickle.Unpickler):
    def __init__(
        self,
        data: bytes,
        windows: Sequence,
        sent: Sequence,
        copies: Mapping[int, Any],
    ) -> None:
        super().__init__(io.BytesIO(data))
        self._windows, self._sent, self._copies = windows, sent, copies

    def persistent_load(self, pid: tuple) -> Any:
        """Return what takes the place of what `persistent_id` has told of."""
        kind, *what = pid
        if kind == _BOUNDS:
            return cuts(*what)
        if kind == _KEPT:
            return self._copies[what[0]].window
        return (self._sent if kind == _SENT else self._windows)[what[0]]
