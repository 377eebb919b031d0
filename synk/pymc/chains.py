"""Who computes a model's log-density, and how its chains are laid on the ranks.

Draws are to have the same bits on any number of ranks. So who computes follows from the
model alone, and not from ranks, cores or chains, wherever ranks give the same bits in
any number. Chains are then laid on ranks as it is fastest, which changes no bit: one
after the other on all ranks, or several at once, each on a group of them.

Models of so few data that ranks need not be thought of are found without their density:
to have ranks, and to find out what they would share, takes some 0.1 s, which is much of
the time in which such a model is sampled.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from pytensor.compile import SharedVariable
from pytensor.graph.basic import Constant
from pytensor.graph.traversal import ancestors

from ..choice.plan import GroupPlan, plan_groups
from ..ranks.groups import why_no_groups
from ..ranks.session import SESSION
from .density import Density

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
    is_measured: bool


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
    is_measured = False
    if measured is not None and plan.at_once == 1:
        is_measured = True
        gain = measured * rounds / chains
    elif plan.seconds is None or few is None:
        return Decision(True, plan, ranks, None, False)
    else:
        gain = rounds * few.by_pytensor / plan.seconds
    if not density.has_bits_of_any_ranks:
        return Decision(gain > 1, plan, ranks, gain, is_measured)
    if measured is not None:
        return Decision(measured > 1, plan, ranks, gain, is_measured)
    if few is None or few.by_ranks < few.by_pytensor:
        return Decision(True, plan, ranks, gain, False)
    return Decision(False, plan, FEW, few.by_pytensor / few.by_ranks, False)


def rows_if_tiny(model: Any, few: float) -> int | None:
    """Return how many rows a model has; None if it has more than a few numbers.

    Counted are those of the data and of the free variables, as far as types tell.
    """
    found: set[Any] = set()
    values = [model.rvs_to_values[rv] for rv in model.observed_RVs]
    for var in ancestors([*values, *model.observed_RVs, *model.potentials]):
        if isinstance(var, (Constant, SharedVariable)):
            found.add(var)
    shapes = [_shape(var) for var in found]
    shapes += [var.type.shape for var in model.value_vars]
    if any(length is None for shape in shapes for length in shape):
        return None
    if sum(math.prod(shape) for shape in shapes) > few:
        return None
    seen = [np.shape(_value(var)) for var in values]
    return max((shape[0] for shape in seen if shape), default=0)


def _value(var: Any) -> Any:
    """Return what a variable that holds something holds; of others nothing is known."""
    if isinstance(var, SharedVariable):
        return var.get_value(borrow=True)
    return var.data if isinstance(var, Constant) else 0


def _shape(var: Any) -> tuple[int, ...]:
    value = _value(var)
    return np.shape(value) if isinstance(value, (np.ndarray, np.generic, float)) else ()
