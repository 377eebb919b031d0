"""`Cluster`: a master's view of all nodes, to send commands and collect replies.

The master of node 0 runs the script. Its session sends every command to the other
masters (`launch`), and gets their ranks' replies at its end (`join`); the other masters
serve (`ranks.serving`). In between, the ranks of all nodes meet (`comm`).
"""

from __future__ import annotations

import pickle
import socket
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ..errors import Aborted, Expired, StateError, SynkError
from ..workers.affinity import allowed_cores
from .cache import NodeCache
from .inbox import Inbox, free_memory, to_keep
from .launcher import Launched, Node, take_cores
from .link import Bytes, Link, Look, nothing
from .message import Here, Message, Outgoing, loads, plain
from .rounds import COMMAND, IDLE, INLINE, JOIN, MEET, Header, Headers


class Cluster:
    """All nodes that were launched together; this process is the master of one."""

    def __init__(self, launched: Launched) -> None:
        self.launched = launched
        self.node = launched.rank
        self.link: Any = None  # a Link, from `open` on
        self.nodes: list[Node] = []  # of the present session
        self.cache = NodeCache()  # on node 0
        self.in_command = False  # a command runs, and has to be joined
        self._number = 0
        self._replies: Sequence[Bytes] = []

    @property
    def here(self) -> Here:
        """The ranks of this node."""
        ranks = [node.ranks for node in self.nodes]
        first, stop = sum(ranks[: self.node]), sum(ranks[: self.node + 1])
        return Here(self.node, first, stop, sum(ranks))

    def open(self) -> None:
        """Initialise MPI; waits for all nodes to do so."""
        if self.link is None:
            self.link = Link()
            if self.link.size != self.launched.size:
                raise SynkError(
                    f"{self.launched.size} processes were launched, and MPI knows of"
                    f" {self.link.size}: is mpi4py's MPI the launcher's? (For Slurm"
                    " `srun --mpi=list` shows what it can start, as pmi2 and pmix)"
                )

    # -- a session

    def begin(self, asked: tuple, mine: Node, seeds: tuple) -> tuple:
        """Start a session of all nodes together; return node 0's seeds.

        `asked`, the arguments of `synk.fork`, counts on node 0 alone. `mine` describes
        this node. Raises StateError if some nodes have GPUs and some have none.
        """
        self.open()
        self.link.tracer = None  # the last session may not have ended its trace
        if self.node == 0:
            self.join()  # a command that an interrupt has left
            self.command(plain(("fork", asked)))
        try:
            found = self.exchange(nothing, pickle.dumps((mine, free_memory(), seeds)))
        except Aborted:
            self.started()
            raise
        nodes, free, seeds_of_all = zip(*map(pickle.loads, found), strict=True)
        if len({node.gpus > 0 for node in nodes}) > 1:
            without = ", ".join(node.host for node in nodes if not node.gpus)
            raise StateError(
                f"ranks of some nodes have GPUs, and those of {without} have none:"
                " devices='cpu' is for all"
            )
        self.nodes = list(nodes)
        room = [to_keep(each, 0, nodes, i) for i, each in enumerate(free)]
        self.cache = NodeCache(min(room[1:], default=0))
        return seeds_of_all[0]

    def started(self) -> None:
        """On node 0, wait for all nodes to have started; raise their errors."""
        if self.node == 0:
            for error in self.replies():
                if isinstance(error, BaseException):
                    raise error

    def close(self) -> None:
        """On node 0, have the other nodes end the session."""
        if self.node or self.link is None:
            return
        self.join()
        if self.nodes:
            self.nodes = []
            self.command(plain(("close",)))
            self.join()

    def end(self) -> None:
        """On node 0, when the script has ended: let the other nodes go."""
        self.open()  # the other nodes wait for that, too
        self.close()
        self.command(plain(("end",)))
        self.join()
        self.link.close()

    # -- commands

    def launch(self, make: Callable[[NodeCache], Outgoing]) -> None:
        """On node 0, send the command that `make` returns to the other nodes."""
        self.join()  # a command that an interrupt has left
        self._replies = []
        self.command(make(self.cache))

    def replies(self, look_about: Look = nothing) -> list[Any]:
        """On node 0, return the replies of all other nodes' ranks, in their order."""
        found: list[Any] = []
        for node, of_node in enumerate(self.join(look_about=look_about)):
            if of_node:
                found += loads(of_node)
            elif 0 < node < len(self.nodes):
                found += [None] * self.nodes[node].ranks
        return found

    def command(self, outgoing: Outgoing) -> None:
        """On node 0, send a command to the other masters, which wait for one."""
        message, number = outgoing.message, self._number + 1
        is_short = not outgoing.common and not any(outgoing.rows)

        def then(_: Headers) -> None:
            # If anything follows the header, no interrupt comes in here. If not, all of
            # this may be done twice, with the same result.
            self.in_command = True
            follows = message if len(message) > INLINE else b""
            self.link.send(follows, outgoing.common, outgoing.rows)
            if outgoing.is_planned:
                self.cache.note_sent()
            self._number = number

        own = Header.of(COMMAND, self._number, message, outgoing.launch)
        self.link.make_round(own, nothing, then, is_short)

    def await_command(self, inbox: Inbox) -> tuple[Message, int]:
        """On another node, wait for a command; return it and its launch's number.

        The command's arrays are received into the inbox.
        """
        found: list[tuple[Message, int]] = []

        def then(headers: Headers) -> None:
            if headers[0].kind != COMMAND:
                self.link.end_out_of_step()
            self.in_command = True
            message = Message.unpacked(self.link.from_one(b"", headers, 0))
            # Node 0 sends the arrays in any case, so nothing may be raised before all
            # have been received.
            arrays = inbox.make_room(message, self.here)
            self.link.receive_arrays(arrays, len(message.following))
            found.append((message, headers[0].word))
            self._number += 1

        self.link.make_round(Header(IDLE, self._number), nothing, then)
        return found[0]

    def join(
        self, reply: bytes = b"", look_about: Look = nothing, word: int = 0
    ) -> Sequence[Bytes]:
        """Wait until all nodes have run the command; return their replies on node 0.

        An interrupt is raised after that. A second one ends the job, and so does
        `Expired` from `look_about`, as no rank of another node can be ended. An empty
        reply stands for None from each rank; node 0's own reply is not used.
        """

        def then(headers: Headers) -> None:
            # If a header is `MEET`, that master sees the meeting fail, and joins next.
            if headers.are_all(JOIN):
                self._replies = self.link.gather(reply, headers)
                if self.node == 0:
                    self.cache.note_words(headers.words)
                self.in_command = False

        interrupt: BaseException | None = None
        while True:
            try:
                # An interrupt may have come while the command was being sent: this
                # finishes sending it, and the nodes that run it are joined.
                self.link.finish(look_about)
                if not self.in_command:
                    break
                own = Header.of(JOIN, self._number, reply, word)
                self.link.make_round(own, look_about, then, is_short=True)
            except BaseException as error:
                if interrupt is not None or isinstance(error, Expired):
                    why = f"{error!r}: not all nodes have come, so the job ends"
                    print(f"synk: {why}", file=sys.stderr, flush=True)
                    self.link.end_job()
                interrupt = error
        if interrupt is not None:
            raise interrupt
        return self._replies

    # -- alarms, for ranks that wait in NCCL, where masters make no rounds

    def give_alarm(self) -> None:
        """Tell the other masters at once that this node gives the command up."""
        if self.in_command and any(node.gpus for node in self.nodes):
            self.link.give_alarm(self._number)

    def hear_alarms(self) -> None:
        """Raise Aborted if another node has given the present command up."""
        if self.link.has_alarm(self._number):
            raise Aborted

    # -- meetings of the masters

    def meet(
        self,
        look_about: Look,
        data: bytes = b"",
        word: int = 0,
        then: Callable[[Headers], object] | None = None,
        is_short: bool = False,
    ) -> Headers:
        """Meet the other masters, and return all headers; raise Aborted if one joins.

        ``then(headers)`` runs the collectives that follow: see `Link.make_round`.
        """

        def follow(headers: Headers) -> None:
            if then is not None and headers.are_all(MEET):
                then(headers)

        own = Header.of(MEET, self._number, data, word)
        headers = self.link.make_round(own, look_about, follow, is_short)
        if not headers.are_all(MEET):  # some have failed, and joined
            raise Aborted
        return headers

    def exchange(self, look_about: Look, data: bytes) -> Sequence[Bytes]:
        """Return the data that all masters give, in the order of nodes."""
        found: list[Bytes] = []

        def then(headers: Headers) -> None:
            found[:] = self.link.all_gather(data, headers)

        self.meet(look_about, data, then=then, is_short=True)
        return found


class Seen(NamedTuple):
    """A node without a session: its host, the cores it is bound to, and its share."""

    host: str
    bound: list[int]
    cores: list[int]


def probe(launched: Launched) -> tuple[str, list[Seen]]:
    """Return the MPI library and the nodes; all of them must call this, once."""
    bound = sorted(allowed_cores())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the result shows the cores
        cores = take_cores(launched)
    cluster = Cluster(launched)
    cluster.open()
    mine = pickle.dumps(tuple(Seen(socket.gethostname(), bound, cores)))
    seen = [Seen(*pickle.loads(each)) for each in cluster.exchange(nothing, mine)]
    library = cluster.link.library
    cluster.link.close()
    return library, seen
