"""Whether ranks or PyMC compute a model's log-density, and messages about it.

`synk.pymc.logp_dlogp` and `synk.pymc.tune` always use ranks. In a block of
`synk.pymc.parallel`, `decide` chooses between ranks and PyMC. If a density has the same
bits on any number of ranks, so should the draws. The choice then depends on the model
alone, and not on ranks, cores or chains. `decide` also lays the chains on ranks in the
fastest way, which changes no bit: one after the other on all ranks, or several at once,
each on a group of ranks.

`rows_if_tiny` finds models that are too small for ranks without making their density:
forking ranks and making it takes some 0.1 s, much of the time to sample such a model.
"""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from timeit import timeit
from typing import Any, NamedTuple

import numpy as np
from pymc import modelcontext
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
from .names import vector_function
from .sharing import LITTLE
from .terms import value_of


def make(model: Any, variables: Sequence[Any] | None, mode: Any) -> Density:
    """Return the density for `synk.pymc.logp_dlogp`; warn of serial terms."""
    model = modelcontext(model)
    values = values_of(model, variables)
    made = _shared(model, values, model.initial_point(0), mode)
    if made.refused:
        warnings.warn(f"synk.pymc: {serial_terms(made)}", stacklevel=callers_level())
    return made


def _shared(model: Any, values: list[Any], start: Any, mode: Any) -> Density:
    """Return the density of a model; raise SplitError if ranks share no term."""
    made = Density(model, values, start, mode)
    if not made.parts:
        raise SplitError(nothing_shared(made))
    return made


def tune(model: Any, mode: Any) -> list[PlanTimes]:
    """Measure a model's density; see `synk.pymc.tune`."""
    model = modelcontext(model)
    if "logp_dlogp_function" in vars(model):  # replaced by the block
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
        ways[BY_PYMC] = vector_function(made, {})
        point = density.start
        calls = [partial(timeit, partial(f, point), number=1) for f in ways.values()]
        firsts = [call() for call in calls]
        times = in_turns(calls)
        density.write_record(dict(zip(ways, times, strict=True)))
    told = [
        PlanTimes(name, took == min(times), took * 1e3, first, None)
        for name, took, first in zip(ways, times, firsts, strict=True)
    ]
    print(plan_table(f"the model {model.name}".rstrip(), told))
    return told


def values_of(model: Any, variables: Sequence[Any] | None) -> list[Any]:
    """Return the value variables of `variables`; raise TypeError if one is discrete.

    None stands for all continuous variables.
    """
    if variables is None:
        return list(model.continuous_value_vars)
    values = [model.rvs_to_values.get(var, var) for var in variables]
    for var in values:
        if not np.issubdtype(var.type.dtype, np.floating):
            raise TypeError(f"{var.name} is discrete: there is no gradient by it")
    return values


# -- what users are told


def serial_terms(density: Density) -> str:
    """Return a sentence about the terms that are computed serially."""
    return f"terms that are computed serially: {_listed(density.faults)}"


def nothing_shared(density: Density) -> str:
    """Return a sentence that says why ranks share no term of a density."""
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
    if len(faults) > 1:
        return f"no term is computed by rows: {_listed(faults)}"
    ((name, why),) = faults.items()
    return f"the term of {name} is not computed by rows: {why}"


def _listed(faults: Mapping[str, str]) -> str:
    return "; ".join(f"{name}, as {why}" for name, why in faults.items())


# -- who computes in a block

TINY = LITTLE / 30
"""So few numbers are too little in any case: a call uses each 30 times at most."""

FEW = 2
"""Ranks compute if this many, with one core each, are faster than PyMC on one core."""


class Decision(NamedTuple):
    """The result of `decide`.

    `ranks` is the number of ranks compared with PyMC. `speed_up` is PyMC's time for the
    chains over that of ranks, measured by `synk.pymc.tune` or predicted; None if
    unknown.
    """

    by_ranks: bool
    plan: GroupPlan
    ranks: int
    speed_up: float | None
    is_measured: bool = False


def decide(density: Density, chains: int, at_most: int) -> Decision:
    """Return whether ranks or PyMC compute a density, and how chains are laid on ranks.

    Call the density before. `at_most` chains run at once if PyMC computes, and at most
    as many on groups of ranks.
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


def rows_if_tiny(model: Any) -> int | None:
    """Return the number of rows of a model, or None if it has more than `TINY` numbers.

    This counts the numbers of the data and of the free variables. None also if their
    types do not fix their shapes.
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
    if sum(math.prod(shape) for shape in shapes) > TINY:
        return None
    return max((shape[0] for shape in map(_shape, values) if shape), default=0)


def _shape(var: Any) -> tuple[int, ...]:
    """Return the shape of a variable's value; () if it holds no array."""
    value = value_of(var)
    return np.shape(value) if isinstance(value, (np.ndarray, np.generic)) else ()
