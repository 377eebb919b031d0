"""What a node's master has sent to others, and its events while a trace is on."""

from __future__ import annotations

from time import perf_counter

from ..times.tracing import Event, Tracer
from .heads import IDLE, NAMES


class Meter:
    """What one end of a `Link` has done.

    Attributes
    ----------
    values_sent : int
        Bytes of values that ranks combine, which this node has sent to others.
    tracer : Tracer or None
        While a trace is on.
    """

    def __init__(self) -> None:
        self.values_sent = 0
        self.tracer: Tracer | None = None
        self._began = 0.0

    def round_begins(self) -> None:
        """Take note of when a round has begun."""
        self._began = perf_counter()

    def round_ends(self, kind: int) -> None:
        """Leave an event of the round: of waiting for a command, or for the heads."""
        began, self._began = self._began, 0.0
        if not began:  # an interrupt has come behind this
            return
        if kind == IDLE:
            self.keep("idle", began)
        else:
            self.keep("heads", began, says=NAMES[kind])

    def keep(self, what: str, start: float, **args: object) -> None:
        """Leave an event that ends now in the trace that is on."""
        if self.tracer is not None:
            event = Event(f"nodes: {what}", "nodes", start, perf_counter(), args)
            self.tracer.keep(event)
