"""The training rules with a centre, each in the notation of its paper."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytensor.tensor as pt

from ..user_frames import callers_level
from .rule import Group, Optimiser, Order, Rule, Start, State, check_at_least


class LocalSGD(Rule):
    """Local SGD: `every` steps of each worker's own, then all take their mean.

    Parameters
    ----------
    every : int
        H of the paper.
    after : int
        Post-local SGD: workers meet after each of the first `after` steps.
    order : {"together"}

    Notes
    -----
    ``w_i <- sum_j a_j w_j``, where ``a_j`` are the rows of worker j since the last
    exchange, divided by all workers' rows. An optimiser's state, as a velocity, stays
    each worker's own. With ``every=1`` and plain SGD (or momentum and equal numbers of
    rows) this is exact training. [1]_, post-local [2]_.

    References
    ----------
    .. [1] S. U. Stich, "Local SGD converges fast and communicates little", ICLR 2019.
    .. [2] T. Lin et al., "Don't use large mini-batches, use local SGD", ICLR 2020.
    """

    orders = ("together",)
    is_mean = True

    def __init__(self, every: int, after: int = 0, order: Any = "together") -> None:
        super().__init__(every, order)
        self.after = int(check_at_least("after", after))

    def give(self, worker: State, centre: State, group: Group) -> tuple[State, Any]:
        return {}, group.share * worker["w"]

    def move(self, centre: State, given: Any) -> State:
        return {"c": given}

    def take(self, worker: State, centre: State) -> State:
        return {"w": centre["c"]}

    def due(self, step: int) -> Sequence[int]:
        return (0,) if step <= self.after else super().due(step - self.after)


class ParameterAveraging(LocalSGD):
    """Parameters are averaged after each step: BSP in its ``avg`` form.

    The same as `LocalSGD` with ``every=1``: exact training for SGD and momentum. For
    optimisers that are not linear in the gradient, such as Adam, it differs from exact
    training, as each worker's state follows its own gradients.

    Parameters
    ----------
    order : {"together"}
    """

    def __init__(self, order: Any = "together") -> None:
        super().__init__(1, order=order)


class EASGD(Rule):
    """Elastic averaging SGD; with Nesterov's momentum in the step it is EAMSGD.

    Parameters
    ----------
    every : int
        tau of the paper, "communication period".
    beta : float
        The pull of all workers together at the centre.
    order : {"together", "turns", "free"}

    Notes
    -----
    With ``alpha = beta / n``, and old values on the right::

        d = alpha * (w_i - c)
        w_i <- w_i - d
        c <- c + d

    and in "together" ``c <- c + sum_i d_i``. S. Zhang, A. Choromanska, Y. LeCun, "Deep
    learning with elastic averaging SGD", NIPS 2015, equations 5 and 6, algorithm 1; the
    exchange comes after `every` whole steps.

    Without gradients ``w_1 + ... + w_n + c`` is constant. In "together" each exchange
    multiplies the workers' mean less the centre by ``1 - alpha * (1 + n)``. If ``alpha
    * (1 + n)`` is 2 or more, that difference does not shrink, and training warns.
    """

    def __init__(
        self, every: int, beta: float = 0.9, order: Order = "together"
    ) -> None:
        super().__init__(every, order)
        self.beta = check_at_least("beta", beta)

    def give(self, worker: State, centre: State, group: Group) -> tuple[State, Any]:
        d = self.beta / group.n * (worker["w"] - centre["c"])
        return {"w": worker["w"] - d}, d

    def move(self, centre: State, given: Any) -> State:
        return {"c": centre["c"] + given}

    def check(self, n: int) -> None:
        pull = self.beta / n * (1 + n)
        if pull >= 2:
            warnings.warn(
                f"EASGD(beta={self.beta}) with {n} workers: alpha * (1 + n) is"
                f" {pull:.3g}, and from 2 on the centre does not settle; take a beta"
                f" below {2 * n / (1 + n):.3g}",
                stacklevel=callers_level(),
            )


class ASGD(Rule):
    """Asynchronous SGD: the centre makes each worker's moves, too.

    Parameters
    ----------
    every : int
        Steps of any optimiser between two exchanges.
    order : {"together", "turns", "free"}

    Notes
    -----
    ``c <- c + (w_i - o_i)``, ``w_i <- c``, ``o_i <- c``, where o has the worker's
    parameters after its last exchange. With one worker it is serial training. Platoon
    has this rule; after J. Dean et al., "Large scale distributed deep networks", NIPS
    2012.
    """

    def start(self, w: np.ndarray) -> tuple[Start, Start]:
        return {"o": w}, {}

    def give(self, worker: State, centre: State, group: Group) -> tuple[State, Any]:
        return {}, worker["w"] - worker["o"]

    def move(self, centre: State, given: Any) -> State:
        return {"c": centre["c"] + given}

    def take(self, worker: State, centre: State) -> State:
        return {"w": centre["c"], "o": centre["c"]}


class Downpour(ASGD):
    """Downpour SGD: the centre's optimiser takes each worker's move as a gradient.

    Parameters
    ----------
    every : int
        Steps between two exchanges: the paper's n_fetch and n_push.
    optimiser : str or callable
        A rule of `synk.updates`, which moves the centre.
    learning_rate : float
        The learning rate of the centre's optimiser.
    max_staleness : int, optional
        The most exchanges of other workers between two of one worker: a worker that
        would exceed this waits for the late one. With n workers at least n - 1.
    order : {"together", "turns", "free"}
    **options
        Further arguments of the optimiser.

    Notes
    -----
    ``u = o_i - w_i`` is a worker's move since its last exchange, old less new: if its
    step is plain SGD with learning rate 1, the sum of `every` gradients. ``c <-
    optimiser(c, u)``, ``w_i <- c``, ``o_i <- c``. So the centre's learning rate
    multiplies the worker's. In "together" all workers' u are added. J. Dean et al.,
    "Large scale distributed deep networks", NIPS 2012.

    In "turns" of n workers the centre follows gradients that are n - 1 exchanges old:
    on ``h x**2 / 2`` it is stable if ``learning_rate * h < 2 sin(pi / (4 n - 2))``.
    """

    def __init__(
        self,
        every: int = 1,
        optimiser: str | Callable = "sgd",
        learning_rate: float = 0.01,
        max_staleness: int | None = None,
        order: Order = "together",
        **options: Any,
    ) -> None:
        super().__init__(every, order)
        self.optimiser = Optimiser(optimiser, learning_rate=learning_rate, **options)
        self.max_staleness = max_staleness

    def start(self, w: np.ndarray) -> tuple[Start, Start]:
        return {"o": w}, self.optimiser.start(w)

    def give(self, worker: State, centre: State, group: Group) -> tuple[State, Any]:
        return {}, worker["o"] - worker["w"]

    def move(self, centre: State, given: Any) -> State:
        c, kept = self.optimiser.move(centre["c"], given, centre)
        return {"c": c, **kept}

    def check(self, n: int) -> None:
        if self.max_staleness is not None and self.max_staleness < n - 1:
            raise ValueError(
                f"max_staleness={self.max_staleness} with {n} workers: between two"
                f" exchanges of one all others make theirs, so take {n - 1} at least"
            )


class GEM(Rule):
    """Gradient energy matching: the centre moves as one worker with momentum would.

    Parameters
    ----------
    every : int
        Steps between two exchanges.
    learning_rate : float
        Multiplies a worker's move; its own step is plain SGD with learning rate 1.
    momentum : float
    kappa : float
        With 2 the centre's steps are, on average, those of SGD with momentum.
    order : {"together", "turns", "free"}
    epsilon, clip : float
        Against a division by zero, and the largest factor of a step.

    Notes
    -----
    Per element, with o the worker's parameters after its last exchange and D the
    centre's move since::

        u = -learning_rate * (o_i - w_i)
        m_i <- momentum * m_i + u
        D = c - stale_i;  stale_i <- c
        pi = clip((kappa * |m_i| - |D|) / (|u| + epsilon), 0, clip)
        c <- c + pi * u;  w_i <- c_before + pi * u

    J. Hermans and G. Louppe, "Gradient energy matching for distributed asynchronous
    gradient descent", arXiv:1805.08469. ``stale_i`` begins with the first centre, so D
    is 0 at first.
    """

    def __init__(
        self,
        every: int = 1,
        learning_rate: float = 0.01,
        momentum: float = 0.9,
        kappa: float = 2.0,
        order: Order = "together",
        epsilon: float = 1e-12,
        clip: float = 5.0,
    ) -> None:
        super().__init__(every, order)
        self.learning_rate, self.momentum, self.kappa = learning_rate, momentum, kappa
        self.epsilon, self.clip = epsilon, clip

    def start(self, w: np.ndarray) -> tuple[Start, Start]:
        return {"o": w, "m": np.zeros_like(w), "stale": w}, {}

    def give(self, worker: State, centre: State, group: Group) -> tuple[State, Any]:
        u = -self.learning_rate * (worker["o"] - worker["w"])
        m = self.momentum * worker["m"] + u
        moved = centre["c"] - worker["stale"]
        fits = (self.kappa * abs(m) - abs(moved)) / (abs(u) + self.epsilon)
        u = pt.clip(fits, 0, self.clip) * u
        w = centre["c"] + u
        return {"w": w, "o": w, "m": m, "stale": centre["c"]}, u

    def move(self, centre: State, given: Any) -> State:
        return {"c": centre["c"] + given}


class DiLoCo(Rule):
    """Distributed low-communication training, and its streaming form.

    Parameters
    ----------
    every : int
        H of the paper: inner steps between two exchanges of a parameter.
    learning_rate, momentum : float
        Those of the outer optimiser.
    fragments : int
        Streaming: the number of pieces of the parameters, which are exchanged at
        different steps; each once in `every`.
    delay : int
        Streaming: the number of steps between an exchange and taking its result; a
        worker does not wait in between.
    order : {"together", "turns", "free"}
    mixing : float, optional
        The weight of a worker's own parameters when it takes the centre's; by default
        0 without a delay, otherwise 0.5.
    optimiser : str or callable
        The outer optimiser: a rule of `synk.updates`.

    Notes
    -----
    ``delta = sum_i a_i (theta - w_i)`` is taken as a gradient, by Nesterov's momentum:
    ``v <- momentum v + delta``,
    ``theta <- theta - learning_rate (delta + momentum v)``. Then
    ``w_i <- mixing w_i + (1 - mixing) theta``. The states of inner optimisers stay with
    each worker. theta, the centre, is the result of training.
    A. Douillard et al., "DiLoCo", arXiv:2311.08105, algorithm 1, and "Streaming DiLoCo
    with overlapping communication", arXiv:2501.18512.

    With learning rate 1 and momentum 0 it is `LocalSGD`.
    """

    def __init__(
        self,
        every: int = 500,
        learning_rate: float = 0.7,
        momentum: float = 0.9,
        fragments: int = 1,
        delay: int = 0,
        order: Order = "together",
        mixing: float | None = None,
        optimiser: str | Callable = "nesterov_momentum",
    ) -> None:
        super().__init__(every, order)
        self.fragments = int(check_at_least("fragments", fragments, 1))
        self.delay = int(check_at_least("delay", delay))
        if self.fragments > self.every or self.delay >= self.every:
            raise ValueError(
                f"every={every} steps each fragment is exchanged: fragments={fragments}"
                f" must be at most that, and delay={delay} less"
            )
        self.mixing = (0.5 if delay else 0.0) if mixing is None else mixing
        self.outer = Optimiser(optimiser, learning_rate=learning_rate)
        if self.outer.takes("momentum"):
            self.outer.options["momentum"] = momentum

    def start(self, w: np.ndarray) -> tuple[Start, Start]:
        return {}, self.outer.start(w)

    def give(self, worker: State, centre: State, group: Group) -> tuple[State, Any]:
        return {}, group.share * (centre["c"] - worker["w"])

    def move(self, centre: State, given: Any) -> State:
        c, kept = self.outer.move(centre["c"], given, centre)
        return {"c": c, **kept}

    def take(self, worker: State, centre: State) -> State:
        if not self.mixing:
            return {"w": centre["c"]}
        return {"w": self.mixing * worker["w"] + (1 - self.mixing) * centre["c"]}

    def due(self, step: int) -> Sequence[int]:
        k = self.fragments
        return [i for i in range(k) if (step + i * self.every // k) % self.every == 0]
