"""Prediction of the time that training by a rule takes: `simulate` with a clock.

The workers of `simulate` compute the same as real ones. Here each step and exchange
also takes simulated time. The times determine the order of exchanges, and so staleness,
waits, and when a loss is reached, for any number of workers, on one core.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from .centre import may_come
from .rule import Rule
from .simulate import Rows, Simulation, Step, simulate


class Costs(NamedTuple):
    """The times of steps and exchanges, in seconds.

    Attributes
    ----------
    step : float
        The time of one step of a worker, on average over workers.
    exchange : float or callable
        The time of one worker's exchange, or in "together" of all workers'; or a
        function of the number of workers, as for an all-reduce between machines.
    busy : float or callable, optional
        The time until the centre can begin the exchange of another worker; by default
        `exchange`. It is less on one machine, where ranks follow one another through
        the centre's blocks.
    spread : float
        The standard deviation of the logarithm of workers' speeds.
    jitter : float
        The standard deviation of the logarithm of the times of a worker's steps.
    seed : int
        The seed of speeds and times.
    """

    step: float
    exchange: float | Callable[[int], float] = 0.0
    busy: float | Callable[[int], float] | None = None
    spread: float = 0.0
    jitter: float = 0.0
    seed: int = 0


@dataclass
class Prediction:
    """The predicted course of training by a rule.

    Attributes
    ----------
    seconds : list of float
        The times at which the loss was computed, from the beginning of training.
    losses : list of float
        The losses at these times, for the parameters that training would result in.
    steps : int
        The number of steps of all workers together.
    exchanges : int
        The number of exchanges: one worker's, or in "together" all workers' at once.
    waiting : float
        The fraction of the workers' time that they wait for others.
    staleness : float
        The mean number of the centre's moves since the worker's last exchange.
    """

    seconds: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    steps: int = 0
    exchanges: int = 0
    waiting: float = 0.0
    staleness: float = 0.0

    def time_to(self, loss: float) -> float:
        """Return the seconds until a loss was reached, infinity if it was not.

        Parameters
        ----------
        loss : float
        """
        found = zip(self.seconds, self.losses, strict=True)
        return next((second for second, value in found if value <= loss), np.inf)


def predict(
    rule: Rule,
    step: Step,
    steps: int,
    workers: int,
    start: np.ndarray,
    costs: Costs,
    *,
    loss: Callable[[np.ndarray], float],
    until: float = -np.inf,
    every: int = 1,
    rows: Rows | None = None,
    mode: Any = None,
) -> Prediction:
    """Predict the times and losses of training.

    Parameters
    ----------
    rule : Rule
    step, workers, start, rows, mode
        See `simulate`.
    steps : int
        The most steps of each worker.
    costs : Costs
    loss : callable
        Returns the loss of parameters, a vector.
    until : float
        Training ends when the loss is at most this.
    every : int
        The loss is computed after `every` steps of each worker, on average.

    Returns
    -------
    Prediction

    Raises
    ------
    ValueError
        If the rule's settings do not fit the number of workers.

    Examples
    --------
    In "together" all workers wait for the slow ones, in "free" none does:

    >>> import numpy as np
    >>> from synk.rules import Costs, EASGD, predict
    >>> def step(w, rank, k):
    ...     return w - 0.1 * (w - 1)
    >>> costs = Costs(step=0.01, spread=1.0)
    >>> for order in ("together", "free"):
    ...     rule = EASGD(every=2, order=order)
    ...     found = predict(
    ...         rule, step, 200, 8, np.zeros(1), costs, loss=lambda w: abs(w[0] - 1)
    ...     )
    ...     print(f"{order}: {found.time_to(0.01):.1f} s, {found.waiting:.0%} waiting")
    together: 1.1 s, 55% waiting
    free: 0.4 s, 0% waiting
    """
    clocks = {"together": _Together, "turns": _Turns, "free": _Free}
    simulation = simulate(rule, step, 0, workers, start, rows=rows, mode=mode)
    clock = clocks[rule.order](simulation, costs, steps)
    found, looked_at = Prediction(), 0

    def look() -> bool:
        """Note the loss, and return whether it is at most `until`."""
        found.seconds.append(float(clock.times.max()))
        found.losses.append(float(loss(simulation.result())))
        return found.losses[-1] <= until

    while min(simulation.steps) < steps:
        clock.advance()
        found.steps = sum(simulation.steps)
        if found.steps // (every * workers) > looked_at:
            looked_at = found.steps // (every * workers)
            if look():
                break
    else:
        if found.steps % (every * workers):
            look()
    exchanges = simulation.exchanges
    found.exchanges = len(exchanges)
    if exchanges:
        found.staleness = float(np.mean([each.staleness for each in exchanges]))
    spent = clock.times.sum()
    found.waiting = float(clock.waited / spent) if spent else 0.0
    return found


class _Clock:
    """The present times of a simulation's workers, and their waits in all."""

    def __init__(self, simulation: Simulation, costs: Costs, steps: int) -> None:
        self.simulation, self.rule, self.steps = simulation, simulation.rule, steps
        n = self.n = len(simulation.workers)
        self._random = np.random.default_rng(costs.seed)
        self._jitter = costs.jitter
        factors = np.exp(costs.spread * self._random.standard_normal(n))
        self._step = costs.step * factors / factors.mean()
        busy = costs.exchange if costs.busy is None else costs.busy
        self.exchange, self.busy = (
            float(cost(n) if callable(cost) else cost)
            for cost in (costs.exchange, busy)
        )
        self.times = np.zeros(n)
        self.waited = 0.0

    def advance(self) -> None:
        """Make the step that is next, and its exchange; each makes at most `steps`."""
        raise NotImplementedError

    def step_of(self, rank: int) -> float:
        """Draw the time of a worker's next step."""
        if not self._jitter:
            return self._step[rank]
        # The mean of the exponential is 1.
        drawn = self._random.standard_normal() - self._jitter / 2
        return self._step[rank] * np.exp(self._jitter * drawn)

    def wait(self, rank: int, until: float) -> None:
        """Have a worker wait until a time, unless its own time is later."""
        self.waited += max(0.0, until - self.times[rank])
        self.times[rank] = max(self.times[rank], until)


