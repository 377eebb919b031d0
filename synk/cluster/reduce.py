"""All-reduces over nodes, by their masters: of what each node's ranks have reduced.

Not ``MPI_Allreduce``, which knows no float16 and no minimum that a NaN wins, and whose
bits are the library's. Each node reduces a part of the values instead::

    node 0   | part 0 | part 1 |      all-to-all: node i receives part i of every node,
    node 1   | part 0 | part 1 |      reduces it in the order of nodes, and
    results  | part 0 | part 1 |      all-gather: has all nodes have it.

Those are as many bytes as a ring sends, in two steps. Not all values are reduced so:
see `by_rank`.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter

import numpy as np

from ..comm.kernels import Reduction
from ..memory.segment import ALIGNMENT
from ..reduce_ops import ReduceOp, shares
from .link import Link, Parts


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
