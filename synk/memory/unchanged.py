"""What tells the values of shared memory from all others it has had, if they stay.

`Data` sees to that for its own memory (see `variables.data`), and registers it here
for those who have no more than a window.
"""

from __future__ import annotations

import weakref
from typing import Protocol

from ..errors import SynkError
from .segment import Window, key_of


class Watched(Protocol):
    """Memory whose changes are seen."""

    window: Window | None
    """What it is told to other processes by."""

    is_partial: bool
    """Whether it has rows of this machine's ranks only."""

    @property
    def state(self) -> int | None:
        """A number that no other values have; None if they may change at any time."""


WATCHED: weakref.WeakValueDictionary[tuple[int, int], Watched]
WATCHED = weakref.WeakValueDictionary()
"""By the key of the segment."""


def state_of(window: Window) -> int | None:
    """Return the state of what is in a window; None where nobody sees changes of it."""
    found = WATCHED.get(key_of(window))
    if found is None or found.window != window:
        return None
    return found.state


def check_whole(window: Window) -> None:
    """Raise before rows are read that are not there.

    Raises
    ------
    SynkError
        If the memory has rows of this machine's ranks only.
    """
    found = WATCHED.get(key_of(window))
    if found is not None and found.is_partial:
        raise SynkError("rows are asked for that were read from files elsewhere only")
