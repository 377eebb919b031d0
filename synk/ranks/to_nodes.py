"""Commands for the ranks of other nodes, as node 0's master sends them.

Their arguments are those of the command, with arrays by their bytes. Of calls each node
has arguments and rows of its own: what makes these registers itself in `PARTED`, as it
is in a room above.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ..cluster.translate import Parted, dumps
from .context import RankContext
from .homes import NewHome

Parting = Callable[[tuple, RankContext, Sequence[int]], Parted | None]
"""Given the arguments of a command and how many ranks each node has, returns those for
each node; None if all get the same."""

PARTED: dict[Callable, Parting] = {}
"""By command."""


def for_nodes(
    work: Callable, args: tuple, notices: tuple, launch: int, context: RankContext
) -> tuple[bytes, list[list[np.ndarray]]]:
    """Return a command as a message to all nodes, and the rows that go to each."""
    apart = None
    if work in PARTED:
        apart = PARTED[work](args, context, context.comm.ranks)
    given, rows = (args, []) if apart is None else (apart.args, apart.rows)
    name = work.__module__, work.__name__
    message = "run", name, given, notices, launch
    return dumps(message, context.array, rows, {NewHome: _told}), rows


def _told(home: NewHome) -> tuple:
    """Return what other nodes need to know of a home, to make one alike."""
    return home.number, home.window[6][1], home.slots
