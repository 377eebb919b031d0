"""What the model of calls on many nodes measures, with synk's own code.

All is on this machine. Only the last two figures need nodes: masters see others as
bytes, and those of a thousand masters can be made in one process. Each figure is the
least of several.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
import timeit
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from time import perf_counter
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytensor
import pytensor.tensor as pt
from launching import launcher

import synk
from synk.call import calling
from synk.call.outputs import combine_outputs
from synk.cluster.comm import NodesBuffer, NodesComm
from synk.cluster.heads import JOIN, head
from synk.cluster.keeping import Draft, Keeping
from synk.cluster.link import Link, nothing
from synk.cluster.message import Outgoing
from synk.cluster.meter import Meter
from synk.cluster.reduce import NodeReduction
from synk.cluster.translate import dumps, loads
from synk.comm.kernels import Reduction
from synk.memory.partition import part_lengths
from synk.ranks.session import SESSION
from synk.ranks.to_nodes import for_nodes
from synk.reduce_ops import shares

ROWS = 4
"""Of each rank, in the calls that are looked at."""


def least(work: Callable[[], object]) -> float:
    """Return how many seconds something takes, undisturbed if it can be had."""
    timer = timeit.Timer(work)
    once = timer.timeit(1)
    number = max(1, int(0.02 / max(once, 1e-7)))
    return min(once, *(took / number for took in timer.repeat(9, number)))


def likelihood() -> synk.Function:
    """Return a function of rows, whose value and gradient are 200 bytes."""
    x, w = pt.dmatrix("x"), pytensor.shared(np.zeros(24), "w")
    value = ((x @ w) ** 2).sum()
    return synk.function([x], [value, pytensor.grad(value, w)])


def step(size: int) -> synk.Function:
    """Return a training step, which averages so many values and a loss."""
    x, w = pt.dmatrix("x"), pytensor.shared(np.zeros(size), "w")
    loss = ((pt.outer(x[:, 0], w) - 1) ** 2).mean()
    return synk.function([x], loss, updates=[(w, w - 0.1 * pytensor.grad(loss, w))])


class Recorded:
    """A call of a real session: what was launched, and what the ranks replied.

    Parameters
    ----------
    f : synk.Function
    ranks : int
        All ranks of all nodes, for which there are rows.
    """

    def __init__(self, f: synk.Function, ranks: int) -> None:
        self.data = synk.data(np.ones((ROWS * ranks, 24)))
        launched, combined = [], []

        def run_args(session: Any, work: Callable, theirs: tuple, *others: Any) -> list:
            launched.append((work, theirs))
            return run(session, work, theirs, *others)

        def combine(*args: Any) -> list:
            combined.append(args)
            return combine_outputs(*args)

        run = type(SESSION).run_args
        with (
            mock.patch.object(type(SESSION), "run_args", run_args),
            mock.patch.object(calling, "combine_outputs", combine),
        ):
            f(self.data)
        self.work, (told,) = launched[-1]
        self._spec, self._subset, replies, self._context, self._what = combined[-1]
        self._own, *self._replies = replies
        self._told = told

    def command(self, nodes: int, ranks: int, keeping: Keeping) -> Outgoing:
        """Return the call as it is sent to so many nodes."""
        number, subset, (*_, sources), *others = self._told
        bounds = self.bounds(nodes, ranks)
        selection = 0, bounds[-1]
        told = number, subset, (selection, bounds, sources), *others
        comm = SimpleNamespace(ranks=[ranks] * nodes, size=ranks * nodes)
        context = _Instead(SESSION.context, comm=comm, size=comm.size)
        return for_nodes(self.work, (told,), (), 1, context, Draft(keeping))

    def kept(self, nodes: int, ranks: int) -> Callable[[], Outgoing]:
        """Return what makes the command once more, when nodes keep the rows."""
        keeping = Keeping(room=1 << 40)
        draft = self.command(nodes, ranks, keeping).draft
        assert draft is not None
        keeping.sent(draft)
        return partial(self.command, nodes, ranks, keeping)

    @staticmethod
    def bounds(nodes: int, ranks: int) -> list[int]:
        """Return where the rows of all ranks begin and end."""
        return [ROWS * i for i in range(nodes * ranks + 1)]

    def reply(self) -> bytes:
        """Return what a node says for its ranks: one fewer than the session has."""
        return dumps(self._replies, SESSION.context.array)

    def combine(self, given: Sequence[bytes]) -> list:
        """Do what node 0 does with the replies of all nodes."""
        others = [reply for of_node in given for reply in loads(of_node)]
        replies = [self._own, *others]
        return combine_outputs(
            self._spec, self._subset, replies, self._context, self._what
        )


@contextlib.contextmanager
def oversubscribed(ranks: int) -> Iterator[None]:
    """Have a session of more ranks than there may be cores."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", synk.OversubscriptionWarning)
        with synk.session(ranks):
            yield


class _Instead:
    """An object with another value of some attribute."""

    def __init__(self, whole: Any, **others: Any) -> None:
        self._whole = whole
        vars(self).update(others)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._whole, name)


def heads(nodes: int) -> float:
    """Return the seconds of Python in a round in which all join."""
    link = object.__new__(Link)
    packed = head(JOIN, 3, b"x" * 200).packed()
    link._all = np.frombuffer(packed * nodes, np.uint8).reshape(nodes, -1)

    over = SimpleNamespace(Test=lambda: True)
    link._then, link._then_is_short = None, False
    link.node, link.meter = 0, Meter()

    def end() -> None:
        link._begun = [over]
        assert link.finish(nothing).are_all(JOIN)

    return least(end)


