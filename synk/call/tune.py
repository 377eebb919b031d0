"""`synk.tune`: measures by which plan a function is fastest.

It times each plan by calls that it undoes, in turns with the other plans.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from time import perf_counter, sleep
from typing import Any

from ..report.facts import PlanTimes
from ..report.words import plan_table
from ..user_frames import entry
from .bound import BoundCall, Options
from .finite import updates_kept
from .function import Function
from .plans import Planned, Plans, is_of_engine
from .variant import Variant

TURNS = 7
"""The number of turns of each plan."""

ENOUGH = 0.02
"""Seconds of calls in a turn: short calls are fastest after some repetitions."""

FAR = 2.0
"""A plan gets no turns if its first calls take this many times the fastest plan's."""

SETTLE = 5e-3
"""Seconds to wait before a turn, until the workers' threads stop looking for work."""


@entry
def tune(
    function: Function,
    *args: Any,
    batch: Any = None,
    batch_s: Any = None,
    **kwargs: Any,
) -> list[PlanTimes]:
    """Measure by which plan a function is computed fastest, and print the table.

    Without this, rules choose the plan from the graph and the sizes. Here every
    possible plan makes some calls, which are undone: each engine, in blocks of rows or
    at once, by all ranks or by rank 0 alone. The fastest plan is written to a record,
    and used from then on for calls of about as many rows, in later runs as well. The
    record lies beside PyTensor's compiled code, or in the file that ``SYNK_PLANS``
    names. ``python -m synk tune`` lists records and clears them.

    Parameters
    ----------
    function : Function
    *args, batch, batch_s, **kwargs
        As in a call.

    Returns
    -------
    list of PlanTimes
        The rows of the table. Empty for a function whose `mode` is named, or that
        draws random numbers: then nothing is done.

    Raises
    ------
    StateError
        If not forked.
    TypeError, ValueError, IndexError
        If an argument does not fit.

    Examples
    --------
    >>> import numpy as np, pytensor.tensor as pt, synk
    >>> x = pt.matrix("x")
    >>> f = synk.function([x], pt.log1p(x).sum())
    >>> with synk.session(2):
    ...     table = synk.tune(f, np.ones((1000, 20)))  # doctest: +SKIP
    """
    function._bound = None  # the next call may have another plan
    variant, values, how = function._variant_for(args, kwargs, Options(batch, batch_s))
    measured = _tuned(variant, values, how)
    print(plan_table(repr(function), measured))
    return measured


class _RolledBack(Exception):
    """Raised in a launch, to undo it."""


def _tuned(variant: Variant, values: Sequence[Any], how: Options) -> list[PlanTimes]:
    """Time every plan by calls that are undone, and settle on the fastest."""
    bound = BoundCall(variant, values, how)
    given, rows = bound.values_of(values), bound.rows.total

    def seconds(planned: Planned) -> float:
        """Make a call and undo it; return the seconds that the call took."""
        is_alone = planned.plan.is_alone
        variant.prepare(is_alone)
        bound.use_plan(planned, is_alone)
        restore, made = updates_kept(variant.spec), 0.0

        def roll_back(number: int, results: list) -> None:
            nonlocal made
            made = perf_counter()
            raise _RolledBack

        start = perf_counter()
        try:
            with contextlib.suppress(_RolledBack):
                bound.attempt(given, roll_back)
        finally:
            restore()
        return made - start

    candidates = variant.plans.possible_plans(rows, given.arrays)
    try:
        return _compare(variant.plans, rows, candidates, seconds)
    finally:
        variant.prepare(False)


def _compare(
    plans: Plans,
    rows: int,
    candidates: list[Planned],
    seconds: Callable[[Planned], float],
) -> list[PlanTimes]:
    """Time plans, and settle on the fastest for calls of about `rows` rows.

    An engine that cannot compute the function is left out, if another one can.
    """
    firsts: dict[int, float] = {}
    failed: dict[int, str] = {}
    times: dict[int, float] = {}
    for k, each in enumerate(candidates):
        try:
            firsts[k] = seconds(each)
            times[k] = _typical(partial(seconds, each))
        except Exception as error:
            if not is_of_engine(error) or len(failed) == len(candidates) - 1:
                raise
            failed[k] = f"failed: {error!r:.60}"
    if not times:
        return []
    left = [k for k, took in times.items() if took < FAR * min(times.values())]
    turns = in_turns([partial(seconds, candidates[k]) for k in left])
    times |= dict(zip(left, turns, strict=True))
    best = min(left, key=lambda k: times[k])
    measured = {candidates[k].plan.name: took for k, took in times.items()}
    plans.settle(rows, candidates[best], measured)
    plans.measured = []
    for k, each in enumerate(candidates):
        took = times[k] * 1e3 if k in times else None
        found = each.plan.name, k == best, took, firsts.get(k), failed.get(k)
        plans.measured.append(PlanTimes(*found))
    return plans.measured


def in_turns(calls: Sequence[Callable[[], float]]) -> list[float]:
    """Return the median of each call's seconds, over turns; calls return seconds."""
    turns = range(TURNS if len(calls) > 1 else 1)
    rounds = [[_typical(call) for call in calls] for _ in turns]
    return [median(of_it) for of_it in zip(*rounds, strict=True)]


def _typical(call: Callable[[], float]) -> float:
    """Return the median seconds of a call, repeated for `ENOUGH` seconds."""
    sleep(SETTLE)
    end, found = perf_counter() + ENOUGH, [call()]
    while perf_counter() < end:
        found.append(call())
    return median(found)
