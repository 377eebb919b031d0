"""Gossip: no centre; now and then a worker mails its parameters to another one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from ..comm.locks import write
from .centre import TURN, shared_arrays
from .rule import Order, Rule, check_at_least

_HEAD = 8
"""Words before those of the mailboxes; word `TURN` is as in a centre."""


class Gossip(Rule):
    """GoSGD: now and then a worker sends its parameters to another one.

    Parameters
    ----------
    p : float
        The probability, after each step, that a worker sends.
    seed : int
        Each worker draws from its own stream, seeded by `seed` and its rank.
    order : {"free", "turns"}
        "turns": at each step, one worker after the other merges its mail and sends.

    Notes
    -----
    Workers have weights ``a_i``, 1 / n to begin with, whose sum stays 1. The sender
    halves its own, and sends ``(w_i, a_i)``; the receiver merges before its next step::

        w_j <- (a_j w_j + a_i w_i) / (a_j + a_i);  a_j <- a_j + a_i

    The result of training is ``sum a_i w_i``. In "free" no worker waits for another: a
    message is added, with its weight, to the mail in the receiver's mailbox. M. Blot et
    al., "Gossip training for deep learning", arXiv:1611.09726, algorithm 3.
    """

    orders = ("free", "turns")
    has_centre = False

    def __init__(self, p: float = 0.01, seed: int = 0, order: Order = "free") -> None:
        super().__init__(1, order)
        if not 0 <= p <= 1:
            raise ValueError(f"p must be a probability, got {p!r}")
        self.p, self.seed = p, int(check_at_least("seed", seed))

    def destinations(self, rank: int, n: int) -> Iterator[int | None]:
        """Yield whom a worker sends to.

        Parameters
        ----------
        rank, n : int
            The worker's, and how many there are.

        Yields
        ------
        int or None
            For each step; mostly None.
        """
        random = np.random.default_rng([self.seed, rank])
        while True:
            sends, to = random.random() < self.p, int(random.integers(max(n - 1, 1)))
            yield to + (to >= rank) if sends and n > 1 else None


class Mailboxes:
    """The mailboxes of all workers, in shared memory; see `Centre`.

    A mailbox has the sum of the parameters sent, each times its weight. It has two
    sides, as a block of a `Centre`: a change writes the invalid side, and then one word
    makes that side valid. A worker that reads or changes a mailbox has its lock, or
    runs alone. `words` has a lock for each mailbox from `locks` on, and its valid side
    from `valid` on. `weights` has the workers' weights.
    """

    def __init__(
        self, dtype: Any, size: int, ranks: int, memory: Callable[[int], Any]
    ) -> None:
        forms: dict[str, tuple[tuple[int, ...], Any]] = {
            "words": ((_HEAD + 2 * ranks,), "int64"),
            "weights": ((ranks,), "float64"),
            "weights of mail": ((ranks, 2), "float64"),
            "mail": ((ranks, 2, size), dtype),
            "start": ((size,), dtype),
        }
        self.segment, arrays = shared_arrays(forms, memory)
        self.words, self.weights, self._weights, self._mail, self._start = (
            arrays[name] for name in forms
        )
        self._ranks = ranks
        self.locks, self.valid = _HEAD, _HEAD + ranks

    @property
    def parameters(self) -> np.ndarray:
        """The parameters that all workers begin with."""
        return self._start.copy()

    def fill(self, w: np.ndarray) -> None:
        """Begin anew with parameters `w`; call it while no rank sends."""
        self.words[:] = 0
        self._start[:] = w
        self.weights[:] = 1 / self._ranks
        self._weights[:] = 0
        self._mail[:] = 0

    def state(self) -> dict[str, np.ndarray]:
        """Return the mail, the workers' weights and the turn."""
        mails = [self.mail(rank) for rank in range(self._ranks)]
        some = [mail for mail, a in mails if a]
        return {
            "mail": np.array(some).reshape(-1, self._start.size),
            "weights of mail": np.array([a for _, a in mails]),
            "weights": self.weights.copy(),
            "turn": self.words[TURN].copy(),
        }

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Restore what `state` has returned; call it while no rank sends."""
        self.words[:] = 0
        self.words[TURN] = state["turn"]
        self._weights[:, 0] = state["weights of mail"]
        self._mail[:, 0] = 0
        self._mail[self._weights[:, 0] > 0, 0] = state["mail"]
        self.weights[:] = state["weights"]

    def average(self, vectors: Sequence[np.ndarray]) -> np.ndarray:
        """Return the weighted mean of the workers' parameters and all mail."""
        total = np.zeros_like(self._start)
        for a, vector in zip(self.weights, vectors, strict=True):
            total += float(a) * vector
        mails = [self.mail(rank) for rank in range(self._ranks)]
        for mail, _ in mails:
            total += mail
        return total / float(self.weights.sum() + sum(a for _, a in mails))

    def ready(self) -> None:
        """Free all locks: ranks that died may have had some."""
        self.words[self.locks : self.valid] = 0

    def mail(self, rank: int) -> tuple[np.ndarray, float]:
        """Return the mail of worker `rank`, and its weight."""
        side = self.words[self.valid + rank]
        return self._mail[rank, side], float(self._weights[rank, side])

    def read(self, rank: int, w: np.ndarray) -> np.ndarray:
        """Empty a worker's mailbox; return its parameters `w` merged with the mail."""
        a, (mail, a_mail) = float(self.weights[rank]), self.mail(rank)
        merged, self.weights[rank] = (a * w + mail) / (a + a_mail), a + a_mail
        self._put(rank, 0, 0.0)
        return merged

    def send(self, rank: int, to: int, w: np.ndarray) -> None:
        """Add worker `rank`'s parameters to the mail of `to`, with half its weight."""
        self.weights[rank] /= 2
        a, (mail, a_mail) = float(self.weights[rank]), self.mail(to)
        self._put(to, mail + a * w, a_mail + a)

    def _put(self, rank: int, mail: np.ndarray | float, weight: float) -> None:
        index = self.valid + rank
        side = 1 - self.words[index]
        self._mail[rank, side] = mail
        self._weights[rank, side] = weight
        write(self.words, index, side)
