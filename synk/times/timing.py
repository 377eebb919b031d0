"""Where the time of a function's calls goes, on one rank.

A rank's time in a call is divided into phases that follow each other without a gap:
whoever ends one says which it was, and the next has begun. That takes one look at the
clock, and some 0.1 us. The clock is CLOCK_MONOTONIC, the same for all processes of a
machine; that of another machine has begun at another time.

A call that follows a compilation is not counted, on any rank: code is compiled, loaded
and touched for the first time in it. JAX compiles for every shape of the arguments.
"""

from __future__ import annotations

from time import perf_counter
from typing import Any, NamedTuple

from .tracing import Event, Tracer

ROWS, COMPUTE, COMMON, WAIT, REDUCE, NODES = range(6)
"""Taking rows; computing on them; computing what no row enters, which every rank does;
waiting for other ranks; copying to buffers and reducing; and, after the masters of
several nodes have met, what these exchange and reduce."""

PHASES = ("rows", "compute", "common", "wait", "reduce", "nodes")


class Timed(NamedTuple):
    """How long a serial run took."""

    seconds: float
    rows: int
    cores: int


class Times:
    """The times of one function on one rank.

    Parameters
    ----------
    label : str
        What the function is called in a trace.

    Attributes
    ----------
    seconds : list of float
        By phase, of all counted calls.
    counted, left_out : int
        Calls that came to their end: those whose time was counted, and others.
    rows : int
        Of this rank in all counted calls.
    launches : int
        In the master: calls of counted launches; a run has many.
    launched : float
        In the master: seconds of counted launches, from the user's call to its return.
    between : list of float
        In the master of one of several nodes, of counted calls: exchanges with other
        nodes, seconds until all masters had met for them, and bytes that it has sent.
    """

    __slots__ = (
        "_before",
        "_began",
        "_last",
        "_skipped",
        "between",
        "counted",
        "is_fresh",
        "label",
        "launched",
        "launches",
        "left_out",
        "row_bytes",
        "rows",
        "seconds",
        "share",
        "tracer",
    )

    def __init__(self, label: str = "") -> None:
        self.label = label
        self.row_bytes = 0
        self.seconds = [0.0] * len(PHASES)
        self.between = [0.0, 0.0, 0.0]
        self.counted = self.left_out = self.rows = self.launches = 0
        self.launched = 0.0
        self.share = 0
        self.tracer: Tracer | None = None
        self.is_fresh = False
        self._before: tuple[list[float], list[float]] | None = None
        self._began = self._last = 0.0
        # When calls that do not count began and ended, since the last launch ended.
        self._skipped: list[tuple[float, float]] = []

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
        """Count an exchange of the masters of nodes, in one of them.

        Parameters
        ----------
        meeting : float
            Seconds until all had met.
        nbytes : int
            What this one has sent.
        """
        for i, value in enumerate((1, meeting, nbytes)):
            self.between[i] += value

    def move(self, seconds: float, phase: int, to: int) -> None:
        """Count to another phase what has been counted to one."""
        self.seconds[phase] -= seconds
        self.seconds[to] += seconds

    def end(self, phase: int, detail: Any = None) -> None:
        """Count the last phase, and with it a call."""
        now = perf_counter()
        self.seconds[phase] += now - self._last
        if self.tracer is not None:
            self._trace(PHASES[phase], self._last, now, detail)
            self._trace("call", self._began, now)
        self._last = now
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
        """Leave an event of a call in the trace that is on.

        Parameters
        ----------
        name : str
            A phase, or what encloses phases.
        start, end : float
        detail : int, optional
            The stage that was computed, or the bytes that were reduced.
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
        self.tracer.keep(Event(name, "call", start, end, args))

    def meeting(self, size: int) -> float:
        """Return which part of calls goes to what one rank alone would not have.

        Seen from the master: waiting, reducing, and what each of `size` ranks computes
        and one would compute by as many times the cores.
        """
        if not self.launched:
            return 0.0
        seconds = self.seconds
        meeting = seconds[WAIT] + seconds[REDUCE] + seconds[COMMON] * (1 - 1 / size)
        return meeting / self.launched

    def returned(
        self,
        start: float,
        joined: float,
        what: str = "Function call",
        calls: int = 1,
    ) -> bool:
        """Count what the master alone sees: a call or a run from outside.

        Parameters
        ----------
        start, joined : float
            When the user called, and when all ranks had done their shares.
        what : str
        calls : int
            How many calls it was.

        Returns
        -------
        bool
            Whether something was compiled.
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
