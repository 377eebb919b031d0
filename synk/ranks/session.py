"""The session: the one state object of a process, and what starts and ends it.

::

    unforked --fork()--> running --close()--> closed --fork()--> running ...
                            |
                            +--a rank died--> broken --close()--> closed

    in a child that the user's script forks meanwhile: running or broken --> child

The master's session holds the processes and the channel to them; what it has as rank 0
is its `context`, as on every other rank (`context`). A rank is forked with a copy of
the session and serves the master's commands. What a rank can be asked is a module-level
function ``worker_x(context, ...)`` that stands beside its ``master_x``, which calls
``SESSION.run(worker_x, ...)``.
"""

from __future__ import annotations

import atexit
import os
import signal
import threading
from collections.abc import Callable
from typing import Any

from ..errors import Aborted, RankTimeout, StateError, SynkError, WorkerDied
from ..memory.segment import Arena
from ..workers import affinity, preconditions
from ..workers.channel import MasterChannel, WorkerChannel
from ..workers.control import Control
from ..workers.devices import cores_by_rank, plan
from ..workers.loop import Failure, serve
from ..workers.pools import ThreadPools
from ..workers.zygote import Zygote
from .context import Notice, Place, RankContext
from .forked_classes import note_classes
from .ledger import Ledger
from .registry import Numbers


