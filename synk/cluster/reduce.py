"""All-reduces over nodes, by their masters: of what each node's ranks have reduced.

Not ``MPI_Allreduce``, which knows no float16 and no minimum that a NaN wins, and whose
bits are the library's. Each node reduces a part of the values instead::

    node 0   | part 0 | part 1 |      all-to-all: node i receives part i of every node,
    node 1   | part 0 | part 1 |      reduces it in the order of nodes, and
    results  | part 0 | part 1 |      all-gather: has all nodes have it.

Those are as many bytes as a ring sends, in two steps. Values that are few, or of types
that would be rounded twice, are sent as the ranks have them: every node reduces them in
the order of ranks, as one machine does.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter

import numpy as np

from ..comm.kernels import Reduction, is_direct
from ..memory.segment import ALIGNMENT
from ..reduce_ops import ReduceOp, shares
from .link import Bytes, Link, Parts

FEW = 4096
"""Bytes of one rank's values up to which all ranks' are sent as they are."""


def goes_by_rank(op: ReduceOp, dtype: np.dtype, nbytes: int) -> bool:
    """Tell whether ranks' values are sent as they are, and not what a node makes."""
    return nbytes <= FEW or not is_direct(op, np.dtype(dtype))


def rows_of_ranks(
    given: Sequence[Bytes],
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


class NodeReduction:
    """One node's part in all-reduces over nodes of an array of some dtype.

    Parameters
    ----------
    link : Link
    op : str
    values : numpy.ndarray, shape (elements,)
        What this node's ranks have reduced, and then the result.
    """

    def __init__(self, link: Link, op: ReduceOp, values: np.ndarray) -> None:
        self._link, self._values = link, values
        size, elements = link.size, values.size
        unit = max(1, ALIGNMENT // values.itemsize)
        lines = -(-elements // unit)
        stops = np.minimum(lines * np.arange(1, size + 1) // size * unit, elements)
        self._parts = Parts.of(stops, values.itemsize)
        mine = self._parts.nbytes[link.node] // values.itemsize
        self._rows = np.empty((size, mine), values.dtype)
        self._part = np.empty((1, self._rows.shape[1]), values.dtype)
        self._reduction = Reduction(op, self._rows, self._part, 0)

    def run(self, weights: Sequence[float]) -> None:
        """Reduce, after a round in which all have met.

        Parameters
        ----------
        weights : sequence of float
            The rows of each node; one without any is left out, unless all are.
        """
        link = self._link
        link.all_to_all(self._values, self._parts, self._rows)
        start = perf_counter()
        self._reduction.run(np.array(shares(weights)), 0, self._rows.shape[1])
        link.meter.keep("reduce", start, bytes=self._rows.nbytes)
        link.gather_parts(self._part, self._parts, self._values)
