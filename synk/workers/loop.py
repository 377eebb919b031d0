"""What a rank does: wait for a command, run it, reply, until its process is ended."""

from __future__ import annotations

import faulthandler
import os
import pickle
import signal
import sys
import threading
import traceback
from typing import TYPE_CHECKING, Any

from ..errors import Aborted, RemoteError, RemoteTraceback
from .channel import WorkerChannel

if TYPE_CHECKING:
    from ..session import Session


class Failure:
    """An exception on a rank, as it travels to the master."""

    def __init__(self, error: BaseException, where: str) -> None:
        self.text = "".join(traceback.format_exception(error))
        self.where = where
        self.aborted = isinstance(error, Aborted)
        self.interrupted = isinstance(error, KeyboardInterrupt)
        self.pickled = b"" if self.aborted else _pickle_error(error)

    def rebuild(self) -> BaseException:
        """Return the exception with its own type, and the remote traceback as cause."""
        if self.pickled:
            error = pickle.loads(self.pickled)
        else:
            error = RemoteError(self.text.strip().splitlines()[-1])
        error.__cause__ = RemoteTraceback(self.text)
        error.add_note(self.where)
        return error


def _pickle_error(error: BaseException) -> bytes:
    """Pickle an exception, or return b"" if it would not come back as it is."""
    try:
        data = pickle.dumps(error)
        return data if type(pickle.loads(data)) is type(error) else b""
    except Exception:
        return b""


class Interruptible:
    """SIGINT raises KeyboardInterrupt inside a command and does nothing outside."""

    def __init__(self) -> None:
        self.armed = False
        signal.signal(signal.SIGINT, self._handle)

    def _handle(self, *_: Any) -> None:
        if self.armed:
            self.armed = False
            raise KeyboardInterrupt


def serve(session: Session, channel: WorkerChannel) -> None:
    """Run the commands of the master for ever."""
    _settle()
    interruptible = Interruptible()
    while True:
        work, args, notices = channel.receive(lambda: None)
        session.take_notice(notices)
        reply: Any
        try:
            try:
                interruptible.armed = True
                reply = work(session, *args)
            finally:
                interruptible.armed = False
        except BaseException as error:
            session.control.abort()
            reply = Failure(error, session.where(work))
        channel.reply(reply)


def _settle() -> None:
    """Give a freshly forked process no terminal, and a way to say how it died."""
    if threading.current_thread() is not threading.main_thread():
        raise AssertionError("a rank must run in the main thread")
    sys.stdin = open(os.devnull)  # noqa: SIM115  for the life of the process
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGALRM):
        signal.signal(number, signal.SIG_DFL)
    signal.set_wakeup_fd(-1)
    try:
        # Not cancel_dump_traceback_later: it would wait for a thread of the master.
        faulthandler.enable()
    except (AttributeError, OSError, ValueError):
        pass  # no stderr with a file descriptor, as in a notebook
