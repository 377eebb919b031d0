"""Communication between the ranks of all nodes: meetings and all-reduces.

A meeting of all ranks has three steps: a meeting of each node's ranks, a round of the
masters, and another meeting in which each node's ranks learn the outcome.

All-reduces have two ways. Few values, and values of dtypes that would be rounded twice,
are sent as each rank has them, and every node reduces all ranks' values in the order of
ranks, as one machine does. Of other values each node first reduces its own ranks', and
then the nodes reduce theirs. They do not use ``MPI_Allreduce``, which has no float16
and no minimum that propagates NaN, and whose bits depend on the library::

    node 0   | part 0 | part 1 |      all-to-all: node i receives part i of every node,
    node 1   | part 0 | part 1 |      and reduces it in the order of nodes
    results  | part 0 | part 1 |      all-gather: all nodes receive all parts

That sends as many bytes as a ring, in two steps.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

import numpy as np

from ..comm.buffers import FlatLayout, StageBuffer, ValueRun, views_of
from ..comm.divided import DividedAllReduce, Reduction, is_direct
from ..comm.flat import FlatBuffer, FlatBuffers
from ..comm.shm import SharedMemoryComm
from ..memory.partition import cuts, spans
from ..memory.segment import ALIGNMENT, Attachments
from ..reduce_ops import ReduceOp, shares
from ..reduce_tree import BlockCut, Columns, Subtrees, combined
from ..times.timing import NODES, REDUCE, UNCOUNTED, WAIT, Times
from .clocks import Sample, compare
from .link import Bytes, Link
from .nodes import Cluster
from .rounds import Headers

FEW = 4096
"""The most bytes of one rank's values that are sent by rank, not reduced by node."""


def goes_by_rank(op: ReduceOp, dtype: np.dtype, nbytes: int) -> bool:
    """Return whether nodes send all ranks' values, and do not reduce them first."""
    return nbytes <= FEW or not is_direct(op, np.dtype(dtype))


