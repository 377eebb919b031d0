"""The session: the one state object of a process, and how it runs commands on ranks.

The session's states, its start and its end are in `lifetime`. A command is a
module-level function ``worker_x(context, ...)``. Beside it stands ``master_x``, which
calls ``SESSION.run(worker_x, ...)``.

A command, on one machine::

    run_args
      run_command            in the script's thread; one command at a time
        channel.launch       the other ranks begin
        _run_here            the master's own share, as rank 0
        _join                their replies; after an interrupt they stop first
      as_one                 one exception for all errors
"""

from __future__ import annotations

import importlib
import os
import signal
import threading
from collections.abc import Callable, Sequence
from functools import partial
from time import monotonic
from typing import Any, NamedTuple

from ..errors import Aborted, Expired, RankTimeout, StateError, SynkError, WorkerDied
from ..workers.control import COMMAND, LAUNCH
from ..workers.failure import Failure, OwnFailure, add_note, as_one
from ..workers.recorder import COMPUTING, JOINING
from ..workers.zygote_loop import be_zygote
from . import deaths
from .context import Dropped, RankContext, name_of
from .lifetime import CLOSED, Lifetime
from .to_nodes import for_nodes

RECENTLY = 1e-3
"""Seconds after replies in which the master does not check that ranks are alive."""


class Outcome(NamedTuple):
    """The results of a command on a node's ranks, and on node 0 also on all others."""

    result: Any  # the return value of the master's own share
    replies: list[Any]  # of the other ranks, in their order; a `Failure` for an error
    own: OwnFailure | None  # the exception of the master's own share


