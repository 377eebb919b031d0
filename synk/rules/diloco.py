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
        Of the outer optimiser.
    fragments : int
        Streaming: into how many pieces the parameters are cut, which are exchanged at
        different steps; each once in `every`.
    delay : int
        Streaming: after how many further steps a worker takes what has come of an
        exchange. It waits for nobody until then.
    order : {"together", "turns", "free"}
    mixing : float, optional
        How much a worker keeps of its own parameters when it takes; by default 0 if
        there is no delay, otherwise 0.5.
    optimiser : str or callable
        The outer one: a rule of `synk.updates`.

    Notes
    -----
    ``delta = sum_i a_i (theta - w_i)`` is taken as a gradient, by Nesterov's momentum:
    ``v <- momentum v + delta``,
    ``theta <- theta - learning_rate (delta + momentum v)``. Then
    ``w_i <- mixing w_i + (1 - mixing) theta``. What inner optimisers keep stays with
    each worker. theta is the centre, and what is to be used afterwards.
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
                f"every={every} steps a fragment is exchanged: there is no room for"
                f" fragments={fragments} and a delay of {delay}"
            )
        self.mixing = (0.5 if delay else 0.0) if mixing is None else mixing
        self.outer = Optimiser(optimiser, learning_rate=learning_rate)
        if self.outer.takes("momentum"):
            self.outer = Optimiser(
                optimiser, learning_rate=learning_rate, momentum=momentum
            )

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
