"""ASGD and Downpour: the centre follows what each worker has moved by."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .rule import Group, Optimiser, Order, Rule, Start, State


class ASGD(Rule):
    """Asynchronous SGD: the centre moves by what each worker has moved.

    Parameters
    ----------
    every : int
        Steps of any optimiser between two exchanges.
    order : {"together", "turns", "free"}

    Notes
    -----
    ``c <- c + (w_i - o_i)``, ``w_i <- c``, ``o_i <- c``: o is what the worker had after
    its last exchange. For one worker it is the step's own optimiser. Platoon's rule of
    that name; after J. Dean et al., "Large scale distributed deep networks", NIPS 2012.
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
    """Downpour SGD: the centre takes each worker's way as a gradient.

    Parameters
    ----------
    every : int
        Steps between two exchanges: the paper's n_fetch and n_push.
    optimiser : str or callable
        A rule of `synk.updates`, which moves the centre.
    learning_rate : float
        Of the centre.
    max_staleness : int, optional
        How many exchanges of other workers may come between two of one worker: who
        would make another's staler waits for that one. With n workers at least n - 1.
    order : {"together", "turns", "free"}
    **options
        Further arguments of the optimiser.

    Notes
    -----
    ``u = o_i - w_i`` is the sum of a worker's steps since its last exchange, old less
    new: a gradient, if the worker's step is plain SGD with learning rate 1, and the sum
    of `every` gradients along a path then. ``c <- optimiser(c, u)``, ``w_i <- c``,
    ``o_i <- c``. So the centre's learning rate multiplies the worker's. Where all meet,
    u are added. J. Dean et al., "Large scale distributed deep networks", NIPS 2012.

    In turns of n workers the centre follows gradients that are n - 1 exchanges old: on
    ``h x**2 / 2`` it is stable if ``learning_rate * h < 2 sin(pi / (4 n - 2))``.
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
                f"max_staleness={self.max_staleness} with {n} workers: each of the"
                f" others comes once between two exchanges of one, so {n - 1} at least"
            )
