"""What training by a rule would take: for `rules.py`.

Its network, in numpy, is trained by the workers of synk's simulator on a clock, as many
as one likes: see `synk.rules.predict`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

import digits
import numpy as np

from synk.rules import EASGD, Costs, DiLoCo, LocalSGD, Prediction, Rule, predict

HIDDEN = 50
TARGET = 0.25
"""Of the loss on rows that are held back; guessing has 2.3."""

RULES: dict[str, Callable[[], Rule]] = {
    "in every step": lambda: LocalSGD(1),
    "local SGD, every 8": lambda: LocalSGD(8),
    "EASGD, every 10": lambda: EASGD(10, order="free"),
    "DiLoCo, every 20": lambda: DiLoCo(20),
}


class Network:
    """A hidden layer, whose parameters are one vector.

    Parameters
    ----------
    data : Digits
    seed : int
        Of the values to begin with.
    """

    def __init__(self, data: digits.Digits, seed: int) -> None:
        images = data.images.reshape(len(data.images), -1) / np.float32(data.white)
        self._of = {
            name: (images[rows].astype(np.float32), data.labels[rows])
            for name, rows in data.rows.items()
        }
        self.rows, inputs = self._of["train"][0].shape
        self._shapes = (inputs, HIDDEN), (HIDDEN, 10), (HIDDEN,), (10,)
        random = np.random.default_rng(seed)
        first, second = (
            random.normal(size=shape) * np.sqrt(2 / shape[0])
            for shape in self._shapes[:2]
        )
        zeros = np.zeros(HIDDEN + 10)
        start = [first.ravel(), second.ravel(), zeros]
        self.start = np.concatenate(start).astype(np.float32)

    def _parts(self, vector: np.ndarray) -> list[np.ndarray]:
        parts, at = [], 0
        for shape in self._shapes:
            size = int(np.prod(shape))
            parts.append(vector[at : at + size].reshape(shape))
            at += size
        return parts

    def _forward(self, vector: np.ndarray, x: np.ndarray) -> tuple:
        w, v, b, c = self._parts(vector)
        h = np.maximum(x @ w + b, 0)
        scores = h @ v + c
        scores -= scores.max(axis=1, keepdims=True)
        p = np.exp(scores)
        return h, v, p / p.sum(axis=1, keepdims=True)

    def gradient(self, vector: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Return the gradient of the mean loss of some training rows."""
        x, y = self._of["train"][0][rows], self._of["train"][1][rows]
        h, v, p = self._forward(vector, x)
        p[np.arange(len(y)), y] -= 1
        p /= len(y)
        below = (p @ v.T) * (h > 0)
        found = x.T @ below, h.T @ p, below.sum(axis=0), p.sum(axis=0)
        return np.concatenate([part.ravel() for part in found])

    def loss(self, vector: np.ndarray) -> float:
        """Return the mean loss of the rows that are held back."""
        x, y = self._of["validation"]
        p = self._forward(vector, x)[2]
        return float(-np.log(p[np.arange(len(y)), y] + 1e-30).mean())

    def error(self, vector: np.ndarray) -> float:
        """Return which part of the rows that are held back is taken for another."""
        x, y = self._of["validation"]
        return float((self._forward(vector, x)[2].argmax(axis=1) != y).mean())

    def sgd(
        self, rate: float, mu: float, rows_of: Callable[[int, int], np.ndarray]
    ) -> Callable[[np.ndarray, int, int], np.ndarray]:
        """Return a step of SGD with momentum, as `predict` takes it.

        Parameters
        ----------
        rate, mu : float
        rows_of : callable
            Returns the rows of a worker's step.
        """
        velocities: dict[int, np.ndarray] = {}

        def step(w: np.ndarray, rank: int, k: int) -> np.ndarray:
            v = velocities.get(rank, 0.0) * np.float32(mu)
            v = velocities[rank] = v - rate * self.gradient(w, rows_of(rank, k))
            return w + v

        return step


