"""Interrupts and deaths at any moment of a step, for the state machine.

Which of the states between the step's calls is left is not foreseen: it is looked which
one it is, and it must be one of them on all ranks.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

from pytensor.compile import SharedVariable
from state_model import Held

import synk

States = list[dict[SharedVariable, Held]]


@contextlib.contextmanager
def after(seconds: float, handler: Callable[..., object]) -> Iterator[None]:
    """Have a handler run once, if the ``with`` block takes as long as that."""
    former = signal.signal(signal.SIGALRM, handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, former)


def interrupted(do: Callable[[], Any], seconds: float) -> bool:
    """Do something; tell whether it was interrupted."""

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    try:
        with after(seconds, interrupt):
            do()
    except KeyboardInterrupt:
        return True
    return False


def killed(do: Callable[[], Any], seconds: float, pid: int) -> synk.WorkerDied | None:
    """Do something while a rank is killed; return what it said of that, if it did."""

    def kill(*_: Any) -> None:
        os.kill(pid, signal.SIGKILL)

    try:
        with after(seconds, kill):
            do()
    except synk.WorkerDied as death:
        return death
    return None
