"""Where the time of a function's calls and exchanges goes, on one rank; its events.

A rank's time in a call is divided into phases that follow each other without a gap:
whoever ends one says which it was, and the next has begun. That takes one look at the
clock, and some 0.1 us. The clock is CLOCK_MONOTONIC, the same for all processes of a
machine; that of another machine has begun at another time.

A call that follows a compilation is not counted, on any rank: code is compiled, loaded
and touched for the first time in it. JAX compiles for every shape of the arguments.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, NamedTuple

ROWS, COMPUTE, COMMON, WAIT, REDUCE, NODES = range(6)
"""Taking rows; computing on them; computing what no row enters, which every rank does;
waiting for other ranks; copying to buffers and reducing; and, after the masters of
several nodes have met, what these exchange and reduce."""

PHASES = ("rows", "compute", "common", "wait", "reduce", "nodes")


_QUIET = ("worker_call", "worker_run", "worker_stop_trace")
"""Commands that have events of their own, or are not the user's."""


class TraceEvent(NamedTuple):
    """Something that took time on a rank; times in seconds."""

    name: str
    category: str
    start: float
    end: float
    args: dict[str, Any]


class Tracer:
    """The events of one rank, up to a limit; what comes later is counted only."""

    def __init__(self, limit: int) -> None:
        self.events: list[TraceEvent] = []
        self.dropped = 0
        self._limit = limit

    def keep(self, event: TraceEvent) -> None:
        """Take an event, if there is room."""
        if len(self.events) < self._limit:
            self.events.append(event)
        else:
            self.dropped += 1

    def follow(self, work: Callable, *args: Any) -> Any:
        """Run a command, and take its time unless it has events of its own."""
        start = perf_counter()
        try:
            return work(*args)
        finally:
            if work.__name__ not in _QUIET:
                name = work.__name__.removeprefix("worker_").replace("_", " ")
                self.keep(TraceEvent(name, "command", start, perf_counter(), {}))


class Timed(NamedTuple):
    """How long a serial run took."""

    seconds: float
    rows: int
    cores: int


@dataclass(slots=True, eq=False)
class Times:
    """The times of one function on one rank; `label` is what a trace calls it."""

    label: str = ""
    row_bytes: int = 0
    seconds: list[float] = field(default_factory=lambda: [0.0] * len(PHASES))
    """By phase, of all counted calls."""
    between: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])
    """In the master of one of several nodes, of counted calls: exchanges with other
    nodes, seconds until all masters had met for them, and bytes that it has sent."""
    counted: int = 0
    left_out: int = 0  # calls that came to their end, too
    rows: int = 0  # of this rank in all counted calls
    launches: int = 0  # in the master: calls of counted launches; a run has many
    launched: float = 0.0  # and their seconds, from the user's call to its return
    share: int = 0
    tracer: Tracer | None = None
    is_fresh: bool = False
    _before: tuple[list[float], list[float]] | None = None
    _began: float = 0.0
    _last: float = 0.0
    # When calls that do not count began and ended, since the last launch ended.
    _skipped: list[tuple[float, float]] = field(default_factory=list)

    def begin(self, start: float, share: int, tracer: Tracer | None) -> None:
        """Begin a call of so many rows; `start` is when its first phase began."""
        self._began = self._last = start
        self.share, self.tracer = share, tracer

    def so_far(self) -> list[float]:
        """Return the seconds by phase, without those of a call that has failed."""
        return [*(self.seconds if self._before is None else self._before[0])]

    def set_aside(self) -> None:
        """Keep the counts from before a call that is not to be counted."""
        if self._before is None:
            self._before = [*self.seconds], [*self.between]
        else:  # the last one failed
            self.seconds[:], self.between[:] = self._before

    def spent(self, phase: int, detail: Any = None) -> None:
        """Count the time since the last phase ended."""
        now = perf_counter()
        self.seconds[phase] += now - self._last
        if self.tracer is not None:
            self._trace(PHASES[phase], self._last, now, detail)
        self._last = now

    def waited(self, exchanged: float, nbytes: int) -> None:
        """Count the time since the last phase ended as waiting, but for its last part.

        In that the masters of nodes have exchanged values, for so many seconds; a rank
        may have come later than it began.
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
        """Count an exchange of the masters of nodes, in one that has sent so much.

        `meeting` is the seconds until all had met.
        """
        for i, value in enumerate((1, meeting, nbytes)):
            self.between[i] += value

    def move(self, seconds: float, phase: int, to: int) -> None:
        """Count to another phase what has been counted to one."""
        self.seconds[phase] -= seconds
        self.seconds[to] += seconds

    def end(self, phase: int, detail: Any = None) -> None:
        """Count the last phase, and with it a call."""
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
        """Leave an event in the trace that is on: a phase, or what encloses phases.

        `detail` is the stage that was computed, or the bytes that were reduced.
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
    ) -> bool:
        """Count what the master alone sees: a call or a run of calls from outside.

        All ranks had done their shares at `joined`. Returns whether something was
        compiled.
        """
        now = perf_counter()
        if self.tracer is not None:
            self._trace("wait", self._last, joined)
            self._trace(what, start, now)
        wait = joined - self._last
        # Those of a launch that failed are none of this one's.
        skipped = [ended - began for began, ended in self._skipped if began >= start]
        self._skipped.clear()
        if skipped:  # others may have taken longer for these calls
            start += sum(skipped) + wait
            calls -= len(skipped)
        else:
            self.seconds[WAIT] += wait
        if calls:
            self.launched += now - start
            self.launches += calls
        return bool(skipped)


UNCOUNTED = Times()
"""For what is no part of a call."""


# -- exchanges under a training rule

WAIT_FROM = 20e-6
"""Seconds from which on it is a wait: less is finding that nobody is in the way."""


@dataclass
class ExchangeTimes:
    """The exchanges of one rank, of all steps of a function under a rule."""

    rule: str
    nbytes: int  # of the parameters that are exchanged
    counted: int = 0
    seconds: float = 0.0
    waiting: float = 0.0  # of these, for other ranks
    waits: int = 0  # longer than `WAIT_FROM`
    staleness: int = 0  # how many moves of the centre parameters were old, in all
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
        """Count the time of a ``with`` block, after so many steps."""
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
