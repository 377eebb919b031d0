"""What the master of a node other than 0 does: serve node 0's commands.

Its ranks see no difference: they are launched and joined by their node's master, as on
one machine. What that has of the script is what comes with commands: graphs, variables,
arrays.
"""

from __future__ import annotations

import pickle
import signal
import socket
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..cluster.nodes import Cluster
from ..cluster.translate import dumps
from ..errors import WorkerDied
from ..memory.segment import Segment, Window
from ..workers.channel import Ready, find
from ..workers.control import LAUNCH
from ..workers.failure import Failure
from .session import SESSION


def serve(cluster: Cluster) -> int:
    """Run node 0's commands until the script has ended; return an exit status."""
    # Launchers and schedulers send them to all processes: Ctrl-C, and the signals that
    # say that a job's time is nearly over. Node 0 says what comes of it.
    for number in (signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    SESSION.cluster = cluster
    SESSION.keep_zygote()  # before MPI: what runs it may not be forkable
    cluster.open()
    is_over, kept = False, Kept()
    while not is_over:
        message, rows = cluster.await_command(kept.make)
        reply: list[Any] = []
        try:
            kind, *what = message.load(_put, _house, rows, kept.windows)
        except Exception as error:  # what it names is not on this machine
            where = f"[synk] on node {cluster.node} ({socket.gethostname()})"
            kind, reply = "", [Failure(error, where, SESSION.rank)]
        if kind == "fork":
            kept = Kept()
            reply = _fork(what[0])
        elif kind == "run":
            name, args, *others, forgotten = what
            kept.forget(forgotten)
            # Where nodes have other rows, there are arguments for each.
            mine = args[cluster.node] if type(args) is list else args
            reply = _run(name, mine, *others)
        elif kind:
            SESSION.close()
            is_over = kind == "end"
        if is_over:
            # Node 0 may be gone before us, with the script's status; srun ends others
            # then, if told to, and would return 143 for one that dies of that.
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        cluster.join(_as_bytes(reply))
    SESSION.close(for_good=True)
    cluster.link.close()
    return 0


class Kept:
    """The rows of data that this node keeps, as its ranks may get them again.

    Attributes
    ----------
    windows : dict
        By number; see `Keeping`.
    """

    def __init__(self) -> None:
        self.windows: dict[int, Window] = {}
        self._segments: dict[int, Segment] = {}

    def make(self, dtype: Any, shape: tuple[int, ...], number: int) -> np.ndarray:
        """Return an array for rows that are on their way."""
        nbytes = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        self._segments[number] = segment = Segment(nbytes)
        array = segment.array(dtype, shape)
        self.windows[number] = segment.window(array)
        return array

    def forget(self, numbers: Sequence[int]) -> None:
        """Give rows up."""
        for number in numbers:
            self.windows.pop(number, None)
            segment = self._segments.pop(number, None)
            if segment is not None and SESSION.state == "running":
                SESSION.notify("segment", segment.key)


def _put(arrays: Sequence[np.ndarray]) -> Sequence:
    return SESSION.stage.put(arrays)


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


def _run(name: tuple[str, str], args: tuple, notices: tuple, launch: int) -> list:
    """Run a command on the ranks of this node; return what each has replied."""
    work, context = find(*name), SESSION.context
    SESSION.control.words[LAUNCH] = launch
    try:
        result, replies, error, _ = SESSION.serve_command(work, args, notices)
    except WorkerDied as death:
        return [death.of_rank(death.rank + SESSION.rank)]
    except BaseException as failure:
        error, result, replies = failure, None, []
    if error is not None:
        result = Failure(error, "", context.rank)  # `run_share` has noted where
    elif type(result) is Ready:
        result = pickle.loads(result.data)
    return [result, *replies]
