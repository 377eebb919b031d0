"""Launches of functions that are made on all ranks, or on none."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from types import TracebackType

import numpy as np

from ..compiler.placement.streams import CommonStream
from .context import RankContext
from .session import SESSION
from .streams import lead_on, master_states

_launches = itertools.count()


class Launch:
    """One launch of a function: what fails in its ``with`` block is undone everywhere.

    Parameters
    ----------
    streams : sequence of CommonStream
    calls : int
        Of several calls those stay that all ranks have made.
    failed : callable
        Is called with the launch and the error, when all is undone that can be.

    Attributes
    ----------
    number : int
        What all ranks know it by.
    states : list of numpy.random.Generator
        What the common streams begin with.
    made : int or None
        After a failure: how many of its calls stay; None if ranks could not be brought
        to the same.
    """

    def __init__(
        self,
        streams: Sequence[CommonStream],
        calls: int,
        failed: Callable[[Launch, BaseException], None],
    ) -> None:
        self.number = next(_launches)
        self.states: list[np.random.Generator] = []
        self.made: int | None = None
        self._streams, self._calls, self._failed = streams, calls, failed
        self._transaction = SESSION.context.transaction

    def __enter__(self) -> Launch:
        self.states = master_states(self._streams)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            lead_on(self._streams)
            return
        try:
            self._undo()
        finally:
            lead_on(self._streams)
            self._failed(self, error)

    def _undo(self) -> None:
        if SESSION.state == "running":
            by_rank = SESSION.run(worker_undo, self.number, self._calls > 1)
            self.made = None if _LOST in by_rank else by_rank[0]
        else:  # the ranks are gone; the script may go on with what there was
            stays = self._transaction.made(self.number) if self._calls > 1 else 0
            if self._transaction.undo_to(self.number, stays):
                self.made = stays


_LOST = -1


def worker_undo(context: RankContext, number: int, some_stay: bool) -> int:
    """Go back to before a launch, or to the last call that all ranks have made.

    Returns
    -------
    int
        How many calls stay; negative if this rank could not go back.
    """
    transaction = context.transaction
    calls = min(context.comm.agree(transaction.made(number))) if some_stay else 0
    return calls if transaction.undo_to(number, calls) else _LOST
