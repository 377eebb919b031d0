"""One rank as a worker of a training rule: its parameters, and what it reports."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from time import perf_counter
from typing import NamedTuple

import numpy as np
from pytensor.compile import SharedVariable

from ..comm.locks import Locks
from ..comm.shm import SharedMemoryComm
from ..rules.simulate import Exchange
from .parameters import Parameters


class Times(NamedTuple):
    """Seconds that a worker has spent on exchanges, and of these waiting for others."""

    exchanging: float = 0.0
    waiting: float = 0.0


class Worker:
    """A rank that trains by a rule; `exchanging` and `gossiping` say what that is.

    Parameters
    ----------
    words : numpy.ndarray of int64
        With the locks, in memory that all ranks share.
    variables : list of SharedVariable
        The parameters, of one dtype.
    comm : SharedMemoryComm
    looks : int
        How often to look at a lock before sleeping.

    Attributes
    ----------
    steps : int
        How many the rank has made.
    exchanges : list of (int, Exchange)
        Since they were taken last: each with the number of its move of the centre.
    """

    def __init__(
        self,
        words: np.ndarray,
        variables: Sequence[SharedVariable],
        comm: SharedMemoryComm,
        looks: int,
    ) -> None:
        self.comm, self.n = comm, comm.size
        self.locks = Locks(words, comm.rank, looks, comm.patience)
        self.parameters = Parameters(variables)
        self.steps, self.exchanging, self.waiting = 0, 0.0, 0.0
        self.exchanges: list[tuple[int, Exchange]] = []
        self._own: list[np.ndarray] | None = None  # while others are shown

    def begin_with(self, w: np.ndarray) -> None:
        """Begin anew, with the parameters of a vector."""
        self.parameters.set(w)
        self._own = None
        self.steps, self.exchanging, self.waiting = 0, 0.0, 0.0
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
    def opened(self, first_lock: int, last_lock: int) -> Iterator[None]:
        """Write to parameters and take locks in a ``with`` block, which is timed."""
        start = perf_counter()
        self.parameters.open()
        try:
            yield
        except BaseException:  # otherwise all locks have been given back
            self.locks.release_all(first_lock, last_lock)
            raise
        finally:
            # What was written belongs to the variables, also if this ends too early.
            self.parameters.close()
            self.exchanging += perf_counter() - start

    @contextlib.contextmanager
    def wait(self) -> Iterator[None]:
        """Wait for others in a ``with`` block, which is timed."""
        start = perf_counter()
        yield
        self.waiting += perf_counter() - start

    def take_report(self) -> tuple[list[tuple[int, Exchange]], Times]:
        """Return the exchanges, and what they took, since this was asked last."""
        report = self.exchanges, Times(self.exchanging, self.waiting)
        self.exchanges, self.exchanging, self.waiting = [], 0.0, 0.0
        return report

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
