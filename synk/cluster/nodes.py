"""The nodes of a session, as each master knows them: commands, replies, and shape.

The master of node 0 runs the script. Its session sends every command to the other
masters (`launch`), and gets their ranks' replies in the end (`join`); the others serve
(`ranks.serving`). Between the two, ranks of all nodes meet (`comm`).
"""

from __future__ import annotations

import pickle
import socket
import sys
from collections.abc import Callable, Sequence
from typing import Any

from ..errors import Aborted, Expired, SynkError
from .heads import (
    COMMAND,
    IDLE,
    INLINE,
    JOIN,
    MEET,
    Head,
    Rounds,
    Stopped,
    head,
    joining,
    meeting,
)
from .keeping import Keeping
from .launcher import Launched
from .link import Link, Look, nothing
from .node import Node
from .translate import ForNode, Message, dumps, loads


class Cluster:
    """The nodes that were launched together.

    Parameters
    ----------
    launched : Launched
        Which of them this is.

    Attributes
    ----------
    link : Link
        From `open` on.
    nodes : list of Node
        Those of the present session.
    first : int
        The rank of this node's master.
    keeping : Keeping
        On node 0: what the others have of data.
    in_command : bool
        Whether other nodes run a command, and are to be joined.
    """

    def __init__(self, launched: Launched) -> None:
        self.launched = launched
        self.link: Any = None
        self.nodes: list[Node] = []
        self.keeping = Keeping()
        self.in_command = False
        self._number = 0
        self._replies: list[bytes] = []

    @property
    def node(self) -> int:
        """Which node this is."""
        return self.launched.rank

    @property
    def first(self) -> int:
        """The rank of this node's master."""
        return sum(node.ranks for node in self.nodes[: self.node])

    @property
    def size(self) -> int:
        """The number of ranks of all nodes."""
        return sum(node.ranks for node in self.nodes)

    def open(self) -> None:
        """Speak MPI from now on; waits for all nodes to do so."""
        if self.link is None:
            self.link = Link()
            if self.link.size != self.launched.size:
                raise SynkError(
                    f"{self.launched.size} processes were launched, and MPI knows of"
                    f" {self.link.size}: is mpi4py's MPI the launcher's? (For Slurm"
                    " `srun --mpi=list` shows what it can start, as pmi2 and pmix)"
                )

    # -- a session

    def begin(self, asked: tuple, ranks: int, cores: int) -> int:
        """Start a session of all nodes together; return the number of all ranks.

        Parameters
        ----------
        asked : tuple
            What `synk.fork` was asked for.
        ranks, cores : int
            Of this node.

        Raises
        ------
        Exception
            What another node cannot do.
        """
        self.open()
        self.link.meter.tracer = None  # of a trace that the last session has not ended
        if self.node == 0:
            self.join(_NOTHING)  # what an interrupt has left
            self.command(dumps(("fork", asked)))
        mine = pickle.dumps(Node(socket.gethostname(), ranks, cores))
        try:
            found = self.exchange(nothing, mine)
        except Aborted:
            if self.node == 0:
                self.started()
            raise
        self.nodes = [pickle.loads(each) for each in found]
        self.keeping = Keeping()
        return self.size

    def started(self) -> None:
        """On node 0, wait for all nodes to have started; raise what failed there."""
        if self.node == 0:
            for error in self.replies():
                if isinstance(error, BaseException):
                    raise error

    def close(self) -> None:
        """On node 0, have the other nodes end the session."""
        if self.node or self.link is None:
            return
        self.join(_NOTHING)
        if self.nodes:
            self.nodes = []
            self.command(dumps(("close",)))
            self.join(_NOTHING)

    def end(self) -> None:
        """On node 0, when the script has ended: let the other nodes go."""
        self.open()  # they wait for it
        self.close()
        self.command(dumps(("end",)))
        self.join(_NOTHING)
        self.link.close()

    def launch(self, message: bytes, rows: Sequence[ForNode]) -> None:
        """From node 0, send a command to the other nodes, for their ranks."""
        self.join(_NOTHING)  # what an interrupt has left
        self._replies = []
        self.command(message, rows)

    def replies(self, look_about: Look = nothing) -> list[Any]:
        """On node 0, return the replies of all other nodes' ranks, in their order."""
        found = self.join(_NOTHING, look_about)[1:]
        return [reply for of_node in found for reply in loads(of_node)]

    # -- commands

    def command(self, message: bytes, rows: Sequence[ForNode] | None = None) -> None:
        """On node 0, send a command to the others, who wait for one.

        Parameters
        ----------
        message : bytes
        rows : sequence of ForNode, optional
            What is sent to each node alone; the message says how much that is.
        """

        def then(_: Sequence[Head]) -> None:
            self.in_command = True
            if len(message) > INLINE:
                self.link.broadcast(message)
            if rows is not None:
                self.link.send_rows([of_node.arrays for of_node in rows])
                self.keeping.sent()
            self._number += 1

        self.link.go(_one(head(COMMAND, self._number, message)), nothing, then)

    def await_command(self, make: Callable) -> tuple[Message, list[Any]]:
        """On another node, wait for a command.

        Parameters
        ----------
        make : callable
            See `Message.room`.

        Returns
        -------
        message : Message
        rows : list of numpy.ndarray
            What was sent to this node alone, and is not kept.
        """
        found: list[Any] = []

        def then(heads: Sequence[Head]) -> None:
            if heads[0].kind != COMMAND:
                self.link.fall_apart()
            self.in_command = True
            given = heads[0].data
            if given is None:
                room = bytearray(heads[0].length)
                self.link.broadcast(room)
                given = bytes(room)
            message = Message.unpacked(given)
            rows = message.room(self.node, make)
            self.link.receive_rows(rows)
            found[:] = message, message.not_kept(self.node, rows)
            self._number += 1

        self.link.go(_one(Head(IDLE, self._number)), nothing, then)
        message, rows = found
        return message, rows

    def join(self, reply: bytes, look_about: Look = nothing) -> list[bytes]:
        """Wait for all nodes to have run the command.

        An interrupt is raised when that is so. A second one ends the job, and so does
        `look_about` when it raises `Expired`: no rank of another node can be ended.

        Returns
        -------
        list of bytes
            The nodes' replies; on other nodes than 0 none.
        """

        def then(heads: Sequence[Head]) -> None:
            if all(each.kind == JOIN for each in heads):
                self._replies = self.link.gather(reply, heads)
                self.in_command = False

        interrupt: BaseException | None = None
        while True:
            try:
                # An interrupt may have come when the command was on its way: then it
                # is sent now, and whoever runs it is joined.
                self.link.finish(look_about)
                if not self.in_command:
                    break
                own = head(JOIN, self._number, reply)
                self.link.go(joining(own), look_about, then)
            except BaseException as error:
                if interrupt is not None or isinstance(error, Expired):
                    why = f"{error!r}: not all nodes have come, so the job ends"
                    print(f"synk: {why}", file=sys.stderr, flush=True)
                    self.link.end_job()
                interrupt = error
        if interrupt is not None:
            raise interrupt
        return self._replies

    # -- meetings, of masters whose ranks have come

    def meet(
        self,
        look_about: Look,
        data: bytes = b"",
        word: int = 0,
        then: Callable[[list[Head]], object] | None = None,
    ) -> list[Head]:
        """Meet the other nodes; return what they say.

        Parameters
        ----------
        look_about : callable
        data : bytes
            What this node says.
        word : int
        then : callable, optional
            Collectives that follow, given the heads.

        Raises
        ------
        Aborted
            If another node has given the command up.
        """

        def follow(heads: list[Head]) -> None:
            if then is not None and all(each.kind == MEET for each in heads):
                then(heads)

        own = head(MEET, self._number, data, word)
        try:
            return self.link.go(meeting(own), look_about, follow)
        except Stopped:
            raise Aborted from None

    def exchange(self, look_about: Look, data: bytes) -> list[bytes]:
        """Return what all nodes say, in their order."""
        found: list[bytes] = []

        def then(heads: list[Head]) -> None:
            found[:] = self.link.all_gather(data, heads)

        self.meet(look_about, data, then=then)
        return found


def _one(own: Head) -> Rounds:
    heads = yield own
    return heads


_NOTHING = b""
"""The reply of node 0, which nobody reads."""
