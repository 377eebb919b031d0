"""Where the time of a run goes: what each rank tells of it with its reply."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import NamedTuple

from ..times.timing import COMMON, COMPUTE, NODES, REDUCE, ROWS, WAIT, Times


class Spent(NamedTuple):
    """What one rank tells of its share of a launch.

    Attributes
    ----------
    phases : list of float
        Seconds by phase, see `times.timing.PHASES`, of the calls that were counted.
    ended : list of float
        When its calls had ended; of ranks 1 and up only the last.
    """

    phases: list[float]
    began: float
    ended: list[float]


class Watch:
    """Looks at the clock on one rank, while that makes the calls of a launch."""

    def __init__(self, times: Times) -> None:
        self._times, self._before = times, times.so_far()
        self._began = perf_counter()
        self._ended: list[float] = []

    def call_ended(self) -> None:
        """Take note that a call has ended."""
        self._ended.append(perf_counter())

    def told(self, rank: int) -> Spent:
        """Return what a rank tells."""
        pairs = zip(self._times.so_far(), self._before, strict=True)
        ended = self._ended[-1:] if rank else self._ended
        return Spent([now - then for now, then in pairs], self._began, ended)


class Ran:
    """Where the time of a run went, in all of its launches.

    Attributes
    ----------
    rows, compute, reduce, wait : float
        Seconds, the means of the ranks that have made the calls. Calls that follow a
        compilation are left out. What a rank waits in the end for slower ones counts.
        Of calls that had to be launched one by one there are none.
    calls : list of float
        The seconds of each call, on rank 0.
    """

    def __init__(self) -> None:
        self.rows = self.compute = self.reduce = self.wait = 0.0
        self.calls: list[float] = []

    def add(self, by_rank: Sequence[Spent]) -> None:
        """Count a launch, of which all ranks have told that made it."""
        # How long it took: ranks of other nodes have other clocks.
        longest = max(spent.ended[-1] - spent.began for spent in by_rank)
        for phases, began, ended in by_rank:
            rest = longest - (ended[-1] - began)
            self.rows += phases[ROWS] / len(by_rank)
            self.compute += (phases[COMPUTE] + phases[COMMON]) / len(by_rank)
            self.reduce += (phases[REDUCE] + phases[NODES]) / len(by_rank)
            self.wait += (phases[WAIT] + rest) / len(by_rank)
        before = by_rank[0].began
        for end in by_rank[0].ended:
            self.calls.append(end - before)
            before = end

    def include(self, other: Ran) -> None:
        """Count what another one has counted."""
        self.rows += other.rows
        self.compute += other.compute
        self.reduce += other.reduce
        self.wait += other.wait
        self.calls += other.calls
