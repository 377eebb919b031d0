"""The nodes of a session, as each master knows them: commands, replies, and shape.

The master of node 0 runs the script. Its session sends every command to the other
masters (`launch`), and gets their ranks' replies in the end (`join`); the others serve
(`ranks.serving`). Between the two, ranks of all nodes meet (`comm`).
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
    """The nodes that were launched together, of which this process is one's master."""

    def __init__(self, launched: Launched) -> None:
        self.launched = launched
        self.node = launched.rank
        self.link: Any = None  # a Link, from `open` on
        self.nodes: list[Node] = []  # of the present session
        self.cache = NodeCache()  # on node 0
        self.in_command = False  # other nodes run one, and are to be joined
        self._number = 0
        self._replies: Sequence[Bytes] = []

    @property
    def here(self) -> Here:
        """Which ranks this node has."""
        ranks = [node.ranks for node in self.nodes]
        first, stop = sum(ranks[: self.node]), sum(ranks[: self.node + 1])
        return Here(self.node, first, stop, sum(ranks))

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

    def begin(self, asked: tuple, mine: Node, seeds: tuple) -> tuple:
        """Start a session of all nodes together; return node 0's seeds."""
        # What `synk.fork` was asked for counts on node 0 alone. Raises StateError if
        # some nodes have GPUs and some have none.
        self.open()
        self.link.tracer = None  # of a trace that the last session has not ended
        if self.node == 0:
            self.join()  # what an interrupt has left
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
        """On node 0, wait for all nodes to have started; raise what failed there."""
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
        self.open()  # they wait for it
        self.close()
        self.command(plain(("end",)))
        self.join()
        self.link.close()

    # -- commands

    def launch(self, make: Callable[[NodeCache], Outgoing]) -> None:
        """From node 0, send what `make` returns to the ranks of other nodes."""
        self.join()  # what an interrupt has left
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
        """On node 0, send a command to the others, who wait for one."""
        message, number = outgoing.message, self._number + 1
        is_short = not outgoing.common and not any(outgoing.rows)

        def then(_: Headers) -> None:
            # No interrupt comes in here where anything follows the header; where not,
            # all of this may be done again, and is the same the second time.
            self.in_command = True
            follows = message if len(message) > INLINE else b""
            self.link.send(follows, outgoing.common, outgoing.rows)
            if outgoing.is_planned:
                self.cache.sent()
            self._number = number

        own = Header.of(COMMAND, self._number, message, outgoing.launch)
        self.link.go(own, nothing, then, is_short)

    def await_command(self, inbox: Inbox) -> tuple[Message, int]:
        """On another node, wait for a command; return it and its launch's number."""
        # What comes with it is put into the inbox.
        found: list[tuple[Message, int]] = []

        def then(headers: Headers) -> None:
            if headers[0].kind != COMMAND:
                self.link.fall_apart()
            self.in_command = True
            message = Message.unpacked(self.link.from_one(b"", headers, 0))
            # From here on node 0 sends, whatever there is room for: so nothing may be
            # raised before all of it has been received.
            arrays = inbox.make_room(message, self.here)
            self.link.receive_arrays(arrays, len(message.following))
            found.append((message, headers[0].word))
            self._number += 1

        self.link.go(Header(IDLE, self._number), nothing, then)
        return found[0]

    def join(
        self, reply: bytes = b"", look_about: Look = nothing, word: int = 0
    ) -> Sequence[Bytes]:
        """Wait for all nodes to have run the command; return their replies on node 0.

        An interrupt is raised when that is so. A second one ends the job, and so does
        `look_about` when it raises `Expired`: no rank of another node can be ended.
        Nobody reads node 0's own reply, and nothing stands for None from each rank.
        """

        def then(headers: Headers) -> None:
            # While some still meet, these are the headers of a meeting that has failed.
            if headers.are_all(JOIN):
                self._replies = self.link.gather(reply, headers)
                if self.node == 0:
                    self.cache.told(headers.words)
                self.in_command = False

        interrupt: BaseException | None = None
        while True:
            try:
                # An interrupt may have come when the command was on its way: then it
                # is sent now, and whoever runs it is joined.
                self.link.finish(look_about)
                if not self.in_command:
                    break
                own = Header.of(JOIN, self._number, reply, word)
                self.link.go(own, look_about, then, is_short=True)
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
        then: Callable[[Headers], object] | None = None,
        is_short: bool = False,
    ) -> Headers:
        """Meet the others, return what they say; raise Aborted if one gave up.

        `then` has the collectives that follow, given the headers: see `Link.go`.
        """

        def follow(headers: Headers) -> None:
            if then is not None and headers.are_all(MEET):
                then(headers)

        own = Header.of(MEET, self._number, data, word)
        headers = self.link.go(own, look_about, follow, is_short)
        if not headers.are_all(MEET):  # some have failed, and joined
            raise Aborted
        return headers

    def exchange(self, look_about: Look, data: bytes) -> Sequence[Bytes]:
        """Return what all nodes say, in their order."""
        found: list[Bytes] = []

        def then(headers: Headers) -> None:
            found[:] = self.link.all_gather(data, headers)

        self.meet(look_about, data, then=then, is_short=True)
        return found


class Seen(NamedTuple):
    """A node without a session: its host, the cores left to it, and those it takes."""

    host: str
    bound: list[int]
    cores: list[int]


def probe(launched: Launched) -> tuple[str, list[Seen]]:
    """Return the MPI library and the nodes; all of them must call this, once."""
    bound = sorted(allowed_cores())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what is returned says it
        cores = take_cores(launched)
    cluster = Cluster(launched)
    cluster.open()
    mine = pickle.dumps(tuple(Seen(socket.gethostname(), bound, cores)))
    seen = [Seen(*pickle.loads(each)) for each in cluster.exchange(nothing, mine)]
    library = cluster.link.library
    cluster.link.close()
    return library, seen
