"""How a rank meets those of all nodes: those of its own first, then their masters.

A meeting of all ranks is one of the node's ranks, a round of the masters, and another
meeting in which the ranks learn what has come of it.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

import numpy as np

from ..comm.divided import DividedAllReduce
from ..comm.flat import FlatBuffer, FlatBuffers, agree_on_kinds
from ..comm.flat_layout import FlatLayout, Run
from ..comm.kernels import Reduction, warm
from ..comm.shm import SharedMemoryComm
from ..memory.partition import spans
from ..memory.segment import Attachments, Segment, key_of
from ..reduce_ops import ReduceOp, shares
from ..reduce_tree import BlockCut, Columns, Subtrees, combined
from ..times.timing import NODES, REDUCE, UNCOUNTED, WAIT, Times
from .by_rank import goes_by_rank, rows_of_ranks
from .clocks import Sample, compare
from .heads import Heads
from .link import Bytes
from .meter import Meter
from .nodes import Cluster
from .reduce import NodeReduction


class NodesComm:
    """One rank's end of the way to the ranks of all nodes.

    Parameters
    ----------
    local : SharedMemoryComm
        To those of its node.
    ranks : sequence of int
        How many each node has.
    node : int
        Which one this is.
    cluster : Cluster, optional
        In the master of the node.
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
        """Return what a master looks for while it waits for other nodes."""
        return self.local.patience() if self.node == 0 else self.local.look_about

    def look_about(self) -> None:
        """Raise if what this rank waits for, and no meeting, will not come."""
        self.local.look_about()
        if self._cluster is not None:
            self._cluster.hear_alarms()

    def fractions(self, weights: Sequence[float]) -> np.ndarray:
        """Return weights of all ranks as fractions of their sum."""
        return np.array(shares(list(weights)))

    def barrier(self) -> None:
        """Return when every rank of every node has come here."""
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
        return self.told(found)

    def exchange(self, value: Any) -> list:
        """Return the values that the ranks gave, in their order; pickled on the way."""
        mine = self.local.exchange(value)
        found = None
        if self._cluster is not None:
            given = self._cluster.exchange(self.look(), pickle.dumps(mine))
            found = [value for of_node in given for value in pickle.loads(of_node)]
        return self.told(found)

    def told(self, value: Any) -> Any:
        """Return on all ranks of a node what its master has."""
        return self.local.exchange(value)[0]

    def of_node(self, weights: Sequence[float]) -> list[float]:
        """Return the weights of this node's ranks, of those of all."""
        return list(weights[self.first : self.first + self.local.size])

    def by_node(self, weights: Sequence[float]) -> list[float]:
        """Return what each node weighs; where nobody has rows, its ranks count."""
        if not any(weights):
            return [float(n) for n in self.ranks]
        return [sum(weights[start:stop]) for start, stop in spans(self.ranks)]

    def meet(
        self,
        data: bytes,
        word: int,
        then: Callable[[Heads], object] | None = None,
        is_short: bool = False,
    ) -> Heads:
        """In the master of a node, meet those of the others; see `Cluster.meet`."""
        assert self._cluster is not None
        return self._cluster.meet(self.look(), data, word, then, is_short)

    @property
    def link(self) -> Any:
        """What connects the masters, in one of them."""
        assert self._cluster is not None
        return self._cluster.link

    @property
    def meter(self) -> Meter | None:
        """What the master of a node has done between nodes; other ranks have none."""
        return None if self._cluster is None else self.link.meter

    def compare_clocks(self) -> list[Sample]:
        """In the masters of all nodes, compare their clocks; node 0's has the result.

        Other ranks do nothing, and wait for nobody.
        """
        found: list[Sample] = []
        if self._cluster is not None:
            self.meet(b"", 0, lambda _: found.extend(compare(self.link)))
        return found


class NodesBuffers(FlatBuffers):
    """The flat buffers of one rank, for values that ranks of all nodes reduce.

    Parameters
    ----------
    comm : NodesComm
    attachments : Attachments
    """

    _comm: NodesComm  # type: ignore[assignment]

    def __init__(self, comm: NodesComm, attachments: Attachments) -> None:
        super().__init__(comm, attachments)  # type: ignore[arg-type]

    def reduce_tree(
        self,
        key: tuple,
        given: Subtrees | None,
        cut: BlockCut,
        times: Times = UNCOUNTED,
    ) -> list[np.ndarray]:
        """Combine the subtrees of all ranks: few numbers, that all of them get."""
        mine = None if given is None else (given.entries, given.columns.each)
        times.spent(REDUCE)
        told = [each for each in self._comm.exchange(mine) if each is not None]
        times.spent(WAIT)
        columns = Columns([column[1:] for column in told[0][1]])
        results = combined(cut, [entries for entries, _ in told], columns)
        times.spent(REDUCE)
        return results

    def _refuse(self) -> None:
        """Meet ranks that may have a buffer where this one has none."""
        comm = self._comm
        comm.local.agree(-1)
        if comm.local.rank == 0:
            comm.meet(b"", -1)
        comm.local.agree(0)

    def _renew(
        self,
        values: Sequence[np.ndarray] | None,
        ops: Sequence[ReduceOp],
        names: Sequence[object] | None,
    ) -> FlatBuffer:
        """Make a buffer on each node for values of other shapes, together with all."""
        comm: Any = self._comm
        plan = FlatLayout(agree_on_kinds(comm, values, ops, names), ops)
        window, segment = None, None
        if comm.local.rank == 0:
            for dtype, op in {(run.dtype, run.op) for run in plan.runs}:
                warm(op, np.dtype(dtype))
            segment = Segment((comm.local.size + 1) * plan.nbytes)
            rows = segment.array(np.uint8, (comm.local.size + 1, plan.nbytes))
            window = segment.window(rows)
        window = comm.told(window)
        if comm.local.rank:
            rows = self._attachments.array(window)
        given: tuple[Any, ...] = comm, plan, rows, segment, key_of(window)
        buffer = NodesBuffer(*given)
        buffer.serial = comm.exchange(buffer.serial)[0]
        return buffer


