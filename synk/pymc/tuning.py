"""`synk.pymc.tune`: a model's log-density by its plans, and by PyMC, measured."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import Any

from ..call.tune import in_turns
from ..call.tune import tune as tune_function
from ..errors import SplitError
from ..ranks import forking
from ..report.facts import PlanTimes
from ..report.words import plan_table
from .density import BY_PYMC, BY_RANKS, Density
from .make import nothing_shared, values_of
from .names import as_plain, present


def tune(model: Any, mode: Any) -> list[PlanTimes]:
    """Measure a model's density; see `synk.pymc.tune`."""
    model = present(model)
    if "logp_dlogp_function" in vars(model):  # which is not PyMC's own there
        raise ValueError("tune a model before a block of synk.pymc.parallel, not in it")
    values, start = values_of(model, None), model.initial_point(0)
    with contextlib.ExitStack() as stack:
        if not forking.is_forked():
            stack.enter_context(forking.session())
        density = Density(model, values, start, mode)
        if not density.parts:
            raise SplitError(nothing_shared(density))
        for part in density.parts:
            tune_function(part.function, *part.arguments(density.start))
        made = model.logp_dlogp_function(values, initial_point=start, ravel_inputs=True)
        made.set_extra_values(start)
        ways: dict[str, Callable[[Any], Any]] = {BY_RANKS: density}
        ways[BY_PYMC] = as_plain(made, {})
        calls = [partial(_timed, way, density.start) for way in ways.values()]
        firsts = [call() for call in calls]
        times = in_turns(calls)
        density.keep(dict(zip(ways, times, strict=True)))
    told = [
        PlanTimes(name, took == min(times), took * 1e3, first, None)
        for name, took, first in zip(ways, times, firsts, strict=True)
    ]
    print(plan_table(f"the model {model.name}".rstrip(), told))
    return told


def _timed(way: Callable[[Any], Any], values: Any) -> float:
    """Return the seconds of a call."""
    start = perf_counter()
    way(values)
    return perf_counter() - start
