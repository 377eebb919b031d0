"""How tasks that never meet, as chains, are laid on ranks: so many at once, by groups.

Calls by few ranks meet sooner than calls by many, and tasks side by side end one before
the other. What is fastest follows from the seconds of a call by so many ranks; the bits
of the tasks do not depend on it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

UNEVEN = 1.05
"""How many times as long as a task takes the slowest of several side by side takes."""


class GroupPlan(NamedTuple):
    """So many tasks at once, each by a group of so many ranks.

    Attributes
    ----------
    at_once : int
    ranks : int
        If it is one at once, of those that have a core.
    seconds : float or None
        That a call of every task takes, where that follows.
    """

    at_once: int
    ranks: int
    seconds: float | None


def plan_groups(
    tasks: int,
    at_most: int,
    ranks: int,
    cores: int,
    seconds: Callable[[int, int], float | None],
) -> GroupPlan:
    """Return how tasks are laid on ranks.

    Parameters
    ----------
    tasks : int
    at_most : int
        So many may be side by side, and not more than there are cores.
    ranks, cores : int
        There are so many.
    seconds : callable
        Returns those of a call by so many ranks that have so many cores together, or
        None if they do not follow: then tasks are computed one after the other.
    """
    found = []
    for at_once in range(1, max(min(tasks, at_most, cores), 1) + 1):
        share = cores // at_once
        each = max(min(ranks // at_once, share), 1)  # ranks without cores take turns
        of_call = seconds(each, share)
        if of_call is None:
            break
        rounds = -(-tasks // at_once) * (UNEVEN if at_once > 1 else 1)
        found.append(GroupPlan(at_once, each, rounds * of_call))
    if not found:
        return GroupPlan(1, ranks, None)
    return min(found, key=lambda plan: plan.seconds or 0.0)
