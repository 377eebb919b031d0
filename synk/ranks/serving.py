"""The loop of a node's master, on nodes other than 0: it serves node 0's commands.

A node's master launches its ranks and joins them, as on one machine. It does not run
the script. Graphs, variables and arrays come with the commands.
"""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from ..cluster.inbox import Inbox
from ..cluster.message import Here, dumps, unpickled
from ..cluster.nodes import Cluster
from ..errors import WorkerDied
from ..workers.channel import find
from ..workers.control import LAUNCH
from ..workers.failure import Failure
from .context import Dropped
from .session import SESSION
from .to_nodes import CODECS


def serve(cluster: Cluster) -> int:
    """Run node 0's commands until the script has ended; return an exit status."""
    # Launchers and schedulers send these signals to all processes, for Ctrl-C or when a
    # job's time is nearly over. Node 0 alone handles them.
    for number in (signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    SESSION.cluster = cluster
    SESSION.keep_zygote()  # before MPI starts, as the process cannot be forked then
    cluster.open()
    # A new inbox for each session, as the stage and the kept rows are new.
    new_inbox = partial(Inbox, lambda kinds: SESSION.pool.stage.room(kinds))
    is_over, inbox, last = False, new_inbox(), _LastCommand()
    while not is_over:
        message, launch = cluster.await_command(inbox)
        reply: list[Any] = []
        try:
            if inbox.error is not None:
                raise inbox.error
            kind, *what = last.read(message.data, inbox, cluster.here)
        except Exception as error:  # it names something that this machine does not have
            where = f"[synk] on node {cluster.node} ({socket.gethostname()})"
            kind, reply = "", [Failure(error, where, SESSION.rank)]
        if kind == "fork":
            inbox = new_inbox()
            reply = _fork(what[0])
        elif kind == "run":
            work, args, notices = what
            reply = _run(inbox, work, args, notices, launch)
        elif kind:
            SESSION.close()
            is_over = kind == "end"
        if is_over:
            # Node 0 may exit before this process, with the script's status. srun may
            # then end the others by SIGTERM, and return 143 for one that dies of it.
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        cluster.join(_as_bytes(reply), word=inbox.word(cluster.nodes, cluster.node))
    SESSION.close(for_good=True)
    cluster.link.close()
    return 0


class _LastCommand:
    """Unpacks commands; a repeated command gives the same objects as before."""

    def __init__(self) -> None:
        self._data = b""
        self._where: tuple | None = None
        self._command: Sequence[Any] = ()

    def read(self, data: bytes, inbox: Inbox, here: Here) -> Sequence[Any]:
        """Return the command in `data` for this node's ranks; b"" is the last again."""
        is_again, self._data = not data, data or self._data
        where = inbox.windows, inbox.sent
        if is_again and where == self._where and not inbox.has_changed:
            return self._command
        self._where = None
        kind, *what = unpickled(self._data, *where, inbox.copies)
        if kind == "run":
            name, args, notices = what
            work = find(*name)
            if work in CODECS:  # other commands may change their arguments
                args = CODECS[work].decode(args, here, inbox.copies)
                self._where = where
            what = [work, args, notices]
        self._command = kind, *what
        return self._command


def _as_bytes(reply: Any) -> bytes:
    """Return replies pickled, or else one `Failure` pickled; b"" if all are None."""
    if all(each is None for each in reply):
        return b""
    context = SESSION.context if SESSION.state == "running" else None
    try:
        return dumps(reply, context.array if context else None)
    except Exception as error:
        where = "" if context is None else context.where(None)
        return dumps([Failure(error, where, SESSION.rank)])


def _fork(asked: tuple) -> list:
    try:
        if SESSION.state in ("running", "broken"):
            SESSION.close()
        SESSION.fork(*asked)
    except BaseException as error:
        return [error]
    return []


def _run(
    inbox: Inbox, work: Callable, args: tuple, notices: tuple, launch: int
) -> list:
    """Run a command on this node's ranks; return the replies, the master's first."""
    context = SESSION.context
    # Node 0's number of the launch, which names the ranks' transactions: before they
    # are launched.
    SESSION.pool.control.words[LAUNCH] = launch
    own = tuple(Dropped("segment", key) for key in inbox.gone)
    try:
        result, replies, failure = SESSION.run_command(work, args, notices + own, args)
        error = None if failure is None else failure.rebuild()
        # Only now the ranks have these notices. More may have been added meanwhile.
        del inbox.gone[: len(own)]
    except WorkerDied as death:
        return [death.of_rank(death.rank + SESSION.rank)]
    except BaseException as raised:
        error, result, replies = raised, None, []
    if error is not None:
        result = Failure(error, "", context.rank)  # the error has its note already
        return [result, *replies]
    every = [result, *replies]
    if work in CODECS and not any(type(reply) is Failure for reply in every):
        return CODECS[work].combine(context, args, every)
    return every
