"""What a run measures, how time is taken, and what is asked of what is compiled.

A question about a column has it prepared and built when it is first asked. Preparing
makes the data and is never timed; building is what the first call has to wait for. What
prepares is a generator: it yields when the data are there, and then what was built.
"""

import functools
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True)
class Options:
    """Sizes and repeats; seconds where nothing else is said."""

    ranks: int  # processes of what is data-parallel
    cores: int  # threads of what is not
    repeats: int = 11  # rounds
    # Before every turn, for what the last one has left running: BLAS and OpenMP threads
    # look out for more work for some time after a call.
    pause: float = 0.2
    look: float = 1  # at whether the machine is idle
    turn: float = 0.2  # of calls; one call at least
    mode: str | None = None  # PyTensor's; by default the one that comes
    points: int = 1_000_000  # rows of the likelihoods
    observed: int = 200_000  # rows of PyMC's models
    chains: tuple[int, ...] = (1_000, 3_000, 10_000, 30_000, 100_000, 300_000)
    layers: tuple[int, ...] = (784, 800, 800, 10)
    rows: int = 8192  # of a network's data
    steps: tuple[str, ...] = ("relu 512", "relu 4096", "tanh 512")
    each: int = 128  # rows of a rank's step, by a rule
    filters: tuple[int, ...] = (32, 64)  # of a convolutional network, by layer
    units: tuple[int, ...] = (800, 10)  # of its dense layers
    side: int = 28  # pixels of its images in a row
    images: tuple[str, ...] = ("cnn 64",)
    columns: tuple[str, ...] = ()  # what a peer is asked for
    nbytes: tuple[int, ...] = (4, 65_536, 5_000_000, 100_000_000)  # of all-reduces
    shape: tuple[int, int] = (512, 784)  # of the array that tasks are called with
    start_limit: float = 240
    ask_limit: float = 600  # compiling included
    end_limit: float = 10


class Place(NamedTuple):
    """Which process of a peer this is."""

    rank: int
    size: int
    folder: str


Question = Callable[[int], object]


def timed(
    call: Callable[[], object], together: Callable[[], object] | None = None
) -> Callable[[int], float]:
    """Return a function that makes so many calls and returns the seconds of one.

    Where several processes begin together, `together` is a barrier.
    """

    def measure(number: int) -> float:
        call()  # wakes threads and fills caches after the others' turns
        if together is not None:
            together()
        start = time.perf_counter()
        for _ in range(number):
            call()
        return (time.perf_counter() - start) / number

    return measure


class Work(NamedTuple):
    """What was built."""

    call: Callable[[], object]  # is timed; returns when its results are there
    check: Callable[[int], list[float]]  # makes some steps; returns what is to be right
    tune: Callable[[], str | None] = lambda: None  # a first call; how it is computed


def questions(
    columns: Iterable[str],
    prepare: Callable[[str], Iterator[Work | None]],
    together: Callable[[], object] | None = None,
) -> dict[str, Question]:
    """Return the questions about each column."""
    found: dict[str, Question] = {}
    for column in columns:
        of_column = _Column(functools.partial(prepare, column), together)
        found |= {
            f"{name} {column}": getattr(of_column, name)
            for name in ("run", "tune", "check", "time")
        }
    return found


class _Column:
    def __init__(self, prepare: Callable, together: Callable | None) -> None:
        self._prepare, self._together = prepare, together

    @functools.cached_property
    def _prepared(self) -> Iterator[Work]:
        prepared = self._prepare()
        next(prepared)
        return prepared

    @functools.cached_property
    def _work(self) -> Work:
        return next(self._prepared)

    def run(self, _: int) -> float:
        """Return the seconds of building and the first call."""
        assert self._prepared
        began = time.perf_counter()
        self._work.call()
        return time.perf_counter() - began

    def tune(self, _: int) -> str | None:
        return self._work.tune()

    def check(self, number: int) -> list[float]:
        return [float(value) for value in self._work.check(number)]

    def time(self, number: int) -> float:
        return timed(self._work.call, self._together)(number)
