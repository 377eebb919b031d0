"""The session: the one state object of a process, and how it has ranks do something.

Its states, and what starts and ends it, are in `lifetime`. What a rank can be asked is
a module-level function ``worker_x(context, ...)`` that stands beside its ``master_x``,
which calls ``SESSION.run(worker_x, ...)``.

A command, on one machine::

    run_args
      run_command            the script's thread; one command at a time
        channel.launch       the other ranks begin
        _run_here            the master's own share, as rank 0
        _join                their replies; an interrupt makes them stop first
      as_one                 what went wrong anywhere is raised
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
"""Seconds after replies in which nobody looks whether their ranks are alive."""


class Outcome(NamedTuple):
    """What has come of a command on the ranks of a node, and of those behind it."""

    result: Any  # of the master's own share
    replies: list[Any]  # of the other ranks, in their order
    own: OwnFailure | None  # what the master's own share has raised


class Session(Lifetime):
    """How the master has its ranks do something."""

    # -- commands

    def run(
        self,
        work: Callable,
        *args: Any,
        mine: tuple | None = None,
        timeout: float | None = None,
        doing: str | None = None,
    ) -> list[Any]:
        """Run ``work(context, *args)`` on every rank and return what each returned."""
        # The master does its own share between launch and join. If any rank fails, the
        # others are stopped at their next barrier, all are waited for, and what they
        # have raised is raised here; the session can be used again then.
        #
        # The arguments are pickled; `mine` are the master's, if others. `timeout` is in
        # place of that of `fork`, and `doing` says of which function it is a call.
        return self.run_args(work, args, args if mine is None else mine, timeout, doing)

    def run_args(
        self,
        work: Callable,
        args: tuple,
        mine: tuple,
        timeout: float | None = None,
        doing: str | None = None,
    ) -> list[Any]:
        """Run it; for the very tuple of the last command ranks are told no more."""
        self.check_running()
        # A signal handler may close the session meanwhile: this command keeps its own.
        pool = self.pool
        pool.limit.of_call = timeout
        # The garbage collector may add some at any line: those stay for the next.
        notices = tuple(pool.notices)
        made = self.run_command(work, args, notices, mine, doing)
        failures = [reply for reply in made.replies if type(reply) is Failure]
        if made.own is not None:
            raise self._raised_here(made.own, failures)
        # After the join: else ranks may not have heard of it, and hear it again.
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
        doing: str | None = None,
    ) -> Outcome:
        """Run a command on the ranks of this node, and from node 0 on all others."""
        pool, context = self.pool, self.context
        try:
            # From here on other threads are told that calls come one at a time, and
            # code of this one, an Op's or a signal handler's, that it is inside.
            self._in_command = threading.get_ident()
            # A rank may have died in the meantime. One that has replied just now has
            # not, or whoever waits for it finds out.
            if monotonic() > pool.replied + RECENTLY:
                self.watch()
            context.activity = ""
            if notices:
                context.forget(notices)
            if self.size == 1:
                return Outcome(_run_here(context, work, mine), [], None)
            return self._run_share(context, work, args, notices, mine, doing)
        finally:
            self._in_command = False

    def _raised_here(self, own: OwnFailure, failures: list[Failure]) -> BaseException:
        """Return what to raise where the master's own share has raised something."""
        error = own.rebuild()
        if isinstance(error, Aborted) and not failures:
            raise SynkError("a command was aborted, and no rank says why") from error
        if isinstance(error, Aborted):
            return as_one(failures, self.size)
        if isinstance(error, Exception):
            return as_one([own, *failures], self.size)
        return error  # an interrupt, which is the script's

    def _run_share(
        self,
        context: RankContext,
        work: Callable,
        args: tuple,
        notices: tuple,
        mine: tuple,
        doing: str | None,
    ) -> Outcome:
        """Launch a command, do the master's share of it, and join."""
        control, cluster = self.pool.control, self.cluster
        # An interrupt came between launch and join, and the script went on: the ranks
        # are in that command still, and their replies to it must not be taken for ours.
        if self.pool.channel.busy:
            self._join_interrupted()
        own, result = None, None
        context.confinement.narrow()
        # From the launch on the ranks must be joined, whatever is raised here: by this
        # command, or by the next one if an interrupt comes where it skips the join.
        try:
            self.pool.channel.launch(work, args, notices)
            if cluster is not None and not cluster.node:
                told = work, args, notices, control.words[LAUNCH], context
                cluster.launch(partial(for_nodes, *told))
            command = control.words[COMMAND]
            if doing is None:
                context.recorder.begin(command, name_of(work))
            else:
                context.recorder.begin(command, doing, COMPUTING)
            result = _run_here(context, work, mine)
        except BaseException as caught:
            own = OwnFailure(caught)
            context.abort()  # or others would wait for this rank in a meeting
        context.recorder.phase[0] = JOINING
        error = None if own is None else own.rebuild()
        if cluster is None:
            return Outcome(result, self._join(error), own)
        if cluster.node:
            return Outcome(result, self._join_or_alarm(error), own)
        try:
            replies = self._join_or_alarm(error)
        finally:  # whatever has become of the ranks of this node
            limit = self.pool.limit
            waited = limit.deadline(), "other nodes did not answer"
            others = cluster.replies(partial(limit.check, *waited))
        for reply in others:
            if isinstance(reply, WorkerDied):
                self._break(reply)
                raise reply
        return Outcome(result, replies + others, own)

    def _join_or_alarm(self, error: BaseException | None) -> list[Any]:
        """Wait for the ranks' replies; tell other nodes at once if one has failed."""
        # If it was the master's own share, before that.
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
        """Wait for the replies, after `error` in the master's own share, if any."""
        # An interrupt makes the ranks stop: what is no `Exception`, or raised here.
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
        """Stop the ranks' command; a second interrupt kills them."""
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
                self._give_up(pending[0], "a second interrupt came")
            raise

    def _timed_out(self, expired: Expired) -> RankTimeout:
        """Kill the ranks, one of which took too long, and say where it was."""
        # An interrupt kills them as well.
        pending, stacks = self.pool.channel.pending(), ""
        if not pending:
            self.pool.channel.join()
            return RankTimeout(f"{expired}; they have come since: the session goes on")
        try:
            stacks = deaths.stacks_of(pending, self.pool.records)
        finally:
            self._give_up(pending[0], "it did not answer in time")
        assert self.death is not None
        return RankTimeout(
            f"{expired}; the ranks were killed: {self.death.advice}\n\n{stacks}"
        )

    def _give_up(self, rank: int, why: str) -> None:
        """Kill the ranks: this one does not come back."""
        zygote = self.zygote
        pid = -1 if zygote is None else zygote.pids.get(rank, -1)
        death = WorkerDied(rank, pid, -signal.SIGKILL, given_up=why)
        self._break(death)
        deaths.explain(death, self.pool.records, self.pool.kills)
        self._zygotes.give_back()

    # -- notices: what ranks may forget, sent along with the next command

    def notify(self, kind: str, key: Any) -> None:
        """Have all ranks, the master too, forget something with the next command."""
        # The garbage collector calls this at any line of the master's, or of any
        # thread.
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
        if error is not SESSION.death:  # not the user's, but what the watch has found
            add_note(error, context.where(work))
        raise


SESSION = Session()


def main(master: int, requests: int, reports: int, modules: Sequence[str]) -> None:
    """Be the zygote of a master that cannot be forked, in a new interpreter."""
    for module in modules:  # which all ranks will need: imported once
        importlib.import_module(module)
    be_zygote(master, requests, reports, SESSION.be_rank)


def _in_child() -> None:
    """Keep a child that the user forks from acting as a second master."""
    # Our own ranks are forked before the session runs, and set their state themselves.
    SESSION._zygotes.forget_all()
    SESSION.cluster = None  # whose connections are the parent's
    if SESSION.state in ("running", "broken"):
        SESSION.state = "child"
        SESSION.pool.size = 1  # which this process has a copy of
        SESSION._in_command = SESSION._is_starting = False


os.register_at_fork(after_in_child=_in_child)
