"""A rule's training by virtual workers, one after the other in one process.

What real ranks do is compared with it, and it shows what a rule would do with more
workers than there are cores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from ..reduce_ops import shares
from .centre import Centre, weighed
from .gossip import Gossip, Mailboxes
from .graphs import RuleGraphs
from .rule import Rule
from .sweeps import Sweeper

Step: TypeAlias = Callable[[np.ndarray, int, int], np.ndarray]
Rows: TypeAlias = Callable[[int, int], int]


class Exchange(NamedTuple):
    """An exchange that was made.

    Attributes
    ----------
    rank : int or None
        Whose; None if all met.
    step : int
        After how many steps of that worker.
    fragment : int
        Of which piece of the parameters.
    staleness : int
        How many others have come since this one's last: for how many moves of the
        centre its parameters were old.
    """

    rank: int | None
    step: int
    fragment: int = 0
    staleness: int = 0


def simulate(
    rule: Rule,
    step: Step,
    schedule: int | Iterable[int],
    workers: int,
    start: np.ndarray,
    *,
    rows: Rows | None = None,
    mode: Any = None,
) -> Simulation:
    """Train virtual workers by a rule.

    Parameters
    ----------
    rule : Rule
    step : callable
        ``step(w, rank, k)`` returns the parameters of worker `rank` after its step
        number `k`, counted from 0. What an optimiser keeps it may keep by rank.
    schedule : int or iterable of int
        How many steps each worker makes, in the rule's order. Or whose step is the
        next, again and again, as :func:`random_turns` tells; for the order "together"
        there is no such schedule.
    workers : int
        How many.
    start : numpy.ndarray, shape (parameters,)
        What all begin with, of a float dtype.
    rows : callable, optional
        ``rows(rank, k)`` returns of how many rows a step is the mean; by default all
        steps have as many.
    mode : optional
        PyTensor's mode in which the rule is computed. By default it is as on ranks, in
        loops that numba compiles.

    Returns
    -------
    Simulation

    Raises
    ------
    ValueError
        If the rule does not do with so many workers, or the schedule with the rule.

    Examples
    --------
    Two workers draw to 1 and to 3, and the centre settles between them:

    >>> import numpy as np
    >>> from synk.rules import EASGD, simulate
    >>> def step(w, rank, k):
    ...     return w - 0.1 * (w - (1, 3)[rank])
    >>> found = simulate(EASGD(every=5), step, 500, workers=2, start=np.zeros(1))
    >>> found.centre.round(6)
    array([2.])
    """
    kind = _Gossiping if isinstance(rule, Gossip) else _Exchanging
    simulation: Simulation = kind(rule, step, workers, start, rows, mode)
    return simulation.run(schedule)


def random_turns(workers: int, steps: int, seed: int = 0) -> Iterator[int]:
    """Yield whose step is next, by chance, until all have made theirs.

    Parameters
    ----------
    workers : int
        How many.
    steps : int
        For each.
    seed : int

    Yields
    ------
    int
    """
    turns = np.repeat(np.arange(workers), steps)
    yield from np.random.default_rng(seed).permutation(turns).tolist()


class Simulation:
    """Virtual workers that train by a rule; see `simulate`.

    Attributes
    ----------
    rule : Rule
    workers : list of dict
        What each keeps, by name; its parameters are ``"w"``.
    steps : list of int
        How many steps each has made.
    exchanges : list of Exchange
        In their order.
    """

    def __init__(
        self,
        rule: Rule,
        step: Step,
        workers: int,
        start: np.ndarray,
        rows: Rows | None,
        mode: Any,
    ) -> None:
        rule.check(workers)
        self.rule, self._step, self._rows = rule, step, rows
        self._start = start = np.asarray(start)
        self._graphs = RuleGraphs(rule, start.dtype, mode)
        self.workers = [self._graphs.start(start)[0] for _ in range(workers)]
        self.steps = [0] * workers
        self.exchanges: list[Exchange] = []
        # Of how many rows steps were since a fragment's last exchange.
        self._rows_of = np.zeros((workers, rule.fragments))

    def run(self, schedule: int | Iterable[int]) -> Simulation:
        """Train on.

        Parameters
        ----------
        schedule : int or iterable of int
            See `simulate`.

        Returns
        -------
        Simulation
            This one.
        """
        is_together = self.rule.order == "together"
        if isinstance(schedule, int):
            n = len(self.workers)
            if is_together:
                for _ in range(schedule):
                    for rank in range(n):
                        self._train(rank)
                    self._meet()
                return self
            schedule = (rank for _ in range(schedule) for rank in range(n))
        if is_together:
            raise ValueError(
                "in order='together' all workers make each step: the schedule is the"
                " number of steps"
            )
        for rank in schedule:
            self._train(rank)
            self._come(rank)
        return self

    @property
    def centre(self) -> np.ndarray:
        """The parameters of the centre."""
        raise AttributeError(f"{self.rule!r} has no centre: see average()")

    def average(self) -> np.ndarray:
        """Return the mean of the workers' parameters, as the rule weighs them."""
        return np.mean([worker["w"] for worker in self.workers], axis=0)

    def result(self) -> np.ndarray:
        """Return the parameters that are to be used afterwards.

        Those are the centre's, or the workers' mean if the rule has no centre or the
        last round is not at its end.
        """
        return self.average()

    def _train(self, rank: int) -> None:
        """Have a worker make a step of its own."""
        k, worker = self.steps[rank], self.workers[rank]
        worker["w"][:] = self._step(worker["w"].copy(), rank, k)
        self.steps[rank] = k + 1
        self._rows_of[rank] += 1 if self._rows is None else self._rows(rank, k)

    def _meet(self) -> None:
        """Do what is due after all have made a step."""
        raise NotImplementedError

    def _come(self, rank: int) -> None:
        """Do what is due after one worker has made a step."""
        raise NotImplementedError


