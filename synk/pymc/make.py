"""`synk.pymc.logp_dlogp` and `synk.pymc.tune`; what users are told of a density."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np

from ..call.tune import in_turns
from ..call.tune import tune as tune_function
from ..errors import SplitError
from ..ranks import forking
from ..report.facts import PlanTimes
from ..report.words import plan_table
from ..user_frames import callers_level
from .density import BY_PYMC, BY_RANKS, Density
from .names import as_plain, present


def make(model: Any, variables: Sequence[Any] | None, mode: Any) -> Density:
    """Return the density of a model; see `synk.pymc.logp_dlogp`."""
    model = present(model)
    values = values_of(model, variables)
    made = Density(model, values, model.initial_point(0), mode)
    if not made.parts:
        raise SplitError(nothing_shared(made))
    if made.refused:
        warnings.warn(f"synk.pymc: {serial_terms(made)}", stacklevel=callers_level())
    return made


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


def values_of(model: Any, variables: Sequence[Any] | None) -> list[Any]:
    """Return the value variables that a gradient is by; none may be discrete."""
    if variables is None:
        return list(model.continuous_value_vars)
    values = [model.rvs_to_values.get(var, var) for var in variables]
    for var in values:
        if not np.issubdtype(var.type.dtype, np.floating):
            raise TypeError(f"{var.name} is discrete: there is no gradient by it")
    return values


def serial_terms(density: Density) -> str:
    """Say which terms are computed serially, beside the others."""
    return f"terms that are computed serially: {_told(density.faults)}"


def nothing_shared(density: Density) -> str:
    """Say why ranks share no term of a density."""
    faults = density.faults
    if not faults:
        text = "no term of this model has data along a dimension: nothing to share"
        if not density.hidden:
            return text
        return (
            f"{text}; what {density.hidden[0]} computes with may lie in the Op, where"
            " it is not seen: give the Op its data as inputs, with an entry for each"
            " row"
        )
    if len(set(faults.values())) > 1:
        return f"no term is computed by rows: {_told(faults)}"
    names, why = ", ".join(faults), next(iter(faults.values()))
    if len(faults) == 1:
        return f"the term of {names} is not computed by rows: {why}"
    return f"the terms of {names} are not computed by rows: {why}"


def _told(faults: Mapping[str, str]) -> str:
    return "; ".join(f"{name}, as {why}" for name, why in faults.items())
