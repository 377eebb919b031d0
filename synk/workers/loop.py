"""What a rank does: wait for a command, run it, reply, until its process is ended."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from time import monotonic_ns
from typing import Any, Protocol

from ..errors import Aborted
from ..memory.descriptors import opened_for_life
from .channel import WorkerChannel
from .control import Control
from .failure import Failure
from .forks import flush_streams
from .recorder import REPLYING, RUNNING, Recorder, Unrecorded


class Rank(Protocol):
    """What the loop needs of the rank that it serves; see `ranks.context`."""

    rank: int
    control: Control
    recorder: Recorder | Unrecorded
    activity: str

    def forget(self, notices: Sequence) -> None:
        """Forget what the user's script has given up."""

    def execute(self, work: Callable, args: Sequence) -> Any:
        """Run a command on this rank."""

    def abort(self) -> None:
        """Have all ranks stop the command that is being run: this one has failed."""

    def where(self, work: Callable | None) -> str:
        """Say where we are, for the note on an exception."""


class Interruptible:
    """SIGINT raises KeyboardInterrupt in a command that the master has aborted.

    Elsewhere it does nothing: neither between two commands nor in the next one, which
    the signal may come into when it goes to another thread of this process.
    """

    def __init__(self, control: Control) -> None:
        self.armed = False
        self._control = control
        signal.signal(signal.SIGINT, self._handle)

    def _handle(self, *_: Any) -> None:
        if self.armed and self._control.aborted:
            self.armed = False
            raise KeyboardInterrupt


def serve(rank: Rank, channel: WorkerChannel, look_about: Callable[[], object]) -> None:
    """Run the commands of the master for ever, or until `look_about` ends that."""
    _settle()
    interruptible = Interruptible(rank.control)
    recorder = rank.recorder
    phase, times = recorder.phase, recorder.times
    while True:
        begun = recorder.wait(channel.done)
        channel.wait(look_about)
        work, reply = None, None
        try:
            work, args, notices = channel.read()
            phase[0], times[begun] = RUNNING, monotonic_ns()
            if notices:
                rank.forget(notices)
            rank.activity = ""
            try:
                interruptible.armed = True
                # The signal may have come before: the master aborts, then signals.
                if rank.control.aborted:
                    raise Aborted
                reply = rank.execute(work, args)
            finally:
                interruptible.armed = False
                # What the command printed: a rank is killed at the end, and what it has
                # buffered would be lost.
                flush_streams()
        except BaseException as error:
            rank.abort()
            reply = Failure(error, rank.where(work), rank.rank)
        phase[0] = REPLYING
        try:
            channel.reply(reply)
        except Exception as error:
            channel.reply(Failure(error, rank.where(work), rank.rank))


def _settle() -> None:
    """Give a freshly forked process no terminal."""
    if threading.current_thread() is not threading.main_thread():
        raise AssertionError("a rank must run in the main thread")
    nothing = opened_for_life(os.open, os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    sys.stdin = open(nothing)  # noqa: SIM115  for the life of the process
