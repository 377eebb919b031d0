"""The events of one rank while a trace is on; see `timeline`."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any, NamedTuple

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

    def follow(self, work: Callable, *args: Any) -> Any:
        """Run a command, and take its time unless it has events of its own."""
        start = perf_counter()
        try:
            return work(*args)
        finally:
            if work.__name__ not in _QUIET:
                name = work.__name__.removeprefix("worker_").replace("_", " ")
                self.keep(Event(name, "command", start, perf_counter(), {}))