def rows_of_ranks(nodes: int, ranks: int) -> float:
    """Return the seconds in which a rank finds what all ranks weigh."""
    bounds = Recorded.bounds(nodes, ranks)
    comm = SimpleNamespace(ranks=[ranks] * nodes)

    def weigh() -> None:
        weights = part_lengths(bounds)
        np.array(shares(NodesComm.by_node(comm, weights)))

    return least(weigh)


def by_rank(nodes: int, ranks: int, nbytes: int) -> float:
    """Return the seconds in which a master combines few values of all ranks."""
    values = np.ones((ranks, nbytes // 8))
    every = np.empty((nodes * ranks, nbytes // 8))
    out = np.empty((1, nbytes // 8))
    buffer = SimpleNamespace(_by_rank=[(None, every, Reduction("avg", every, out, 0))])
    link = SimpleNamespace(meter=Meter())
    comm = SimpleNamespace(ranks=[ranks] * nodes, link=link)
    given, weights = [values.tobytes()] * nodes, [ROWS] * (nodes * ranks)
    took = least(lambda: NodesBuffer._reduce_ranks(buffer, comm, given, weights))
    np.testing.assert_allclose(out, 1.0)
    return took


def part(nodes: int, nbytes: int) -> float:
    """Return the seconds in which a master reduces its part of values."""
    values = np.ones(nbytes // 4, np.float32)
    nothing = lambda *_: None  # noqa: E731
    link = SimpleNamespace(size=nodes, node=0, meter=Meter())
    link.all_to_all = link.gather_parts = nothing
    reduction = NodeReduction(link, "avg", values)
    reduction._rows[...] = 1.0
    return least(lambda: reduction.run([1.0] * nodes))


MESSAGES = """
from time import perf_counter
import numpy as np
from mpi4py import MPI
comm, found = MPI.COMM_WORLD, []
other, n = 1 - comm.rank, 512
for _ in range(60):
    data = np.zeros((2, n, 64), np.uint8)
    comm.Barrier()
    start = perf_counter()
    made = [comm.Irecv([each, MPI.BYTE], other) for each in data[0]]
    made += [comm.Isend([each, MPI.BYTE], other) for each in data[1]]
    MPI.Request.Waitall(made)
    found.append((perf_counter() - start) / n / 2)
if comm.rank == 0:
    print(min(found))
"""


def of_messages() -> float:
    """Return the seconds that one of many small messages by TCP takes at each end."""
    tcp = ["--mca", "pml", "ob1", "--mca", "btl", "self,tcp"]
    return float(_on_two_nodes([*tcp, sys.executable], MESSAGES)[0])


def of_launch() -> float:
    """Return the seconds of a job of two nodes that forks ranks, and ends."""
    script, found = "import synk\nsynk.fork(1)\n", []
    for _ in range(3):
        start = perf_counter()
        _on_two_nodes([sys.executable, "-m", "synk"], script)
        found.append(perf_counter() - start)
    return min(found)


def _on_two_nodes(words: list[str], script: str) -> list[str]:
    launch, environment = launcher("openmpi", 2)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "script.py"
        path.write_text(script)
        done = subprocess.run(
            [*launch, *words, str(path)],
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
    return done.stdout.split()


def within(nbytes: int) -> float:
    """Return the seconds of an all-reduce in the shared memory of two ranks."""
    v = pytensor.shared(np.ones(nbytes // 4, np.float32), "v")
    synk.all_reduce([v], "avg")
    return least(lambda: synk.all_reduce([v], "avg"))


def on_one_machine() -> float:
    """Return the seconds of a call of an empty function on two ranks."""
    f = synk.function([], [])
    for _ in range(5):
        f()
    return least(f)


def measured(
    nodes: Sequence[int], ranks: int, gradients: int, few: int
) -> dict[str, list[float]]:
    """Return all figures by the names that `scaling.INPUTS` has."""
    found: dict[str, list[float]] = {}

    def note(name: str, scale: float, *values: float) -> None:
        found[name] = [float(f"{value * scale:.3g}") for value in values]

    note("heads of a round, us", 1e6, *map(heads, nodes))
    note("rows of all ranks, us", 1e6, *(rows_of_ranks(n, ranks) for n in nodes))
    note("200 bytes by rank, us", 1e6, *(by_rank(n, ranks, few) for n in nodes))
    note("part of 102 MB, ms", 1e3, *(part(n, gradients) for n in nodes))
    with oversubscribed(ranks + 1):
        made = likelihood(), step(25)
        whole, small = (Recorded(f, ranks * max(nodes)) for f in made)
        commands = [whole.kept(n, ranks) for n in nodes]
        note("command, us", 1e6, *map(least, commands))
        note("command, bytes", 1, *(len(command().message) for command in commands))
        for call, one, many in (
            (whole, "reply", "replies"),
            (small, "reply of a step", "replies of a step"),
        ):
            given = call.reply()
            note(f"{one}, bytes", 1, len(given))
            times = [least(partial(call.combine, [given] * n)) for n in nodes]
            note(f"{many}, us", 1e6, *times)
    with synk.session(2):
        note("call on one machine, us", 1e6, on_one_machine())
        note("102 MB within a node, ms", 1e3, within(gradients))
    note("message by TCP, us", 1e6, of_messages())
    note("launch, s", 1, of_launch())
    return found
