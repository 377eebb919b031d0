"""Exceptions on ranks: as they travel to the master, and as one when there are several.

What a rank's code has raised may be anything, an exception class of the script for one,
whose methods raise something else in their turn. Neither a rank nor the master must
fail over that: the type is kept if it can be, and else there is the text.
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
"""Characters that a note has of another rank's error."""


class Failure:
    """An exception on a rank, as it travels to the master."""

    def __init__(self, error: BaseException, where: str, rank: int) -> None:
        self.time = monotonic_ns()  # by a clock that all processes share
        # For a note: on which rank, in what; "" if it has one.
        self.where = where
        self.rank, self.kind = rank, _kind_of(error)
        self.text, self.summary = _shown(error)
        # Then the rank has not failed by itself.
        self.aborted = isinstance(error, Aborted)
        self.interrupted = isinstance(error, KeyboardInterrupt)
        self._pickled = b"" if self.aborted else _pickle_error(error)

    def rebuild(self) -> BaseException:
        """Return the exception with its own type, and the remote traceback as cause."""
        error: BaseException
        try:
            error = by_value.loads(self._pickled)
        except KeyboardInterrupt:
            raise  # the user's, here and now
        except BaseException:
            error = RemoteError(self.summary)
        noted = not self.where or add_note(error, self.where)
        text = self.text if noted else f"{self.text}{self.where}\n"
        # Not by the attribute, of which the class may have made something else.
        vars(BaseException)["__cause__"].__set__(error, RemoteTraceback(text))
        return error


class OwnFailure:
    """An exception of the master's own share, beside those of the ranks."""

    rank = 0
    aborted = interrupted = False

    def __init__(self, error: BaseException) -> None:
        self.time, self.kind = monotonic_ns(), _kind_of(error)
        self._error = error

    @property
    def summary(self) -> str:
        """The class and the message."""
        return _shown(self._error)[1]

    def rebuild(self) -> BaseException:
        """Return the exception."""
        return self._error


def as_one(failures: Sequence[Failure | OwnFailure], size: int) -> BaseException:
    """Return what to raise when some of the ranks have failed."""
    # Errors of one class are one error, with a note that names the other ranks: that of
    # the master if it is among them, as it has a traceback to debug, else the first in
    # time. Of several classes none stands for the others, and which came first is
    # chance: they are a group.
    failures = sorted(failures, key=lambda failure: failure.time)
    # Ranks that were only stopped, as another one failed, do not count.
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
    """Add a note to an exception; return whether that could be done."""
    # Its class may have made something else of ``__notes__``, which may even raise.
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
    """Return an exception with its traceback as text, and in short."""
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
    """Pickle an exception, or return b"" if it would not come back as it is."""
    for dumps in (pickle.dumps, cloudpickle.dumps):
        try:
            data = dumps(error)
            if type(pickle.loads(data)) is type(error):
                return data
        except BaseException:
            # A class of the user's script, which came with an Op: it has the name of
            # another one here. cloudpickle returns the master its own. Or its methods
            # raise; SystemExit there must not end the rank.
            continue
    return b""