class OwnNodeBuffers(FlatBuffers):
    """The flat buffers of one rank, for values that its node's ranks alone reduce.

    Parameters
    ----------
    comm : NodesComm
    attachments : Attachments
    """

    def __init__(self, comm: NodesComm, attachments: Attachments) -> None:
        super().__init__(comm.local, attachments)
        self._of_node = comm.of_node

    def reduce(
        self,
        key: tuple,
        values: Sequence[np.ndarray] | None,
        ops: Sequence[ReduceOp],
        weights: Sequence[float],
        times: Times = UNCOUNTED,
        names: Sequence[object] | None = None,
    ) -> list[np.ndarray]:
        """Combine the values of the node's ranks; the weights are those of all."""
        return super().reduce(key, values, ops, self._of_node(weights), times, names)


class NodesBuffer(FlatBuffer):
    """One flat buffer of a node, as one of its ranks sees it."""

    def _prepare(self, comm: Any, plan: FlatLayout, rows: np.ndarray) -> np.ndarray:
        """Make what reduces the values, and return the memory of the results."""
        self._by_rank: list[tuple[Run, np.ndarray, Reduction]] = []
        self._within: list[tuple[Any, list]] = []
        self._over: list[NodeReduction] = []
        self._puts: list[tuple[int, np.ndarray]] = []
        self._given = rows[:-1]
        for run in plan.runs:
            values = rows[:, run.start : run.end].view(run.dtype)
            if goes_by_rank(run.op, values.dtype, run.end - run.start):
                self._put_by_rank(run, values, comm)
            else:
                reduction = DividedAllReduce(
                    comm.local, run.op, values[:-1], values[-1:]
                )
                self._within.append((reduction, run.members))
                if comm.local.rank == 0:
                    self._over.append(NodeReduction(comm.link, run.op, values[-1]))
        return rows[-1]

    def _put_by_rank(self, run: Run, values: np.ndarray, comm: NodesComm) -> None:
        own = values[comm.local.rank]
        for i, start in run.members:
            shape = self._kinds[i][1]
            size = int(np.prod(shape, dtype=np.int64))
            self._puts.append((i, own[start : start + size].reshape(shape)))
        if comm.local.rank == 0:
            every = np.empty((comm.size, values.shape[1]), values.dtype)
            reduction = Reduction(run.op, every, values[-1:], 0)
            self._by_rank.append((run, every, reduction))

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
        words = local.agree(self.serial if fits else -1)
        times.spent(WAIT)
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
        verdict = local.agree(verdict)[0]
        if local.rank == 0:
            times.spent(WAIT)
        else:
            times.waited((verdict - 1) * 1e-9, self._nbytes)
        return self._views if verdict else None

    def _over_nodes(
        self, comm: NodesComm, fits: bool, weights: Sequence[float], times: Times
    ) -> int:
        """Combine the nodes' values, in the master.

        Returns
        -------
        int
            0 if some values do not fit, and else 1 and the nanoseconds that it took
            when all had met.
        """
        start, sent = perf_counter(), comm.link.meter.values_sent
        columns = [slice(run.start, run.end) for run, *_ in self._by_rank]
        mine = b"".join(self._given[:, some].tobytes() for some in columns)
        met: list[float] = []

        def then(heads: Heads) -> None:
            if not heads.agree_on(self.serial):
                return
            met.append(perf_counter())
            times.spent(WAIT)
            if self._by_rank:
                given = comm.link.all_gather(mine, heads)
                self._reduce_ranks(comm, given, weights)
            for reduction in self._over:
                reduction.run(comm.by_node(weights))
            times.spent(NODES, self._nbytes)

        # Where nothing but `mine` is sent, heads that say all are the end of it.
        word = self.serial if fits else -1
        comm.meet(mine, word, then, is_short=not self._over)
        if not met:
            return 0
        took = perf_counter() - met[0]
        times.exchanged(met[0] - start, comm.link.meter.values_sent - sent)
        return 1 + round(took * 1e9)

    def _reduce_ranks(
        self, comm: NodesComm, given: Sequence[Bytes], weights: Sequence[float]
    ) -> None:
        """Reduce what all ranks have given, in their order."""
        start = perf_counter()
        fractions = np.array(shares(weights))
        widths = [every.shape[1] for _, every, _ in self._by_rank]
        dtypes = [every.dtype for _, every, _ in self._by_rank]
        rows = rows_of_ranks(given, comm.ranks, widths, dtypes)
        for (_, every, reduction), found in zip(self._by_rank, rows, strict=True):
            every[...] = found
            reduction.run(fractions, 0, every.shape[1])
        comm.link.meter.keep("reduce", start, bytes=sum(map(len, given)))
