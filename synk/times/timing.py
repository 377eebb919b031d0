"""Times of a function's calls and exchanges on one rank, by phase, and trace events.

A rank's time in a call is divided into phases without gaps: the code that ends a phase
says which phase it was, and the next one begins. That reads the clock once, and takes
some 0.1 us. The clock is CLOCK_MONOTONIC, the same for all processes of a machine;
another machine's has another zero.

A call that compiles is not counted, on any rank, as it also loads code and touches
memory for the first time. JAX compiles for every shape of the arguments.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, NamedTuple

ROWS, COMPUTE, COMMON, WAIT, REDUCE, NODES = range(6)
"""Taking rows; computing rows parts; computing common parts, which every rank does;
waiting for other ranks; copying to buffers and reducing; and the exchange and reduction
by the masters of several nodes, once they have met."""

PHASES = ("rows", "compute", "common", "wait", "reduce", "nodes")


_QUIET = ("worker_call", "worker_run", "worker_stop_trace")
"""Commands without an event for the whole: they make their own, or are synk's."""


class TraceEvent(NamedTuple):
    """A named interval of time on a rank; times in seconds."""

    name: str
    category: str
    start: float
    end: float
    args: dict[str, Any]


class Tracer:
    """The events of one rank, up to a limit; later ones are only counted."""

    def __init__(self, limit: int) -> None:
        self.events: list[TraceEvent] = []
        self.dropped = 0
        self._limit = limit

    def keep(self, event: TraceEvent) -> None:
        """Add an event, if there is room."""
        if len(self.events) < self._limit:
            self.events.append(event)
        else:
            self.dropped += 1

    def follow(self, work: Callable, *args: Any) -> Any:
        """Run the command `work`, and add an event for it unless it is in `_QUIET`."""
        start = perf_counter()
        try:
            return work(*args)
        finally:
            if work.__name__ not in _QUIET:
                name = work.__name__.removeprefix("worker_").replace("_", " ")
                self.keep(TraceEvent(name, "command", start, perf_counter(), {}))


class Timed(NamedTuple):
    """The time of a serial run."""

    seconds: float
    rows: int
    cores: int