def rows_of_ranks(
    given: Sequence[Bytes],
    ranks: Sequence[int],
    widths: Sequence[int],
    dtypes: Sequence[np.dtype],
) -> list[np.ndarray]:
    """Return arrays with a row for each rank, one array for each width and dtype.

    `given` has the bytes of each node, `ranks` their numbers of ranks: one array after
    the other, of a row for each of the node's ranks.
    """
    if len(widths) == 1:  # the nodes' bytes are in this order already
        # A bytearray, as kernels would be compiled again for read-only arrays.
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
    """One node's part in an all-reduce of `values`, which each node has reduced."""

    def __init__(self, link: Link, op: ReduceOp, values: np.ndarray) -> None:
        self._link, self._values = link, values
        unit = max(1, ALIGNMENT // values.itemsize)  # parts meet on cache lines
        ends = np.array(cuts(values.size, link.size, unit))
        mine = ends[link.node + 1] - ends[link.node]
        # For MPI: the bytes of each node's part, and where it begins.
        nbytes, starts = np.diff(ends) * values.itemsize, ends[:-1] * values.itemsize
        self._parts = nbytes.tolist(), starts.tolist()
        self._rows = np.empty((link.size, mine), values.dtype)
        self._part = np.empty((1, mine), values.dtype)
        self._reduction = Reduction(op, self._rows, self._part, 0)

    def run(self, weights: Sequence[float]) -> None:
        """Reduce, right after a round of all masters; `weights` are those of nodes."""
        link = self._link
        link.all_to_all(self._values, self._parts, self._rows)
        start = perf_counter()
        self._reduction.run(np.array(shares(weights)), 0, self._rows.shape[1])
        link.note("reduce", start, bytes=self._rows.nbytes)
        link.gather_parts(self._part, self._parts, self._values)


class NodesComm:
    """One rank's communication with the ranks of all nodes.

    `local` is its communication within its node, `ranks` has each node's number of
    ranks, and `cluster` is used by the node's master only.
    """

    def __init__(
        self,
        local: SharedMemoryComm,
        ranks: Sequence[int],
        node: int,
        cluster: Cluster | None,
    ) -> None:
        self.local, self.node, self.ranks = local, node, list(ranks)
        self.first = sum(ranks[:node])
        self.rank, self.size = self.first + local.rank, sum(ranks)
        self._cluster = cluster if local.rank == 0 else None

    def look(self) -> Callable[[], object]:
        """Return a function for a master to call while it waits for other nodes."""
        return self.local.patience() if self.node == 0 else self.local.look_about

    def look_about(self) -> None:
        """Raise if a rank has died or given up; called in waits outside meetings."""
        self.local.look_about()
        if self._cluster is not None:
            self._cluster.hear_alarms()

    def fractions(self, weights: Sequence[float]) -> np.ndarray:
        """Return the weights of all ranks as fractions of their sum."""
        return np.array(shares(list(weights)))

    def barrier(self) -> None:
        """Return when every rank of every node has come here."""
        # The second local barrier holds the node's other ranks back until its master
        # has met the others. If the master fails, it aborts, and they see that there.
        self.local.barrier()
        if self._cluster is not None:
            self._cluster.meet(self.look())
        self.local.barrier()

    def agree(self, word: int) -> list[int]:
        """Return the words that the ranks gave, after waiting for all of them."""
        words = self.local.agree(word)
        found = None
        if self._cluster is not None:
            mine = np.array(words, np.int64).tobytes()
            given = b"".join(self._cluster.exchange(self.look(), mine))
            found = np.frombuffer(given, np.int64).tolist()
        return self.from_master(found)

    def exchange(self, value: Any) -> list:
        """Return the values that the ranks gave, in their order; pickled on the way."""
        mine = self.local.exchange(value)
        found = None
        if self._cluster is not None:
            given = self._cluster.exchange(self.look(), pickle.dumps(mine))
            found = [value for of_node in given for value in pickle.loads(of_node)]
        return self.from_master(found)

    def from_master(self, value: Any) -> Any:
        """Return the master's `value` on all ranks of its node."""
        return self.local.exchange(value)[0]

    def of_node(self, weights: Sequence[float]) -> list[float]:
        """Return the weights of this node's ranks, given those of all ranks."""
        return list(weights[self.first : self.first + self.local.size])

    def by_node(self, weights: Sequence[float]) -> list[float]:
        """Return each node's weight; if all ranks' are 0, its number of ranks."""
        if not any(weights):
            return [float(n) for n in self.ranks]
        return [sum(weights[start:stop]) for start, stop in spans(self.ranks)]

    def meet(
        self,
        data: bytes,
        word: int,
        then: Callable[[Headers], object] | None = None,
        is_short: bool = False,
    ) -> Headers:
        """In a node's master, meet the other masters; see `Cluster.meet`."""
        assert self._cluster is not None
        return self._cluster.meet(self.look(), data, word, then, is_short)

    @property
    def link(self) -> Any:
        """The master's `Link`; None on other ranks."""
        return None if self._cluster is None else self._cluster.link

    def compare_clocks(self) -> list[Sample]:
        """Compare the nodes' clocks; returns samples on rank 0, [] on others."""
        # Only masters take part; other ranks return at once.
        found: list[Sample] = []
        if self._cluster is not None:
            self.meet(b"", 0, lambda _: found.extend(compare(self.link)))
        return found


class NodesBuffers(FlatBuffers):
    """The flat buffers of one rank, for values that the ranks of all nodes reduce."""

    _comm: NodesComm  # type: ignore[assignment]

    def reduce_tree(
        self,
        key: tuple,
        given: Subtrees | None,
        cut: BlockCut,
        times: Times = UNCOUNTED,
    ) -> list[np.ndarray]:
        """Combine the subtrees of all ranks, which every rank gets: they are few."""
        mine = None if given is None else (given.entries, given.columns.each)
        times.spent(REDUCE)
        told = [each for each in self._comm.exchange(mine) if each is not None]
        times.spent(WAIT)
        columns = Columns([column[1:] for column in told[0][1]])
        results = combined(cut, [entries for entries, _ in told], columns)
        times.spent(REDUCE)
        return results

    def _meet_without_buffer(self) -> None:
        """Take part in the three meetings of `NodesBuffer.reduce` without a buffer."""
        comm = self._comm
        comm.local.agree(-1)
        if comm.local.rank == 0:
            comm.meet(b"", -1)
        comm.local.agree(0)

    def _kind_of_buffer(self, layout: FlatLayout) -> tuple[type[StageBuffer], int]:
        return NodesBuffer, self._comm.local.size + 1

    def _renew(self, *given: Any) -> StageBuffer:
        """Make a buffer on each node for values of other shapes; all ranks do so."""
        buffer = super()._renew(*given)
        # Each node has given its buffer another serial number: all take node 0's.
        buffer.serial = self._comm.exchange(buffer.serial)[0]
        return buffer


class OwnNodeBuffers(FlatBuffers):
    """The flat buffers of one rank, for values that only its node's ranks reduce."""

    def __init__(self, comm: NodesComm, attachments: Attachments) -> None:
        super().__init__(comm.local, attachments)
        self._of_node = comm.of_node

    def reduce(
        self, key: Any, values: Any, ops: Any, weights: Any, *more: Any, **named: Any
    ) -> list[np.ndarray]:
        """Combine the values of the node's ranks; `weights` are those of all ranks."""
        own = self._of_node(weights)
        return super().reduce(key, values, ops, own, *more, **named)


class NodesBuffer(FlatBuffer):
    """One flat buffer of a node, as one of its ranks sees it."""

    def _prepare(self, comm: Any, layout: FlatLayout, rows: np.ndarray) -> np.ndarray:
        """Make the reductions of all runs, and return the memory of the results."""
        self._by_rank: list[tuple[ValueRun, np.ndarray, Reduction]] = []
        self._within: list[tuple[Any, list]] = []
        self._over: list[NodeReduction] = []
        self._puts: list[tuple[int, np.ndarray]] = []
        self._given = rows[:-1]
        local, places = comm.local, views_of(layout, rows[comm.local.rank])
        for run in layout.runs:
            values = rows[:, run.start : run.end].view(run.dtype)
            if goes_by_rank(run.op, values.dtype, run.end - run.start):
                self._puts += [(i, places[i]) for i, _ in run.members]
                if local.rank == 0:
                    every = np.empty((comm.size, values.shape[1]), values.dtype)
                    reduction = Reduction(run.op, every, values[-1:], 0)
                    self._by_rank.append((run, every, reduction))
                continue
            within = DividedAllReduce(local, run.op, values[:-1], values[-1:])
            self._within.append((within, run.members))
            if local.rank == 0:
                self._over.append(NodeReduction(comm.link, run.op, values[-1]))
        return rows[-1]

    def reduce(
        self,
        comm: Any,
        values: Sequence[np.ndarray] | None,
        weights: Sequence[float],
        times: Times = UNCOUNTED,
    ) -> list[np.ndarray] | None:
        """Combine the ranks' values; return None, on all, if any rank's do not fit."""
        local = comm.local
        values = None if values is None else list(map(np.asarray, values))
        fits = self.fits(values)
        if fits and values is not None:
            for i, place in self._puts:
                place[...] = values[i]
            for reduction, members in self._within:
                reduction.put([(start, values[i]) for i, start in members])
        times.spent(REDUCE, self._nbytes)
        # `agree` is a meeting: from here on the node's ranks read this rank's row.
        words = local.agree(self.serial if fits else -1)
        times.spent(WAIT)
        # The same on all ranks of the node; the masters compare it between nodes.
        fits = all(word == self.serial for word in words)
        if fits and self._within:
            of_node = comm.of_node(weights)
            for reduction, _ in self._within:
                reduction.run(of_node)
            times.spent(REDUCE, self._nbytes)
            local.barrier()
        verdict = 0
        if local.rank == 0:
            verdict = self._over_nodes(comm, fits, weights, times)
        # Other ranks wait here while their master writes the results.
        verdict = local.agree(verdict)[0]
        if local.rank == 0:
            times.spent(WAIT)
        else:
            times.waited((verdict - 1) * 1e-9, self._nbytes)
        return self._views if verdict else None

    def _over_nodes(
        self, comm: NodesComm, fits: bool, weights: Sequence[float], times: Times
    ) -> int:
        """Combine the nodes' values, in the master, if all ranks' values fit.

        Returns 0 if they do not, else 1 plus the nanoseconds since all had met: one
        word, for the node's ranks.
        """
        start, sent = perf_counter(), comm.link.values_sent
        columns = [slice(run.start, run.end) for run, *_ in self._by_rank]
        mine = b"".join(self._given[:, some].tobytes() for some in columns)
        met: list[float] = []

        def then(headers: Headers) -> None:
            if not headers.agree_on(self.serial):
                return
            met.append(perf_counter())
            times.spent(WAIT)
            if self._by_rank:
                given = comm.link.all_gather(mine, headers)
                self._reduce_ranks(comm, given, weights)
            for reduction in self._over:
                reduction.run(comm.by_node(weights))
            times.spent(NODES, self._nbytes)

        # Short if only `mine` is sent, which the headers may contain.
        word = self.serial if fits else -1
        comm.meet(mine, word, then, is_short=not self._over)
        if not met:
            return 0
        took = perf_counter() - met[0]
        times.exchanged(met[0] - start, comm.link.values_sent - sent)
        return 1 + round(took * 1e9)

    def _reduce_ranks(
        self, comm: NodesComm, given: Sequence[Bytes], weights: Sequence[float]
    ) -> None:
        """Reduce the values sent by rank, in the order of ranks."""
        start = perf_counter()
        fractions = np.array(shares(weights))
        widths = [every.shape[1] for _, every, _ in self._by_rank]
        dtypes = [every.dtype for _, every, _ in self._by_rank]
        rows = rows_of_ranks(given, comm.ranks, widths, dtypes)
        for (_, every, reduction), found in zip(self._by_rank, rows, strict=True):
            every[...] = found
            reduction.run(fractions, 0, every.shape[1])
        comm.link.note("reduce", start, bytes=sum(map(len, given)))
