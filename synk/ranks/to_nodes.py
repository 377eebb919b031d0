"""Commands for the ranks of other nodes, as node 0's master sends them.

Their arguments are those of the command, with arrays by their bytes. Of calls each node
has arguments and rows of its own: what makes these registers itself in `PARTED`, as it
is in a room above.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..cluster.keeping import Keeping
from ..cluster.translate import ForNode, Parted, dumps
from .context import Notice, RankContext
from .homes import NewHome

Parting = Callable[[tuple, RankContext, Sequence[int], Keeping], Parted | None]
"""Given the arguments of a command, how many ranks each node has, and what they keep,
returns the arguments for each; None if all get the same."""

PARTED: dict[Callable, Parting] = {}
"""By command."""


def for_nodes(
    work: Callable,
    args: tuple,
    notices: tuple[Notice, ...],
    launch: int,
    context: RankContext,
    keeping: Keeping,
) -> tuple[bytes, list[ForNode]]:
    """Return a command as a message to all nodes, and the rows that go to each."""
    for kind, key in notices:
        if kind == "segment":
            keeping.forget(key)
    apart = None
    if work in PARTED:
        apart = PARTED[work](args, context, context.comm.ranks, keeping)
    given, rows = (args, []) if apart is None else (apart.args, apart.rows)
    name = work.__module__, work.__name__
    message = "run", name, given, notices, launch, keeping.forgotten()
    return dumps(message, context.array, rows, {NewHome: _told}), rows


def _told(home: NewHome) -> tuple:
    """Return what other nodes need to know of a home, to make one alike."""
    return home.number, home.window[6][1], home.slots
