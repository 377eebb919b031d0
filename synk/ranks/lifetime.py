"""A session's state, and how it is started, started again after a death, and ended.

::

    unforked --fork()--> running --close()--> closed --fork()--> running ...
                          |  ^
              a rank died |  | recover()
                          v  |
                         broken --close()--> closed

    in a child that the user's script forks meanwhile: running or broken --> child

Ranks are forked from a zygote (`workers.zygote_source`), and get the script's state.
Signal handlers of the script, or other threads, may call `fork`, `close` or a function
at any line of this file. Every step can be undone from where it stopped.
"""

from __future__ import annotations

import atexit
import contextlib
import copy
import os
import pickle
import socket
import threading
from collections.abc import Callable
from typing import Any

import cloudpickle
from pytensor.compile import SharedVariable

from ..cluster.launcher import Node
from ..errors import StateError, SynkError, WorkerDied
from ..memory import proc
from ..memory.limits import OomKills
from ..memory.refusals import LIMITS, not_started
from ..signals import with_signals_held_back
from ..workers.affinity import ThreadPools
from ..workers.channel import MasterChannel, WorkerChannel, serve
from ..workers.control import Control
from ..workers.forks import has_ended
from ..workers.recorder import SCRIPT, Records
from ..workers.zygote import Zygote
from ..workers.zygote_source import ZygoteSource
from . import deaths
from .context import RankContext
from .graphs import note_classes
from .ledger import Ledger
from .pool import Pool
from .starting import (
    ScriptSeeds,
    SessionOptions,
    Surroundings,
    check_can_fork,
    check_options,
    warn_of_copies,
)


