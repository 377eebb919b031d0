"""A rank's parameters as one vector, which lies in its shared variables."""

from __future__ import annotations

import bisect
import contextlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from pytensor.compile import SharedVariable

from ..engines import host
from .centre import Block


class Part(NamedTuple):
    """Elements of a vector that lie in one variable: from `at` on there."""

    number: int
    start: int
    stop: int
    at: int


class Parameters:
    """Shared variables, one after the other, as one vector.

    Between `open` and `close` pieces of it can be written to, in the variables' own
    arrays where these are numpy's; a rank that is elsewhere in between holds no array.

    Parameters
    ----------
    variables : sequence of SharedVariable
        Of one dtype, and of shapes that do not change.
    """

    def __init__(self, variables: Sequence[SharedVariable]) -> None:
        self._variables = list(variables)
        self._shapes = [host.get_value(var).shape for var in variables]
        sizes = [int(np.prod(shape)) for shape in self._shapes]
        self._ends = np.cumsum(sizes).tolist()
        self.size = self._ends[-1] if sizes else 0
        self.nbytes = sum(host.get_value(var).nbytes for var in variables)
        self._arrays: list[np.ndarray] = []
        self._moved: list[tuple[SharedVariable, np.ndarray]] = []

    def vector(self) -> np.ndarray:
        """Return a copy of all of it."""
        values = [np.ravel(host.get_value(var)) for var in self._variables]
        return np.concatenate(values) if values else np.empty(0)

    def set(self, vector: np.ndarray) -> list[np.ndarray]:
        """Give the variables the values of a vector; return what they had."""
        former = []
        for var, shape, end in zip(
            self._variables, self._shapes, self._ends, strict=True
        ):
            size = int(np.prod(shape))
            former.append(host.get_value(var))
            host.set_value(var, np.array(vector[end - size : end]).reshape(shape))
        return former

    def put_back(self, values: Sequence[np.ndarray]) -> None:
        """Give the variables arrays that they had."""
        for var, value in zip(self._variables, values, strict=True):
            host.set_value(var, value)

    def open(self) -> None:
        """Find the variables' arrays as they are now, so that they can be written to.

        Raises
        ------
        ValueError
            If a variable has another shape than at first.
        """
        self._arrays, self._moved = [], []
        for var, shape in zip(self._variables, self._shapes, strict=True):
            value = host.get_value(var)
            if value.shape != shape:
                raise ValueError(
                    f"{var} had the shape {shape} when training began, and has"
                    f" {value.shape} now"
                )
            if not value.flags.carray:  # JAX's, or a transpose
                value = np.array(value, order="C")
                self._moved.append((var, value))
            self._arrays.append(value)

    def close(self) -> None:
        """Give the variables the arrays that were written in place of their own."""
        for var, value in self._moved:
            host.set_value(var, value)
        self._arrays, self._moved = [], []

    def open_vector(self) -> np.ndarray:
        """Return a copy of all of it, while it is open."""
        return np.concatenate([np.ravel(array) for array in self._arrays])

    def write_vector(self, vector: np.ndarray) -> None:
        """Write all of it, while it is open."""
        for array, end in zip(self._arrays, self._ends, strict=True):
            array.reshape(-1)[:] = vector[end - array.size : end]

    def addresses(self) -> np.ndarray:
        """Return where the variables' arrays lie, while it is open."""
        found = [array.__array_interface__["data"][0] for array in self._arrays]
        return np.array(found, np.int64)

    def parts(self, start: int, stop: int) -> Iterator[Part]:
        """Yield the parts of a piece of the vector that lie in one variable each.

        Parameters
        ----------
        start, stop : int
        """
        number = bisect.bisect_right(self._ends, start)
        while start < stop:
            begin = self._ends[number - 1] if number else 0
            end = min(self._ends[number], stop)
            yield Part(number, start, end, start - begin)
            start, number = end, number + 1

    @contextlib.contextmanager
    def piece(self, block: Block) -> Iterator[np.ndarray]:
        """Give a piece of the vector in a ``with`` block, to be read and written to."""
        pieces = [
            self._arrays[part.number].reshape(-1)[part.at :][: part.stop - part.start]
            for part in self.parts(block.start, block.stop)
        ]
        if len(pieces) == 1:
            yield pieces[0]
            return
        whole = np.concatenate(pieces) if pieces else np.empty(0)
        yield whole
        at = 0
        for piece in pieces:
            piece[:] = whole[at : at + len(piece)]
            at += len(piece)
