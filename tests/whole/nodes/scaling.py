"""A model of calls on many nodes: what grows with their number, and when it dominates.

``python tests/whole/nodes/scaling.py`` adds up what a call does, step by step, of times
that were measured (`MEASURED`) and of what is assumed of networks (`NETWORKS`).
`test_times_on_nodes.py` finds the same steps in the trace of a call on two nodes.

How many messages a collective of MPI makes is Open MPI's way (5.0, counted with its
``pml_monitoring_enable``): ``Iallgather``, ``Iallgatherv`` and ``Ialltoallv`` send from
each node to each other, and pass nothing on; ``Igatherv`` from each to node 0. A
message takes its sender and its receiver some time each; it arrives a latency later,
and its bytes go through the sender's and the receiver's line.
"""

from collections.abc import Iterator
from math import ceil
from typing import NamedTuple

NODES = 2, 4, 16, 64, 256, 1024
RANKS = 8
"""Of each node."""
COMPUTE = 0.1
"""Seconds of a call in which it computes."""

MEASURED = {
    # The Python of a round of heads, in `Link` and in who reads those of all.
    "heads": (6.34e-6, 6.73e-6, 7.34e-6, 6.47e-6, 7.3e-6, 9.65e-6),
    # `for_nodes` for the call before once more, whose rows all nodes keep.
    "command": (49.2e-6, 37.6e-6, 46.5e-6, 79.7e-6, 216e-6, 722e-6),
    # How many rows each rank has, and what these weigh: `NodesComm.by_node`.
    "rows": (2.12e-6, 3.77e-6, 9.29e-6, 32.6e-6, 134e-6, 503e-6),
    # `combine_outputs` of the value and the gradient of every rank, on node 0.
    "replies": (66.3e-6, 115e-6, 465e-6, 1.72e-3, 7.32e-3, 33.7e-3),
    # The same of a step, whose ranks have reduced all that is asked for.
    "replies of a step": (7.85e-6, 14.4e-6, 52.3e-6, 246e-6, 805e-6, 3.39e-3),
    # 200 bytes of each rank, combined in the order of ranks: `NodesBuffer`.
    "by rank": (10.4e-6, 11.5e-6, 24.5e-6, 63.8e-6, 280e-6, 1.06e-3),
    # `NodeReduction` of a node's part of 102 MB, without MPI.
    "part": (5.5e-3, 5.88e-3, 10.7e-3, 11.2e-3, 13.8e-3, 15.3e-3),
}
"""Seconds by `NODES`, the least of several: the others' bytes were made up.

On two cores of an AMD EPYC virtual machine, as the figures below.
"""
CALL = 48.9e-6
"""Of an empty function on one machine."""
WITHIN = 16.3e-3
"""Of an all-reduce of 102 MB in shared memory."""
TCP = 3.53e-6
"""That a small message takes at each end, on the loopback."""
HEAD = 64
"""Bytes of a head."""
REPLY = 32
"""Bytes of a node's reply, without what ranks say."""
PAYLOAD = 0.9
"""Assumed: the part of a line's bits that values are; the rest is frames' own."""


class Network(NamedTuple):
    """Bits a second; seconds in which a message arrives, and that it takes each end."""

    name: str
    bits: float
    latency: float
    message: float

    def seconds(self, step: "Step") -> float:
        """Return how long MPI takes for a step."""
        travel = step.nbytes / (PAYLOAD * self.bits / 8)
        return self.latency + step.messages * self.message + travel


# 2 us: MPI between two hosts took 1.6 us by IMB's PingPong over ConnectX-3
# (https://github.com/openhpc/ohpc/issues/207), and a switch or two come on top. 0.2 us:
# 8 million small messages a second by Open MPI over UCX
# (https://github.com/openucx/ucx/issues/2721) are 0.125 us each. 25 us are a guess for
# TCP through the kernels of two hosts and a switch.
NETWORKS = (
    Network("25 Gb/s, TCP", 25e9, 25e-6, TCP),
    Network("100 Gb/s, InfiniBand", 100e9, 2e-6, 0.2e-6),
    Network("200 Gb/s, InfiniBand", 200e9, 2e-6, 0.2e-6),
)


class Step(NamedTuple):
    """What masters do together in one go: bytes and messages of the busiest node."""

    what: str  # as in a trace
    nbytes: float
    messages: int


class Call(NamedTuple):
    """A call like the one before, which is not said again; rows are kept.

    Attributes
    ----------
    reduced : int
        Bytes of what ranks reduce during the call; none if values only come back.
    by_rank : bool
        Whether all ranks' values go to all nodes, because they are few.
    reply : float
        Bytes that a node's reply has for each rank.
    """

    name: str
    reduced: int
    by_rank: bool
    reply: float

    def steps(self, nodes: int, ranks: int = RANKS) -> Iterator[Step]:
        """Return what masters do, in its order."""
        others = nodes - 1
        heads = Step("heads", others * HEAD, 2 * others)
        yield heads
        if self.reduced:
            yield heads
            if self.by_rank:
                yield Step("all-gather", others * self.reduced * ranks, 2 * others)
            else:
                part = others / nodes * self.reduced
                yield Step("all-to-all", part, 2 * others)
                yield Step("all-gather", part, 2 * others)
        yield heads
        yield Step("replies", others * (REPLY + self.reply * ranks), others)

    def parts(self, nodes: int, network: Network) -> dict[str, float]:
        """Return the seconds of a call, by what takes them."""
        python = {name: by[NODES.index(nodes)] for name, by in MEASURED.items()}
        replies = "replies of a step" if self.reduced else "replies"
        found = {
            "one machine": CALL,
            "heads": 0.0,
            "command": python["command"] + python["rows"],
            "reduction": 0.0,
            "replies": python[replies],
        }
        if self.by_rank:
            found["reduction"] = python["by rank"]
        elif self.reduced:
            found["one machine"] += WITHIN
            found["reduction"] = python["part"]
        for step in self.steps(nodes):
            what = step.what if step.what in found else "reduction"
            found[what] += network.seconds(step)
            found["heads"] += python["heads"] * (step.what == "heads")
        return found


def with_loss(nbytes: int) -> int:
    """Return the bytes that are reduced of a gradient and a loss, in one array."""
    return ceil(nbytes / 64) * 64 + 8


CALLS = (
    Call("likelihood and gradient, 200 bytes", 0, False, 251),
    Call("step that averages 200 bytes", with_loss(200), True, 7.4),
    # The gradients of ResNet-50.
    Call("step that averages 102 MB", with_loss(4 * 25_557_032), False, 7.4),
)


def report() -> Iterator[str]:
    """Return all lines: how long each call takes, and what takes most of that."""
    yield f"{RANKS} ranks a node, {COMPUTE * 1e3:g} ms of computing in a call"
    for call in CALLS:
        yield from ("", f"{call.name}: ms, computing, what takes most")
        yield "nodes" + "".join(f"   {each.name:<25}" for each in NETWORKS).rstrip()
        for nodes in NODES:
            line = f"{nodes:>5}"
            for network in NETWORKS:
                found = call.parts(nodes, network)
                total, most = sum(found.values()), max(found, key=found.__getitem__)
                part = COMPUTE / (COMPUTE + total)
                line += f"   {total * 1e3:>7.2f} {part:>4.0%}  {most:<11}"
            yield line.rstrip()


if __name__ == "__main__":
    print(*report(), sep="\n")
