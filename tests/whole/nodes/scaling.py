"""A model of calls on many nodes: what grows with their number, and when it dominates.

``python tests/whole/nodes/scaling.py`` measures here what one process can measure
(`scaling_inputs`), assumes a few figures of networks (`NETWORKS`), and adds up what a
call does, step by step (`Call.steps`). ``--inputs docs/performance.rst`` takes what was
measured from a page that has it. ``--chart FILE`` draws the times.

A call's messages are those that `test_scaling_of_nodes.py` counts in a run
on 3 nodes. How many messages a collective of MPI makes of them is Open MPI's way
(5.0, counted with its ``pml_monitoring_enable``):

* ``Iallgather``, ``Iallgatherv``, ``Ialltoallv``: each node sends to each other, and
  passes nothing on;
* ``Ibcast``: a tree of ceil(log2 n) levels, above four nodes;
* ``Igatherv``: each node sends to node 0.

A message takes its sender and its receiver some time each; it arrives a latency later,
and its bytes go through the sender's and the receiver's line.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping
from math import ceil, log2
from pathlib import Path
from typing import NamedTuple

NODES = 2, 4, 16, 64, 256, 1024
HEAD = 64
"""Bytes of a head."""
INLINE = 32
"""Those of a message that ride in it."""
GRADIENTS = 4 * 25_557_032
"""Bytes of the gradients of ResNet-50."""
FEW = 200
"""Bytes of a likelihood and its gradient by 24 parameters."""
PAYLOAD = 0.9
"""Assumed: the part of a line's bits that values are; the rest is frames' own."""


class Network(NamedTuple):
    """What is assumed of a network.

    Attributes
    ----------
    name : str
    bits : float
        A second, in each direction.
    latency : float
        Seconds from one MPI process to another, for a small message.
    message : float or None
        Seconds that a small message takes its sender, and its receiver; None for what
        was measured of TCP.
    """

    name: str
    bits: float
    latency: float
    message: float | None

    @property
    def bandwidth(self) -> float:
        """Bytes a second."""
        return PAYLOAD * self.bits / 8


# 2 us: MPI between two hosts took 1.6 us by IMB's PingPong over ConnectX-3
# (https://github.com/openhpc/ohpc/issues/207), and a switch or two come on top. 0.2 us:
# 8 million small messages a second by Open MPI over UCX
# (https://github.com/openucx/ucx/issues/2721) are 0.125 us each. 25 us are a guess for
# TCP through the kernels of two hosts and a switch.
NETWORKS = (
    Network("25 Gb/s, TCP", 25e9, 25e-6, None),
    Network("100 Gb/s, InfiniBand", 100e9, 2e-6, 0.2e-6),
    Network("200 Gb/s, InfiniBand", 200e9, 2e-6, 0.2e-6),
)


class Input(NamedTuple):
    """One measured figure, or one for each number of `NODES`."""

    name: str
    what: str
    by_nodes: bool = True


INPUTS = (
    Input("heads of a round, us", "Python in `Link` and in who reads all heads"),
    Input("command, us", "`for_nodes` for a call whose rows all nodes keep"),
    Input("command, bytes", "of its message"),
    Input("replies, us", "node 0 reads and combines value and gradient of all ranks"),
    Input("replies of a step, us", "of ranks that have reduced all that is asked for"),
    Input("rows of all ranks, us", "how many each has, and what it weighs"),
    Input("200 bytes by rank, us", "all ranks' values, combined in their order"),
    Input("part of 102 MB, ms", "`NodeReduction` of a node's part, without MPI"),
    Input("reply, bytes", "of one node, value and gradient", False),
    Input("reply of a step, bytes", "of one node", False),
    Input("call on one machine, us", "of an empty function", False),
    Input("102 MB within a node, ms", "all-reduce in shared memory", False),
    Input("message by TCP, us", "on the loopback, at each end", False),
    Input("launch, s", "two nodes on this machine, from mpirun to the end", False),
)

Inputs = Mapping[str, list[float]]
"""What was measured, by name."""


class Step(NamedTuple):
    """What masters do together in one go.

    Attributes
    ----------
    kind : {"heads", "bcast", "rows", "all-to-all", "all-gather", "gather"}
    nbytes : float
        Of a head; of the message; of the rows of all other nodes; of the whole array;
        of what all nodes say; of what one node replies.
    """

    kind: str
    nbytes: float


class Call(NamedTuple):
    """What a call combines.

    Attributes
    ----------
    name : str
    reduced : int
        Bytes of what ranks reduce during the call; none if values only come back.
    by_rank : bool
        Whether all ranks' values go to all nodes, because they are few.
    reply : str
        Which input says how many bytes a node replies.
    """

    name: str
    reduced: int
    by_rank: bool
    reply: str

    def steps(
        self, nodes: int, ranks: int, command: float, reply: float
    ) -> Iterator[Step]:
        """Return what masters do, in its order.

        Parameters
        ----------
        nodes : int
        ranks : int
            Of each node.
        command, reply : float
            Bytes of the message, and of one node's reply.
        """
        yield Step("heads", HEAD)
        if command > INLINE:  # one like the last is not said again
            yield Step("bcast", command)
        if self.reduced:
            yield Step("heads", HEAD)
            if self.by_rank:
                yield Step("all-gather", self.reduced * ranks * nodes)
            else:
                yield Step("all-to-all", self.reduced)
                yield Step("all-gather", self.reduced)
        yield Step("heads", HEAD)
        yield Step("gather", reply)


def with_loss(nbytes: int) -> int:
    """Return the bytes that are reduced of a gradient and a loss, in one array."""
    return ceil(nbytes / 64) * 64 + 8


LIKELIHOOD = Call("likelihood and gradient, 200 bytes", 0, False, "reply")
SMALL = Call("step that averages 200 bytes", with_loss(FEW), True, "reply of a step")
LARGE = Call(
    "step that averages 102 MB", with_loss(GRADIENTS), False, "reply of a step"
)
CALLS = LIKELIHOOD, SMALL, LARGE


def seconds(step: Step, nodes: int, network: Network, message: float) -> float:
    """Return how long MPI takes for a step.

    Parameters
    ----------
    step : Step
    nodes : int
    network : Network
    message : float
        See `Network.message`.
    """
    others, line = nodes - 1, network.bandwidth
    if step.kind == "bcast" and nodes > 4:
        levels = ceil(log2(nodes))
        return levels * (network.latency + 2 * message + step.nbytes / line)
    travel, messages = {
        "heads": (others * step.nbytes, 2 * others),
        "bcast": (others * step.nbytes, others),
        "rows": (step.nbytes, others),
        "all-to-all": (others / nodes * step.nbytes, 2 * others),
        "all-gather": (others / nodes * step.nbytes, 2 * others),
        "gather": (others * step.nbytes, others),
    }[step.kind]
    return network.latency + messages * message + travel / line


def heads_in_levels(nodes: int, network: Network, message: float) -> float:
    """Return how long a round of heads takes if it is passed on, doubling each time."""
    levels = ceil(log2(nodes))
    travel = (nodes - 1) * HEAD / network.bandwidth
    return levels * (network.latency + 2 * message) + travel


def launch(inputs: Inputs, nodes: int, network: Network) -> float:
    """Return the seconds from the launcher to the end of `synk.fork`."""
    message = _message(network, inputs)
    steps = [Step("heads", HEAD)] * 3
    steps += [Step("bcast", 100), Step("all-gather", 100 * nodes)]
    rounds = sum(seconds(step, nodes, network, message) for step in steps)
    return inputs["launch, s"][0] + rounds


def parts(
    call: Call,
    inputs: Inputs,
    nodes: int,
    ranks: int,
    network: Network,
) -> dict[str, float]:
    """Return the seconds of a call, by what takes them; `ranks` are those of a node."""
    place = NODES.index(nodes)

    def of(name: str, scale: float = 1e-6) -> float:
        values = inputs[name]
        return values[place if len(values) > 1 else 0] * scale

    message = _message(network, inputs)
    found = dict.fromkeys(
        ("one machine", "heads", "command", "reduction", "replies"), 0.0
    )
    where = {"bcast": "command", "gather": "replies", "heads": "heads"}
    for step in call.steps(
        nodes, ranks, of("command, bytes", 1), of(f"{call.reply}, bytes", 1)
    ):
        place_of_step = where.get(step.kind, "reduction")
        found[place_of_step] += seconds(step, nodes, network, message)
        if step.kind == "heads":
            found["heads"] += of("heads of a round, us")
    found["one machine"] = of("call on one machine, us")
    found["command"] += of("command, us") + of("rows of all ranks, us")
    is_likelihood = call.reply == "reply"
    found["replies"] += of("replies, us" if is_likelihood else "replies of a step, us")
    if call.by_rank:
        found["reduction"] += of("200 bytes by rank, us")
    elif call.reduced:
        found["one machine"] += of("102 MB within a node, ms", 1e-3)
        found["reduction"] += of("part of 102 MB, ms", 1e-3)
    return found


def _message(network: Network, inputs: Inputs) -> float:
    if network.message is not None:
        return network.message
    return inputs["message by TCP, us"][0] * 1e-6


def tables(inputs: Inputs, ranks: int, compute: float) -> Iterator[str]:
    """Return lines: the times of calls, and what takes most of each."""

    def table(title: str, width: int, of: Callable[[int, Network], str]) -> list[str]:
        lines = ["", title]
        lines.append("nodes" + "".join(f"   {n.name:<{width}}" for n in NETWORKS))
        for nodes in NODES:
            cells = "".join(f"   {of(nodes, n):<{width}}" for n in NETWORKS)
            lines.append(f"{nodes:>5}{cells}")
        return [line.rstrip() for line in lines]

    for call in CALLS:

        def of_call(nodes: int, network: Network, call: Call = call) -> str:
            found = parts(call, inputs, nodes, ranks, network)
            total = sum(found.values())
            most = max(found, key=lambda name: found[name])
            gain = compute / (compute + total)
            return f"{total * 1e3:>7.2f} {gain:>4.0%}  {most}"

        yield from table(f"{call.name}: ms, computing, what takes most", 25, of_call)

    def of_heads(nodes: int, network: Network) -> str:
        message = _message(network, inputs)
        each = seconds(Step("heads", HEAD), nodes, network, message)
        levels = heads_in_levels(nodes, network, message)
        return f"{each * 1e3:>7.3f} {levels * 1e3:>7.3f}"

    yield from table(
        "heads of a round, ms: each node to each, or in log2(n) steps", 25, of_heads
    )

    def of_rows(nodes: int, network: Network) -> str:
        step = Step("rows", 1e6 * (nodes - 1))
        took = seconds(step, nodes, network, _message(network, inputs))
        return f"{took * 1e3:>7.2f}"

    yield from table("1 MB of rows to each node, ms", 25, of_rows)

    def of_launch(nodes: int, network: Network) -> str:
        return f"{launch(inputs, nodes, network):>7.2f}"

    yield from table("launch, s", 25, of_launch)


def shown(inputs: Inputs) -> Iterator[str]:
    """Return lines that `read` understands."""
    yield f"{'measured':<26}" + "".join(f"{f'{n} nodes':>12}" for n in NODES)
    for each in INPUTS:
        values = "".join(f"{value:>12g}" for value in inputs[each.name])
        yield f"{each.name:<26}{values}"


def read(text: str) -> dict[str, list[float]]:
    """Return the inputs that a text shows; the last of each."""
    found = {}
    for line in text.splitlines():
        for each in INPUTS:
            name, values = line.strip()[:26].rstrip(), line.strip()[26:].split()
            if name == each.name and len(values) == (
                len(NODES) if each.by_nodes else 1
            ):
                found[name] = [float(value) for value in values]
    missing = [each.name for each in INPUTS if each.name not in found]
    if missing:
        raise ValueError(f"there is no line for {missing}")
    return found


def report(inputs: Inputs, ranks: int, compute: float) -> Iterator[str]:
    """Return all lines: what was measured, what is assumed, what follows."""
    yield from shown(inputs)
    yield ""
    for measured in INPUTS:
        yield f"measured: {measured.name}: {measured.what}"
    for each in NETWORKS:
        message = (
            "as measured" if each.message is None else f"{each.message * 1e6:g} us"
        )
        yield (
            f"assumed: {each.name}: latency {each.latency * 1e6:g} us, a message"
            f" {message}, {PAYLOAD:.0%} of the bits"
        )
    yield f"assumed: {ranks} ranks a node, {compute * 1e3:g} ms of computing in a call"
    yield from tables(inputs, ranks, compute)


def chart(inputs: Inputs, ranks: int, path: str) -> None:
    """Draw the times of calls over nodes."""
    from matplotlib.figure import Figure

    figure = Figure((9, 3.4), layout="constrained")
    axes = figure.subplots(1, len(CALLS))
    for ax, call in zip(axes, CALLS, strict=True):
        for network in NETWORKS:
            found = [parts(call, inputs, n, ranks, network) for n in NODES]
            total = [1e3 * sum(each.values()) for each in found]
            ax.plot(NODES, total, marker="o", label=network.name)
        ax.set(title=call.name, xlabel="nodes", xscale="log", yscale="log")
        ax.title.set_fontsize("small")
        ax.set_xticks(NODES, [str(n) for n in NODES])
    axes[0].set_ylabel("ms of a call")
    axes[0].legend(fontsize="small")
    figure.savefig(path)


PAGE = Path(__file__).parents[3] / "docs" / "performance.rst"
COMMAND = "    $ python tests/whole/nodes/scaling.py\n"


def write(lines: list[str]) -> None:
    """Put the report into the page, in the place of the one that is there."""
    before, after = PAGE.read_text().split(COMMAND)
    _, mark, rest = after.partition("\n\n``--chart FILE``")
    assert mark, f"{PAGE} does not go on with --chart"
    block = "\n".join(f"    {line}".rstrip() for line in lines)
    PAGE.write_text(before + COMMAND + block + mark + rest)


def main() -> None:
    """Measure, or read what was measured; print tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--inputs", type=Path, metavar="FILE")
    parser.add_argument("--chart", metavar="FILE")
    parser.add_argument("--write", action="store_true", help=f"to {PAGE.name}")
    parser.add_argument("--ranks", type=int, default=8, help="of each node")
    parser.add_argument("--compute", type=float, default=0.1, metavar="SECONDS")
    options = parser.parse_args()
    if options.inputs is None:
        sys.path.append(str(Path(__file__).parents[2] / "support"))
        from scaling_inputs import measured

        inputs = measured(NODES, options.ranks, GRADIENTS, with_loss(FEW))
    else:
        inputs = read(options.inputs.read_text())
    lines = list(report(inputs, options.ranks, options.compute))
    print(*lines, sep="\n")
    if options.write:
        write(lines)
    if options.chart:
        chart(inputs, options.ranks, options.chart)


if __name__ == "__main__":
    main()
