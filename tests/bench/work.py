"""What a run measures, how time is taken, and what is asked of what is compiled.

A question about a column has it prepared and built when it is first asked. Preparing
makes the data and is never timed; building is what the first call has to wait for.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True)
class Options:
    """Sizes and repeats.

    Attributes
    ----------
    ranks : int
        Processes of what is data-parallel.
    cores : int
        Threads of what is not.
    repeats : int
        Rounds.
    pause : float
        Seconds before every turn, for what the last one has left running: BLAS and
        OpenMP threads look out for more work for some time after a call.
    look : float
        Seconds of a look at whether peers are idle; there are some at the start.
    turn : float
        Seconds of calls in one turn, about; one call at least.
    follow : float
        Seconds from the first call on that synk is watched for, as it comes: until
        its fast engine runs.
    mode : str, optional
        PyTensor's; by default the one that comes.
    points : int
        Rows of the likelihoods.
    layers, rows, steps, alone : tuple, int, tuple, int
        The network, the rows of its data, the training steps, as `networks` names
        them, and the batch of a rank alone.
    filters, units, side, images : tuple, tuple, int, tuple
        Of the convolutional network: filters by layer, units of the dense layers,
        pixels of an image in a row, and its training steps.
    columns : tuple of str
        The training steps that a peer is asked for.
    nbytes : tuple of int
        Sizes of all-reduces, in bytes.
    shape : tuple of int
        The array that tasks are called with.
    start_limit, ask_limit, end_limit : float
        Seconds that a peer may take to start, to answer (compiling included), to end.
    oversubscribe : bool
        Let mpirun start more processes than it finds cores.
    """

    ranks: int
    cores: int
    repeats: int = 11
    pause: float = 0.2
    look: float = 1
    turn: float = 0.2
    follow: float = 60
    mode: str | None = None
    points: int = 1_000_000
    layers: tuple[int, ...] = (784, 800, 800, 10)
    rows: int = 8192
    steps: tuple[str, ...] = ("relu 512", "relu 4096", "tanh 512")
    alone: int = 256
    filters: tuple[int, ...] = (32, 64)
    units: tuple[int, ...] = (800, 10)
    side: int = 28
    images: tuple[str, ...] = ("cnn 64",)
    columns: tuple[str, ...] = ()
    nbytes: tuple[int, ...] = (4, 65_536, 5_000_000, 100_000_000)
    shape: tuple[int, int] = (512, 784)
    start_limit: float = 240
    ask_limit: float = 600
    end_limit: float = 10
    oversubscribe: bool = False


class Place(NamedTuple):
    """Which process of a peer this is."""

    rank: int
    size: int
    folder: str


Question = Callable[[int], object]


def timed(
    call: Callable[[], object],
    together: Callable[[], object] | None = None,
    done: Callable[[], object] | None = None,
) -> Callable[[int], float]:
    """Return a function that makes so many calls and returns the seconds of one.

    Parameters
    ----------
    call : callable
    together : callable, optional
        A barrier, where several processes begin together.
    done : callable, optional
        Waits for what the last call has left running.
    """

    def measure(number: int) -> float:
        call()  # wakes threads and fills caches after the others' turns
        if done is not None:
            done()
        if together is not None:
            together()
        start = time.perf_counter()
        for _ in range(number):
            call()
        if done is not None:
            done()
        return (time.perf_counter() - start) / number

    return measure


class Work(NamedTuple):
    """What was built.

    Attributes
    ----------
    call : callable
        What is timed; returns when its results are there.
    check : callable
        Called with a number of steps; returns numbers that are to be right.
    tune : callable, optional
        Has it choose how to compute, and returns what it has chosen.
    """

    call: Callable[[], object]
    check: Callable[[int], list[float]]
    tune: Callable[[], str | None] = lambda: None


def questions(
    columns: Iterable[str],
    prepare: Callable[[str], Callable[[], Work]],
    together: Callable[[], object] | None = None,
) -> dict[str, Question]:
    """Return the questions about each column.

    Parameters
    ----------
    columns : iterable of str
    prepare : callable
        Called with a column, once; returns what builds, and is called once, too.
    together : callable, optional
        A barrier, where several processes begin together.
    """
    found: dict[str, Question] = {}
    for column in columns:
        built = functools.cache(functools.partial(_build, prepare, column))
        found |= {
            f"run {column}": functools.partial(_run, built),
            f"tune {column}": functools.partial(_tune, built),
            f"check {column}": functools.partial(_check, built),
            f"time {column}": functools.partial(_time, built, together),
        }
    return found


def _build(prepare: Callable, column: str) -> tuple[Work, float]:
    """Return the work, and the seconds that it took to build."""
    build = prepare(column)
    began = time.perf_counter()
    return build(), time.perf_counter() - began


def _run(built: Callable[[], tuple[Work, float]], seconds: float) -> list[float]:
    """Build and call, and go on for so long; return the seconds of each call.

    Those of the first one include building.
    """
    work, building = built()
    times: list[float] = []
    began = time.perf_counter()
    end = began - building + seconds
    while not times or began < end:
        work.call()
        ended = time.perf_counter()
        times.append(ended - began)
        began = ended
    return [building + times[0], *times[1:]]


def _tune(built: Callable[[], tuple[Work, float]], _: float) -> str | None:
    return built()[0].tune()


def _check(built: Callable[[], tuple[Work, float]], number: int) -> list[float]:
    return [float(value) for value in built()[0].check(number)]


def _time(
    built: Callable[[], tuple[Work, float]],
    together: Callable[[], object] | None,
    number: int,
) -> float:
    return timed(built()[0].call, together)(number)
