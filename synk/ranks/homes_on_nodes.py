"""Reductions of shared variables over nodes, whose ranks each have homes of their own.

A home lies in the shared memory of a node; that of each node is laid out like node 0's.
What the ranks of a node have reduced is in the row of its master, which reduces it with
the other nodes'; the other ranks copy it from there.

Values that are few go along when the ranks agree on whether they fit: then there is one
round of the masters, and not two.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import Any

import numpy as np

from ..cluster.by_rank import FEW, goes_by_rank, rows_of_ranks
from ..cluster.comm import NodesComm
from ..cluster.heads import Heads
from ..cluster.link import Bytes
from ..cluster.reduce import NodeReduction
from ..comm.kernels import Reduction
from ..reduce_ops import ReduceOp, shares
from .homes import DETAILS, Homes, Run, any_of


class NodesHomes(Homes):
    """The homes that one rank of several nodes knows.

    Parameters
    ----------
    comm : NodesComm
    """

    def __init__(self, comm: NodesComm) -> None:
        super().__init__(comm.local.rank, comm.local.size, goes_by_rank)
        # In the master, what a round has brought of runs that are few.
        self._reduced: list[np.ndarray] = []

    def _meet(self, comm: Any, op: ReduceOp, runs: Sequence[Run], word: int) -> int:
        """Wait for all ranks of all nodes; reduce their values on the way if few."""
        local = comm.local
        said = any_of(local.agree(word))
        if local.rank == 0:
            self._reduced = []
            mine = bytes([said])
            are_few = _are_few(runs)
            if are_few and not said & DETAILS:
                mine += b"".join(run.buffers.tobytes() for run in runs)
            found: list[int] = []

            def then(heads: Heads) -> None:
                given = [memoryview(each) for each in comm.link.all_gather(mine, heads)]
                found[:] = [any_of(each[0] for each in given)]
                if are_few and not found[0] & DETAILS:
                    rows = [each[1:] for each in given]
                    self._reduced = _reduce_rows(comm, op, runs, rows)

            comm.meet(mine, 0, then, is_short=True)
            said = found[0]
        return local.agree(said)[0]

    def reduce(self, comm: Any, op: ReduceOp, runs: Sequence[Run]) -> None:
        """Reduce runs, whose values all ranks of all nodes have put into their slots.

        Those that are few have been reduced when all met.
        """
        local = comm.local
        if not _are_few(runs):
            self._reduce_many(comm, op, runs)
        elif local.rank == 0:
            for run, values in zip(runs, self._reduced, strict=True):
                run.results[0] = values
        local.barrier()
        for run in runs:
            if 0 < local.rank < len(run.results):
                run.results[local.rank] = run.results[0]
        local.barrier()

    def _reduce_many(self, comm: NodesComm, op: ReduceOp, runs: Sequence[Run]) -> None:
        """Have the row of the node's master have the results."""
        by_rank = [run for run in runs if _sends_rows(op, run)]
        within = [run for run in runs if run not in by_rank]
        for run in within:
            run.all_reduce.run([(end, comm.of_node(w)) for end, w in run.spans])
        comm.local.barrier()
        if comm.local.rank:
            return
        mine = b"".join(run.buffers.tobytes() for run in by_rank)

        def then(heads: Heads) -> None:
            if by_rank:
                given = comm.link.all_gather(mine, heads)
                reduced = _reduce_rows(comm, op, by_rank, given)
                for run, values in zip(by_rank, reduced, strict=True):
                    run.results[0] = values
            for run in within:
                _reduce_over_nodes(comm, op, run)

        comm.meet(mine, 0, then, is_short=not within)


def _are_few(runs: Sequence[Run]) -> bool:
    return all(_nbytes(run) <= FEW for run in runs)


def _nbytes(run: Run) -> int:
    return run.columns.stop - run.columns.start


def _sends_rows(op: ReduceOp, run: Run) -> bool:
    return goes_by_rank(op, run.buffers.dtype, _nbytes(run))


def _reduce_over_nodes(comm: NodesComm, op: ReduceOp, run: Run) -> None:
    begin = 0
    for end, weights in run.spans:
        values = run.results[0, begin:end]
        NodeReduction(comm.link, op, values).run(comm.by_node(weights))
        begin = end


def _reduce_rows(
    comm: NodesComm, op: ReduceOp, runs: Sequence[Run], given: Sequence[Bytes]
) -> list[np.ndarray]:
    """Return the rows of all ranks, reduced in their order."""
    start = perf_counter()
    widths = [run.buffers.shape[1] for run in runs]
    dtypes = [run.buffers.dtype for run in runs]
    reduced = []
    for run, every in zip(
        runs, rows_of_ranks(given, comm.ranks, widths, dtypes), strict=True
    ):
        result = np.empty((1, every.shape[1]), every.dtype)
        reduction = Reduction(op, every, result, 0)
        begin = 0
        for end, weights in run.spans:
            reduction.run(np.array(shares(weights)), begin, end)
            begin = end
        reduced.append(result[0])
    comm.link.meter.keep("reduce", start, bytes=sum(map(len, given)))
    return reduced