class Session:
    """State of this process: which rank it is, of how many, and how to reach them.

    Attributes
    ----------
    state : str
        "unforked", "running", "broken", "closed", "worker" or "child"; see above.
    rank, size : int
        0 and 1 unless forked.
    generation : int
        Counts forks, so that what was made for a session knows a new one.
    numbers : Numbers
        In the master: by which numbers ranks know its shared variables.
    ledger : Ledger
        In the master: what the ranks hold of its shared variables.
    stage : Arena
        In the master: where arguments are copied to, for ranks to read.
    """

    def __init__(self) -> None:
        self.state = "unforked"
        self.rank = 0
        self.size = 1
        self.generation = 0
        self.death: WorkerDied | None = None
        self.zygote: Zygote | None = None
        self._context: RankContext | None = None
        self._pools = ThreadPools()
        self._notices: list[Notice] = []
        self._in_command = False
        self._command_thread = 0
        self._forking = threading.RLock()

    @property
    def context(self) -> RankContext:
        """What this process has as a rank; from fork to close."""
        assert self._context is not None, f"no context: {self.state}"
        return self._context

    # -- starting and ending

    def fork(self, n, devices, threads, timeout) -> int:
        """See `synk.fork`."""
        if self.is_inside():
            raise StateError(_INSIDE)
        with self._forking:  # of several threads one; the others find it forked
            return self._fork(n, devices, threads, timeout)

    def _fork(self, n, devices, threads, timeout) -> int:
        preconditions.check_can_fork(self.state, self.rank, self.size)
        cores = affinity.usable_cores()
        plans = plan(devices, preconditions.check_size(n), cores)
        preconditions.warn_of_few_cores(plans, cores)
        threads = preconditions.check_threads(threads)
        self._timeout = preconditions.check_timeout(timeout)
        self.places = [
            Place(device, share, threads or len(share))
            for device, share in zip(plans, cores_by_rank(plans, cores), strict=True)
        ]
        self.generation += 1
        n = len(self.places)
        try:
            self.size, self.rank = n, 0
            self.control = Control(n, spin=n <= len(cores))
            self._pools.cap(self.places[0].threads)
            note_classes()
            self.zygote = Zygote(self._serve) if n > 1 else None
            if self.zygote is not None:
                self.zygote.start()
                # The ranks first, then everything that the master alone has: what is
                # made below is in no rank's memory, and threads that it starts are in
                # none.
                for rank in range(1, n):
                    self.zygote.fork_rank(rank)
            self._channel = MasterChannel(self.control, self.watch, self._timeout)
            self._notices.clear()
            self.numbers, self.stage = Numbers(), Arena()
            self.ledger = Ledger()
            self._set_up()
            atexit.register(self.close)
            self.state = "running"
            return n
        except BaseException:
            self.state = "closed"
            self._end()
            raise

    def _set_up(self) -> None:
        """Make what every rank has; runs in its own process."""
        self._context = RankContext(
            *(self.rank, self.size, self.places[self.rank], self._pools),
            *(self.control, self.watch),
        )
        self._context.open(self._timeout)

    def _serve(self, rank: int) -> None:
        self.rank, self.state = rank, "worker"
        self._forking = threading.RLock()  # the master's was held when this was forked
        self.zygote = None
        self._set_up()
        serve(self.context, WorkerChannel(self.control, rank))

    def close(self) -> None:
        """See `synk.close`."""
        if self.state not in ("running", "broken"):
            return
        self.state = "closed"
        self._end()

    def _end(self) -> None:
        """Undo `fork`, as far as it got; an interrupt does not leave it half done."""
        self.death = None
        self.size = 1
        try:
            if self.zygote is not None:
                self.zygote.close()
        finally:
            atexit.unregister(self.close)
            # Forgotten before it is closed: an interrupt in `close` leaves no half
            # context.
            context, self._context = self._context, None
            if context is not None:
                context.close()
            self._pools.restore()  # if there was no context yet
            # The control segment is left to the garbage collector: a copy of the
            # session in an exception's traceback may still look at it.
            for name in ("_channel", "numbers", "stage", "ledger"):
                self.__dict__.pop(name, None)

    # -- state

    def check_running(self) -> None:
        """Raise unless commands can be run now."""
        if self.state == "running":
            if self._in_command:
                raise StateError(_INSIDE if self.is_inside() else _ONE_AT_A_TIME)
            return
        if self.state == "broken":
            assert self.death is not None
            raise WorkerDied(self.death.rank, self.death.pid, self.death.status)
        if self.state == "worker":
            raise StateError(f"this is rank {self.rank}: only the master calls synk")
        if self.state == "closed":
            raise StateError("synk is closed: call synk.fork() to start again")
        if self.state == "child":
            raise StateError(
                "this process was forked from a synk master, whose ranks do not serve"
                " it: call synk there, or synk.fork() here"
            )
        raise StateError("synk is not forked: call synk.fork() first")

    def is_inside(self) -> bool:
        """Tell whether this is code that rank 0 runs in a command, as an Op is."""
        return self._in_command and self._command_thread == threading.get_ident()

    def watch(self, patience: float = 0) -> None:
        """Raise WorkerDied if a rank has died, and remember that.

        With `patience`, wait so many seconds for the news of it.
        """
        if self.zygote is None:
            return
        try:
            self.zygote.watch(patience)
        except WorkerDied as death:
            self.state, self.death = "broken", death
            self.control.abort()
            raise

    # -- commands

    def run(self, work: Callable, *args: Any, mine: tuple | None = None) -> list[Any]:
        """Run ``work(context, *args)`` on every rank and return what each returned.

        The master does its own share between launch and join. If any rank fails, the
        others are stopped at their next barrier, all are waited for, and the first
        error is raised; the session can be used again then.

        Parameters
        ----------
        work : callable
            A module-level function.
        *args
            Its arguments after the context; pickled.
        mine : tuple, optional
            Arguments for the master in place of `args`: what need not be pickled.
        """
        self.check_running()
        # A signal handler may close the session meanwhile: this command keeps its own.
        context = self.context
        replies: list[Any] = []
        try:
            self._command_thread = threading.get_ident()
            self._in_command = True
            self.watch()  # a rank may have died in the meantime
            context.activity = ""
            notices = tuple(self._notices)
            context.forget(notices)
            if mine is None:
                mine = args
            if self.size == 1:
                result = _run_here(context, work, mine)
            else:
                result, replies = self._run_everywhere(
                    context, work, args, notices, mine
                )
            del self._notices[: len(notices)]
        finally:
            self._in_command = False
        self._raise_failures(replies)
        return [result, *replies]

    def _run_everywhere(
        self,
        context: RankContext,
        work: Callable,
        args: tuple,
        notices: tuple,
        mine: tuple,
    ) -> tuple[Any, list[Any]]:
        # An interrupt came between launch and join, and the script went on: the ranks
        # are in that command still, and their replies to it must not be taken for ours.
        if self._channel.busy:
            self._join_interrupted()
        error: BaseException | None = None
        result = None
        try:
            self._channel.launch(work, args, notices)
            result = _run_here(context, work, mine)
        except BaseException as caught:
            error = caught
            context.abort()
        replies = self._join(error)
        if error is None:
            return result, replies
        if isinstance(error, Aborted):
            self._raise_failures(replies)
            raise SynkError("a command was aborted, and no rank says why") from error
        raise error

    def _join(self, error: BaseException | None) -> list[Any]:
        """Wait for the ranks' replies.

        Parameters
        ----------
        error : BaseException or None
            What the master's own share has raised. An interrupt there or while waiting
            makes the ranks stop; it may be any exception that is not an `Exception`,
            or that a signal handler raises here.
        """
        if self.state != "running":  # a rank died, or a signal handler closed synk
            raise error or StateError("synk was closed during a call")
        try:
            if isinstance(error, RankTimeout):
                raise error
            if error is None or isinstance(error, (Exception, Aborted)):
                return self._channel.join()
        except RankTimeout:
            self._give_up()
            raise
        except BaseException:
            if self.state == "running":
                self._join_interrupted()
            raise
        return self._join_interrupted()

    def _join_interrupted(self) -> list[Any]:
        """Stop the ranks' command; a second interrupt kills them."""
        try:
            self.control.abort()
            self._channel.post_again()
            for rank in self._channel.pending():
                if self.zygote is not None:
                    self.zygote.interrupt(rank)
            return self._channel.join()
        except BaseException:
            if self.state == "running" and self._channel.pending():
                self._give_up()
            raise

    def _give_up(self) -> None:
        """Kill the ranks: one of them does not come back."""
        rank = self._channel.pending()[0]
        pid = -1 if self.zygote is None else self.zygote.pids.get(rank, -1)
        self.control.abort()
        self.state, self.death = "broken", WorkerDied(rank, pid, -signal.SIGKILL)
        if self.zygote is not None:
            self.zygote.close()

    def _raise_failures(self, replies: list[Any]) -> None:
        failures = [reply for reply in replies if type(reply) is Failure]
        if not failures:
            return
        causes = [f for f in failures if not (f.aborted or f.interrupted)] or failures
        raise causes[0].rebuild()

    # -- notices: what ranks may forget, sent along with the next command

    def notify(self, kind: str, key: Any) -> None:
        """Have all ranks forget something when they run the next command.

        The master too: this is called by the garbage collector, at any point of
        whatever the master is doing, or by another thread.
        """
        if self.state == "running":
            self._notices.append(Notice(kind, key))


def _run_here(context: RankContext, work: Callable, args: tuple) -> Any:
    """Do the master's own share of a command."""
    try:
        return context.execute(work, args)
    except (WorkerDied, RankTimeout, KeyboardInterrupt, Aborted):
        raise
    except BaseException as error:
        error.add_note(context.where(work))
        raise


_ONE_AT_A_TIME = (
    "a synk call is running already, around this one or in another thread:"
    " calls come one at a time"
)

_INSIDE = (
    "this is rank 0, inside a synk call: code that ranks run (an Op's perform), a"
    " progress callback or a signal handler cannot call synk; calls come one at a time"
)

SESSION = Session()


def _in_child() -> None:
    """Keep a child that the user forks from acting as a second master.

    Our own ranks are forked before the session runs, and set their state themselves.
    """
    if SESSION.state in ("running", "broken"):
        SESSION.state, SESSION.zygote, SESSION.size = "child", None, 1
        SESSION._in_command = False


os.register_at_fork(after_in_child=_in_child)
