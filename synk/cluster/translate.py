"""Commands and replies as bytes for other nodes, with the arrays that they name.

Within a node an array travels as a window of shared memory. To another node its bytes
go, and the master there puts them into shared memory of its own: where a command says
"the array in this window", its ranks get it with a window of theirs. In replies, which
only the script's master reads, an array stands in the place of its window.
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

from ..memory.segment import Window
from ..workers import channel

_WINDOW, _SPECIAL, _ROWS, _KEPT = range(4)

StandIns = Mapping[type, Callable[[Any], tuple]]
"""By type, what is told of a value that is to be made anew on other nodes."""


class NodeRows(NamedTuple):
    """Stands for the rows of one input that a node gets, in a command.

    Attributes
    ----------
    place : int
        Among what is sent to the node and not kept there.
    kept : int or None
        By which number the node keeps them.
    """

    place: int
    kept: int | None = None


class ForNode(NamedTuple):
    """What is sent to one node alone.

    Attributes
    ----------
    arrays : list of numpy.ndarray
    kept : list of (int or None)
        For each, by which number the node is to keep it.
    """

    arrays: list[np.ndarray]
    kept: list[int | None]


class Parted(NamedTuple):
    """A command whose rows are sent apart.

    Attributes
    ----------
    args : list of tuple
        The arguments for each node, with `NodeRows` for arrays.
    rows : list of ForNode
        For each node.
    """

    args: list[tuple]
    rows: list[ForNode]


Locate = Callable[[Window], np.ndarray]

FEW = 4096
"""Bytes up to which arrays travel in stacks: node 0 reads those of all ranks."""

Stack = tuple[np.ndarray, list[int]]
"""Arrays of one dtype and shape as one, or one array, with their numbers."""


def is_window(value: Any) -> bool:
    """Tell whether a value is a window: a plain tuple, with no name of its own."""
    return (
        type(value) is tuple
        and len(value) == 7
        and type(value[6]) is tuple
        and all(type(each) is int for each in value[:5])
        and type(value[5]) in (str, list)
    )


class Message(NamedTuple):
    """A message as it travels.

    Attributes
    ----------
    data : bytes
        Pickled, with arrays by their numbers.
    arrays : list of numpy.ndarray
        Those that all nodes get.
    rows : list of list of tuple
        For each node, of what is sent to it alone: dtypes, shapes, and by which number
        it is to be kept, or None.
    """

    data: bytes
    arrays: list[np.ndarray]
    rows: list[list[tuple]]

    @classmethod
    def unpacked(cls, data: bytes | memoryview) -> Message:
        """Return a message that has come."""
        pickled, stacks, rows = pickle.loads(data)
        return cls(pickled, _apart(stacks), rows)

    def room(self, node: int, make: Callable) -> list[np.ndarray]:
        """Return arrays for what is sent to a node alone.

        Parameters
        ----------
        node : int
        make : callable
            Given dtype, shape and the number, makes an array that is kept.
        """
        return [
            np.empty(shape, dtype) if number is None else make(dtype, shape, number)
            for dtype, shape, number in (self.rows[node] if self.rows else ())
        ]

    def not_kept(self, node: int, arrays: list[np.ndarray]) -> list[np.ndarray]:
        """Return those of the arrays in the `room` of a node that it does not keep."""
        kinds = self.rows[node] if self.rows else []
        pairs = zip(arrays, kinds, strict=True)
        return [array for array, (*_, number) in pairs if number is None]

    def load(
        self,
        put: Callable[[Sequence[np.ndarray]], Sequence] = tuple,
        make: Callable | None = None,
        rows: Sequence[np.ndarray] = (),
        kept: Mapping[int, Window] = MappingProxyType({}),
    ) -> Any:
        """Return what the message says.

        Parameters
        ----------
        put : callable, optional
            Takes all its arrays, and returns what is to stand for each: a window, or
            by default the array itself.
        make : callable, optional
            Makes what the other end has told of by its `StandIns`.
        rows : sequence of numpy.ndarray
            What was sent to this node alone, and is not kept.
        kept : mapping
            Windows of what the node keeps, by number.
        """
        arrays = [*self.arrays, *rows]
        places = put(arrays) if arrays else ()
        return _Unpickler(self.data, places, len(self.arrays), make, kept).load()


def dumps(
    message: Any,
    locate: Locate | None = None,
    rows: Sequence[ForNode] = (),
    stand_ins: StandIns = MappingProxyType({}),
) -> bytes:
    """Return a message as bytes, with the arrays that its windows describe.

    What the other end cannot import is pickled by value.

    Parameters
    ----------
    message : object
    locate : callable, optional
        Returns the array that a window describes.
    rows : sequence of ForNode
        What is sent to each node alone: `NodeRows` stand for it.
    stand_ins : mapping
        See `StandIns`.
    """
    windows: dict[str, tuple[int, Window]] = {}
    by_name, by_value = (
        partial(_pickled, make, windows, stand_ins) for make in (_Plain, _ByValue)
    )
    data = channel.dumps(message, by_name, by_value)
    arrays: list[np.ndarray] = []
    if windows:
        assert locate is not None
        found = (locate(window) for _, window in windows.values())
        arrays = [np.asarray(array, order="C") for array in found]
    kinds = [
        [(a.dtype, a.shape, number) for a, number in zip(*some, strict=True)]
        for some in rows
    ]
    return pickle.dumps((data, _stacked(arrays), kinds), protocol=5)


def loads(data: bytes | memoryview) -> Any:
    """Return what a reply says, arrays in the place of windows."""
    message = Message.unpacked(data)
    # Node 0 reads a thousand: what names no arrays is a plain pickle, read faster.
    return message.load() if message.arrays else pickle.loads(message.data)


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
    stand_ins: StandIns,
    message: object,
) -> bytes:
    """Pickle a message; `windows` takes those that it names, with their numbers."""
    windows.clear()
    file = io.BytesIO()
    pickler = make(file, protocol=5)
    pickler.windows, pickler.stand_ins = windows, stand_ins
    pickler.dump(message)
    return file.getvalue()


class _Windows:
    """Puts windows aside: a part of both picklers."""

    windows: dict[str, tuple[int, Window]]
    stand_ins: StandIns

    def persistent_id(self, value: Any) -> tuple | None:
        """Return what stands for a window, and for what is made anew."""
        if type(value) in self.stand_ins:
            return _SPECIAL, *self.stand_ins[type(value)](value)
        if type(value) is NodeRows:
            return (_ROWS, value.place) if value.kept is None else (_KEPT, value.kept)
        if not is_window(value):
            return None
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
        places: Sequence,
        of_all: int,
        make: Callable | None,
        kept: Mapping[int, Window],
    ) -> None:
        super().__init__(io.BytesIO(data))
        self._places, self._of_all = places, of_all
        self._make, self._kept = make, kept

    def persistent_load(self, pid: tuple) -> Any:
        """Return what takes the place of a window, or is made anew."""
        kind, *what = pid
        if kind == _SPECIAL:
            assert self._make is not None
            return self._make(*what)
        # Arguments for other nodes come along; what they name is nothing here.
        if kind == _KEPT:
            return self._kept.get(what[0])
        place = what[0] + (self._of_all if kind == _ROWS else 0)
        return self._places[place] if place < len(self._places) else None
