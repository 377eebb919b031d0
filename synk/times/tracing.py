"""The events of one rank while a trace is on; see `timeline`."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from ..ranks.session import Session
    from .timing import Times

_QUIET = ("worker_call", "worker_run", "worker_stop_trace")
"""Commands that have events of their own, or are not the user's."""


class Event(NamedTuple):
    """Something that took time on a rank; times in seconds."""

    name: str
    category: str
    start: float
    end: float
    args: dict[str, Any]


class Tracer:
    """The events of one rank, up to a limit; what comes later is counted only."""

    def __init__(self, limit: int) -> None:
        self.events: list[Event] = []
        self.dropped = 0
        self._limit = limit

    def keep(self, event: Event) -> None:
        """Take an event, if there is room."""
        if len(self.events) < self._limit:
            self.events.append(event)
        else:
            self.dropped += 1

    def add(
        self, name: str, times: Times, start: float, end: float, detail: Any = None
    ) -> None:
        """Take an event of a function's call.

        Parameters
        ----------
        name : str
            A phase, or what encloses phases.
        times : Times
            Those of the function.
        start, end : float
        detail : int, optional
            The stage that was computed, or the bytes that were reduced.
        """
        args: dict[str, Any] = {"function": times.label}
        if name in ("call", "rows"):
            args["rows"] = times.share
            args["bytes"] = times.share * times.row_bytes
        elif name in ("compute", "common"):
            name = "compute"
            if detail is not None:
                args["stage"] = detail
        elif detail is not None:
            args["bytes"] = detail
        self.keep(Event(name, "call", start, end, args))

    def follow(self, work: Callable, session: Session, *args: Any) -> Any:
        """Run a command, and take its time unless it has events of its own."""
        start = perf_counter()
        try:
            return work(session, *args)
        finally:
            if work.__name__ not in _QUIET:
                name = work.__name__.removeprefix("worker_").replace("_", " ")
                self.keep(Event(name, "command", start, perf_counter(), {}))
