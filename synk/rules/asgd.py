"""Asynchronous SGD: what each worker has moved by is added to the centre."""

from __future__ import annotations

from typing import Any

import numpy as np

from .rule import Group, Rule, Start, State


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
