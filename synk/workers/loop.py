"""What a rank does: wait for a command, run it, reply, until its process is ended."""

from __future__ import annotations

import faulthandler
import os
import pickle
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import cloudpickle

from ..errors import Aborted, RemoteError, RemoteTraceback
from ..user_frames import shorten
from .channel import WorkerChannel
from .control import Control
from .forks import flush_streams


class Rank(Protocol):
    """What the loop needs of the rank that it serves; see `ranks.context`."""

    control: Control
    activity: str

    def forget(self, notices: Sequence) -> None:
        """Forget what the user's script has given up."""

    def execute(self, work: Callable, args: Sequence) -> Any:
        """Run a command on this rank."""

    def abort(self) -> None:
        """Have all ranks stop the command that is being run: this one has failed."""

    def where(self, work: Callable | None) -> str:
        """Say where we are, for the note on an exception."""


class Failure:
    """An exception on a rank, as it travels to the master."""

    def __init__(self, error: BaseException, where: str) -> None:
        shorten(error)
        self.text = "".join(traceback.format_exception(error))
        self.summary = traceback.format_exception_only(error)[0].strip()
        self.where = where
        self.aborted = isinstance(error, Aborted)
        self.interrupted = isinstance(error, KeyboardInterrupt)
        self.pickled = b"" if self.aborted else _pickle_error(error)

    def rebuild(self) -> BaseException:
        """Return the exception with its own type, and the remote traceback as cause."""
        try:
            error = pickle.loads(self.pickled)
        except Exception:
            error = RemoteError(self.summary)
        error.__cause__ = RemoteTraceback(self.text)
        error.add_note(self.where)
        return error


def _pickle_error(error: BaseException) -> bytes:
    """Pickle an exception, or return b"" if it would not come back as it is."""
    for dumps in (pickle.dumps, cloudpickle.dumps):
        try:
            data = dumps(error)
            if type(pickle.loads(data)) is type(error):
                return data
        except Exception:
            # A class of the user's script, which came with an Op: it has the name of
            # another one here. cloudpickle returns the master its own.
            continue
    return b""


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
    while True:
        channel.wait(look_about)
        work, reply = None, None
        try:
            work, args, notices = channel.read()
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
            reply = Failure(error, rank.where(work))
        try:
            channel.reply(reply)
        except Exception as error:
            channel.reply(Failure(error, rank.where(work)))


def _settle() -> None:
    """Give a freshly forked process no terminal, and a way to say how it died."""
    if threading.current_thread() is not threading.main_thread():
        raise AssertionError("a rank must run in the main thread")
    sys.stdin = open(os.devnull)  # noqa: SIM115  for the life of the process
    try:
        # Not cancel_dump_traceback_later: it would wait for a thread of the master.
        faulthandler.enable()
    except (AttributeError, OSError, RuntimeError, ValueError):
        pass  # no stderr, or none with a file descriptor, as in a notebook
