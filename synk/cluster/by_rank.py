"""Values that nodes send as their ranks have them, and not what these give together.

Those that are few, or of types that would be rounded twice: every node reduces them in
the order of ranks, as one machine does.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..comm.kernels import is_direct
from ..reduce_ops import ReduceOp

FEW = 4096
"""Bytes of one rank's values up to which all ranks' are sent as they are."""


def goes_by_rank(op: ReduceOp, dtype: np.dtype, nbytes: int) -> bool:
    """Tell whether ranks' values are sent as they are, and not what a node makes."""
    return nbytes <= FEW or not is_direct(op, np.dtype(dtype))


def rows_of_ranks(
    given: Sequence[bytes | memoryview],
    ranks: Sequence[int],
    widths: Sequence[int],
    dtypes: Sequence[np.dtype],
) -> list[np.ndarray]:
    """Return the rows of all ranks, of several arrays.

    Parameters
    ----------
    given : sequence of bytes
        By node: of one array after the other, the rows of its ranks.
    ranks : sequence of int
        How many each node has.
    widths, dtypes : sequence
        Elements of a row, and their dtype, of each array.

    Returns
    -------
    list of numpy.ndarray
        Each of shape (all ranks, width).
    """
    if len(widths) == 1:  # they lie as they are to
        # Of a bytearray: kernels for arrays that are read only are compiled anew.
        rows = np.frombuffer(bytearray().join(given), dtypes[0])
        return [rows.reshape(sum(ranks), widths[0])]
    found, starts = [], [0] * len(given)
    for width, dtype in zip(widths, dtypes, strict=True):
        pieces = []
        for node, (data, count) in enumerate(zip(given, ranks, strict=True)):
            values = np.frombuffer(data, dtype, count * width, starts[node])
            pieces.append(values.reshape(count, width))
            starts[node] += values.nbytes
        found.append(np.concatenate(pieces))
    return found
