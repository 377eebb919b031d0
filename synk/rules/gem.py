"""Gradient energy matching: workers scale steps so that their sum is not too large."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytensor.tensor as pt

from .rule import Group, Order, Rule, Start, State


class GEM(Rule):
    """Gradient energy matching: the centre moves as one worker with momentum would.

    Parameters
    ----------
    every : int
        Steps between two exchanges.
    learning_rate : float
        Multiplies a worker's move; its own step is plain SGD with learning rate 1.
    momentum : float
    kappa : float
        With 2 the centre's steps are, on average, those of SGD with momentum.
    order : {"together", "turns", "free"}
    epsilon, clip : float
        Against a division by zero, and the largest factor of a step.

    Notes
    -----
    Per element, with o the worker's parameters after its last exchange and D the
    centre's move since::

        u = -learning_rate * (o_i - w_i)
        m_i <- momentum * m_i + u
        D = c - stale_i;  stale_i <- c
        pi = clip((kappa * |m_i| - |D|) / (|u| + epsilon), 0, clip)
        c <- c + pi * u;  w_i <- c_before + pi * u

    J. Hermans and G. Louppe, "Gradient energy matching for distributed asynchronous
    gradient descent", arXiv:1805.08469. ``stale_i`` begins with the first centre, so D
    is 0 at first.
    """

    def __init__(
        self,
        every: int = 1,
        learning_rate: float = 0.01,
        momentum: float = 0.9,
        kappa: float = 2.0,
        order: Order = "together",
        epsilon: float = 1e-12,
        clip: float = 5.0,
    ) -> None:
        super().__init__(every, order)
        self.learning_rate, self.momentum, self.kappa = learning_rate, momentum, kappa
        self.epsilon, self.clip = epsilon, clip

    def start(self, w: np.ndarray) -> tuple[Start, Start]:
        return {"o": w, "m": np.zeros_like(w), "stale": w}, {}

    def give(self, worker: State, centre: State, group: Group) -> tuple[State, Any]:
        u = -self.learning_rate * (worker["o"] - worker["w"])
        m = self.momentum * worker["m"] + u
        moved = centre["c"] - worker["stale"]
        fits = (self.kappa * abs(m) - abs(moved)) / (abs(u) + self.epsilon)
        u = pt.clip(fits, 0, self.clip) * u
        w = centre["c"] + u
        return {"w": w, "o": w, "m": m, "stale": centre["c"]}, u

    def move(self, centre: State, given: Any) -> State:
        return {"c": centre["c"] + given}
