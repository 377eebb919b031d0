"""Parameter averaging: workers train by themselves, then all take their mean."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .rule import Group, Rule, State, check_at_least


class LocalSGD(Rule):
    """Local SGD: `every` steps of each worker's own, then all take their mean.

    Parameters
    ----------
    every : int
        H of the paper.
    after : int
        Post-local SGD: workers meet after each of the first `after` steps.
    order : {"together"}

    Notes
    -----
    ``w_i <- sum_j a_j w_j``, where ``a_j`` are the rows of worker j since the last
    exchange, divided by all workers' rows. An optimiser's state, as a velocity, stays
    each worker's own. With ``every=1`` and plain SGD (or momentum and equal numbers of
    rows) this is exact training. [1]_, post-local [2]_.

    References
    ----------
    .. [1] S. U. Stich, "Local SGD converges fast and communicates little", ICLR 2019.
    .. [2] T. Lin et al., "Don't use large mini-batches, use local SGD", ICLR 2020.
    """

    orders = ("together",)
    is_mean = True

    def __init__(self, every: int, after: int = 0, order: Any = "together") -> None:
        super().__init__(every, order)
        self.after = int(check_at_least("after", after))

    def give(self, worker: State, centre: State, group: Group) -> tuple[State, Any]:
        return {}, group.share * worker["w"]

    def move(self, centre: State, given: Any) -> State:
        return {"c": given}

    def take(self, worker: State, centre: State) -> State:
        return {"w": centre["c"]}

    def due(self, step: int) -> Sequence[int]:
        return (0,) if step <= self.after else super().due(step - self.after)


class ParameterAveraging(LocalSGD):
    """Parameters are averaged after each step: BSP in its ``avg`` form.

    The same as `LocalSGD` with ``every=1``: exact training for SGD and momentum. For
    optimisers that are not linear in the gradient, such as Adam, it differs from exact
    training, as each worker's state follows its own gradients.

    Parameters
    ----------
    order : {"together"}
    """

    def __init__(self, order: Any = "together") -> None:
        super().__init__(1, order=order)