class _Together(_Clock):
    """The order "together": all make a step, and meet if an exchange is due."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._ends: dict[int, float] = {}  # of exchanges, by the step that takes them

    def advance(self) -> None:
        for rank in range(self.n):
            self.times[rank] += self.step_of(rank)
        self.simulation.run(1)
        made = self.simulation.steps[0]
        for _ in self.rule.due(made):
            last = max([self.times.max(), *self._ends.values()])
            self._ends[made + self.rule.delay] = last + self.exchange
        end = self._ends.pop(made, None)
        if end is not None:
            last = float(self.times.max())
            for rank in range(self.n):
                self.wait(rank, max(last, end - self.exchange))
            self.times[:] = np.maximum(self.times, end)


class _Turns(_Clock):
    """The order "turns": workers step at the same time, but exchange in turn."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._free_from = 0.0  # when the centre can take the next exchange

    def advance(self) -> None:
        rank = sum(self.simulation.steps) % self.n
        self.times[rank] += self.step_of(rank)
        self.make_step(rank)

    def make_step(self, rank: int) -> None:
        """Have a worker make its step, and exchange if it is due."""
        before = len(self.simulation.exchanges)
        self.simulation.run([rank])
        if len(self.simulation.exchanges) == before:
            return
        if self.rule.has_centre or self.rule.order == "turns":
            self.wait(rank, self._free_from)
            self._free_from = self.times[rank] + self.busy
        self.times[rank] += self.exchange


class _Free(_Turns):
    """The order "free": the worker whose step ends first is next."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._events = sorted((self.step_of(rank), rank) for rank in range(self.n))
        self._held_up: list[int] = []

    def advance(self) -> None:
        at, rank = heapq.heappop(self._events)
        self.times[rank] = at
        if self.rule.due(self.simulation.steps[rank] + 1) and not self._may_come(rank):
            self._held_up.append(rank)
            return
        self._come(rank)
        while ready := [other for other in self._held_up if self._may_come(other)]:
            self._held_up.remove(ready[0])
            self.wait(ready[0], at)
            self._come(ready[0])

    def _come(self, rank: int) -> None:
        """Have a worker make the step that ends now, and begin the next one."""
        self.make_step(rank)
        if self.simulation.steps[rank] < self.steps:
            event = self.times[rank] + self.step_of(rank), rank
            heapq.heappush(self._events, event)

    def _may_come(self, rank: int) -> bool:
        """Return whether an exchange now keeps `max_staleness` for all others."""
        most = self.rule.max_staleness
        if most is None:
            return True
        workers = enumerate(self.simulation._sweepers)
        made = self.simulation.steps  # nobody waits for those that have made all
        others = (
            w.fetched[0] for i, w in workers if i != rank and made[i] < self.steps
        )
        return may_come(len(self.simulation.exchanges), others, most)
