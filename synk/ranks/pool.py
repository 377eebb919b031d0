"""What a process has of its ranks from fork to close: one object, gone with them.

The master's has the way to all ranks, and what it knows of them; a rank's own less.
What was made for the ranks of one fork, and is of no use to others, remembers their
pool: see `Lifetime.is_of`.
"""

from __future__ import annotations

from ..memory.arena import Arena
from ..workers.channel import MasterChannel
from ..workers.control import Control
from ..workers.limit import Limit
from ..workers.oom import Kills
from ..workers.records import Records
from .context import Notice, RankContext
from .ledger import Ledger
from .registry import Numbers
from .script_seeds import ScriptSeeds
from .starting import Asked


def no_pool() -> None:
    """Return what nothing was made for; in place of a reference to a pool."""


class Pool:
    """The ranks of one fork, as one process has them.

    Parameters
    ----------
    asked : Asked
        How many ranks of this node were asked for, and where they run.
    control : Control
    records : Records

    Attributes
    ----------
    rank, size : int
        Of this process, among the ranks of all nodes.
    control : Control
        The words that all processes of the session share.
    records : Records
        What each rank does, and has done last.
    limit : Limit
        How long it waits for others.
    seeds : ScriptSeeds
        In the master: what the script's generators began with.
    context : RankContext or None
        What it has as a rank.
    channel : MasterChannel
        In the master: the way to the other ranks of its node.
    numbers : Numbers
        In the master: by which numbers ranks know its shared variables.
    ledger : Ledger
        In the master: what the ranks hold of its shared variables. While broken, what
        they held.
    stage : Arena
        In the master: where arguments are copied to, for ranks to read.
    notices : list of Notice
        In the master: what ranks may forget, sent along with the next command.
    replied : float
        In the master: when all ranks had replied to a command, by monotonic().
    kills : Kills
        In the master: what was killed for want of memory.
    """

    channel: MasterChannel
    kills: Kills
    seeds: ScriptSeeds

    def __init__(self, asked: Asked, control: Control, records: Records) -> None:
        self.control, self.records = control, records
        self.rank, self.size = 0, len(asked.places)
        self.limit = Limit(asked.timeout)
        self.context: RankContext | None = None
        self.numbers, self.ledger = Numbers(), Ledger()
        self.stage = Arena(can_shrink=not asked.places[0].device.is_gpu)
        self.notices: list[Notice] = []
        self.replied = 0.0

    def close(self) -> None:
        """Undo what was changed in this process; an interrupt leaves nothing out."""
        context, self.context = self.context, None
        if context is not None:
            context.close()
        self.records.close()
