"""Keeps the centres, or mailboxes, of a training rule equal on all nodes.

Each node has a centre in its shared memory. If all workers meet, the vectors that they
give are added over the nodes, and every node moves its own centre by the sum. If they
take turns, node after node has its turn, and each sends its centre's state to all.
"""

from __future__ import annotations

import contextlib
import functools
import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager

import numpy as np

from ..cluster.comm import NodeReduction, NodesComm, goes_by_rank, rows_of_ranks
from ..cluster.rounds import Headers
from ..comm.divided import DividedAllReduce
from ..memory.partition import spans
from ..rules.centre import Centre
from ..rules.gossip import Mailboxes


class OverNodes:
    """One rank's part in keeping `medium`, centre or mailboxes, equal on all nodes."""

    def __init__(self, comm: NodesComm, medium: Centre | Mailboxes) -> None:
        self._comm, self._medium = comm, medium
        self._sums: dict[tuple[int, int], _Sum] = {}

    def add_up(self, given: np.ndarray, start: int, stop: int) -> None:
        """Add elements `start` to `stop` of the vectors of all nodes' workers.

        `given` has a row for each rank of this node, or one; the first gets the sum.
        """
        span = start, stop
        if span not in self._sums:
            self._sums[span] = _Sum(self._comm, given[:, start:stop])
        self._sums[span].run()

    def by_node(self, rows: Sequence[int]) -> list[int]:
        """Return the rows of each node, from those of each rank."""
        return [sum(rows[start:stop]) for start, stop in spans(self._comm.ranks)]

    @contextlib.contextmanager
    def in_turn(self, wait: Callable[[], AbstractContextManager]) -> Iterator[None]:
        """Run a ``with`` block when it is this node's turn; all nodes must call this.

        Afterwards all nodes have the state that the last one left. Times of waiting are
        spent in the context ``wait()``.
        """
        node, nodes = self._comm.node, len(self._comm.ranks)
        with wait():
            for other in range(node):
                self._hand_on(other)
        yield
        with wait():
            for other in range(node, nodes):
                self._hand_on(other)

    def _hand_on(self, node: int) -> None:
        """Send the medium's state of one node to all others; all nodes call this."""
        comm, is_mine = self._comm, node == self._comm.node
        comm.local.barrier()  # until all ranks of this node are done with the medium
        if comm.local.rank == 0:
            mine = pickle.dumps(self._medium.state(), protocol=5) if is_mine else b""

            def then(headers: Headers) -> None:
                data = comm.link.from_one(mine, headers, node, "centre")
                if not is_mine:
                    self._medium.restore(pickle.loads(data))

            comm.meet(mine, 0, then)
        comm.local.barrier()


class _Sum:
    """Adds vectors of all workers of all nodes.

    `rows`, in the node's shared memory, has a row for each rank of this node, or one.
    The first row gets the sum.
    """

    def __init__(self, comm: NodesComm, rows: np.ndarray) -> None:
        self._comm, self._rows = comm, rows
        # The number of vectors of each node.
        self._counts = [1] * len(comm.ranks) if len(rows) == 1 else comm.ranks
        self._within: DividedAllReduce | None = None
        self._over: NodeReduction | None = None
        if goes_by_rank("sum", rows.dtype, rows[0].nbytes):
            return
        if len(rows) > 1:
            self._within = DividedAllReduce(comm.local, "sum", rows, rows[:1])
        if comm.local.rank == 0:
            self._over = NodeReduction(comm.link, "sum", rows[0])

    def run(self) -> None:
        """Add the vectors; all ranks of all nodes must call this."""
        comm = self._comm
        if self._within is not None:
            self._within.run([1.0] * len(self._rows))
            comm.local.barrier()
        if comm.local.rank == 0:
            mine = self._rows.tobytes() if self._over is None else b""

            def then(headers: Headers) -> None:
                if self._over is not None:
                    self._over.run([1.0] * len(comm.ranks))
                    return
                rows = self._rows  # few: they are added in the order of ranks
                given = comm.link.all_gather(mine, headers), self._counts
                (found,) = rows_of_ranks(*given, [rows.shape[1]], [rows.dtype])
                rows[0] = functools.reduce(np.add, found)

            comm.meet(mine, 0, then)
        comm.local.barrier()
