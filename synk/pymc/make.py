"""Who computes a model's log-density, and what users are told of it.

`synk.pymc.logp_dlogp` and `synk.pymc.tune` make it for ranks. In a block PyMC may be
faster, and chains are laid on the ranks. Draws are to have the same bits on any number
of ranks. So who computes follows from the model alone, and not from ranks, cores or
chains, wherever ranks give the same bits in any number. Chains are then laid on ranks
as it is fastest, which changes no bit: one after the other on all ranks, or several at
once, each on a group of them.

Models of so few data that ranks need not be thought of are found without their density:
to have ranks, and to find out what they would share, takes some 0.1 s, which is much of
the time in which such a model is sampled.
"""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
from pytensor.compile import SharedVariable
from pytensor.graph.basic import Constant
from pytensor.graph.traversal import ancestors

from ..call.tune import in_turns
from ..call.tune import tune as tune_function
from ..choice.plan import GroupPlan, plan_groups
from ..errors import SplitError
from ..ranks import forking
from ..ranks.groups import why_no_groups
from ..ranks.session import SESSION
from ..report.facts import PlanTimes
from ..report.words import plan_table
from ..user_frames import callers_level
from .density import BY_PYMC, BY_RANKS, Density
from .names import as_plain, present
from .terms import value_of


def make(model: Any, variables: Sequence[Any] | None, mode: Any) -> Density:
    """Return the density of a model; see `synk.pymc.logp_dlogp`."""
    model = present(model)
    values = values_of(model, variables)
    made = _shared(model, values, model.initial_point(0), mode)
    if made.refused:
        warnings.warn(f"synk.pymc: {serial_terms(made)}", stacklevel=callers_level())
    return made


def _shared(model: Any, values: list[Any], start: Any, mode: Any) -> Density:
    made = Density(model, values, start, mode)
    if not made.parts:
        raise SplitError(nothing_shared(made))
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
        density = _shared(model, values, start, mode)
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


# -- what users are told


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


# -- who computes in a block

FEW = 2
"""Ranks, of one core each, that must be faster than PyMC on one core."""


class Decision(NamedTuple):
    """Who computes: `ranks` of them are compared with PyMC.

    `speed_up` is how many times as fast as by PyMC chains are by ranks, if that is
    known; `synk.pymc.tune` may have measured it.
    """

    by_ranks: bool
    plan: GroupPlan
    ranks: int
    speed_up: float | None
    is_measured: bool = False


def decide(density: Density, chains: int, at_most: int) -> Decision:
    """Return who computes a density that has been called, and how chains are laid.

    At most so many chains may be side by side, and are where PyMC computes.
    """
    ranks, cores = SESSION.size, len(SESSION.cores)

    def by_ranks(ranks: int, cores: int) -> float | None:
        found = density.predicted(ranks, cores)
        return None if found is None else found.by_ranks

    side_by_side = 1 if why_no_groups() else at_most
    plan = plan_groups(chains, side_by_side, ranks, cores, by_ranks)
    rounds = -(-chains // at_most)
    measured, few = density.measured, density.predicted(FEW, FEW)
    is_measured = measured is not None and plan.at_once == 1
    if measured is not None and is_measured:
        gain = measured * rounds / chains
    elif plan.seconds is None or few is None:
        return Decision(True, plan, ranks, None)
    else:
        gain = rounds * few.by_pytensor / plan.seconds
    if not density.has_bits_of_any_ranks:
        return Decision(gain > 1, plan, ranks, gain, is_measured)
    if measured is not None:
        return Decision(measured > 1, plan, ranks, gain, is_measured)
    if few is None or few.by_ranks < few.by_pytensor:
        return Decision(True, plan, ranks, gain)
    return Decision(False, plan, FEW, few.by_pytensor / few.by_ranks)


def rows_if_tiny(model: Any, few: float) -> int | None:
    """Return how many rows a model has; None if it has more than a few numbers.

    Counted are those of the data and of the free variables, as far as types tell.
    """
    values = [model.rvs_to_values[rv] for rv in model.observed_RVs]
    shapes = [
        _shape(var)
        for var in ancestors([*values, *model.observed_RVs, *model.potentials])
        if isinstance(var, (Constant, SharedVariable))
    ]
    shapes += [var.type.shape for var in model.value_vars]
    if any(length is None for shape in shapes for length in shape):
        return None
    if sum(math.prod(shape) for shape in shapes) > few:
        return None
    return max((shape[0] for shape in map(_shape, values) if shape), default=0)


def _shape(var: Any) -> tuple[int, ...]:
    """Return the shape of the array that a variable holds, if it does hold one."""
    value = value_of(var)
    return np.shape(value) if isinstance(value, (np.ndarray, np.generic)) else ()
