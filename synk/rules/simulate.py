"""`simulate`: training by a rule with virtual workers, all in one process.

Tests compare ranks with it, and it shows the effect of a rule with more workers than
there are cores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from ..reduce_ops import shares
from .centre import Centre, mean_by_rows
from .gossip import Gossip, Mailboxes
from .graphs import RuleGraphs
from .rule import Rule
from .sweeps import Sweeper

Step: TypeAlias = Callable[[np.ndarray, int, int], np.ndarray]
Rows: TypeAlias = Callable[[int, int], int]


class Exchange(NamedTuple):
    """A record of one exchange.

    Attributes
    ----------
    rank : int or None
        The worker; None if all met.
    step : int
        The number of steps that the worker had made.
    fragment : int
        The number of the piece of the parameters.
    staleness : int
        The number of other workers' exchanges since this worker's last one, which its
        parameters did not include.
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
        number `k`, counted from 0. It may keep an optimiser's state by rank.
    schedule : int or iterable of int
        The number of steps of each worker, in the rule's order. Or the workers whose
        steps are next, one after the other, as :func:`random_turns` yields them; not
        for the order "together".
    workers : int
        The number of workers.
    start : numpy.ndarray, shape (parameters,)
        The parameters that all begin with, of a float dtype.
    rows : callable, optional
        ``rows(rank, k)`` returns the number of rows of a step; by default all steps
        have the same.
    mode : optional
        The PyTensor mode that computes the rule. By default loops that numba compiles
        compute it, as on ranks.

    Returns
    -------
    Simulation

    Raises
    ------
    ValueError
        If the rule's settings do not fit the number of workers, or the schedule does
        not fit the rule's order.

    Examples
    --------
    The steps of two workers move towards 1 and 3, and the centre settles between them:

    >>> import numpy as np
    >>> from synk.rules import EASGD, simulate
    >>> def step(w, rank, k):
    ...     return w - 0.1 * (w - (1, 3)[rank])
    >>> found = simulate(EASGD(every=5), step, 500, workers=2, start=np.zeros(1))
    >>> found.centre.round(6)
    array([2.])
    """
    kind = _GossipSimulation if isinstance(rule, Gossip) else Simulation
    return kind(rule, step, workers, start, rows, mode).run(schedule)


def random_turns(workers: int, steps: int, seed: int = 0) -> Iterator[int]:
    """Yield the workers whose steps are next, in a random order.

    Parameters
    ----------
    workers : int
        The number of workers.
    steps : int
        The number of steps of each worker.
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
        The state of each, by name; its parameters are ``"w"``.
    steps : list of int
        The number of steps that each has made.
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
        start = np.asarray(start)
        graphs = RuleGraphs(rule, start.dtype, mode)
        self.workers = [graphs.start(start)[0] for _ in range(workers)]
        self.steps = [0] * workers
        self.exchanges: list[Exchange] = []
        # The rows of each worker's steps since each fragment's last exchange.
        self._rows_of = np.zeros((workers, rule.fragments))
        self._open(graphs, start)

    def _open(self, graphs: RuleGraphs, start: np.ndarray) -> None:
        """Make what the workers share, and their access to it."""
        n, size = len(self.workers), start.size
        is_together = self.rule.order == "together"
        how = n, n if is_together else 0, is_together
        self._centre = Centre(graphs, size, *how, _own_memory)
        self._centre.fill(start)
        self._sweepers = []
        for rank, worker in enumerate(self.workers):
            where = [worker["w"]].copy  # returns a list with the parameters' array
            sweeper = Sweeper(self._centre, [size], where, rank, n)
            sweeper.kept = {name: worker[name] for name in sweeper.kept}
            self._sweepers.append(sweeper)

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
        if not self.rule.has_centre:
            raise AttributeError(f"{self.rule!r} has no centre: see average()")
        return self._centre.parameters

    def average(self) -> np.ndarray:
        """Return the mean of the workers' parameters, with the rule's weights."""
        return np.mean([worker["w"] for worker in self.workers], axis=0)

    def result(self) -> np.ndarray:
        """Return the parameters that training results in.

        Those are the centre's, or the workers' mean if the rule has no centre, or if
        its centre is their mean and steps were made since the last exchange.
        """
        if not self.rule.has_centre:
            return self.average()
        rows = self._rows_of[:, 0]
        if not self.rule.is_mean or not rows.any():
            return self.centre
        return mean_by_rows([worker["w"] for worker in self.workers], rows)

    def _train(self, rank: int) -> None:
        """Have a worker make a step of its own."""
        k, worker = self.steps[rank], self.workers[rank]
        worker["w"][:] = self._step(worker["w"].copy(), rank, k)
        self.steps[rank] = k + 1
        self._rows_of[rank] += 1 if self._rows is None else self._rows(rank, k)

    def _meet(self) -> None:
        """Make the exchanges that are due after all have made a step."""
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
        """Make the exchanges that are due after one worker has made a step."""
        step, delay, sweeper = self.steps[rank], self.rule.delay, self._sweepers[rank]
        for k in self.rule.due(step):
            _, staleness = sweeper.count_move(k)
            self.exchanges.append(Exchange(rank, step, k, staleness))
            sweeper.go("send" if delay else "exchange", sweeper.courses[k])
            if delay:
                sweeper.to_take.append((step + delay, k))
        for k in sweeper.due(step):
            sweeper.go("fetch", sweeper.courses[k])


class _GossipSimulation(Simulation):
    """Workers that send their parameters to one another."""

    rule: Gossip

    def _open(self, graphs: RuleGraphs, start: np.ndarray) -> None:
        n = len(self.workers)
        self._boxes = Mailboxes(start.dtype, start.size, n, _own_memory)
        self._boxes.fill(start)
        self._to = [self.rule.destinations(rank, n) for rank in range(n)]

    @property
    def weights(self) -> np.ndarray:
        """The weights of the workers; see `Gossip`."""
        return self._boxes.weights

    def _come(self, rank: int) -> None:
        boxes, w, to = self._boxes, self.workers[rank]["w"], next(self._to[rank])
        if boxes.mail(rank)[1]:
            w[:] = boxes.read(rank, w)
        if to is not None:
            boxes.send(rank, to, w)
            self.exchanges.append(Exchange(rank, self.steps[rank]))

    def average(self) -> np.ndarray:
        """Return the weighted mean of the workers' parameters and unread mail."""
        return self._boxes.average([worker["w"] for worker in self.workers])


def _own_memory(nbytes: int) -> Any:
    """Return private memory, with the method `array` of a `Segment`."""
    memory = np.zeros(nbytes, np.uint8)
    return SimpleNamespace(
        array=lambda dtype, shape, offset: np.ndarray(shape, dtype, memory, offset)
    )
