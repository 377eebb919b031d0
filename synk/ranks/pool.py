"""What a process has of its ranks from fork to close: one object, gone with them.

The master's has the way to all ranks, and what it knows of them; a rank's own less.
What was made for the ranks of one fork, and is of no use to others, remembers their
pool: see `Lifetime.is_of`.
"""

from __future__ import annotations

from ..memory.arena import Arena
from ..memory.limits import OomKills
from ..workers.channel import MasterChannel
from ..workers.control import Control
from ..workers.recorder import Records
from ..workers.waiting import Limit
from .context import Dropped, RankContext
from .graphs import VariableNumbers
from .ledger import Ledger
from .starting import ScriptSeeds, SessionOptions


def no_pool() -> None:
    """Return what nothing was made for; in place of a reference to a pool."""


class Pool:
    """The ranks of one fork, as one process has them."""

    channel: MasterChannel  # the way to the other ranks of this node
    kills: OomKills  # what was killed for want of memory
    seeds: ScriptSeeds  # what the script's generators began with

    def __init__(
        self, asked: SessionOptions, control: Control, records: Records
    ) -> None:
        self.control, self.records = control, records
        # Of this process, among the ranks of all nodes and of its own.
        self.rank, self.size = 0, len(asked.places)
        self.local_rank = 0
        # Where there are several: how many ranks each has, and which one this is.
        self.nodes: tuple[list[int], int] | None = None
        self.limit = Limit(asked.timeout)  # how long it waits for others
        # What it has as a rank; None again when it is closed.
        self.context: RankContext | None = None
        # By which numbers ranks know its shared variables, and what they hold of these:
        # while broken, what they held.
        self.numbers, self.ledger = VariableNumbers(), Ledger()
        # Where arguments are copied to, for ranks to read.
        self.stage = Arena(can_shrink=not asked.places[0].device.is_gpu)
        # What ranks may forget, sent along with the next command. The garbage collector
        # adds to it at any line, and in any thread: so it is only appended to, and what
        # was sent is taken off by its number.
        self.notices: list[Dropped] = []
        self.groups: tuple = ()  # of the ranks, once they were asked for
        self.replied = 0.0  # when all had replied to a command, by monotonic()

    def join_nodes(self, ranks: list[int], node: int) -> None:
        """Be of node `node`, of several with so many ranks each."""
        self.nodes = ranks, node
        self.size, self.rank = sum(ranks), self.local_rank + sum(ranks[:node])

    def close(self) -> None:
        """Undo what was changed in this process; an interrupt leaves nothing out."""
        # None first: who asks for it from now on is told that synk was closed.
        context, self.context = self.context, None
        if context is not None:
            context.close()
        if not self.rank:
            self.ledger.close()
        self.records.close()
