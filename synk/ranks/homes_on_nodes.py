"""Reductions of shared variables over nodes, whose ranks each have homes of their own.

A home lies in the shared memory of a node; that of each node is laid out like node 0's.
What the ranks of a node have reduced is in the row of its master, which reduces it with
the other nodes'; the other ranks copy it from there.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter

import numpy as np

from ..cluster.comm import NodesComm
from ..cluster.heads import Heads
from ..cluster.link import Bytes
from ..cluster.reduce import NodeReduction, goes_by_rank, rows_of_ranks
from ..comm.kernels import Reduction
from ..reduce_ops import ReduceOp, shares
from .homes import Homes, Run


def homes(comm: NodesComm) -> Homes:
    """Return the homes of a rank of several nodes."""
    return Homes(comm.local.rank, comm.local.size, goes_by_rank)


def reduce_runs(comm: NodesComm, op: ReduceOp, runs: Sequence[Run]) -> None:
    """Reduce runs, whose values all ranks of all nodes have put into their slots."""
    local = comm.local
    by_rank = [run for run in runs if _sends_rows(op, run)]
    for run in runs:
        if run not in by_rank:
            run.all_reduce.run([(end, comm.of_node(w)) for end, w in run.spans])
    local.barrier()
    if local.rank == 0:
        mine = b"".join(run.buffers.tobytes() for run in by_rank)

        def then(heads: Heads) -> None:
            if by_rank:
                given = comm.link.all_gather(mine, heads)
                _reduce_rows(comm, op, by_rank, given)
            for run in runs:
                if run not in by_rank:
                    _reduce_over_nodes(comm, op, run)

        comm.meet(mine, 0, then, is_short=len(by_rank) == len(runs))
    local.barrier()
    for run in runs:
        if 0 < local.rank < len(run.results):
            run.results[local.rank] = run.results[0]
    local.barrier()


def _sends_rows(op: ReduceOp, run: Run) -> bool:
    return goes_by_rank(op, run.buffers.dtype, run.columns.stop - run.columns.start)


def _reduce_over_nodes(comm: NodesComm, op: ReduceOp, run: Run) -> None:
    begin = 0
    for end, weights in run.spans:
        values = run.results[0, begin:end]
        NodeReduction(comm.link, op, values).run(comm.by_node(weights))
        begin = end


def _reduce_rows(
    comm: NodesComm, op: ReduceOp, runs: Sequence[Run], given: Sequence[Bytes]
) -> None:
    """Reduce the rows of all ranks, in their order."""
    start = perf_counter()
    widths = [run.buffers.shape[1] for run in runs]
    dtypes = [run.buffers.dtype for run in runs]
    rows = rows_of_ranks(given, comm.ranks, widths, dtypes)
    for run, every in zip(runs, rows, strict=True):
        reduction = Reduction(op, every, run.results[:1], 0)
        begin = 0
        for end, weights in run.spans:
            reduction.run(np.array(shares(weights)), begin, end)
            begin = end
    comm.link.meter.keep("reduce", start, bytes=sum(map(len, given)))
