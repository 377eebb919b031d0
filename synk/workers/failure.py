"""Exceptions of ranks: sent to the master, and combined into one to raise there.

A rank's code may raise anything, such as an exception class of the script whose own
methods raise. Neither the rank nor the master may fail because of that: the exception
keeps its type if that can be pickled, and always its text.
"""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Sequence
from time import monotonic_ns

import cloudpickle

from ..errors import Aborted, RemoteError, RemoteTraceback
from ..user_frames import shorten
from . import by_value
from .forks import forget_handled

_LONGEST = 300
"""Characters of another rank's error that a note shows at most."""


class Failure:
    """An exception on a rank, in a form that is sent to the master."""

    def __init__(self, error: BaseException, where: str, rank: int) -> None:
        self.time = monotonic_ns()  # by a clock that all processes share
        # The note to add, with rank and command; "" if the exception has one already.
        self.where = where
        self.rank, self.kind = rank, _kind_of(error)
        self.text, self.summary = _shown(error)
        # Whether the rank was only stopped, by another rank's failure or an interrupt.
        self.aborted = isinstance(error, Aborted)
        self.interrupted = isinstance(error, KeyboardInterrupt)
        self._pickled = b"" if self.aborted else _pickle_error(error)

    def rebuild(self) -> BaseException:
        """Return the exception, of its own type if possible; its cause has the text."""
        error: BaseException
        try:
            error = by_value.loads(self._pickled)
        except KeyboardInterrupt:
            raise  # the user's, in this process
        except BaseException:
            error = RemoteError(self.summary)
        noted = not self.where or add_note(error, self.where)
        text = self.text if noted else f"{self.text}{self.where}\n"
        # Set in this way, as the class may define ``__cause__`` otherwise.
        vars(BaseException)["__cause__"].__set__(error, RemoteTraceback(text))
        return error


class OwnFailure:
    """An exception in the master's own share, with the attributes of a `Failure`."""

    rank = 0
    aborted = interrupted = False

    def __init__(self, error: BaseException) -> None:
        self.time, self.kind = monotonic_ns(), _kind_of(error)
        self._error = error

    @property
    def summary(self) -> str:
        """The exception's class and message."""
        return _shown(self._error)[1]

    def rebuild(self) -> BaseException:
        """Return the exception."""
        return self._error


def as_one(failures: Sequence[Failure | OwnFailure], size: int) -> BaseException:
    """Return the exception to raise for the `failures` of some of `size` ranks."""
    # If all are of one class, it is one of them, with notes that name the other ranks:
    # the master's if it is among them, as that has a traceback to debug, else the first
    # in time. If there are several classes, it is a group of all, as the order in time
    # is chance.
    failures = sorted(failures, key=lambda failure: failure.time)
    # Ranks that were only stopped because another one failed do not count.
    causes = [f for f in failures if not (f.aborted or f.interrupted)]
    if not causes:  # a rank was interrupted, or all were
        return ([f for f in failures if f.interrupted] or failures)[0].rebuild()
    if len({failure.kind for failure in causes}) > 1:
        ranks = sorted(failure.rank for failure in causes)
        return BaseExceptionGroup(
            f"{_ranks(ranks)} of {size} failed, not all in the same way",
            [failure.rebuild() for failure in causes],
        )
    own = [failure for failure in causes if isinstance(failure, OwnFailure)]
    chosen = (own or causes)[0]
    error = chosen.rebuild()
    alike, summary = [], chosen.summary
    for failure in causes:
        if failure is chosen:
            continue
        if failure.summary == summary:
            alike.append(failure.rank)
        else:
            text = failure.summary
            text = text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."
            add_note(error, f"[synk] on rank {failure.rank} of {size} as well: {text}")
    if alike:
        add_note(error, f"[synk] likewise on {_ranks(sorted(alike))} of {size}")
    return error


def add_note(error: BaseException, note: str) -> bool:
    """Add a note to an exception; return whether that was possible."""
    # The exception's class may define ``__notes__`` otherwise, which may even raise.
    try:
        error.add_note(note)
    except KeyboardInterrupt:
        raise
    except BaseException:
        return False
    return True


def _ranks(numbers: list[int]) -> str:
    which = ", ".join(map(str, numbers))
    return f"rank {which}" if len(numbers) == 1 else f"ranks {which}"


def _kind_of(error: BaseException) -> str:
    module, name = type(error).__module__, type(error).__qualname__
    return name if module == "builtins" else f"{module}.{name}"


def _shown(error: BaseException) -> tuple[str, str]:
    """Return an exception with its traceback as text, and its class and message."""
    short = _kind_of(error)
    try:
        short = traceback.format_exception_only(error)[0].strip()
        forget_handled(error)
        shorten(error)
        return "".join(traceback.format_exception(error)), short
    except BaseException as reason:
        frames = "".join(traceback.format_tb(error.__traceback__))
        why = f"what led to it cannot be shown: {_kind_of(reason)}"
        return f"{frames}{short}\n({why})\n", short


def _pickle_error(error: BaseException) -> bytes:
    """Pickle an exception; return b"" if its type would not come back the same."""
    for dumps in (pickle.dumps, cloudpickle.dumps):
        try:
            data = dumps(error)
            if type(pickle.loads(data)) is type(error):
                return data
        except BaseException:
            # Such as a class of the script that came with an Op: on this rank its name
            # is another class's, so pickle refuses it; cloudpickle gives the master its
            # own class back. Or methods of the class raise, even SystemExit, which must
            # not end the rank.
            continue
    return b""