class Session(Lifetime):
    """Runs commands on the ranks, from the master."""

    # -- commands

    def run(
        self,
        work: Callable,
        *args: Any,
        mine: tuple | None = None,
    ) -> list[Any]:
        """Run ``work(context, *args)`` on every rank; return each rank's result.

        The master does its own share between launch and join, with the arguments `mine`
        if given. If a rank fails, the others stop at their next barrier, the master
        waits for all, and raises one exception for their errors. The session can be
        used again then. `args` are pickled for the other ranks.
        """
        return self.run_args(work, args, args if mine is None else mine)

    def run_args(
        self,
        work: Callable,
        args: tuple,
        mine: tuple,
        timeout: float | None = None,
        label: str | None = None,
    ) -> list[Any]:
        """Do as `run`. If `args` is the last command's tuple object, repeat that.

        `timeout`, in seconds, is in place of that of `synk.fork`; `label` is the name
        of the called function.
        """
        self.check_running()
        # Kept in a variable, as a signal handler may close the session meanwhile.
        pool = self.pool
        pool.limit.of_call = timeout
        # The garbage collector may append more at any line, for the next command.
        notices = tuple(pool.notices)
        made = self.run_command(work, args, notices, mine, label)
        failures = [reply for reply in made.replies if type(reply) is Failure]
        if made.own is not None:
            raise self._error_here(made.own, failures)
        # Only after the join: until then, a rank may not have got these notices.
        del pool.notices[: len(notices)]
        if failures:
            raise as_one(failures, self.size)
        pool.replied = monotonic()
        return [made.result, *made.replies]

    def run_command(
        self,
        work: Callable,
        args: tuple,
        notices: tuple,
        mine: tuple,
        label: str | None = None,
    ) -> Outcome:
        """Run a command on this node's ranks, and on node 0 also on all others."""
        pool, context = self.pool, self.context
        try:
            # From here on `check_running` raises, with a message for other threads, and
            # another for code in this one, such as an Op or a signal handler.
            self._in_command = threading.get_ident()
            # A rank may have died since its last reply. Within `RECENTLY` after that
            # nobody checks, and the wait for the rank finds the death.
            if monotonic() > pool.replied + RECENTLY:
                self.watch()
            context.activity = ""
            if notices:
                context.forget(notices)
            if self.size == 1:
                return Outcome(_run_here(context, work, mine), [], None)
            return self._run_share(context, work, args, notices, mine, label)
        finally:
            self._in_command = False

    def _error_here(self, own: OwnFailure, failures: list[Failure]) -> BaseException:
        """Return the exception to raise if the master's own share has failed."""
        error = own.rebuild()
        if isinstance(error, Aborted) and not failures:
            raise SynkError("a command was aborted, and no rank says why") from error
        if isinstance(error, Aborted):
            return as_one(failures, self.size)
        if isinstance(error, Exception):
            return as_one([own, *failures], self.size)
        return error  # an interrupt, which the script gets as it is

    def _run_share(
        self,
        context: RankContext,
        work: Callable,
        args: tuple,
        notices: tuple,
        mine: tuple,
        label: str | None,
    ) -> Outcome:
        """Launch a command, do the master's share of it, and join the ranks."""
        control, cluster = self.pool.control, self.cluster
        # If an interrupt came between launch and join of a command before, the ranks
        # are still in it, and their replies to it must not be taken for ours.
        if self.pool.channel.busy:
            self._join_interrupted()
        own, result = None, None
        context.confinement.narrow()
        # From the launch on, the ranks must be joined, whatever is raised here. If an
        # interrupt skips the join, the next command does it (see above).
        try:
            self.pool.channel.launch(work, args, notices)
            if cluster is not None and not cluster.node:
                sent = work, args, notices, control.words[LAUNCH], context
                cluster.launch(partial(for_nodes, *sent))
            command = control.words[COMMAND]
            if label is None:
                context.recorder.begin(command, name_of(work))
            else:
                context.recorder.begin(command, label, COMPUTING)
            result = _run_here(context, work, mine)
        except BaseException as caught:
            own = OwnFailure(caught)
            context.abort()  # else the others would wait for this rank in a meeting
        context.recorder.phase[0] = JOINING
        error = None if own is None else own.rebuild()
        if cluster is None:
            return Outcome(result, self._join(error), own)
        if cluster.node:
            return Outcome(result, self._join_or_alarm(error), own)
        try:
            replies = self._join_or_alarm(error)
        finally:  # even if ranks of this node have failed
            limit = self.pool.limit
            waited = limit.deadline(), "other nodes did not answer"
            others = cluster.replies(partial(limit.check, *waited))
        for reply in others:
            if isinstance(reply, WorkerDied):
                self._break(reply)
                raise reply
        return Outcome(result, replies + others, own)

    def _join_or_alarm(self, error: BaseException | None) -> list[Any]:
        """Do as `_join`, and alarm the other nodes as soon as a rank has failed."""
        # If the master's own share has failed, that is before the wait.
        if error is not None:
            self.cluster.give_alarm()
            return self._join(error)
        all_is_well = False
        try:
            replies = self._join(error)
            all_is_well = not any(type(reply) is Failure for reply in replies)
            return replies
        finally:
            if not all_is_well:
                self.cluster.give_alarm()

    def _join(self, error: BaseException | None) -> list[Any]:
        """Return the ranks' replies; `error` is the master's own exception, or None."""
        # If `error` is an interrupt (no `Exception`), or one comes here, the ranks are
        # stopped first.
        if self.state != "running":  # a rank died, or a signal handler closed synk
            raise error or StateError(CLOSED)
        try:
            if isinstance(error, Expired):
                raise error
            if error is None or isinstance(error, (Exception, Aborted)):
                return self.pool.channel.join()
        except Expired as expired:
            raise self._timed_out(expired) from None
        except BaseException:
            if self.state == "running":
                self._join_interrupted()
            raise
        return self._join_interrupted()

    def _join_interrupted(self) -> list[Any]:
        """Stop the ranks' command, and return replies; an interrupt kills the ranks."""
        try:
            self.pool.control.abort()
            self.pool.channel.post_again()
            zygote = self.zygote
            for rank in self.pool.channel.pending():
                if zygote is not None:
                    zygote.interrupt(rank)
            return self.pool.channel.join()
        except Expired as expired:
            raise self._timed_out(expired) from None
        except BaseException:
            if self.state == "running" and (pending := self.pool.channel.pending()):
                self._kill_all(pending[0], "a second interrupt came")
            raise

    def _timed_out(self, expired: Expired) -> RankTimeout:
        """Kill the ranks, as one took too long; return an error with its stack."""
        # They are killed even if an interrupt comes here.
        pending, stacks = self.pool.channel.pending(), ""
        if not pending:
            self.pool.channel.join()
            return RankTimeout(f"{expired}; they have come since: the session goes on")
        try:
            stacks = deaths.stacks_of(pending, self.pool.records)
        finally:
            self._kill_all(pending[0], "it did not answer in time")
        assert self.death is not None
        return RankTimeout(
            f"{expired}; the ranks were killed: {self.death.advice}\n\n{stacks}"
        )

    def _kill_all(self, rank: int, why: str) -> None:
        """Kill all ranks, and break the session with the death of `rank`."""
        zygote = self.zygote
        pid = -1 if zygote is None else zygote.pids.get(rank, -1)
        death = WorkerDied(rank, pid, -signal.SIGKILL, given_up=why)
        self._break(death)
        deaths.explain(death, self.pool.records, self.pool.kills)
        self._zygotes.give_back()

    # -- notices of dropped objects, which go with the next command

    def notify(self, kind: str, key: Any) -> None:
        """Have all ranks, the master included, forget an object; see `Dropped`."""
        # The garbage collector calls this at any line of the master, in any thread.
        pool = self._pool
        if self.state == "running" and pool is not None:
            pool.notices.append(Dropped(kind, key))


def _run_here(context: RankContext, work: Callable, args: tuple) -> Any:
    """Do the master's own share of a command."""
    try:
        return context.execute(work, args)
    except (KeyboardInterrupt, Aborted, Expired):
        raise
    except BaseException as error:
        is_interrupt = isinstance(error.__cause__, KeyboardInterrupt)
        if is_interrupt and isinstance(error, SystemError):  # numba's code returned it
            raise KeyboardInterrupt from error
        if error is not SESSION.death:  # a death is no error of the user's code
            add_note(error, context.where(work))
        raise


SESSION = Session()


def main(master: int, requests: int, reports: int, modules: Sequence[str]) -> None:
    """Run the zygote, in a new interpreter, of a master that cannot be forked."""
    for module in modules:  # imported once here for all ranks
        importlib.import_module(module)
    be_zygote(master, requests, reports, SESSION.be_rank)


def _in_child() -> None:
    """Keep a child that the script forks from acting as a second master."""
    # Processes of synk run this, too, but ranks set their state in `be_rank`.
    SESSION._zygotes.forget_all()
    SESSION.cluster = None  # its connections are the parent's
    if SESSION.state in ("running", "broken"):
        SESSION.state = "child"
        SESSION.pool.size = 1  # in this process's copy
        SESSION._in_command = SESSION._is_starting = False


os.register_at_fork(after_in_child=_in_child)
