"""One network on the digits by exact training and by every training rule.

``python demos/rules.py`` trains each from five seeds, prints the error on the rows that
are held back, and draws it over the epochs and over time, with what the simulator
predicts for it beside. The last panel is a prediction only: the time to a loss with 4
and more workers, each a machine; ``--workers 4 64 1024 4096`` has more of them, and
takes some minutes. ``--seeds 1 --epochs 3 --workers`` is a quick look.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import NamedTuple

import digits
import numpy as np
import predictions
import pytensor
import pytensor.tensor as pt

import synk
from synk.rules import (
    ASGD,
    EASGD,
    GEM,
    Costs,
    DiLoCo,
    Downpour,
    Gossip,
    LocalSGD,
    Prediction,
    Rule,
)

BATCH = 64
RATE, MOMENTUM = 0.05, 0.9


def rules() -> dict[str, tuple[Rule | None, float, float]]:
    """Return each rule, and the learning rate and momentum of a worker's own steps.

    Downpour and GEM take a worker's way for a gradient, as plain steps of rate 1 make
    it; with rates that multiply each other the same way is made in other units.
    """
    usual = RATE, MOMENTUM
    return {
        "exact": (None, *usual),
        "local SGD, every 8": (LocalSGD(8), *usual),
        "EASGD, every 10": (EASGD(10, order="free"), *usual),
        "ASGD, every 5": (ASGD(5, order="free"), RATE, 0.0),
        "Downpour, every 2": (
            Downpour(2, "momentum", learning_rate=0.5, order="free"),
            RATE,
            0.0,
        ),
        "GEM": (GEM(1, learning_rate=1.0, order="free"), RATE, 0.0),
        "gossip, p 0.1": (Gossip(0.1), *usual),
        # An outer momentum of 0.9 is for more rounds than the nine of 20 epochs.
        "DiLoCo, every 50": (DiLoCo(50, momentum=0.5), *usual),
    }


class Found(NamedTuple):
    """What one training has come to, by epochs."""

    errors: list[float]  # fractions of the rows that were held back
    seconds: list[float]  # since it began
    waits: float  # the part of the time that ranks waited for others
    exchanges: int
    costs: Costs


def train(
    data: digits.Digits,
    rule: Rule | None,
    rate: float,
    mu: float,
    seed: int,
    epochs: int,
) -> Found:
    """Train the network from one seed."""
    random = np.random.default_rng(seed)
    x, y = pt.matrix("x"), pt.ivector("y")
    n = data.images[0].size
    w, v = (
        pytensor.shared(random.normal(size=shape) * np.sqrt(2 / shape[0]), name)
        for name, shape in (("w", (n, 50)), ("v", (50, 10)))
    )
    b, c = pytensor.shared(np.zeros(50), "b"), pytensor.shared(np.zeros(10), "c")
    params = [w, b, v, c]
    scores = pt.maximum(x @ w + b, 0) @ v + c
    loss = -pt.special.log_softmax(scores, axis=1)[pt.arange(y.shape[0]), y].mean()
    grads = pytensor.grad(loss, params)
    updates = synk.updates.momentum(grads, params, rate, mu)
    step = synk.function([x, y], loss, updates=updates, local=rule is not None)
    wrong = synk.function([x, y], pt.neq(pt.argmax(scores, axis=1), y).mean())

    images = data.images.reshape(len(data.images), -1) / data.white
    parts = {
        name: (synk.data(images[rows]), synk.data(data.labels[rows]))
        for name, rows in data.rows.items()
    }
    exchanges = []
    trainer = synk.Trainer(step, params, rule, seed=seed)
    history = trainer.fit(
        *parts["train"],
        batch_size=BATCH,
        epochs=epochs,
        validation=lambda: {"error": wrong(*parts["validation"])},
        callbacks=[lambda trainer, _: exchanges.append(len(trainer.exchanges))],
        progress=False,
    )
    seconds = np.cumsum(history["seconds"])
    waits = sum(epoch.get("wait", 0.0) for epoch in history.epochs) / seconds[-1]
    if rule is None:  # ranks meet in every step
        made = [history.epochs[0]["step"]] * epochs
    else:
        workers = 1 if rule.order == "together" else synk.size()
        made = [count / workers for count in exchanges]
    costs = costs_of(history, made)
    return Found(history["val_error"], list(seconds), waits, sum(exchanges), costs)


def costs_of(history: synk.History, exchanges: Sequence[float]) -> Costs:
    """Return what a step and an exchange have taken, in a usual epoch.

    Parameters
    ----------
    history : History
    exchanges : sequence of float
        Of each worker, by epochs.
    """
    steps = history.epochs[0]["step"]
    spent = [epoch["exchange"] + epoch["wait"] for epoch in history.epochs]
    seconds = np.median(np.subtract(history["seconds"], spent))
    each = np.median(np.divide(spent, np.maximum(exchanges, 1)))
    return Costs(seconds / steps, each, busy=0.0)


def draw(
    found: dict[str, list[Found]],
    predicted: dict[str, Prediction],
    times: dict[str, list[Prediction]],
    workers: Sequence[int],
    path: str,
) -> None:
    """Draw the error over epochs and over seconds, what waits, and the time to a loss.

    Dots are what was predicted. Seconds are at the pace of a usual epoch: the first
    ones compile.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 8.4), layout="constrained")
    panels = figure.subplots(2, 2).ravel()
    panels[1].sharey(panels[0])
    for place, (name, of_seeds) in enumerate(found.items()):
        errors = 100 * np.mean([each.errors for each in of_seeds], axis=0)
        pace = np.median([np.diff(each.seconds, prepend=0) for each in of_seeds])
        epochs = np.arange(1, len(errors) + 1)
        (line,) = panels[0].plot(epochs, errors, "k-" if name == "exact" else "-")
        like = {"color": line.get_color()}
        panels[1].plot(pace * epochs, errors, label=name, **like)
        waits = 100 * np.mean([each.waits for each in of_seeds])
        panels[2].barh(place, waits, **like)
        panels[2].text(waits, place, f" {of_seeds[0].exchanges:,}", va="center")
        if name in predicted:
            made = predicted[name]
            of_epochs = 100 * np.array(made.losses[: len(epochs)])
            panels[0].plot(epochs, of_epochs, ".", **like)
            panels[1].plot(made.seconds[: len(epochs)], of_epochs, ".", **like)
    panels[0].set(xlabel="epoch", ylabel="error, %; dots: predicted", yscale="log")
    panels[1].set(xlabel="seconds")
    panels[1].legend(fontsize="small")
    for panel in panels[:2]:
        panel.grid(alpha=0.3)
    panels[2].set_yticks(range(len(found)), labels=list(found))
    panels[2].invert_yaxis()
    panels[2].set(xlabel="waiting for others, % of the time; numbers: exchanges")
    panels[2].margins(x=0.15)
    if workers:
        predictions.draw(panels[3], times, workers)
    else:
        panels[3].set_axis_off()
    figure.savefig(path, dpi=120)