def by_chance(rows: int, batch: int, seed: int = 0) -> Callable[[int, int], np.ndarray]:
    """Return what draws the rows of each step of each worker."""

    def rows_of(rank: int, k: int) -> np.ndarray:
        return np.random.default_rng([seed, rank, k]).integers(rows, size=batch)

    return rows_of


def of_epochs(
    rows: int, batch: int, workers: int, seed: int
) -> Callable[[int, int], np.ndarray]:
    """Return what takes each row once in an epoch, as `synk.Trainer` does."""
    steps = -(-rows // batch)

    @lru_cache(maxsize=2)  # in the order "free" workers may be an epoch apart
    def order(epoch: int) -> np.ndarray:
        return np.random.default_rng([seed, epoch]).permutation(rows)

    def rows_of(rank: int, k: int) -> np.ndarray:
        whole = order(k // steps)[k % steps * batch :][:batch]
        return np.array_split(whole, workers)[rank]

    return rows_of


def beside(
    data: digits.Digits,
    rule: Rule | None,
    how: tuple[float, float],
    batch: int,
    workers: int,
    epochs: int,
    costs: Costs,
) -> Prediction:
    """Predict the error after each epoch of what `rules.py` trains.

    Parameters
    ----------
    data : Digits
    rule : Rule or None
        Exact training has the numbers of a mean after every step.
    how : (float, float)
        Learning rate and momentum.
    batch, workers, epochs : int
    costs : Costs
        As they were measured.
    """
    network = Network(data, 0)
    step = network.sgd(*how, of_epochs(network.rows, batch, workers, 0))
    steps = -(-network.rows // batch)
    return predict(
        rule or LocalSGD(1),
        *(step, steps * epochs, workers, network.start, costs),
        loss=network.error,
        every=steps,
        rows=lambda rank, k: _rows(network.rows, batch, workers, rank, k % steps),
    )


def _rows(rows: int, batch: int, workers: int, rank: int, k: int) -> int:
    """Return how many rows a worker's share of a batch has."""
    whole = min(batch, rows - k * batch)
    return whole // workers + (rank < whole % workers)


def times_to_target(
    data: digits.Digits, workers: Sequence[int], batch: int = 32, steps: int = 400
) -> dict[str, list[Prediction]]:
    """Predict, and print, what so many workers would come to.

    Those are machines: 0.1 s for a step, of speeds that vary, and 20 ms for an exchange
    of two. All together exchange along a tree; the centre has ten times the link.

    Parameters
    ----------
    data : Digits
    workers : sequence of int
    batch : int
        Rows of one worker's step.
    steps : int
        That each makes at most.
    """
    link, network = 0.02, Network(data, 0)
    costs = Costs(
        step=0.1,
        exchange=lambda n: link * max(1.0, np.log2(n)),
        busy=link / 10,
        spread=0.2,
        jitter=0.1,
    )
    found: dict[str, list[Prediction]] = {}
    print(f"{'predicted':20}{'workers':>16}{'seconds':>12}{'waiting':>10}")
    for name, rule in RULES.items():
        for n in workers:
            step = network.sgd(0.05, 0.9, by_chance(network.rows, batch))
            made = predict(
                rule(),
                *(step, steps, n, network.start, costs),
                loss=network.loss,
                until=TARGET,
                every=2,
            )
            found.setdefault(name, []).append(made)
            seconds = made.time_to(TARGET)
            print(f"{name:20}{n:16}{seconds:12.2f}{made.waiting:10.0%}", flush=True)
    return found


def draw(axes, found: dict[str, list[Prediction]], workers: Sequence[int]) -> None:
    """Draw the predicted times over the numbers of workers."""
    for name, predictions in found.items():
        seconds = [made.time_to(TARGET) for made in predictions]
        axes.plot(workers, seconds, "o-", label=name)
    label = f"predicted seconds to a loss of {TARGET}"
    axes.set(xlabel="workers", ylabel=label, xscale="log", ylim=(0, None))
    axes.set_xticks(workers, labels=list(map(str, workers)))
    axes.set_xticks([], minor=True)
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
