"""Who computes a model's log-density, and how its chains are laid on the ranks.

Draws are to have the same bits on any number of ranks. So who computes follows from the
model alone, and not from ranks, cores or chains, wherever ranks give the same bits in
any number. Chains are then laid on ranks as it is fastest, which changes no bit: one
after the other on all ranks, or several at once, each on a group of them.
"""

from __future__ import annotations

from typing import NamedTuple

from ..choice.plan import GroupPlan, plan_groups
from ..ranks.groups import why_no_groups
from ..ranks.session import SESSION
from .density import Density

FEW = 2
"""Ranks, of one core each, that must be faster than PyMC on one core."""


class Decision(NamedTuple):
    """Who computes.

    Attributes
    ----------
    by_ranks : bool
        Whether that is faster.
    plan : GroupPlan
        Of the chains.
    ranks : int
        So many are compared with PyMC.
    speed_up : float or None
        How many times as fast as by PyMC chains are by ranks; None if it is not known.
    is_measured : bool
        Whether that is so by `synk.pymc.tune`.
    """

    by_ranks: bool
    plan: GroupPlan
    ranks: int
    speed_up: float | None
    is_measured: bool


def decide(density: Density, chains: int, at_most: int) -> Decision:
    """Return who computes a density, and how chains are laid on ranks.

    Parameters
    ----------
    density : Density
        It has been called.
    chains : int
    at_most : int
        So many may be side by side, and are where PyMC computes.
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
