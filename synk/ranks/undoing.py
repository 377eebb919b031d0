"""Launches of functions, which change variables on all ranks or on none.

Until a launch is complete, each rank keeps the values from before
(`programs.transaction`), and the ledger its former entries. If anything fails, all are
restored. An interrupt may come at any line, also of the undoing, so each step of that
can be repeated.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Sequence
from types import FrameType, TracebackType
from typing import Any

from ..compiler.placement.streams import CommonStream
from ..errors import StateError
from ..programs.transaction import Transaction, insist
from ..workers.control import LAUNCH
from .context import RankContext
from .session import SESSION
from .streams import State, advance_sources, master_states

_launches = itertools.count()


class Launch:
    """A launch of a function: an error in the ``with`` block undoes it on all ranks.

    Of a launch of several calls, those that all ranks have made stay. After an undoing,
    ``failed(launch, error)`` is called; after a complete launch, ``made(launch)``. The
    object can be entered again, as a new launch.
    """

    def __init__(
        self,
        streams: Sequence[CommonStream],
        calls: int,
        failed: Callable[[Launch, BaseException], None],
        made: Callable[[Launch], None] | None = None,
    ) -> None:
        self.number = -1  # by which ranks know it, from the control word LAUNCH
        self.states: list[State] = []  # of common random streams at the beginning
        # After a failure: how many calls stay; None if some rank could not go back.
        self.calls_kept: int | None = None
        self._streams, self._calls, self._failed = streams, calls, failed
        self._have_made = made
        self._ledger = SESSION.ledger
        self._transaction: Transaction | None = None
        self._frame: FrameType | None = None

    def __enter__(self) -> Launch:
        pool = SESSION.pool
        # Read from `SESSION`, which raises if a signal handler has just closed it.
        self._transaction = SESSION.context.transaction
        pool.control.words[LAUNCH] = self.number = next(_launches)
        # Not kept in a local variable: a frame that refers to itself lives, with its
        # callers and all their objects, until garbage is collected.
        self._frame = sys._getframe(1)
        # From here on, the next call of synk undoes this launch if it is not complete.
        self._ledger.former, self._ledger.launch = [], self
        if self._streams:
            self.states = master_states(self._streams)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # Python runs signal handlers before the first line. An interrupt there skips
        # all of this; the next call finds the launch in `Ledger.launch`.
        if error is not None:
            self.fail(error)
            return
        try:
            if self._have_made is not None:
                self._have_made(self)
            if self._streams:
                advance_sources(self._streams)
            self._ledger.launch = None  # from here on the launch is complete
            self._frame = None  # it refers to this object
            self._transaction = None  # it keeps the values from before
        except BaseException as interrupt:
            self.fail(interrupt)
            raise

    def check_abandoned(self) -> None:
        """Raise StateError if this is called from within the ``with`` block."""
        frame: FrameType | None = sys._getframe()
        while frame is not None:
            if frame is self._frame:
                raise StateError(
                    "this is code in a synk call, such as a signal handler: it cannot"
                    " call synk; calls come one at a time"
                )
            frame = frame.f_back

    def has_stored(self, storage: list[Any]) -> bool:
        """Return whether a master's variable holds a value that this launch stored."""
        transaction = self._transaction
        return transaction is not None and transaction.has_stored(storage)

    def fail(self, error: BaseException) -> None:
        """Undo the launch on all ranks; after an interrupt, once more.

        After a second interrupt, the next call does it: see `Ledger.settle`.
        """

        def end_undone() -> None:
            # After an interrupt all steps are done again, from the first.
            self._undo()
            advance_sources(self._streams)
            self._ledger.take_back()
            self._failed(self, error)
            self._ledger.launch = self._frame = None

        insist(end_undone)

    def _undo(self) -> None:
        if SESSION.state == "running":
            by_rank = SESSION.run(worker_undo, self.number, self._calls > 1)
            self.calls_kept = None if _LOST in by_rank else by_rank[0]
        else:  # the ranks are gone; the script may go on with the former values
            assert self._transaction is not None
            stays = self._transaction.made(self.number) if self._calls > 1 else 0
            if self._transaction.undo_to(self.number, stays):
                self.calls_kept = stays


_LOST = -1
"""In place of a number of calls: this rank could not go back."""


def worker_undo(context: RankContext, number: int, some_stay: bool) -> int:
    """Undo a launch on this rank; return how many calls stay, or `_LOST`.

    If `some_stay`, calls that all ranks have made stay, otherwise none.
    """
    transaction = context.transaction
    calls = min(context.comm.agree(transaction.made(number))) if some_stay else 0
    return calls if transaction.undo_to(number, calls) else _LOST
