"""The lifetime of a session: what starts it, brings it back and ends it, and its state.

::

    unforked --fork()--> running --close()--> closed --fork()--> running ...
                          |  ^
              a rank died |  | recover()
                          v  |
                         broken --close()--> closed

    in a child that the user's script forks meanwhile: running or broken --> child

Ranks are forked from a zygote (`workers.zygote_source`) and told what they need to know
(`starting`). A signal handler of the script may call `fork`, `close` or a function at
any line here, and another thread may; every step can be undone from where it got to.
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
    RankStart,
    ScriptSeeds,
    SessionOptions,
    Surroundings,
    check_asked,
    check_can_fork,
    warn_of_copies,
)


class Lifetime:
    """State of this process: which rank it is, of how many, and how to reach them."""

    asked: SessionOptions  # of `synk.fork`, on this node

    def __init__(self) -> None:
        # "unforked", "running", "broken", "closed", "worker" or "child"; see above.
        self.state = "unforked"
        self._pool: Pool | None = None
        self.death: WorkerDied | None = None  # while broken: which rank has died
        self._zygotes = ZygoteSource(self.be_rank, "synk.ranks.session")
        self._restarts_left = self._comebacks = 0
        self._pools = ThreadPools()
        self._in_command: int = False  # the thread that runs one
        self._forking = threading.RLock()
        self._is_starting = self._close_is_due = False
        self.cluster: Any = None  # a Cluster, in the master of one of several nodes
        self._arguments: tuple = ()

    @property
    def pool(self) -> Pool:
        """What there is from fork to close; another object after each fork.

        Raises StateError if there is none: a signal handler of the script may close
        synk at any point of a call.
        """
        if self._pool is None:
            raise StateError(CLOSED)
        return self._pool

    def is_of(self, made_for: Callable[[], Pool | None]) -> bool:
        """Tell whether what was made for a pool was made for the present one."""
        return self._pool is not None and made_for() is self._pool

    # A signal handler may close synk between any two lines, and another thread: so who
    # asks `_pool` for more than one thing keeps it in a local variable.

    @property
    def rank(self) -> int:
        """That of this process; 0 unless forked."""
        pool = self._pool
        return 0 if pool is None else pool.rank

    @property
    def size(self) -> int:
        """The number of ranks; 1 unless forked."""
        pool = self._pool
        return 1 if pool is None else pool.size

    @property
    def threads(self) -> int | None:
        """How many threads this process computes with now; None unless forked."""
        context = None if self._pool is None else self._pool.context
        return None if context is None else context.confinement.threads

    @property
    def context(self) -> RankContext:
        """What this process has as a rank; from fork to close."""
        pool = self._pool
        if pool is None or pool.context is None:
            raise StateError(CLOSED)
        return pool.context

    @property
    def ledger(self) -> Ledger:
        """What the ranks hold of the master's variables; see `Pool`."""
        return self.pool.ledger

    @property
    def zygote(self) -> Zygote | None:
        """What the ranks are forked from; None where there are no others."""
        return self._zygotes.current

    @property
    def cores(self) -> list[int]:
        """Those of the ranks of this node."""
        return sorted({core for place in self.asked.places for core in place.cores})

    # -- starting and ending

    def fork(self, *asked: Any) -> int:
        """See `synk.fork`."""
        if self.is_inside():
            raise StateError(self._inside)
        with self._forking:  # of several threads one; the others find it forked
            self._check_not_starting()
            check_can_fork(self.state, self.rank, self.size)
            if self.state == "closed":
                self._end()  # what interrupts have left of it
            self.asked, self._arguments = check_asked(*asked), asked
            if self.cluster is None:
                warn_of_copies()
            self._restarts_left, self._comebacks = self.asked.restarts, 0
            try:
                # From here on `close` by a signal handler only leaves word.
                self._is_starting = True
                self._start()
                # Last: a handler that calls synk finds all there, or no session.
                self.state = "running"
                if self.cluster is not None:
                    self.cluster.started()
                return self.size
            except BaseException:
                # "closed" first: if a second interrupt cuts the undoing short, the next
                # `fork` or `close` does the rest.
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
        """Start what was asked for, in a process that has no ranks."""
        places, spin, *_ = self.asked
        self._close_is_due = False
        size = len(places)
        try:
            proc.let_ranks_in()
            control = Control(size, spin)
            # Held by the session before anything is done that has to be undone: what
            # fails from here on, `_end` finds by it, however far this has come.
            self._pool = pool = Pool(self.asked, control, Records(size))
            pool.kills = OomKills()
            pool.seeds = ScriptSeeds.of_this_process(self._comebacks)
            self._pools.cap(places[0].threads)
            if size > 1:
                zygote = self._zygotes.take(places[0].threads, self._note_classes)
                pool.records.note_zygote(zygote.pid)
            if self.cluster is not None:
                # Before the ranks, which are told who they are among all nodes'.
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
        # What a handler asked for while this went on: the caller undoes all of it.
        if self._close_is_due:
            raise StateError("synk was closed while its ranks were started")

    def keep_zygote(self) -> None:
        """Fork a zygote now, for sessions of a process that cannot be forked then."""
        self._zygotes.keep(1, self._note_classes)

    def _note_classes(self, is_forked: bool) -> None:
        # Ranks of other nodes have none of the script's, before the fork or after.
        note_classes(is_forked and self.cluster is None)

    def _meet_nodes(self, pool: Pool) -> None:
        """Learn of the other nodes, which start as many ranks as were asked for."""
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
        # The ranks first, then everything that the master alone has: what is made
        # afterwards is in no rank's memory, and threads that it starts are in none.
        surroundings = Surroundings.of_this_process()
        where = pool.control.place, pool.records.place
        told = RankStart(self.asked, *where, surroundings, pool.seeds, pool.nodes)
        zygote.begin(told.dumps())
        for rank in range(1, pool.control.size):
            zygote.fork_rank(rank)

    def _open_context(self, pool: Pool) -> None:
        """Make what every rank has; runs in its own process."""
        local, nodes = pool.local_rank, pool.nodes
        # In two steps: an interrupt in `open` finds the context, and closes it.
        pool.context = RankContext(
            *(pool.rank, pool.size, self.asked.places[local], self._pools),
            *(pool.control, self.watch, pool.records.recorder(local)),
            None if nodes is None else (*nodes, self.cluster),
        )
        pool.context.open(pool.limit)

    def be_rank(self, rank: int, told: bytes, master: int) -> None:
        """Be a rank, in a process that was just forked; `master` is a pidfd of its."""
        # The master was about to start ranks: the lock was taken, by a thread that is
        # not in this process, and would never be given back.
        self._forking, self._is_starting = threading.RLock(), False
        self._zygotes.forget_all()
        self._master = master
        self.state = "worker"
        self.asked, *where, surroundings, seeds, nodes = pickle.loads(told)
        surroundings.adopt()
        self.cluster = None
        # What it has already, if its zygote is of this very session: the master may run
        # by another user meanwhile, whose memory it may not open.
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
            raise StateError(self._inside)
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
            self._comebacks += 1
            self._end()
            self._start()
            if self.cluster is not None:
                self.cluster.started()
            # The state stays "broken" until the new ledger knows what was lost: a call
            # in between would take variables for replicated that are not.
            lost = deaths.carry_over(pool.ledger, death, self.ledger)
            self.state = "running"
            return lost
        except BaseException:
            try:
                self._end()
            finally:
                # As before, so that another attempt finds what this one did.
                self._pool, self.death = pool, death
            raise
        finally:
            self._is_starting = False
            if self._close_is_due:
                self.close()

    def enter(self) -> None:
        """Raise unless a call of the script's can begin now; bring dead ranks back."""
        # Here nothing of the call has been sent yet, nor looked up in the ledger.
        if self._restarts_left:
            self._come_back()
        self.check_running()
        # Of a call that an interrupt kept from undoing what it had done.
        if self.ledger.launch is not None:
            self.ledger.settle()

    def _come_back(self) -> None:
        if self.state == "running" and not self._in_command:
            with contextlib.suppress(WorkerDied):
                self.watch()
        while self.state == "broken" and self._restarts_left:
            death = self.death
            assert death is not None
            self._restarts_left -= 1  # before: an attempt that is interrupted counts
            try:
                lost = self.recover()
            except WorkerDied:
                if not self._restarts_left:
                    raise
            else:
                deaths.warn_of_restart(death, lost, self._restarts_left)

    def close(self, for_good: bool = False) -> None:
        """See `synk.close`; `for_good` when there will be no session any more."""
        if self._is_starting:
            # This is a signal handler of the script, or another thread. What is half
            # made cannot be undone under the hands of who makes it: who does looks for
            # this word at the end, and closes.
            self._close_is_due = True
        elif self.state in ("running", "broken", "closed"):
            self.state = "closed"
            self._end(for_good)

    def _end(self, for_good: bool = False) -> None:
        """Undo `_start`, as far as it got; what an interrupt leaves, the next does."""
        self.death = None
        if not self._in_command and self._pool is not None:
            with contextlib.suppress(StateError):  # this is in a launch itself
                self.ledger.settle()
        # Whatever fails or is interrupted on the way, this process gets its cores, its
        # threads and its descriptors back.
        try:
            if self.cluster is not None:
                self.cluster.close()
        finally:
            try:
                self._zygotes.give_back(for_good)
            finally:
                with_signals_held_back(self._let_go)

    def _let_go(self) -> None:
        """Undo what was changed in this process; signals are held back meanwhile."""
        if not self._zygotes.keeps:  # which is to end with the process
            atexit.unregister(self.close)
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()
        self._pools.restore()  # if there was no context yet

    # -- state

    def check_running(self) -> None:
        """Raise unless commands can be run now."""
        if self.state == "running":
            if self._in_command:
                raise StateError(
                    self._inside
                    if self.is_inside()
                    else "a synk call is running already, around this one or in another"
                    " thread: calls come one at a time"
                )
            return
        if self.state == "broken":
            assert self.death is not None
            raise copy.copy(self.death)  # each with a traceback of its own
        raise StateError(_NOT_RUNNING.get(self.state) or self._inside)

    @property
    def _inside(self) -> str:
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
        """How many nodes the ranks are on."""
        return 1 if self.cluster is None else max(1, len(self.cluster.nodes))

    def check_one_node(self, what: str) -> None:
        """Raise StateError if there are several nodes, for what is not done on them."""
        if self.nodes > 1:
            raise StateError(
                f"{what}: on one machine only so far, and this session has"
                f" {self.nodes} nodes"
            )

    def is_inside(self) -> bool:
        """Tell whether this is code that rank 0 runs in a command, as an Op is."""
        return self._in_command == threading.get_ident()

    def watch(self, patience: float = 0) -> None:
        """Raise WorkerDied if a rank has died; wait `patience` seconds for the news."""
        # A rank ends here if the master is gone: the zygote, which kills it then, may
        # be stopped.
        zygote = self.zygote
        if self.state == "worker":
            if has_ended(self._master):
                os._exit(1)
        elif zygote is not None:
            try:
                zygote.watch(patience)
            except WorkerDied as death:
                # It is known before it is explained, as an interrupt may come there.
                self._break(death)
                deaths.explain(death, self.pool.records, self.pool.kills)
                raise
        elif self.state != "running":  # a signal handler of the script has closed it
            raise StateError(CLOSED)

    def _break(self, death: WorkerDied) -> None:
        """Take note that the ranks cannot be used any more."""
        if self._restarts_left:
            death.advice = (
                "the next call starts all ranks again"
                f" (restarts={self.asked.restarts}, {self._restarts_left} left)"
            )
        self.death = death
        # Where ranks are being started, who starts them says what comes of it; and a
        # session that a handler has closed stays closed.
        if self.state == "running":
            self.state = "broken"
        # Ranks that live wait for the dead one: they give the command up.
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
