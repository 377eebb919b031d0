"""One rank as a worker of a training rule: its parameters, and what it reports."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from pytensor.compile import SharedVariable

from ..comm.locks import Locks
from ..comm.shm import SharedMemoryComm
from ..rules.rule import Rule
from ..rules.simulate import Exchange
from ..times.exchanges import ExchangeTimes
from .parameters import Parameters


class Times(NamedTuple):
    """Seconds that a worker has spent on exchanges, and of these waiting for others."""

    exchanging: float
    waiting: float


class Among(NamedTuple):
    """Where a worker stands among all.

    Attributes
    ----------
    rank, n : int
        Which one it is, of how many.
    local : SharedMemoryComm
        To meet those of its machine.
    over_nodes : OverNodes or None
        Where there are several machines.
    """

    rank: int
    n: int
    local: SharedMemoryComm
    over_nodes: Any = None


class Worker:
    """A rank that trains by a rule; `exchanging` and `gossiping` say what that is.

    Parameters
    ----------
    medium : Centre or Mailboxes
        In memory that all ranks of a machine share.
    rule : Rule
    variables : list of SharedVariable
        The parameters, of one dtype.
    place : Among
    looks : int
        How often to look at a lock before sleeping.

    Attributes
    ----------
    rank, n : int
        Which worker this is, of how many.
    is_node : bool
        Whether all ranks of the machine are this worker, and have its parameters.
    steps : int
        How many the rank has made.
    times : ExchangeTimes
    exchanges : list of (int, Exchange)
        Since they were taken last: each with the number of its move of the centre.
    """

    is_node = False

    def __init__(
        self,
        medium: Any,
        rule: Rule,
        variables: Sequence[SharedVariable],
        place: Among,
        looks: int,
    ) -> None:
        self.rank, self.n, self.local, self.over_nodes = place
        self.medium = medium
        self.locks = Locks(medium.words, self.local.rank, looks, self.local.patience)
        self.parameters = Parameters(variables)
        self.steps = 0
        self.times = ExchangeTimes(repr(rule), self.parameters.nbytes)
        self._reported = Times(0.0, 0.0)
        self.exchanges: list[tuple[int, Exchange]] = []
        self._own: list[np.ndarray] | None = None  # while others are shown

    def begin_with(self, w: np.ndarray) -> None:
        """Begin anew, with the parameters of a vector."""
        self.parameters.set(w)
        self._own = None
        self.steps = 0
        self.exchanges = []

    def after_step(self, rows: Sequence[int]) -> None:
        """Do what is due after a step.

        Parameters
        ----------
        rows : sequence of int
            Of how many rows it was, on each rank.
        """
        raise NotImplementedError

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Make steps in a ``with`` block; nobody waits for this rank after it."""
        yield

    @contextlib.contextmanager
    def in_turn_of_node(self) -> Iterator[None]:
        """Wait in a ``with`` block until it is the turn of this rank's machine."""
        if self.over_nodes is None:
            yield
            return
        with self.over_nodes.in_turn(self.times.wait):
            yield

    @contextlib.contextmanager
    def opened(self, first_lock: int, last_lock: int) -> Iterator[None]:
        """Write to parameters and take locks in a ``with`` block, which is timed."""
        with self.times.exchanging(self.steps):
            self.parameters.open()
            try:
                yield
            except BaseException:  # otherwise all locks have been given back
                self.locks.release_all(first_lock, last_lock)
                raise
            finally:
                # What was written belongs to the variables, if this ends early, too.
                self.parameters.close()

    def note(self, move: int, exchange: Exchange) -> None:
        """Take note of an exchange, and of the number of its move of the centre."""
        self.exchanges.append((move, exchange))
        self.times.count(exchange.staleness)

    def take_report(self) -> tuple[list[tuple[int, Exchange]], Times]:
        """Return the exchanges, and what they took, since this was asked last."""
        now = Times(self.times.seconds, self.times.waiting)
        last, self._reported = self._reported, now
        exchanges, self.exchanges = self.exchanges, []
        since = (here - before for here, before in zip(now, last, strict=True))
        return exchanges, Times(*since)

    def state(self) -> dict[str, np.ndarray]:
        """Return all that the worker goes on with."""
        return {"w": self.vector(), "steps": np.array(self.steps)}

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Go on with what `state` has returned."""
        self.begin_with(state["w"])
        self.steps = int(state["steps"])

    def vector(self) -> np.ndarray:
        """Return a copy of this worker's parameters."""
        if self._own is None:
            return self.parameters.vector()
        return np.concatenate([np.ravel(value) for value in self._own])

    def show(self, values: np.ndarray) -> None:
        """Have the variables show other values than this worker's own."""
        former = self.parameters.set(values)
        self._own = former if self._own is None else self._own

    def hide(self) -> None:
        """Give the variables this worker's own values back."""
        if self._own is not None:
            self.parameters.put_back(self._own)
            self._own = None
