"""The launches of a run, and what a script does to shared variables in its midst.

Batches are taken ahead, and a generator of batches may set variables between them: a
rate that falls, say. Those taken before are run with the values from before. What is
called after each call comes too late for that: the other ranks are in the next one.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized

from ..errors import StateError
from ..ranks.ledger import Entry, set_among
from .held import HeldVariables

AT_ONCE = 64
"""Batches that are taken from a generator for one launch."""


def in_launches(batches: Iterable, held: HeldVariables) -> Iterator[list]:
    """Return the batches of each launch: all of a sequence, some of a generator.

    Parameters
    ----------
    held : HeldVariables
        Those of the function. A launch ends where the generator sets one.
    """
    if isinstance(batches, Sized):
        if len(batches):
            yield list(batches)
        return
    taken: list = []
    for batch in itertools.chain(batches, [_END]):
        if taken:
            newly_set = set_among(held.entries)
            if newly_set or len(taken) == AT_ONCE or batch is _END:
                with _as_before(newly_set):
                    yield taken
                taken = []
        if not taken:
            held.check()  # so that what is set from now on is told from this
        taken.append(batch)


_END = object()


@contextlib.contextmanager
def _as_before(entries: Sequence[Entry]) -> Iterator[None]:
    """Give variables the values from before they were set, in a ``with`` block."""
    values = [entry.storage[0] for entry in entries]
    for entry in entries:
        if not entry.has_former:
            raise StateError(
                "a generator of batches has called a function that updates a shared"
                " variable in place, which the batches before are to be computed with:"
                " run these first"
            )
        entry.storage[0] = entry.former
    try:
        yield
    finally:
        for entry, value in zip(entries, values, strict=True):
            entry.storage[0] = value


def watched(
    report: Callable[[], object], entries: Sequence[Entry]
) -> Callable[[], object]:
    """Return what calls `report`, and raises if that sets a shared variable."""

    def call() -> None:
        before = [entry.storage[0] for entry in entries]
        report()
        after = [entry.storage[0] for entry in entries]
        if any(new is not old for new, old in zip(after, before, strict=True)):
            raise StateError(
                "a progress callback has set a shared variable that the function reads,"
                " in the midst of a run: the other ranks are in the next call already."
                " Set it between runs, or in a generator of batches"
            )

    return call
