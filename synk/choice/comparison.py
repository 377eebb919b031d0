"""All engines of a trial, compared at once by calls that are made for their time.

Those that are close take turns, a few calls each: what else the machine does for a
tenth of a second hits one of them, and for a second all.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from statistics import median

from .trial import CLOSE, FAR, ROUNDS, SETTLE, Candidate, Trial, are_alike

TIMED, DOUBTFUL = 5, 15
"""How many turns each has, and the most while it is in doubt which is fastest."""

ENOUGH = 0.01
"""Seconds of calls that give one time: short calls take some to be as fast as they get,
and a few of them are within what the machine does besides."""


def compare(
    trial: Trial,
    rows: int,
    taken: Callable[[Candidate], float],
    is_steady: Callable[[Candidate], bool],
    failed: Callable[[Exception], str | None],
) -> None:
    """Settle a trial.

    Parameters
    ----------
    trial : Trial
        None of its candidates has made a call.
    rows : int
        Of each call.
    taken : callable
        Makes a call by one of them, and returns the seconds that it took.
    is_steady : callable
        Tells whether more calls of one are expected to take as long.
    failed : callable
        Returns why an engine cannot make calls, where an error tells; or None.

    Raises
    ------
    Exception
        What `taken` raises, but for errors of an engine where another is left.
    """

    def of_row(each: Candidate) -> float:
        return taken(each) / max(rows, 1)

    for each in trial.candidates:
        each.times = deque()  # all of them count
        try:
            each.compiled = taken(each)
        except Exception as error:
            why = failed(error)
            if why is None or not trial.drop(each, why):
                raise
        _first_calls(trial, each, of_row, is_steady)
    left = [each for each in trial.candidates if each.dropped is None]
    for each in left:
        each.times.clear()  # they were made at different times
    for k in range(DOUBTFUL):
        if not left or (k >= TIMED and not trial.is_in_doubt()):
            break
        before = None
        for each in left:
            if before is None or not are_alike(each, before):
                time.sleep(SETTLE)  # of what was before, threads look for work
            _typical(each, of_row)
            each.times.extend(_typical(each, of_row) for _ in range(ROUNDS))
            before = each
        if k:  # one turn may have been in a bad moment
            left = trial.close(CLOSE if k > 1 else FAR)
    trial.settle()


def _first_calls(
    trial: Trial,
    each: Candidate,
    of_row: Callable[[Candidate], float],
    is_steady: Callable[[Candidate], bool],
) -> None:
    """Drop one that is slower by far, after a call or two.

    Parameters
    ----------
    trial, each
    of_row : callable
        Makes a call, and returns the seconds that it took for each row.
    is_steady : callable
    """
    while each.dropped is None and not is_steady(each):
        each.unsteady.append(of_row(each))
        trial.drop_if_far(each)
    if each.dropped is not None:
        return
    first = [of_row(each)]
    if each.after is None:
        each.times.extend(first)
        return
    while trial.drop_if_slow(each, first):
        first.append(of_row(each))


def _typical(each: Candidate, of_row: Callable[[Candidate], float]) -> float:
    """Return the seconds of a call for each row, the middle of calls of `ENOUGH`."""
    end, calls = time.perf_counter() + ENOUGH, [of_row(each)]
    while time.perf_counter() < end:
        calls.append(of_row(each))
    return median(calls)
