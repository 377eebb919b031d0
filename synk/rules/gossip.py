"""Gossip: no centre; now and then a worker sends itself to another one, by mail."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from ..comm.locks import write
from .centre import TURN, shared_arrays
from .rule import Order, Rule, check_at_least

_HEAD = 8
"""Words before those of the mailboxes; one is the turn's, as in a centre."""


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


class Mailboxes:
    """The mailboxes of all workers, in memory that these share; see `Centre`.

    What lies in a mailbox is the sum of what was sent, each times its weight. It is
    there twice, as blocks of a centre are: who adds to it writes the side that does not
    count, and then says in one word that it does. Who reads it or adds to it has its
    lock, or is alone. From `locks` and from `valid` on `words` has one for each
    mailbox, as in a `Centre`; `weights` are the workers'.
    """

    def __init__(
        self,
        rule: Gossip,
        dtype: Any,
        size: int,
        ranks: int,
        memory: Callable[[int], Any],
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
        self._rule, self._ranks = rule, ranks
        self.locks, self.valid = _HEAD, _HEAD + ranks

    @property
    def parameters(self) -> np.ndarray:
        """What all begin with."""
        return self._start.copy()

    def fill(self, w: np.ndarray) -> None:
        """Begin anew with parameters `w`; while no rank sends."""
        self.words[:] = 0
        self._start[:] = w
        self.weights[:] = 1 / self._ranks
        self._weights[:] = 0
        self._mail[:] = 0

    def state(self) -> dict[str, np.ndarray]:
        """Return what lies in the mailboxes, and the workers' weights."""
        mails = [self.mail(rank) for rank in range(self._ranks)]
        some = [mail for mail, a in mails if a]
        return {
            "mail": np.array(some).reshape(-1, self._start.size),
            "weights of mail": np.array([a for _, a in mails]),
            "weights": self.weights.copy(),
            "turn": self.words[TURN].copy(),
        }

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Have what `state` has returned lie there; while no rank sends."""
        self.words[:] = 0
        self.words[TURN] = state["turn"]
        self._weights[:, 0] = state["weights of mail"]
        self._mail[:, 0] = 0
        self._mail[self._weights[:, 0] > 0, 0] = state["mail"]
        self.weights[:] = state["weights"]

    def average(self, vectors: Sequence[np.ndarray]) -> np.ndarray:
        """Return the weighted mean of workers' parameters, with all mail."""
        total = np.zeros_like(self._start)
        for a, vector in zip(self.weights, vectors, strict=True):
            total += float(a) * vector
        mails = [self.mail(rank) for rank in range(self._ranks)]
        for mail, _ in mails:
            total += mail
        return total / float(self.weights.sum() + sum(a for _, a in mails))

    def ready(self) -> None:
        """Have all locks free."""
        self.words[self.locks : self.valid] = 0

    def mail(self, rank: int) -> tuple[np.ndarray, float]:
        """Return what lies in a mailbox, and the weight of it."""
        side = self.words[self.valid + rank]
        return self._mail[rank, side], float(self._weights[rank, side])

    def read(self, rank: int, w: np.ndarray) -> np.ndarray:
        """Return the parameters of a worker that has read its mail, which is gone."""
        a, (mail, a_mail) = float(self.weights[rank]), self.mail(rank)
        merged, self.weights[rank] = self._rule.merge(w, a, mail, a_mail)
        self._put(rank, 0, 0.0)
        return merged

    def send(self, rank: int, to: int, w: np.ndarray) -> None:
        """Add a worker's parameters to another's mail, with half of its weight."""
        self.weights[rank] /= 2
        a, (mail, a_mail) = float(self.weights[rank]), self.mail(to)
        self._put(to, mail + a * w, a_mail + a)

    def _put(self, rank: int, mail: np.ndarray | float, weight: float) -> None:
        """Have something else lie in a mailbox."""
        index = self.valid + rank
        side = 1 - self.words[index]
        self._mail[rank, side] = mail
        self._weights[rank, side] = weight
        write(self.words, index, side)
