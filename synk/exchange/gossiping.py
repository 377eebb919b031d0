"""Workers that gossip: each has a mailbox, in memory that all ranks share.

What lies in a mailbox is the sum of what was sent, each times its weight. It is there
twice, as blocks of a centre are: who adds to it writes the side that does not count,
and then says in one word that it does.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import numpy as np
from pytensor.compile import SharedVariable

from ..comm.locks import write
from ..memory.segment import Segment
from ..rules.gossip import Gossip
from ..rules.simulate import Exchange
from .worker import Among, Worker

_TURN = 0
_HEAD = 8


class Mailboxes:
    """The mailboxes of all ranks.

    Parameters
    ----------
    dtype : str
    size : int
        How many parameters there are.
    ranks : int
    segment : Segment
        Of `nbytes`.

    Attributes
    ----------
    words : numpy.ndarray of int64
    weights : numpy.ndarray of float64, shape (ranks,)
        Of the workers.
    """

    def __init__(self, dtype: str, size: int, ranks: int, segment: Segment) -> None:
        self.segment, self._ranks = segment, ranks
        self.words = segment.array("int64", (_HEAD + 2 * ranks,))
        place = 8 * (_HEAD + 2 * ranks)
        self.weights = segment.array("float64", (ranks,), place)
        self._weights = segment.array("float64", (ranks, 2), place + 8 * ranks)
        place = -(-(place + 24 * ranks) // 64) * 64
        self._mail = segment.array(dtype, (ranks, 2, size), place)
        self._start = segment.array(dtype, (size,), place + self._mail.nbytes)

    @staticmethod
    def nbytes(dtype: str, size: int, ranks: int) -> int:
        """Return how much memory they take."""
        vectors = (2 * ranks + 1) * size * np.dtype(dtype).itemsize
        return 8 * (_HEAD + 2 * ranks) + 24 * ranks + 64 + vectors

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
            "turn": self.words[_TURN].copy(),
        }

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Have what `state` has returned lie there; while no rank sends."""
        self.words[:] = 0
        self.words[_TURN] = state["turn"]
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


class Gossiping(Worker):
    """A rank that trains by gossip.

    Parameters
    ----------
    rule : Gossip
    boxes : Mailboxes
    variables, place, looks
        See `Worker`.
    """

    def __init__(
        self,
        rule: Gossip,
        boxes: Mailboxes,
        variables: Sequence[SharedVariable],
        place: Among,
        looks: int,
    ) -> None:
        super().__init__(boxes, rule, variables, place, looks)
        self._rule, self._boxes = rule, boxes
        self.begin()

    def begin(self) -> None:
        """Begin anew, with the parameters that all begin with."""
        self.begin_with(self._boxes.parameters)
        self._to = self._rule.destinations(self.rank, self.n)

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Go on with what `state` has returned."""
        super().restore(state)
        self._to = self._rule.destinations(self.rank, self.n)
        for _ in range(self.steps):
            next(self._to)

    def after_step(self, rows: Sequence[int]) -> None:
        """Read the mail, and send some perhaps; see `Worker.after_step`."""
        self.steps += 1
        with self._in_turn():
            to = next(self._to)
            if to is not None or self._boxes.mail(self.rank)[1]:
                with self.opened(*self._boxes.locks):
                    self._merge(self.rank)
                    if to is not None:
                        self._send(self.rank, to)

    @contextlib.contextmanager
    def _in_turn(self) -> Iterator[None]:
        """Exchange in a ``with`` block, when it is this rank's turn."""
        if self._rule.order != "turns":
            yield
            return
        turn = (self.steps - 1) * self.n + self.rank
        with self.in_turn_of_node():
            with self.times.wait():
                self.locks.wait_for(_TURN, turn)
            yield
            write(self._boxes.words, _TURN, turn + 1)

    def _merge(self, rank: int) -> None:
        """Read this rank's mail."""
        boxes = self._boxes
        with self.times.wait():
            self.locks.acquire(boxes.lock(rank))
        mail, a_mail = boxes.mail(rank)
        if a_mail:
            whole = self.parameters.open_vector()
            merged = self._rule.merge(whole, float(boxes.weights[rank]), mail, a_mail)
            self.parameters.write_vector(merged[0])
            boxes.weights[rank] = merged[1]
            boxes.put(rank, 0, 0.0)
        self.locks.release(boxes.lock(rank))

    def _send(self, rank: int, to: int) -> None:
        """Add this rank's parameters to another's mail."""
        boxes = self._boxes
        boxes.weights[rank] /= 2
        a = float(boxes.weights[rank])
        with self.times.wait():
            self.locks.acquire(boxes.lock(to))
        mail, a_mail = boxes.mail(to)
        boxes.put(to, mail + a * self.parameters.open_vector(), a_mail + a)
        self.locks.release(boxes.lock(to))
        self.note(len(self.exchanges), Exchange(rank, self.steps))
