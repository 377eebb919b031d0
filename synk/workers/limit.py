"""How long the master waits for the other ranks before it gives them up."""

from __future__ import annotations

import time

from ..errors import Expired


class Limit:
    """The seconds that the other ranks may keep the master waiting at a time.

    Parameters
    ----------
    seconds : float or None
        In a command that says nothing else; None for ever.

    Attributes
    ----------
    of_call : float or None
        What the present command says. The master sets it with every command, so that
        none has another's, whatever has ended that one.
    """

    def __init__(self, seconds: float | None) -> None:
        self._seconds = seconds
        self.of_call: float | None = None

    def deadline(self) -> float:
        """Return when a wait that begins now has taken too long."""
        seconds = self._seconds if self.of_call is None else self.of_call
        return float("inf") if seconds is None else time.monotonic() + seconds

    def check(self, deadline: float, what: str) -> None:
        """Raise `Expired` if a deadline is over; `what` says what did not happen."""
        if time.monotonic() > deadline:
            seconds, whose = self._seconds, "the timeout given to synk.fork"
            if self.of_call is not None:
                seconds, whose = self.of_call, "the timeout of this call"
            raise Expired(f"{what} within {seconds:g} s ({whose})")
