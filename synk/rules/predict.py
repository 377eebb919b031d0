"""How long training by a rule would take: a clock for the simulator's workers.

The workers of `simulate` compute what real ones would. Here each of their steps and
exchanges takes a time besides, so who comes when follows from that, and with it how old
parameters are, who waits for whom, and when a loss is reached: for as many workers as
one likes, on one core.
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
    """What steps and exchanges take, in seconds.

    Attributes
    ----------
    step : float
        One step of a worker, on average over workers.
    exchange : float or callable
        One exchange of a worker, or of all where all meet; or a function of the number
        of workers that returns it, as for an all-reduce between machines.
    busy : float or callable, optional
        How long the centre is busy with the exchange of one worker: the next one begins
        after that. By default for all of it. Ranks of one machine follow one another
        through the centre's blocks, so it is less there.
    spread : float
        How different workers are: the standard deviation of the logarithm of their
        speeds.
    jitter : float
        How different the steps of a worker are, likewise.
    seed : int
        Of speeds and steps.
    """

    step: float
    exchange: float | Callable[[int], float] = 0.0
    busy: float | Callable[[int], float] | None = None
    spread: float = 0.0
    jitter: float = 0.0
    seed: int = 0


@dataclass
class Prediction:
    """What training by a rule would come to.

    Attributes
    ----------
    seconds : list of float
        When the loss was looked at: since training began.
    losses : list of float
        Of the parameters that are to be used afterwards, then.
    steps : int
        That all workers have made together.
    exchanges : int
        Of single workers, or of all at once where they meet.
    waiting : float
        The part of all workers' time that they wait for others.
    staleness : float
        For how many moves of the centre parameters are old in an exchange, on average.
    """

    seconds: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    steps: int = 0
    exchanges: int = 0
    waiting: float = 0.0
    staleness: float = 0.0

    def time_to(self, loss: float) -> float:
        """Return after how many seconds a loss was reached: infinite, if it was not.

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
    """Predict how long training takes, and what it comes to.

    Parameters
    ----------
    rule : Rule
    step, workers, start, rows, mode
        See `simulate`.
    steps : int
        How many each worker makes at most.
    costs : Costs
    loss : callable
        Returns the loss of parameters, a vector.
    until : float
        Training ends when the loss is not more.
    every : int
        After how many steps of all workers the loss is looked at.

    Returns
    -------
    Prediction

    Raises
    ------
    ValueError
        If the rule does not do with so many workers.

    Examples
    --------
    Slow workers hold up those that meet with them. Where each comes
    when it is ready, it does not:

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
    clock = clocks[rule.order](simulation, costs)
    found, looked_at = Prediction(), 0

    def look() -> bool:
        """Note the loss, and tell whether it is reached."""
        found.seconds.append(float(clock.times.max()))
        found.losses.append(float(loss(simulation.result())))
        return found.losses[-1] <= until

    while min(simulation.steps) < steps:
        clock.advance(steps)
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
    """Until when each of a simulation's workers has come, and what all have waited."""

    def __init__(self, simulation: Simulation, costs: Costs) -> None:
        self.simulation, self.rule = simulation, simulation.rule
        n = self.n = len(simulation.workers)
        self._random = np.random.default_rng(costs.seed)
        self._jitter = costs.jitter
        factors = np.exp(costs.spread * self._random.standard_normal(n))
        self._step = costs.step * factors / factors.mean()
        self.exchange = _of(costs.exchange, n)
        self.busy = self.exchange if costs.busy is None else _of(costs.busy, n)
        self.times = np.zeros(n)
        self.waited = 0.0

    def advance(self, steps: int) -> None:
        """Have the next ones make a step, and exchange; each makes so many at most."""
        raise NotImplementedError

    def step_of(self, rank: int) -> float:
        """Draw what a worker's next step takes."""
        if not self._jitter:
            return self._step[rank]
        # So that the mean is that of no jitter.
        drawn = self._random.standard_normal() - self._jitter / 2
        return self._step[rank] * np.exp(self._jitter * drawn)

    def wait(self, rank: int, until: float) -> None:
        """Have a worker wait, if it is not as late already."""
        self.waited += max(0.0, until - self.times[rank])
        self.times[rank] = max(self.times[rank], until)


class _Together(_Clock):
    """All make a step, and meet if it is due."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._ends: dict[int, float] = {}  # of exchanges, by the step that they are for

    def advance(self, steps: int) -> None:
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
    """Workers make their steps at the same time, and exchange one after the other."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._free_from = 0.0  # when the centre can take the next exchange

    def advance(self, steps: int) -> None:
        rank = sum(self.simulation.steps) % self.n
        self.times[rank] += self.step_of(rank)
        self.make_step(rank)

    def make_step(self, rank: int) -> bool:
        """Have a worker make its step, exchange, and tell whether it did that."""
        before = len(self.simulation.exchanges)
        self.simulation.run([rank])
        if len(self.simulation.exchanges) == before:
            return False
        if self.rule.has_centre or self.rule.order == "turns":
            self.wait(rank, self._free_from)
            self._free_from = self.times[rank] + self.busy
        self.times[rank] += self.exchange
        return True


class _Free(_Turns):
    """Whoever has made its step is next; at the centre, who has come first."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._events = [(self.step_of(rank), rank) for rank in range(self.n)]
        heapq.heapify(self._events)
        self._held_up: list[int] = []
        self._moves, self._came = 0, [0] * self.n
        self._going = set(range(self.n))

    def advance(self, steps: int) -> None:
        at, rank = heapq.heappop(self._events)
        self.times[rank] = at
        if self.rule.due(self.simulation.steps[rank] + 1) and not self._may_come(rank):
            self._held_up.append(rank)
            return
        self._come(rank, steps)
        while ready := [other for other in self._held_up if self._may_come(other)]:
            self._held_up.remove(ready[0])
            self.wait(ready[0], at)
            self._come(ready[0], steps)

    def _come(self, rank: int, steps: int) -> None:
        """Have a worker make the step whose time is over, and begin the next."""
        if self.make_step(rank):
            self._moves += 1
            self._came[rank] = self._moves
        if self.simulation.steps[rank] < steps:
            event = self.times[rank] + self.step_of(rank), rank
            heapq.heappush(self._events, event)
        else:
            self._going.remove(rank)  # nobody waits for it any more

    def _may_come(self, rank: int) -> bool:
        """Tell whether no other one's next exchange becomes too stale by this one's."""
        most = self.rule.max_staleness
        if most is None:
            return True
        others = (self._came[other] for other in self._going if other != rank)
        return may_come(self._moves, others, most)


def _of(cost: float | Callable[[int], float], n: int) -> float:
    return float(cost(n)) if callable(cost) else float(cost)