def main(argv: Sequence[str] | None = None) -> dict[str, list[Found]]:
    """Train by each rule, and tell what it came to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, help="default: one for each core")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--only", nargs="+", choices=list(rules()))
    parser.add_argument("--workers", type=int, nargs="*", default=[4, 16, 64])
    parser.add_argument("--plot", default="rules.png", metavar="FILE")
    options = parser.parse_args(argv)
    data = digits.load(bundled=True)
    found: dict[str, list[Found]] = {}
    predicted: dict[str, Prediction] = {}
    with synk.session(options.ranks):
        print(f"{data.name}, {synk.size()} ranks, {options.epochs} epochs")
        print(f"{'':20}{'error, %':>16}{'exchanges':>12}{'waiting':>10}{'seconds':>9}")
        for name, (rule, rate, mu) in rules().items():
            if options.only and name not in options.only:
                continue
            seeds = range(options.seeds)
            found[name] = [
                train(data, rule, rate, mu, seed, options.epochs) for seed in seeds
            ]
            show(name, found[name])
            how = (rate, mu), BATCH, synk.size(), options.epochs
            costs = found[name][0].costs
            predicted[name] = predictions.beside(data, rule, *how, costs)
    workers = options.workers
    times = predictions.times_to_target(data, workers) if workers else {}
    draw(found, predicted, times, workers, options.plot)
    print(f"the curves are in {options.plot}")
    return found


def show(name: str, found: list[Found]) -> None:
    """Print a line of the table."""
    ends = [100 * each.errors[-1] for each in found]
    error = f"{np.mean(ends):.2f} +- {np.std(ends):.2f}"
    waits = f"{100 * np.mean([each.waits for each in found]):.1f} %"
    seconds = np.mean([each.seconds[-1] for each in found])
    print(f"{name:20}{error:>16}{found[0].exchanges:12}{waits:>10}{seconds:9.2f}")


if __name__ == "__main__":
    main()