class _Exchanging(Simulation):
    """Workers that exchange parameters with a centre."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        n, size = len(self.workers), self._start.size
        is_together = self.rule.order == "together"
        how = n, n if is_together else 0, is_together
        self._centre = Centre(self._graphs, size, *how, _own_memory)
        self._centre.fill(self._start)
        self._sweepers = []
        for rank, worker in enumerate(self.workers):
            where = [worker["w"]].copy  # it returns what the parameters stay in
            sweeper = Sweeper(self._centre, [size], where, rank, n)
            sweeper.kept = {name: worker[name] for name in sweeper.kept}
            self._sweepers.append(sweeper)

    @property
    def centre(self) -> np.ndarray:
        """The parameters of the centre."""
        return self._centre.parameters

    def result(self) -> np.ndarray:
        """Return the parameters that are to be used afterwards."""
        rows = self._rows_of[:, 0]
        if not self.rule.is_mean or not rows.any():
            return self.centre
        return weighed([worker["w"] for worker in self.workers], rows)

    def _meet(self) -> None:
        step, delay = self.steps[0], self.rule.delay
        for k in self.rule.due(step):
            parts = shares(self._rows_of[:, k].tolist())
            for sweeper, part in zip(self._sweepers, parts, strict=True):
                sweeper.go("give", sweeper.courses[k], part)
                sweeper.to_take.append((step + delay, k))
            self._sweepers[0].go("move", self._sweepers[0].courses[k])
            self._sweepers[0].count_move(k)
            self._rows_of[:, k] = 0
            self.exchanges.append(Exchange(None, step, k))
        for sweeper in self._sweepers:
            for k in sweeper.due(step):
                sweeper.go("take", sweeper.courses[k])

    def _come(self, rank: int) -> None:
        step, delay, sweeper = self.steps[rank], self.rule.delay, self._sweepers[rank]
        for k in self.rule.due(step):
            _, staleness = sweeper.count_move(k)
            self.exchanges.append(Exchange(rank, step, k, staleness))
            sweeper.go("send" if delay else "exchange", sweeper.courses[k])
            if delay:
                sweeper.to_take.append((step + delay, k))
        for k in sweeper.due(step):
            sweeper.go("fetch", sweeper.courses[k])


class _Gossiping(Simulation):
    """Workers that send themselves to one another."""

    rule: Gossip

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        n, dtype, size = len(self.workers), self._start.dtype, self._start.size
        self._boxes = Mailboxes(self.rule, dtype, size, n, _own_memory)
        self._boxes.fill(self._start)
        self._to = [self.rule.destinations(rank, n) for rank in range(n)]

    @property
    def weights(self) -> np.ndarray:
        """Those of the workers."""
        return self._boxes.weights

    def _come(self, rank: int) -> None:
        boxes, w, to = self._boxes, self.workers[rank]["w"], next(self._to[rank])
        if boxes.mail(rank)[1]:
            w[:] = boxes.read(rank, w)
        if to is not None:
            boxes.send(rank, to, w)
            self.exchanges.append(Exchange(rank, self.steps[rank]))

    def average(self) -> np.ndarray:
        """Return the mean of the workers' parameters, what is on its way included."""
        return self._boxes.average([worker["w"] for worker in self.workers])


def _own_memory(nbytes: int) -> Any:
    """Return memory that no other process sees, with the method that segments have."""
    memory = np.zeros(nbytes, np.uint8)
    return SimpleNamespace(
        array=lambda dtype, shape, offset: np.ndarray(shape, dtype, memory, offset)
    )
