"""The batches of an epoch."""

from __future__ import annotations

import numpy as np


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
