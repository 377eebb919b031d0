"""Where the time of a training rule's exchanges goes, on one rank."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from .tracing import Event, Tracer

WAIT_FROM = 20e-6
"""Seconds from which on it is a wait: less is finding that nobody is in the way."""


@dataclass
class ExchangeTimes:
    """The exchanges of one rank, of all steps of a function under a rule.

    Attributes
    ----------
    rule : str
    nbytes : int
        Of the parameters that are exchanged.
    counted : int
        Exchanges that the rank has taken part in.
    seconds, waiting : float
        Spent on them, and of these waiting for other ranks.
    waits : int
        How often it has waited, for longer than `WAIT_FROM`.
    staleness, most_stale : int
        How many moves of the centre the rank's parameters were old: in all, and most.
    tracer : Tracer or None
        While a trace is on.
    label : str
        The function, in a trace.
    """

    rule: str
    nbytes: int
    counted: int = 0
    seconds: float = 0.0
    waiting: float = 0.0
    waits: int = 0
    staleness: int = 0
    most_stale: int = 0
    tracer: Tracer | None = field(default=None, repr=False)
    label: str = ""

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
            if self.tracer is not None:
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
            if self.tracer is not None:
                self._trace("wait", start, end)

    def _trace(self, name: str, start: float, end: float, **args: Any) -> None:
        assert self.tracer is not None
        args = {"function": self.label, **args}
        self.tracer.keep(Event(name, "exchange", start, end, args))
