"""The ranks of one fork, as one process has them: an object from fork to close.

The master's pool has the channel to all ranks and the ledger; a worker's has less. An
object that is made for the ranks of one fork keeps a reference to their pool, by which
it finds out whether it is of use for the present ranks: see `Lifetime.is_of`.
"""

from __future__ import annotations

from weakref import WeakKeyDictionary

from pytensor.compile import SharedVariable

from ..memory.arena import Arena
from ..memory.limits import OomKills
from ..workers.channel import MasterChannel
from ..workers.control import Control
from ..workers.recorder import Records
from ..workers.waiting import Limit
from .context import Dropped, RankContext
from .ledger import Ledger
from .starting import ScriptSeeds, SessionOptions


class Pool:
    """The ranks of one fork, as one process has them."""

    channel: MasterChannel  # to the other ranks of this node
    kills: OomKills  # kills by the out-of-memory killer since the fork
    seeds: ScriptSeeds  # for the ranks' global random generators

    def __init__(
        self, asked: SessionOptions, control: Control, records: Records
    ) -> None:
        self.control, self.records = control, records
        # This process's rank among the ranks of all nodes, and among this node's.
        self.rank, self.size = 0, len(asked.places)
        self.local_rank = 0
        # With several nodes: the number of ranks of each, and this node's number.
        self.nodes: tuple[list[int], int] | None = None
        self.limit = Limit(asked.timeout)  # for waits of the master
        # This process's context as a rank; None before it is made and after `close`.
        self.context: RankContext | None = None
        # The numbers by which ranks know the master's variables.
        self.numbers = WeakKeyDictionary[SharedVariable, int]()
        # How ranks hold the master's variables, or held them before a rank died.
        self.ledger = Ledger()
        # Memory to which the master copies arguments, for ranks to read.
        self.stage = Arena(can_shrink=not asked.places[0].device.is_gpu)
        # Notices for ranks of objects that the script has dropped; the next command
        # takes them along. The garbage collector may append one at any line, in any
        # thread. So the list is only appended to, and as many as were sent are deleted
        # from its beginning.
        self.notices: list[Dropped] = []
        self.groups: tuple = ()  # made by `groups.groups`
        self.replied = 0.0  # when all had replied to the last command, by monotonic()

    def join_nodes(self, ranks: list[int], node: int) -> None:
        """Set rank and size among several nodes: node i has ``ranks[i]`` ranks."""
        self.nodes = ranks, node
        self.size, self.rank = sum(ranks), self.local_rank + sum(ranks[:node])

    def close(self) -> None:
        """Undo the changes of this process, even if an interrupt comes."""
        # None first, so that other code finds from now on that synk was closed.
        context, self.context = self.context, None
        if context is not None:
            context.close()
        if not self.rank:
            self.ledger.close()
        self.records.close()
