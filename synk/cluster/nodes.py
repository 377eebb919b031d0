"""The nodes of a session, as each master knows them: commands, replies, and shape.

The master of node 0 runs the script. Its session sends every command to the other
masters (`launch`), and gets their ranks' replies in the end (`join`); the others serve
(`ranks.serving`). Between the two, ranks of all nodes meet (`comm`).
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Sequence
from typing import Any

from ..errors import Aborted, Expired, StateError, SynkError
from .heads import (
    COMMAND,
    IDLE,
    INLINE,
    JOIN,
    MEET,
    Head,
    Heads,
    Rounds,
    Stopped,
    head,
    joining,
    meeting,
)
from .inbox import Inbox, free_memory, to_keep
from .keeping import Keeping
from .launcher import Launched
from .link import Bytes, Link, Look, nothing
from .message import Here, Message, Outgoing, plain
from .node import Node
from .translate import loads


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
        self._replies: Sequence[Bytes] = []

    @property
    def node(self) -> int:
        """Which node this is."""
        return self.launched.rank

    @property
    def first(self) -> int:
        """The rank of this node's master."""
        return sum(node.ranks for node in self.nodes[: self.node])

    @property
    def here(self) -> Here:
        """Which ranks this node has."""
        first = self.first
        ranks = self.nodes[self.node].ranks if self.nodes else 0
        return Here(self.node, first, first + ranks, self.size)

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

    def begin(self, asked: tuple, mine: Node, seeds: tuple) -> tuple[int, tuple]:
        """Start a session of all nodes together.

        Parameters
        ----------
        asked : tuple
            What `synk.fork` was asked for.
        mine : Node
            This one.
        seeds : tuple
            Of the script, on node 0; those of other nodes do not count.

        Returns
        -------
        size : int
            The number of all ranks.
        seeds : tuple
            Node 0's.

        Raises
        ------
        StateError
            If some nodes have GPUs and some have none.
        Exception
            What another node cannot do.
        """
        self.open()
        self.link.meter.tracer = None  # of a trace that the last session has not ended
        if self.node == 0:
            self.join(_NOTHING)  # what an interrupt has left
            self.command(plain(("fork", asked)))
        told = pickle.dumps((mine, free_memory(), seeds))
        try:
            found = self.exchange(nothing, told)
        except Aborted:
            if self.node == 0:
                self.started()
            raise
        told_by_all = [pickle.loads(each) for each in found]
        nodes = [node for node, *_ in told_by_all]
        if len({node.gpus > 0 for node in nodes}) > 1:
            without = ", ".join(node.host for node in nodes if not node.gpus)
            raise StateError(
                f"ranks of some nodes have GPUs, and those of {without} have none:"
                " devices='cpu' is for all"
            )
        self.nodes = nodes
        free = [of_node[1] for of_node in told_by_all]
        room = [to_keep(each, 0, nodes, i) for i, each in enumerate(free)]
        self.keeping = Keeping(min(room[1:], default=0))
        return self.size, told_by_all[0][2]

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
            self.command(plain(("close",)))
            self.join(_NOTHING)

    def end(self) -> None:
        """On node 0, when the script has ended: let the other nodes go."""
        self.open()  # they wait for it
        self.close()
        self.command(plain(("end",)))
        self.join(_NOTHING)
        self.link.close()

    def launch(self, make: Callable[[Keeping], Outgoing]) -> None:
        """From node 0, send a command to the other nodes, for their ranks.

        Parameters
        ----------
        make : callable
            Given what other nodes keep, returns the command.
        """
        self.join(_NOTHING)  # what an interrupt has left
        self._replies = []
        self.command(make(self.keeping))

    def replies(self, look_about: Look = nothing) -> list[Any]:
        """On node 0, return the replies of all other nodes' ranks, in their order."""
        found: list[Any] = []
        for node, of_node in enumerate(self.join(_NOTHING, look_about)):
            if of_node:
                found += loads(of_node)
            elif 0 < node < len(self.nodes):
                found += [None] * self.nodes[node].ranks
        return found

    # -- commands

    def command(self, outgoing: Outgoing) -> None:
        """On node 0, send a command to the others, who wait for one."""
        message, number = outgoing.message, self._number + 1
        is_short = not outgoing.common and not any(outgoing.rows)

        def then(_: Heads) -> None:
            self.in_command = True
            if len(message) > INLINE:
                self.link.send(message)
            self.link.send_arrays(outgoing.common, outgoing.rows)
            if outgoing.draft is not None:
                self.keeping.sent(outgoing.draft)
            self._number = number

        own = head(COMMAND, self._number, message, outgoing.launch)
        self.link.go(_one(own), nothing, then, is_short)

    def await_command(self, inbox: Inbox) -> tuple[Message, int]:
        """On another node, wait for a command.

        Parameters
        ----------
        inbox : Inbox
            Where what comes with it is put.

        Returns
        -------
        message : Message
        launch : int
            See `Outgoing`.
        """
        found: list[tuple[Message, int]] = []

        def then(heads: Heads) -> None:
            if heads[0].kind != COMMAND:
                self.link.fall_apart()
            self.in_command = True
            message = Message.unpacked(self.link.from_one(b"", heads, 0))
            arrays = inbox.make_room(message, self.here)
            self.link.receive_arrays(arrays, len(message.following))
            found.append((message, heads[0].word))
            self._number += 1

        self.link.go(_one(Head(IDLE, self._number)), nothing, then)
        return found[0]

    def join(
        self, reply: bytes, look_about: Look = nothing, word: int = 0
    ) -> Sequence[Bytes]:
        """Wait for all nodes to have run the command.

        An interrupt is raised when that is so. A second one ends the job, and so does
        `look_about` when it raises `Expired`: no rank of another node can be ended.

        Returns
        -------
        list of bytes
            The nodes' replies; on other nodes than 0 none.
        """

        def then(heads: Heads) -> None:
            if heads.are_all(JOIN):
                self._replies = self.link.gather(reply, heads)
                if self.node == 0:
                    self.keeping.told(heads.words)
                self.in_command = False

        interrupt: BaseException | None = None
        while True:
            try:
                # An interrupt may have come when the command was on its way: then it
                # is sent now, and whoever runs it is joined.
                self.link.finish(look_about)
                if not self.in_command:
                    break
                own = head(JOIN, self._number, reply, word)
                self.link.go(joining(own), look_about, then, is_short=True)
            except BaseException as error:
                if interrupt is not None or isinstance(error, Expired):
                    why = f"{error!r}: not all nodes have come, so the job ends"
                    print(f"synk: {why}", file=sys.stderr, flush=True)
                    self.link.end_job()
                interrupt = error
        if interrupt is not None:
            raise interrupt
        return self._replies

    # -- alarms, for ranks that wait where no masters meet: in NCCL

    def give_alarm(self) -> None:
        """Tell the other masters at once that this node gives the command up."""
        if self.in_command and any(node.gpus for node in self.nodes):
            self.link.give_alarm(self._number)

    def hear_alarms(self) -> None:
        """Raise Aborted if another node has given the present command up."""
        if self.link.has_alarm(self._number):
            raise Aborted

    # -- meetings, of masters whose ranks have come

    def meet(
        self,
        look_about: Look,
        data: bytes = b"",
        word: int = 0,
        then: Callable[[Heads], object] | None = None,
        is_short: bool = False,
    ) -> Heads:
        """Meet the other nodes; return what they say.

        Parameters
        ----------
        look_about : callable
        data : bytes
            What this node says.
        word : int
        then : callable, optional
            Collectives that follow, given the heads.
        is_short : bool
            Whether there are none where the heads say all; see `Link.go`.

        Raises
        ------
        Aborted
            If another node has given the command up.
        """

        def follow(heads: Heads) -> None:
            if then is not None and heads.are_all(MEET):
                then(heads)

        own = head(MEET, self._number, data, word)
        try:
            return self.link.go(meeting(own), look_about, follow, is_short)
        except Stopped:
            raise Aborted from None

    def exchange(self, look_about: Look, data: bytes) -> Sequence[Bytes]:
        """Return what all nodes say, in their order."""
        found: list[Bytes] = []

        def then(heads: Heads) -> None:
            found[:] = self.link.all_gather(data, heads)

        self.meet(look_about, data, then=then, is_short=True)
        return found


def _one(own: Head) -> Rounds:
    heads = yield own
    return heads


_NOTHING = b""
"""The reply of node 0, which nobody reads; of others, None from each rank."""
