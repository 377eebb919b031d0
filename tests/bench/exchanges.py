"""What exchanges of a training rule cost: ``python tests/bench/exchanges.py``.

First an exchange of 5 MB beside a copy of as many bytes, by one rank and by two at
once. Then the throughput of training by EASGD, an exchange every 10 steps, beside the
same steps without any: on one core, and with a rank on each of two. Waiting is
included. The processes that are compared take turns; ``--only mlp lstm`` leaves out
some.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np
import pytensor
import pytensor.tensor as pt

import synk
from synk.exchange.group import Workers
from synk.ranks.session import SESSION
from synk.rules import ASGD, EASGD, Downpour, Rule

STEPS, EPOCHS = {"mlp": 40, "lstm": 10}, {"mlp": 5, "lstm": 1}
BATCH = {"mlp": 128, "lstm": 16}
"""Rows of one rank's step."""

PLACES = [("1", "plain"), ("1", "easgd"), ("2", "plain"), ("2", "easgd")]


# -- an exchange, and a copy


def compare_with_copy(ranks: int, rule: Rule) -> None:
    """Print what an exchange takes, in times of a copy."""
    shapes = (784, 800), (800,), (800, 800), (800, 10)
    params = [pytensor.shared(np.zeros(shape, "float32")) for shape in shapes]
    with synk.session(ranks):
        workers = Workers(rule, params)
        SESSION.run(worker_exchange, workers.number, 20)
        ratios, times = [], []
        for _ in range(15):
            copy = seconds_of_copy(sum(param.get_value().size for param in params))
            workers.ready()
            spent = max(SESSION.run(worker_exchange, workers.number, 50))
            times.append(1e3 * spent)
            ratios.append(spent / copy)
    print(
        f"{rule!r}, {ranks} at once: {statistics.median(times):.3f} ms, copies:"
        f" {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})",
        flush=True,
    )


def worker_exchange(context, number: int, times: int) -> float:
    """Exchange again and again; return the mean seconds."""
    worker = context.workers[number]
    context.comm.barrier()
    start = time.perf_counter()
    with worker.running():
        for _ in range(times):
            worker.after_step([1] * context.size)
    return (time.perf_counter() - start) / times


def seconds_of_copy(size: int) -> float:
    """Return the median seconds of a copy of floats, within one core's reach."""
    given, room = np.ones(size, "float32"), np.zeros(size, "float32")
    times = []
    for _ in range(50):
        start = time.perf_counter()
        np.copyto(room, given)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


# -- training


def network(name: str) -> tuple[list, pt.TensorVariable, list, np.ndarray]:
    """Return inputs, loss, parameters, and rows for two ranks."""
    random = np.random.default_rng(0)

    def weights(*shape: int):
        values = 0.05 * random.normal(size=shape)
        return pytensor.shared(values.astype("float32"))

    rows, y = 2 * BATCH[name] * STEPS[name], pt.lvector("y")
    if name == "mlp":
        x, sizes = pt.fmatrix("x"), (784, 800, 800, 10)
        params, h = [], x
        for given, made in itertools.pairwise(sizes):
            params += [weights(given, made), weights(made)]
            z = h @ params[-2] + params[-1]
            h = pt.maximum(z, 0)
        data = random.random((rows, 784)).astype("float32")
    else:  # of Platoon's example, for shorter texts
        units, words, length = 1024, 10_000, 20
        x = pt.lmatrix("x")
        params = [
            *(weights(words, units), weights(units, 4 * units)),
            *(weights(units, 4 * units), weights(4 * units), weights(units, 2)),
        ]
        embedding, w, u, b, out = params
        h = c = pt.zeros((x.shape[0], units), dtype="float32")
        for t in range(length):
            gates = embedding[x[:, t]] @ w + h @ u + b
            i, f, o, g = (gates[:, k * units : (k + 1) * units] for k in range(4))
            c = pt.sigmoid(f) * c + pt.sigmoid(i) * pt.tanh(g)
            h = pt.sigmoid(o) * pt.tanh(c)
        z = h @ out
        data = random.integers(0, words, (rows, length))
    loss = -pt.special.log_softmax(z, axis=1)[pt.arange(y.shape[0]), y].mean()
    return [x, y], loss, params, data


def serve(ranks: int, what: str, name: str) -> None:
    """Train when a line comes in, and print how many rows a second that was."""
    inputs, loss, params, data = network(name)
    grads = pytensor.grad(loss, params)
    rate = np.float32(0.01)
    step = synk.function(
        inputs,
        (loss, "avg"),
        updates=[(p, p - rate * g) for p, g in zip(params, grads, strict=True)],
        local=True,
        mode="NUMBA" if name == "mlp" else "CVM",
    )
    batch = BATCH[name] * ranks
    rows = batch * STEPS[name]
    with synk.session(ranks):
        arrays = synk.data(data[:rows]), synk.data(np.arange(rows) % 2)
        trainer = synk.Trainer(step, params, EASGD(10, order="free"))
        order = np.random.default_rng(1).permutation(rows)
        batches = [order[i : i + batch] for i in range(0, rows, batch)]

        def by_rule() -> None:
            how = {"batch_size": batch, "epochs": EPOCHS[name], "progress": False}
            trainer.fit(*arrays, **how)

        def plainly() -> None:
            for _ in range(EPOCHS[name]):
                step.run(batches, *arrays)

        train: Callable[[], None] = by_rule if what == "easgd" else plainly
        train(), train()
        print("ready", flush=True)
        for _ in sys.stdin:
            start = time.perf_counter()
            train()
            print(rows * EPOCHS[name] / (time.perf_counter() - start), flush=True)


def compare_training(name: str, rounds: int) -> None:
    """Print the throughput of all in turns, beside that of one rank without a rule."""
    cores = sorted(os.sched_getaffinity(0))[:2]
    children = []
    for ranks, what in PLACES:
        usable = set(cores[: int(ranks)])
        child = subprocess.Popen(
            [sys.executable, __file__, "--serve", ranks, what, name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=lambda usable=usable: os.sched_setaffinity(0, usable),
        )
        assert child.stdout.readline().strip() == "ready"
        children.append(child)
    found: list[list[float]] = []
    for _ in range(rounds):
        found.append([])
        for child in children:
            print(file=child.stdin, flush=True)
            found[-1].append(float(child.stdout.readline()))
    for child in children:
        child.stdin.close()
        child.wait(60)
    for i, (ranks, what) in enumerate(PLACES):
        ratios = [of_round[i] / of_round[0] for of_round in found]
        rate = statistics.median(of_round[i] for of_round in found)
        print(
            f"{name}, ranks: {ranks}, {what}: {rate:.0f} rows/s, times the first"
            f" {statistics.median(ratios):.3f}, {min(ratios):.3f} to {max(ratios):.3f}",
            flush=True,
        )


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parts = ["copy", "mlp", "lstm"]
    parser.add_argument("--only", nargs="+", choices=parts, default=parts)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--serve", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        ranks, what, name = options.serve
        serve(int(ranks), what, name)
        return
    for name in options.only:
        if name != "copy":
            compare_training(name, options.rounds)
            continue
        for ranks in (1, 2):
            for kind in (EASGD, ASGD, Downpour):
                compare_with_copy(ranks, kind(1, order="free"))
            compare_with_copy(ranks, EASGD(1))


if __name__ == "__main__":
    main()