class Lifetime:
    """A process's session: its state and options, and its `Pool` of ranks."""

    asked: SessionOptions  # the options of `synk.fork`, for this node

    def __init__(self) -> None:
        # "unforked", "running", "broken", "closed", "child" (see above), or "worker".
        self.state = "unforked"
        self._pool: Pool | None = None
        self.death: WorkerDied | None = None  # while "broken": why
        self._zygotes = ZygoteSource(self.be_rank, "synk.ranks.session")
        self._restarts_left = self._recoveries = 0
        self._pools = ThreadPools()
        self._in_command: int = False  # the id of the thread that runs a command
        self._forking = threading.RLock()
        self._is_starting = self._close_is_due = False
        self.cluster: Any = None  # a Cluster, in the master of one of several nodes
        self._arguments: tuple = ()

    @property
    def pool(self) -> Pool:
        """The ranks of the present fork, as this process has them.

        Raises StateError if there are none, as a signal handler of the script may close
        synk at any point of a call.
        """
        if self._pool is None:
            raise StateError(CLOSED)
        return self._pool

    def is_of(self, made_for: Callable[[], Pool | None] | None) -> bool:
        """Return whether `made_for`, a reference to a `Pool`, is to the present one."""
        pool = self._pool
        return made_for is not None and pool is not None and made_for() is pool

    # A signal handler or another thread may close synk between any two lines. So code
    # that reads more than one attribute of `_pool` keeps it in a local variable.

    @property
    def rank(self) -> int:
        """The rank of this process; 0 unless forked."""
        pool = self._pool
        return 0 if pool is None else pool.rank

    @property
    def size(self) -> int:
        """The number of ranks; 1 unless forked."""
        pool = self._pool
        return 1 if pool is None else pool.size

    @property
    def threads(self) -> int | None:
        """The number of threads that this process computes with; None unless forked."""
        context = None if self._pool is None else self._pool.context
        return None if context is None else context.confinement.threads

    @property
    def context(self) -> RankContext:
        """The context of this process as a rank. Raises StateError unless forked."""
        pool = self._pool
        if pool is None or pool.context is None:
            raise StateError(CLOSED)
        return pool.context

    @property
    def ledger(self) -> Ledger:
        """The ledger of the present pool."""
        return self.pool.ledger

    @property
    def zygote(self) -> Zygote | None:
        """The process from which ranks are forked; None if the master is alone."""
        return self._zygotes.current

    @property
    def cores(self) -> list[int]:
        """The cores of this node's ranks."""
        return sorted({core for place in self.asked.places for core in place.cores})

    # -- starting and ending

    def fork(self, *asked: Any) -> int:
        """See `synk.fork`."""
        if self.is_inside():
            raise StateError(self._why_inside)
        with self._forking:  # one thread forks; others then find it forked
            self._check_not_starting()
            check_can_fork(self.state, self.rank, self.size)
            if self.state == "closed":
                self._end()  # the rest, if an interrupt stopped it before
            self.asked, self._arguments = check_options(*asked), asked
            if self.cluster is None:
                warn_of_copies()
            self._restarts_left, self._recoveries = self.asked.restarts, 0
            try:
                # From here on `close` in a signal handler only sets `_close_is_due`.
                self._is_starting = True
                self._start()
                # Last: a handler that calls synk finds a complete session, or none.
                self.state = "running"
                if self.cluster is not None:
                    self.cluster.started()
                return self.size
            except BaseException:
                # First, so that if a second interrupt stops `_end`, the next `fork` or
                # `close` does the rest.
                self.state = "closed"
                self._end()
                raise
            finally:
                self._is_starting = False

    def _check_not_starting(self) -> None:
        if self._is_starting:
            raise StateError(
                "a signal handler cannot call this while ranks are started"
            )

    def _start(self) -> None:
        """Start the ranks of `asked`, in a process that has none."""
        places, spin, *_ = self.asked
        self._close_is_due = False
        size = len(places)
        try:
            proc.let_ranks_in()
            control = Control(size, spin)
            # Set before anything that has to be undone: if this fails further on,
            # `_end` finds by it how far it has come.
            self._pool = pool = Pool(self.asked, control, Records(size))
            pool.kills = OomKills()
            pool.seeds = ScriptSeeds.of_this_process(self._recoveries)
            self._pools.cap(places[0].threads)
            if size > 1:
                zygote = self._zygotes.take(places[0].threads, self._note_classes)
                pool.records.note_zygote(zygote.pid)
            if self.cluster is not None:
                # Before the ranks start, as they need their numbers among all nodes.
                self._meet_nodes(pool)
            if control.size > 1:
                self._start_ranks(pool)
            pool.channel = MasterChannel(control, self.watch, pool.limit)
            self._open_context(pool)
            self.context.recorder.begin(0, "")
            self.context.recorder.phase[0] = SCRIPT
        except OSError as error:
            if error.errno not in LIMITS:
                raise
            failed = f"{size} ranks were not forked"
            raise SynkError(not_started(failed, error.errno)) from error
        atexit.register(self.close, for_good=True)
        # A handler has called `close` meanwhile. The caller undoes everything.
        if self._close_is_due:
            raise StateError("synk was closed while its ranks were started")

    def keep_zygote(self) -> None:
        """Fork a zygote now, for sessions when this process cannot be forked."""
        self._zygotes.keep(1, self._note_classes)

    def _note_classes(self, is_forked: bool) -> None:
        # Ranks of other nodes inherit no class of the script.
        note_classes(is_forked and self.cluster is None)

    def _meet_nodes(self, pool: Pool) -> None:
        """Have all nodes start ranks with the same arguments, and learn how many."""
        gpus = sum(place.device.is_gpu for place in self.asked.places)
        mine = Node(socket.gethostname(), pool.size, len(self.cores), gpus)
        asked = tuple(self._arguments)
        pool.seeds = ScriptSeeds(*self.cluster.begin(asked, mine, tuple(pool.seeds)))
        ranks = [node.ranks for node in self.cluster.nodes]
        pool.join_nodes(ranks, self.cluster.node)
        if pool.rank:  # the master of another node than the script's
            pool.seeds.adopt(pool.rank)

    def _start_ranks(self, pool: Pool) -> None:
        zygote = self.zygote
        assert zygote is not None
        # The zygote is older than anything that the master makes from here on, so no
        # rank has that in its memory.
        surroundings = Surroundings.of_this_process()
        where = pool.control.place, pool.records.place
        start = self.asked, *where, surroundings, pool.seeds, pool.nodes
        # By value, as the script may have defined classes of warnings.
        zygote.begin(cloudpickle.dumps(start))
        for rank in range(1, pool.control.size):
            zygote.fork_rank(rank)

    def _open_context(self, pool: Pool) -> None:
        """Make this process's context, in the master or in a rank."""
        local, nodes = pool.local_rank, pool.nodes
        # In two steps, so that after an interrupt in `open` the context can be closed.
        pool.context = RankContext(
            *(pool.rank, pool.size, self.asked.places[local], self._pools),
            *(pool.control, self.watch, pool.records.recorder(local)),
            None if nodes is None else (*nodes, self.cluster),
        )
        pool.context.open(pool.limit)

    def be_rank(self, rank: int, start: bytes, master: int) -> None:
        """Run a rank in a process that was just forked, until it is killed.

        `start` is of `_start_ranks`, pickled, and `master` a pidfd of the master.
        """
        # In the master the lock was held when the zygote was forked. The thread that
        # holds it is not in this process, so the copy would never be released.
        self._forking, self._is_starting = threading.RLock(), False
        self._zygotes.forget_all()
        self._master = master
        self.state = "worker"
        self.asked, *where, surroundings, seeds, nodes = pickle.loads(start)
        surroundings.adopt()
        self.cluster = None
        # If the zygote was forked in this session, the rank has inherited these. It may
        # not be able to open them, if the master has changed its user since.
        known = self._pool
        if known is not None and known.control.place == where[0]:
            control, records = known.control, known.records
        else:
            control = Control.attach(where[0])
            records = Records(control.size, where[1])
        self._pool = pool = Pool(self.asked, control, records)
        pool.rank = pool.local_rank = rank
        if nodes is not None:
            pool.join_nodes(*nodes)
        seeds.adopt(pool.rank)
        self._open_context(pool)
        records.dump_stacks_of(rank)
        serve(self.context, WorkerChannel(control, rank), self.watch)

    def recover(self) -> list[SharedVariable]:
        """See `synk.recover`."""
        if self.is_inside():
            raise StateError(self._why_inside)
        with self._forking:
            self._check_not_starting()
            if self.state == "running":
                self.check_running()
                with contextlib.suppress(WorkerDied):
                    self.watch()
                    return []
            if self.state != "broken":
                self.check_running()
            return self._recover()

    def _recover(self) -> list[SharedVariable]:
        pool, death = self.pool, self.death
        assert death is not None
        try:
            self._is_starting = True
            self._recoveries += 1
            self._end()
            self._start()
            if self.cluster is not None:
                self.cluster.started()
            # The state stays "broken" until the new ledger has the lost variables. A
            # call before that would take these for replicated.
            lost = deaths.carry_over(pool.ledger, death, self.ledger)
            self.state = "running"
        except BaseException:
            try:
                self._end()
            finally:
                # As before, so that another attempt begins where this one did.
                self._pool, self.death = pool, death
            raise
        else:  # an interrupt from here on finds a session that has recovered
            return lost
        finally:
            self._is_starting = False
            if self._close_is_due:
                self.close()

    def enter(self) -> None:
        """Begin a call of the script: raise if it cannot run; restart dead ranks."""
        # Nothing of the call was sent to the ranks yet, or looked up in the ledger.
        if self._restarts_left:
            self._restart_dead()
        self.check_running()
        # A former launch that an interrupt has cut short.
        if self.ledger.launch is not None:
            self.ledger.settle()

    def _restart_dead(self) -> None:
        if self.state == "running" and not self._in_command:
            with contextlib.suppress(WorkerDied):
                self.watch()
        while self.state == "broken" and self._restarts_left:
            death = self.death
            assert death is not None
            self._restarts_left -= 1  # first: an attempt that is interrupted counts
            try:
                lost = self.recover()
            except WorkerDied:
                if not self._restarts_left:
                    raise
            else:
                deaths.warn_of_restart(death, lost, self._restarts_left)

    def close(self, for_good: bool = False) -> None:
        """See `synk.close`; `for_good` says that there will be no further session."""
        if self._is_starting:
            # This runs in a signal handler of the script, or in another thread, while
            # `_start` or `_recover` runs. That looks at this flag at its end, and
            # closes the session.
            self._close_is_due = True
        elif self.state in ("running", "broken", "closed"):
            self.state = "closed"
            self._end(for_good)

    def _end(self, for_good: bool = False) -> None:
        """Undo `_start`, as far as it got. After an interrupt, call this again."""
        self.death = None
        if not self._in_command and self._pool is not None:
            with contextlib.suppress(StateError):  # if this runs within the launch
                self.ledger.settle()
        # Whatever fails or is interrupted here, this process gets its cores and threads
        # back, and closes its descriptors.
        try:
            if self.cluster is not None:
                self.cluster.close()
        finally:
            try:
                self._zygotes.give_back(for_good)
            finally:
                with_signals_held_back(self._restore_process)

    def _restore_process(self) -> None:
        """Undo the changes of this process; the caller holds signals back."""
        if not self._zygotes.keeps:  # a kept zygote has to end with the process
            atexit.unregister(self.close)
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()
        self._pools.restore()  # needed if there was no context yet

    # -- state

    def check_running(self) -> None:
        """Raise unless the master can run a command now."""
        if self.state == "running":
            if self._in_command:
                raise StateError(
                    self._why_inside
                    if self.is_inside()
                    else "a synk call is running already, around this one or in another"
                    " thread: calls come one at a time"
                )
            return
        if self.state == "broken":
            assert self.death is not None
            raise copy.copy(self.death)  # so that each has a traceback of its own
        raise StateError(_NOT_RUNNING.get(self.state) or self._why_inside)

    @property
    def _why_inside(self) -> str:
        """Why code that a rank runs in a command cannot call synk."""
        if self.rank:
            return f"this is rank {self.rank}: only the master calls synk"
        return (
            "this is rank 0, inside a synk call: code that ranks run (an Op's perform),"
            " a progress callback or a signal handler cannot call synk; calls come one"
            " at a time"
        )

    @property
    def nodes(self) -> int:
        """The number of nodes (machines) that have ranks."""
        return 1 if self.cluster is None else max(1, len(self.cluster.nodes))

    def check_one_node(self, what: str) -> None:
        """Raise StateError if there are several nodes; `what` names what needs one."""
        if self.nodes > 1:
            raise StateError(
                f"{what}: on one machine only so far, and this session has"
                f" {self.nodes} nodes"
            )

    def is_inside(self) -> bool:
        """Return whether this code runs within a command of rank 0, as an Op does."""
        return self._in_command == threading.get_ident()

    def watch(self, patience: float = 0) -> None:
        """Raise WorkerDied if a rank dies within `patience` seconds, in the master."""
        # In a rank, exit if the master has ended. The zygote kills ranks then, but it
        # may be stopped.
        zygote = self.zygote
        if self.state == "worker":
            if has_ended(self._master):
                os._exit(1)
        elif zygote is not None:
            try:
                zygote.watch(patience)
            except WorkerDied as death:
                # `_break` comes first, as an interrupt may stop `explain`.
                self._break(death)
                deaths.explain(death, self.pool.records, self.pool.kills)
                raise
        elif self.state != "running":  # a signal handler of the script has closed it
            raise StateError(CLOSED)

    def _break(self, death: WorkerDied) -> None:
        """Set the state "broken": the ranks cannot be used any more."""
        if self._restarts_left:
            death.advice = (
                "the next call starts all ranks again"
                f" (restarts={self.asked.restarts}, {self._restarts_left} left)"
            )
        self.death = death
        # Not while ranks are being started, where `fork` or `recover` sets the state,
        # nor in a session that a handler has closed.
        if self.state == "running":
            self.state = "broken"
        # Living ranks that wait for the dead one stop the command.
        if self._pool is not None:
            self._pool.control.abort()


_NOT_RUNNING = {
    "unforked": "synk is not forked: call synk.fork() first",
    "closed": "synk is closed: call synk.fork() to start again",
    "child": (
        "this process was forked from a synk master, whose ranks do not serve it: call"
        " synk there, or synk.fork() here"
    ),
}

CLOSED = "synk was closed during a call"
