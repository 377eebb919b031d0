"""Elastic averaging: workers and the centre pull at one another."""

from __future__ import annotations

import warnings
from typing import Any

from ..user_frames import callers_level
from .rule import Group, Order, Rule, State, check_at_least


class EASGD(Rule):
    """Elastic averaging SGD; with Nesterov's momentum in the step it is EAMSGD.

    Parameters
    ----------
    every : int
        tau of the paper, "communication period".
    beta : float
        The pull of all workers together at the centre.
    order : {"together", "turns", "free"}

    Notes
    -----
    With ``alpha = beta / n``, and old values on the right::

        d = alpha * (w_i - c)
        w_i <- w_i - d
        c <- c + d

    and in "together" ``c <- c + sum_i d_i``. S. Zhang, A. Choromanska, Y. LeCun, "Deep
    learning with elastic averaging SGD", NIPS 2015, equations 5 and 6, algorithm 1; the
    exchange comes after `every` whole steps.

    Without gradients ``w_1 + ... + w_n + c`` is constant. In "together" each exchange
    multiplies the workers' mean less the centre by ``1 - alpha * (1 + n)``. If ``alpha
    * (1 + n)`` is 2 or more, that difference does not shrink, and training warns.
    """

    def __init__(
        self, every: int, beta: float = 0.9, order: Order = "together"
    ) -> None:
        super().__init__(every, order)
        self.beta = check_at_least("beta", beta)

    def give(self, worker: State, centre: State, group: Group) -> tuple[State, Any]:
        d = self.beta / group.n * (worker["w"] - centre["c"])
        return {"w": worker["w"] - d}, d

    def move(self, centre: State, given: Any) -> State:
        return {"c": centre["c"] + given}

    def check(self, n: int) -> None:
        pull = self.beta / n * (1 + n)
        if pull >= 2:
            warnings.warn(
                f"EASGD(beta={self.beta}) with {n} workers: alpha * (1 + n) is"
                f" {pull:.3g}, and from 2 on the centre does not settle; take a beta"
                f" below {2 * n / (1 + n):.3g}",
                stacklevel=callers_level(),
            )
