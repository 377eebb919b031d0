"""Launches of functions that are made on all ranks, or on none.

Each rank keeps what it has changed (`programs.transaction`), and the ledger what it has
noted, until the launch is made. If anything fails, all put back what there was. An
interrupt may come at any line, in the undoing too: each step can be done again.
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
from .streams import State, lead_on, master_states

_launches = itertools.count()


class Launch:
    """A launch of a function: what fails in its ``with`` block is undone everywhere.

    Of several calls those stay that all ranks have made. `failed` is called with the
    launch and the error when all is undone that can be, or `made` in the end. A launch
    can be made again, as another one, when it has come to its end.
    """

    def __init__(
        self,
        streams: Sequence[CommonStream],
        calls: int,
        failed: Callable[[Launch, BaseException], None],
        made: Callable[[Launch], None] | None = None,
    ) -> None:
        self.number = -1  # what all ranks know it by, from `control.LAUNCH`
        self.states: list[State] = []
        # After a failure: how many calls stay; None if ranks could not be brought to
        # the same.
        self.made: int | None = None
        self._streams, self._calls, self._failed = streams, calls, failed
        self._have_made = made
        self._ledger = SESSION.ledger
        self._transaction: Transaction | None = None
        self._frame: FrameType | None = None

    def __enter__(self) -> Launch:
        pool = SESSION.pool
        # Not of the pool: a handler of signals may just have closed it.
        self._transaction = SESSION.context.transaction
        pool.control.words[LAUNCH] = self.number = next(_launches)
        # Not by a local variable: a frame that refers to itself stays, with its callers
        # and all that they have, until garbage is collected.
        self._frame = sys._getframe(1)
        # From here on whoever calls synk next undoes this, unless it is made.
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
        # Python looks for signals before the first line: an interrupt there skips all
        # of this, and leaves `Ledger.launch` for the next call.
        if error is not None:
            self.fail(error)
            return
        try:
            if self._have_made is not None:
                self._have_made(self)
            if self._streams:
                lead_on(self._streams)
            self._ledger.launch = None  # from here on it is made
            self._frame = None  # which holds this
            self._transaction = None  # which holds what there was before
        except BaseException as interrupt:
            self.fail(interrupt)
            raise

    def check_abandoned(self) -> None:
        """Raise StateError if the ``with`` block is being run, around this call."""
        frame: FrameType | None = sys._getframe()
        while frame is not None:
            if frame is self._frame:
                raise StateError(
                    "this is code in a synk call, such as a signal handler: it cannot"
                    " call synk; calls come one at a time"
                )
            frame = frame.f_back

    def has_stored(self, storage: list[Any]) -> bool:
        """Tell whether a variable of the master's holds what this has stored there."""
        transaction = self._transaction
        return transaction is not None and transaction.has_stored(storage)

    def fail(self, error: BaseException) -> None:
        """Undo it everywhere; again, if that is interrupted.

        If that is interrupted, too, the next call does it: see `Ledger.settle`.
        """

        def end_undone() -> None:
            # Each step can be done twice: after an interrupt all are, from the first.
            self._undo()
            lead_on(self._streams)
            self._ledger.take_back()
            self._failed(self, error)
            self._ledger.launch = self._frame = None

        insist(end_undone)

    def _undo(self) -> None:
        if SESSION.state == "running":
            by_rank = SESSION.run(worker_undo, self.number, self._calls > 1)
            self.made = None if _LOST in by_rank else by_rank[0]
        else:  # the ranks are gone; the script may go on with what there was
            assert self._transaction is not None
            stays = self._transaction.made(self.number) if self._calls > 1 else 0
            if self._transaction.undo_to(self.number, stays):
                self.made = stays


_LOST = -1


def worker_undo(context: RankContext, number: int, some_stay: bool) -> int:
    """Go back to before a launch, or to the last call that all ranks have made.

    Returns how many calls stay; negative if this rank could not go back.
    """
    transaction = context.transaction
    calls = min(context.comm.agree(transaction.made(number))) if some_stay else 0
    return calls if transaction.undo_to(number, calls) else _LOST
