"""Gossip: no centre; now and then a worker sends itself to another one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from .rule import Order, Rule, check_at_least


class Gossip(Rule):
    """GoSGD: now and then a worker sends its parameters to another one.

    Parameters
    ----------
    p : float
        The probability that it does so, after each step.
    seed : int
        Each worker draws from a stream of its own, of seed and rank.
    order : {"free", "turns"}
        "turns": worker after worker merges what has come and sends, at each step.

    Notes
    -----
    Workers have weights ``a_i``, 1 / n to begin with, whose sum stays 1. The sender
    halves its own, and sends ``(w_i, a_i)``; the receiver merges before its next step::

        w_j <- (a_j w_j + a_i w_i) / (a_j + a_i);  a_j <- a_j + a_i

    What is to be used is ``sum a_i w_i``. Nobody waits for anybody: a message is added
    to what lies in the receiver's mailbox, weighted the same way. M. Blot et al.,
    "Gossip training for deep learning", arXiv:1611.09726, algorithm 3.
    """

    orders = ("free", "turns")
    has_centre = False

    def __init__(self, p: float = 0.01, seed: int = 0, order: Order = "free") -> None:
        super().__init__(1, order)
        if not 0 <= p <= 1:
            raise ValueError(f"p must be a probability, got {p!r}")
        self.p, self.seed = p, int(check_at_least("seed", seed))

    def merge(self, w: Any, a: Any, mail: Any, a_mail: Any) -> tuple[Any, Any]:
        """Return the parameters and the weight of a worker that has read its mail.

        Parameters
        ----------
        w, a : numpy.ndarray, float
            The worker's.
        mail : numpy.ndarray
            The sum of what was sent, each times its weight.
        a_mail : float
            The sum of these weights.
        """
        return (a * w + mail) / (a + a_mail), a + a_mail

    def destinations(self, rank: int, n: int) -> Iterator[int | None]:
        """Yield for each step of a worker to whom it sends; mostly to nobody.

        Parameters
        ----------
        rank : int
            Which worker.
        n : int
            How many there are.

        Yields
        ------
        int or None
        """
        random = np.random.default_rng([self.seed, rank])
        while True:
            sends, to = random.random() < self.p, int(random.integers(max(n - 1, 1)))
            yield to + (to >= rank) if sends and n > 1 else None
