"""Interrupts of a function at random points."""

from __future__ import annotations

import contextlib
import signal
import sys

import numpy as np


class Stop(Exception):
    """What the handler of the alarm raises."""


@contextlib.contextmanager
def alarms(monkeypatch):
    """Return what calls a function with an alarm within some seconds; was it heard?"""

    def stop(number, frame):
        raise Stop

    def interrupted(within, function):
        try:
            try:
                signal.setitimer(signal.ITIMER_REAL, draw.uniform(1e-6, within))
                function()
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
        except Stop:
            return True
        except UnboundLocalError as error:
            # PyTensor's, whose handler of errors names a node that there is not yet.
            if not isinstance(error.__context__, Stop):
                raise
            return True
        return False

    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)
    draw = np.random.default_rng(0)
    before = signal.signal(signal.SIGALRM, stop)
    try:
        yield interrupted
    finally:
        signal.signal(signal.SIGALRM, before)
