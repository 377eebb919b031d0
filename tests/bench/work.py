"""What every implementation of something that is compiled is asked.

A question about a column has it prepared and built when it is first asked. Preparing
makes the data and is never timed; building is what the first call has to wait for.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

from .timing import Question, timed


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