@dataclass(slots=True, eq=False)
class Times:
    """The times of one function on one rank; `label` is its name in a trace."""

    label: str = ""
    row_bytes: int = 0
    seconds: list[float] = field(default_factory=lambda: [0.0] * len(PHASES))
    """Seconds by phase, of all counted calls."""
    between: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])
    """In a node's master, for counted calls: the number of exchanges with other nodes,
    the seconds until all masters had met for them, and the bytes sent."""
    counted: int = 0  # calls
    left_out: int = 0  # calls that succeeded but compiled, which are not counted
    rows: int = 0  # of this rank in all counted calls
    launches: int = 0  # in the master: calls of counted launches; a run has many
    launched: float = 0.0  # in the master: their seconds, from call to return
    share: int = 0
    tracer: Tracer | None = None
    is_fresh: bool = False
    _before: tuple[list[float], list[float]] | None = None
    _began: float = 0.0
    _last: float = 0.0
    # Beginnings and ends of calls left out since the last launch ended.
    _skipped: list[tuple[float, float]] = field(default_factory=list)

    def begin(self, start: float, share: int, tracer: Tracer | None) -> None:
        """Begin a call of `share` rows; its first phase began at `start`."""
        self._began = self._last = start
        self.share, self.tracer = share, tracer

    def so_far(self) -> list[float]:
        """Return the seconds by phase, without those of a call set aside."""
        return [*(self.seconds if self._before is None else self._before[0])]

    def since(self, before: list[float]) -> list[float]:
        """Return the seconds by phase since `so_far` has returned `before`."""
        return [now - then for now, then in zip(self.so_far(), before, strict=True)]

    def set_aside(self) -> None:
        """Save the counts before a call that will not count, for `end` to restore."""
        if self._before is None:
            self._before = [*self.seconds], [*self.between]
        else:  # the last call set aside has failed
            self.seconds[:], self.between[:] = self._before

    def spent(self, phase: int, detail: Any = None) -> None:
        """End a phase now: count the time since the last phase ended."""
        now = perf_counter()
        self.seconds[phase] += now - self._last
        if self.tracer is not None:
            self._trace(PHASES[phase], self._last, now, detail)
        self._last = now

    def waited(self, exchanged: float, nbytes: int) -> None:
        """Count the time since the last phase ended as WAIT and then NODES.

        The masters have exchanged values for the last `exchanged` seconds; this rank
        may have come after they began.
        """
        now = perf_counter()
        middle = max(self._last, now - max(exchanged, 0.0))
        self.seconds[WAIT] += middle - self._last
        self.seconds[NODES] += now - middle
        if self.tracer is not None:
            self._trace("wait", self._last, middle)
            if middle < now:
                self._trace("nodes", middle, now, nbytes)
        self._last = now

    def exchanged(self, meeting: float, nbytes: int) -> None:
        """Count an exchange of the masters of nodes, in a master.

        `meeting` is the seconds until all had met, `nbytes` the bytes that it has sent.
        """
        for i, value in enumerate((1, meeting, nbytes)):
            self.between[i] += value

    def move(self, seconds: float, phase: int, to: int) -> None:
        """Move seconds from `phase` to phase `to`."""
        self.seconds[phase] -= seconds
        self.seconds[to] += seconds

    def end(self, phase: int, detail: Any = None) -> None:
        """End the last phase of a call, and count the call."""
        self.spent(phase, detail)
        now = self._last
        if self.tracer is not None:
            self._trace("call", self._began, now)
        if self.is_fresh:
            assert self._before is not None
            self.seconds[:], self.between[:] = self._before
            self._before, self.is_fresh = None, False
            self._skipped.append((self._began, now))
            self.left_out += 1
        else:
            self.counted += 1
            self.rows += self.share

    def _trace(self, name: str, start: float, end: float, detail: Any = None) -> None:
        """Add an event to the trace: a phase, a call or a launch.

        `detail` is the number of the stage computed, or of the bytes reduced.
        """
        assert self.tracer is not None
        args: dict[str, Any] = {"function": self.label}
        if name in ("call", "rows"):
            args["rows"] = self.share
            args["bytes"] = self.share * self.row_bytes
        elif name in ("compute", "common"):
            name = "compute"
            if detail is not None:
                args["stage"] = detail
        elif detail is not None:
            args["bytes"] = detail
        self.tracer.keep(TraceEvent(name, "call", start, end, args))

    def returned(
        self,
        start: float,
        joined: float,
        what: str = "Function call",
        calls: int = 1,
    ) -> None:
        """Count a launch in the master: a call, or a run of calls, begun at `start`.

        All ranks had done their shares at `joined`.
        """
        now = perf_counter()
        if self.tracer is not None:
            self._trace("wait", self._last, joined)
            self._trace(what, start, now)
        wait = joined - self._last
        # Without those of an earlier launch, which failed.
        skipped = [ended - began for began, ended in self._skipped if began >= start]
        self._skipped.clear()
        if skipped:  # other ranks may have taken longer for these calls
            start += sum(skipped) + wait
            calls -= len(skipped)
        else:
            self.seconds[WAIT] += wait
        if calls:
            self.launched += now - start
            self.launches += calls


UNCOUNTED = Times()
"""Takes the times of reductions that are not part of a call."""


# -- exchanges under a training rule

WAIT_FROM = 20e-6
"""The least seconds that count as a wait; less is the time to find a lock free."""


@dataclass
class ExchangeTimes:
    """The exchanges of one rank, in all steps of a function under a training rule."""

    rule: str
    nbytes: int  # of the parameters that are exchanged
    counted: int = 0  # exchanges
    seconds: float = 0.0
    waiting: float = 0.0  # seconds of these spent waiting for other ranks
    waits: int = 0  # the number of waits of at least `WAIT_FROM`
    staleness: int = 0  # the sum over exchanges; see `rules.simulate.Exchange`
    most_stale: int = 0
    tracer: Tracer | None = field(default=None, repr=False)
    label: str = ""  # the function, in a trace

    def count(self, staleness: int = 0) -> None:
        """Count an exchange."""
        self.counted += 1
        self.staleness += staleness
        self.most_stale = max(self.most_stale, staleness)

    @contextlib.contextmanager
    def exchanging(self, step: int) -> Iterator[None]:
        """Count the time of a ``with`` block, an exchange after step `step`."""
        start, stale = perf_counter(), self.staleness
        try:
            yield
        finally:
            end = perf_counter()
            self.seconds += end - start
            args = {"step": step, "staleness": self.staleness - stale}
            self._trace("exchange", start, end, **args)

    @contextlib.contextmanager
    def wait(self) -> Iterator[None]:
        """Count the time of a ``with`` block as waiting for others."""
        start = perf_counter()
        yield
        end = perf_counter()
        self.waiting += end - start
        if end - start >= WAIT_FROM:
            self.waits += 1
            self._trace("wait", start, end)

    def _trace(self, name: str, start: float, end: float, **args: Any) -> None:
        args = {"function": self.label, **args}
        if self.tracer is not None:
            self.tracer.keep(TraceEvent(name, "exchange", start, end, args))
