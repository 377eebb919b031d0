"""DiLoCo: many local steps, and then one step of an outer optimiser."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .rule import Group, Optimiser, Order, Rule, Start, State, check_at_least


class DiLoCo(Rule):
    """Distributed low-communication training, and its streaming form.

    Parameters
    ----------
    every : int
        H of the paper: inner steps between two exchanges of a parameter.
    learning_rate, momentum : float
        Those of the outer optimiser.
    fragments : int
        Streaming: the number of pieces of the parameters, which are exchanged at
        different steps; each once in `every`.
    delay : int
        Streaming: the number of steps between an exchange and taking its result; a
        worker does not wait in between.
    order : {"together", "turns", "free"}
    mixing : float, optional
        The weight of a worker's own parameters when it takes the centre's; by default
        0 without a delay, otherwise 0.5.
    optimiser : str or callable
        The outer optimiser: a rule of `synk.updates`.

    Notes
    -----
    ``delta = sum_i a_i (theta - w_i)`` is taken as a gradient, by Nesterov's momentum:
    ``v <- momentum v + delta``,
    ``theta <- theta - learning_rate (delta + momentum v)``. Then
    ``w_i <- mixing w_i + (1 - mixing) theta``. The states of inner optimisers stay with
    each worker. theta, the centre, is the result of training.
    A. Douillard et al., "DiLoCo", arXiv:2311.08105, algorithm 1, and "Streaming DiLoCo
    with overlapping communication", arXiv:2501.18512.

    With learning rate 1 and momentum 0 it is `LocalSGD`.
    """

    def __init__(
        self,
        every: int = 500,
        learning_rate: float = 0.7,
        momentum: float = 0.9,
        fragments: int = 1,
        delay: int = 0,
        order: Order = "together",
        mixing: float | None = None,
        optimiser: str | Callable = "nesterov_momentum",
    ) -> None:
        super().__init__(every, order)
        self.fragments = int(check_at_least("fragments", fragments, 1))
        self.delay = int(check_at_least("delay", delay))
        if self.fragments > self.every or self.delay >= self.every:
            raise ValueError(
                f"every={every} steps each fragment is exchanged: fragments={fragments}"
                f" must be at most that, and delay={delay} less"
            )
        self.mixing = (0.5 if delay else 0.0) if mixing is None else mixing
        self.outer = Optimiser(optimiser, learning_rate=learning_rate)
        if self.outer.takes("momentum"):
            self.outer.options["momentum"] = momentum

    def start(self, w: np.ndarray) -> tuple[Start, Start]:
        return {}, self.outer.start(w)

    def give(self, worker: State, centre: State, group: Group) -> tuple[State, Any]:
        return {}, group.share * (centre["c"] - worker["w"])

    def move(self, centre: State, given: Any) -> State:
        c, kept = self.outer.move(centre["c"], given, centre)
        return {"c": c, **kept}

    def take(self, worker: State, centre: State) -> State:
        if not self.mixing:
            return {"w": centre["c"]}
        return {"w": self.mixing * worker["w"] + (1 - self.mixing) * centre["c"]}

    def due(self, step: int) -> Sequence[int]:
        k = self.fragments
        return [i for i in range(k) if (step + i * self.every // k) % self.every == 0]
