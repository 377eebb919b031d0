"""ASGD and Downpour: the centre moves by each worker's moves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .rule import Group, Optimiser, Order, Rule, Start, State


class ASGD(Rule):
    """Asynchronous SGD: the centre makes each worker's moves, too.

    Parameters
    ----------
    every : int
        Steps of any optimiser between two exchanges.
    order : {"together", "turns", "free"}

    Notes
    -----
    ``c <- c + (w_i - o_i)``, ``w_i <- c``, ``o_i <- c``, where o has the worker's
    parameters after its last exchange. With one worker it is serial training. Platoon
    has this rule; after J. Dean et al., "Large scale distributed deep networks", NIPS
    2012.
    """

    def start(self, w: np.ndarray) -> tuple[Start, Start]:
        return {"o": w}, {}

    def give(self, worker: State, centre: State, group: Group) -> tuple[State, Any]:
        return {}, worker["w"] - worker["o"]

    def move(self, centre: State, given: Any) -> State:
        return {"c": centre["c"] + given}

    def take(self, worker: State, centre: State) -> State:
        return {"w": centre["c"], "o": centre["c"]}


class Downpour(ASGD):
    """Downpour SGD: the centre's optimiser takes each worker's move as a gradient.

    Parameters
    ----------
    every : int
        Steps between two exchanges: the paper's n_fetch and n_push.
    optimiser : str or callable
        A rule of `synk.updates`, which moves the centre.
    learning_rate : float
        The learning rate of the centre's optimiser.
    max_staleness : int, optional
        The most exchanges of other workers between two of one worker: a worker that
        would exceed this waits for the late one. With n workers at least n - 1.
    order : {"together", "turns", "free"}
    **options
        Further arguments of the optimiser.

    Notes
    -----
    ``u = o_i - w_i`` is a worker's move since its last exchange, old less new: if its
    step is plain SGD with learning rate 1, the sum of `every` gradients. ``c <-
    optimiser(c, u)``, ``w_i <- c``, ``o_i <- c``. So the centre's learning rate
    multiplies the worker's. In "together" all workers' u are added. J. Dean et al.,
    "Large scale distributed deep networks", NIPS 2012.

    In "turns" of n workers the centre follows gradients that are n - 1 exchanges old:
    on ``h x**2 / 2`` it is stable if ``learning_rate * h < 2 sin(pi / (4 n - 2))``.
    """

    def __init__(
        self,
        every: int = 1,
        optimiser: str | Callable = "sgd",
        learning_rate: float = 0.01,
        max_staleness: int | None = None,
        order: Order = "together",
        **options: Any,
    ) -> None:
        super().__init__(every, order)
        self.optimiser = Optimiser(optimiser, learning_rate=learning_rate, **options)
        self.max_staleness = max_staleness

    def start(self, w: np.ndarray) -> tuple[Start, Start]:
        return {"o": w}, self.optimiser.start(w)

    def give(self, worker: State, centre: State, group: Group) -> tuple[State, Any]:
        return {}, worker["o"] - worker["w"]

    def move(self, centre: State, given: Any) -> State:
        c, kept = self.optimiser.move(centre["c"], given, centre)
        return {"c": c, **kept}

    def check(self, n: int) -> None:
        if self.max_staleness is not None and self.max_staleness < n - 1:
            raise ValueError(
                f"max_staleness={self.max_staleness} with {n} workers: between two"
                f" exchanges of one all others make theirs, so take {n - 1} at least"
            )
