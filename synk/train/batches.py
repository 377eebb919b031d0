"""Which rows are trained on, and the batches of an epoch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..call.function import Function
from ..memory.partition import select


def rows_of(step: Function, data: Sequence, rows: Any = None) -> np.ndarray:
    """Return the numbers of the rows that are chosen.

    Parameters
    ----------
    step : Function
    data : sequence
        Its inputs.
    rows : optional
        As a `batch` of a call; by default all.

    Returns
    -------
    numpy.ndarray of int64

    Raises
    ------
    TypeError, ValueError, IndexError
        If there are none to choose from; if `rows` does not fit.
    """
    if not step.has_rows:
        raise ValueError(f"{step!r} has no scattered input, so there are no batches")
    if not data:
        raise TypeError(f"data for {step!r} is missing: fit(X, Y, ..., batch_size=...)")
    found = select(rows, len(data[0]))
    if isinstance(found, slice):
        return np.arange(found.start, found.stop)
    return found


def batches_of_epoch(
    rows: int | np.ndarray,
    batch_size: int,
    seed: int,
    epoch: int,
    shuffle: bool = True,
) -> list[np.ndarray]:
    """Return the rows of each batch: every row once, in an order of the epoch's own.

    Parameters
    ----------
    rows : int or numpy.ndarray of int
        Which, or how many from the first on.
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
    order = np.arange(rows) if isinstance(rows, int) else rows
    if shuffle:
        order = np.random.default_rng([seed, epoch]).permutation(order)
    return [order[i : i + batch_size] for i in range(0, len(order), batch_size)]
