"""All plans of a function, timed by calls that are undone; see `synk.tune`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from time import perf_counter, sleep
from typing import Any

from ..report.facts import PlanTimes
from .bound import BoundCall, How
from .dry_run import DryRun
from .plans import Planned, Plans, is_of_engine
from .variant import Variant

TURNS = 7
"""How often each plan makes calls, in turns with the others."""

ENOUGH = 0.02
"""Seconds of the calls of a turn: short ones take some to be as fast as they get."""

FAR = 2.0
"""A plan whose first calls take so many times as long as the fastest makes no more."""

SETTLE = 5e-3
"""Seconds that threads of other ranks look for work, after calls of theirs."""


def tuned(variant: Variant, values: Sequence[Any], how: How) -> list[PlanTimes]:
    """Time every plan on calls that are undone, and have the fastest make calls.

    Parameters
    ----------
    variant : Variant
        Of the function.
    values : sequence of Data or array_like
        The arguments of a call.
    """
    bound = BoundCall(variant, values, how)
    given, rows = bound.given(values), bound.rows.total
    alone = variant.alone

    def seconds(planned: Planned) -> float:
        is_alone = planned.plan.is_alone
        alone.change(is_alone)
        bound.by(planned, is_alone)
        start = perf_counter()
        with DryRun(variant.spec) as run:
            bound.once(given, run.roll_back)
        return run.made - start

    candidates = variant.plans.possible(rows, given.arrays)
    try:
        return compare(variant.plans, rows, candidates, seconds)
    finally:
        alone.change(False)


def compare(
    plans: Plans,
    rows: int,
    candidates: list[Planned],
    seconds: Callable[[Planned], float],
) -> list[PlanTimes]:
    """Time plans, and have the fastest make calls of about so many rows.

    Parameters
    ----------
    rows : int
        Of a call.
    seconds : callable
        Makes a call, and returns what it takes.

    Raises
    ------
    Exception
        What `seconds` raises, but for an engine that cannot compute the function where
        another one can.
    """
    firsts: dict[int, float] = {}
    failed: dict[int, str] = {}
    times: dict[int, list[float]] = {}
    for k, each in enumerate(candidates):
        try:
            firsts[k] = seconds(each)
            times[k] = [_typical(partial(seconds, each))]
        except Exception as error:
            if not is_of_engine(error) or len(failed) == len(candidates) - 1:
                raise
            failed[k] = f"failed: {error!r:.60}"
    left = [k for k, of_it in times.items() if of_it[0] < FAR * _least(times)]
    turns = in_turns([partial(seconds, candidates[k]) for k in left])
    typical = {k: of_it[0] for k, of_it in times.items()}
    typical |= dict(zip(left, turns, strict=True))
    if not typical:
        return []
    best = min(left, key=lambda k: typical[k])
    measured = {candidates[k].plan.name: value for k, value in typical.items()}
    plans.settle(rows, candidates[best], measured)
    plans.measured = [
        PlanTimes(
            each.plan.name,
            k == best,
            typical[k] * 1e3 if k in typical else None,
            firsts.get(k),
            failed.get(k),
        )
        for k, each in enumerate(candidates)
    ]
    return plans.measured


def _least(times: dict[int, list[float]]) -> float:
    return min(of_it[0] for of_it in times.values())


def in_turns(calls: Sequence[Callable[[], float]]) -> list[float]:
    """Return the seconds of calls, the medians of several turns of each.

    Parameters
    ----------
    calls : sequence of callable
        Each makes a call, and returns what it takes.
    """
    turns = range(TURNS if len(calls) > 1 else 1)
    rounds = [[_typical(call) for call in calls] for _ in turns]
    return [median(of_it) for of_it in zip(*rounds, strict=True)]


def _typical(call: Callable[[], float]) -> float:
    """Return the seconds of a call, the middle of calls of `ENOUGH`."""
    sleep(SETTLE)
    end, found = perf_counter() + ENOUGH, [call()]
    while perf_counter() < end:
        found.append(call())
    return median(found)
