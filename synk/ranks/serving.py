"""What the master of a node other than 0 does: serve node 0's commands.

Its ranks see no difference: they are launched and joined by their node's master, as on
one machine. What that has of the script is what comes with commands: graphs, variables,
arrays.
"""

from __future__ import annotations

import pickle
import signal
import socket
from collections.abc import Callable
from typing import Any

from ..cluster.inbox import Inbox
from ..cluster.nodes import Cluster
from ..cluster.translate import dumps, unpickled
from ..errors import WorkerDied
from ..workers.channel import Ready, find
from ..workers.control import LAUNCH
from ..workers.failure import Failure
from .context import Notice
from .session import SESSION
from .to_nodes import arrived


def serve(cluster: Cluster) -> int:
    """Run node 0's commands until the script has ended; return an exit status."""
    # Ctrl-C at the launcher goes to all processes; node 0 says what comes of it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    SESSION.cluster = cluster
    SESSION.keep_zygote()  # before MPI: what runs it may not be forkable
    cluster.open()
    is_over, inbox = False, _inbox()
    while not is_over:
        message = cluster.await_command(inbox)
        reply: list[Any] = []
        try:
            if inbox.error is not None:
                raise inbox.error
            arrays = inbox.windows, inbox.sent, inbox.copies
            kind, *what = unpickled(message.data, *arrays, _house)
            if kind == "run":
                name, args, *others = what
                work = find(*name)
                what = [work, arrived(work, args, cluster.here, inbox.copies), *others]
        except Exception as error:  # what it names is not on this machine
            where = f"[synk] on node {cluster.node} ({socket.gethostname()})"
            kind, reply = "", [Failure(error, where, SESSION.rank)]
        if kind == "fork":
            inbox = _inbox()
            reply = _fork(what[0])
        elif kind == "run":
            reply = _run(inbox, *what)
        elif kind:
            SESSION.close()
            is_over = kind == "end"
        cluster.join(_as_bytes(reply), word=inbox.word(cluster.nodes, cluster.node))
    SESSION.close(for_good=True)
    cluster.link.close()
    return 0


def _inbox() -> Inbox:
    return Inbox(lambda kinds: SESSION.stage.room(kinds))


def _house(number: int, nbytes: int, slots: dict) -> Any:
    return SESSION.context.homes.house_as(number, nbytes, slots)


def _as_bytes(reply: Any) -> bytes:
    """Return replies as bytes; what cannot be pickled is the first rank's failure."""
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
    """Run a command on the ranks of this node; return what each has replied."""
    context = SESSION.context
    SESSION.control.words[LAUNCH] = launch
    own = tuple(Notice("segment", key) for key in inbox.gone)
    try:
        result, replies, error, _ = SESSION.serve_command(work, args, notices + own)
        del inbox.gone[: len(own)]
    except WorkerDied as death:
        return [death.of_rank(death.rank + SESSION.rank)]
    except BaseException as failure:
        error, result, replies = failure, None, []
    if error is not None:
        result = Failure(error, "", context.rank)  # `run_share` has noted where
    elif type(result) is Ready:
        result = pickle.loads(result.data)
    return [result, *replies]
