"""The batches of an epoch: of arrays, or of what gives its own, as files do."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from time import perf_counter
from typing import Any, NamedTuple, Protocol

import numpy as np

from ..files.part import Part
from ..memory.partition import count, select


class Source(Protocol):
    """What has parts of epochs: arrays, rows in files, or a class of the script's."""

    def parts(
        self, epoch: int, batch_size: int, *, seed: int, shuffle: bool
    ) -> Iterator[Part]:
        """Return an epoch's batches; see `synk.files.Rows.parts`."""


class Arrays:
    """Arrays whose rows are all there: an epoch has one part.

    Parameters
    ----------
    data : sequence
        The inputs of a step.
    """

    def __init__(self, data: Sequence) -> None:
        self._data = tuple(data)

    def parts(
        self, epoch: int, batch_size: int, *, seed: int, shuffle: bool
    ) -> Iterator[Part]:
        """Return an epoch's batches, with all the rows."""
        rows = len(self._data[0])
        batches = batches_of_epoch(rows, batch_size, seed, epoch, shuffle)
        return iter([Part(batches, self._data)])


def has_parts(data: Sequence) -> bool:
    """Tell whether the first of the inputs gives parts, with what has rows."""
    return bool(data) and callable(getattr(data[0], "parts", None))


class Made(NamedTuple):
    """What the steps of an epoch have come to."""

    losses: np.ndarray
    sizes: list[int]
    """Rows of each step."""
    reading: float
    """Seconds in which rows were waited for."""


def sizes_of(part: Part) -> list[int]:
    """Return how many rows each batch has."""
    return [
        batch.size
        if isinstance(batch, np.ndarray) and batch.dtype.kind == "i"
        else count(select(batch, len(part.inputs[0])))
        for batch in part.batches
    ]


def through(parts: Iterator[Part], run: Callable[..., Any]) -> Made:
    """Make the steps of an epoch, part by part.

    Parameters
    ----------
    parts : iterator of Part
        Closed in the end, if that can be done.
    run : callable
        Is called with the batches of a part, and its inputs.
    """
    losses: list[np.ndarray] = []
    sizes: list[int] = []
    reading = 0.0
    try:
        while True:
            start = perf_counter()
            part = next(parts, None)
            reading += perf_counter() - start
            if part is None:
                break
            outputs = run(part.batches, *part.inputs)
            first = outputs[0] if isinstance(outputs, list) else outputs
            losses.append(np.asarray(first, float))
            sizes += sizes_of(part)
    finally:
        close = getattr(parts, "close", None)
        if close is not None:
            close()
    return Made(np.concatenate([np.empty(0), *losses]), sizes, reading)


def batches_of_epoch(
    rows: int, batch_size: int, seed: int, epoch: int, shuffle: bool = True
) -> list[np.ndarray]:
    """Return the rows of each batch: every row once, in an order of the epoch's own.

    Parameters
    ----------
    rows : int
        How many there are.
    batch_size : int
        Of all ranks together; the last batch has what is left.
    seed, epoch : int
        Settle the order, whatever was drawn before, and whatever number of ranks.
    shuffle : bool
        Whether not to take rows as they lie.

    Returns
    -------
    list of numpy.ndarray of int64
    """
    order = np.arange(rows)
    if shuffle:
        order = np.random.default_rng([seed, epoch]).permutation(rows)
    return [order[i : i + batch_size] for i in range(0, rows, batch_size)]
