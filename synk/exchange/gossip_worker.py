"""Workers that gossip: each has a mailbox, in memory that all ranks share.

What lies in a mailbox is the sum of what was sent, each times its weight. It is there
twice, as blocks of a centre are: who adds to it writes the side that does not count,
and then says in one word that it does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..comm.locks import write
from ..rules.centre import TURN, shared_arrays
from ..rules.gossip import Gossip
from ..rules.simulate import Exchange
from .worker import Worker, joined

_HEAD = 8
"""Words before those of the mailboxes; one is the turn's, as in a centre."""


class Mailboxes:
    """The mailboxes of all ranks, in memory as that of a `Centre`.

    Attributes
    ----------
    words : numpy.ndarray of int64
    weights : numpy.ndarray of float64, shape (ranks,)
        Of the workers.
    """

    def __init__(
        self, dtype: str, size: int, ranks: int, memory: Callable[[int], Any]
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
        self.words[_HEAD : _HEAD + self._ranks] = 0

    @property
    def locks(self) -> tuple[int, int]:
        """The first word that is a lock, and the first behind them."""
        return _HEAD, _HEAD + self._ranks

    def lock(self, rank: int) -> int:
        """Return which word is the lock of a rank's mailbox."""
        return _HEAD + rank

    def mail(self, rank: int) -> tuple[np.ndarray, float]:
        """Return what lies in a mailbox, and the weight of it."""
        side = self.words[_HEAD + self._ranks + rank]
        return self._mail[rank, side], float(self._weights[rank, side])

    def put(self, rank: int, mail: np.ndarray | float, weight: float) -> None:
        """Have something else lie in a mailbox."""
        index = _HEAD + self._ranks + rank
        side = 1 - self.words[index]
        self._mail[rank, side] = mail
        self._weights[rank, side] = weight
        write(self.words, index, side)


class GossipWorker(Worker):
    """A rank that trains by gossip."""

    rule: Gossip
    medium: Mailboxes

    def begin(self) -> None:
        """Begin anew, with the parameters that all begin with."""
        super().begin()
        self._to = self.rule.destinations(self.rank, self.n)

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Go on with what `state` has returned."""
        super().restore(state)
        self._to = self.rule.destinations(self.rank, self.n)
        for _ in range(self.steps):
            next(self._to)

    def after_step(self, rows: Sequence[int]) -> None:
        """Read the mail, and send some perhaps; see `Worker.after_step`."""
        self.steps += 1
        with self.in_turn((self.steps - 1) * self.n + self.rank):
            to = next(self._to)
            if to is not None or self.medium.mail(self.rank)[1]:
                with self.opened():
                    self._merge(self.rank)
                    if to is not None:
                        self._send(self.rank, to)

    def _merge(self, rank: int) -> None:
        """Read this rank's mail."""
        boxes = self.medium
        self.acquire(boxes.lock(rank))
        mail, a_mail = boxes.mail(rank)
        if a_mail:
            whole, a = joined(self.parameters.arrays), float(boxes.weights[rank])
            merged, a = self.rule.merge(whole, a, mail, a_mail)
            pieces = self.parameters.cut(merged)
            for array, piece in zip(self.parameters.arrays, pieces, strict=True):
                array[...] = piece
            boxes.weights[rank] = a
            boxes.put(rank, 0, 0.0)
        self.locks.release(boxes.lock(rank))

    def _send(self, rank: int, to: int) -> None:
        """Add this rank's parameters to another's mail."""
        boxes = self.medium
        boxes.weights[rank] /= 2
        a = float(boxes.weights[rank])
        self.acquire(boxes.lock(to))
        mail, a_mail = boxes.mail(to)
        boxes.put(to, mail + a * joined(self.parameters.arrays), a_mail + a)
        self.locks.release(boxes.lock(to))
        self.note(len(self._exchanges), Exchange(rank, self.steps))
