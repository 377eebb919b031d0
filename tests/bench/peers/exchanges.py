"""Exchanges of training rules: by themselves, and in training."""

import os
import time
from contextlib import contextmanager

import numpy as np
import pytensor
from bench import networks
from bench.peers.in_pytensor import descent, network
from bench.work import timed

import synk
from synk.exchange.group import Workers
from synk.ranks.session import SESSION
from synk.rules import ASGD, EASGD

RULES = {
    "EASGD, free": lambda: EASGD(1, order="free"),
    "ASGD, free": lambda: ASGD(1, order="free"),
    "EASGD": lambda: EASGD(1),
}


@contextmanager
def alone(options, place):
    """By all ranks at once; and a copy of as many bytes, within one core's reach."""
    with synk.session(options.ranks):
        found = {}
        for column in options.columns:
            found |= questions_of(column, options)
        given, room = np.ones(size_of(options), "float32"), zeros(size_of(options))
        yield {**found, "copy": timed(lambda: np.copyto(room, given))}


def questions_of(column, options):
    params = [pytensor.shared(zeros(size_of(options)))]
    workers = Workers(RULES[column](), params)
    SESSION.run(worker_exchange, workers.number, 20)

    def exchange(number):
        workers.ready()
        return max(SESSION.run(worker_exchange, workers.number, number))

    def check(_):
        """What is equal everywhere stays so."""
        exchange(1)
        values = [synk.get_value(rank, params[0]) for rank in range(options.ranks)]
        return float(np.abs(values).max())

    return {f"time {column}": exchange, f"check {column}": check}


def size_of(options) -> int:
    return sum(w.size + b.size for w, b in networks.weights(options, ""))


def zeros(size):
    return np.zeros(size, "float32")


def worker_exchange(context, number: int, times: int) -> float:
    """Exchange again and again; return the mean seconds."""
    worker = context.workers[number]
    context.comm.barrier()
    start = time.perf_counter()
    with worker.running():
        for _ in range(times):
            worker.after_step([1] * context.size)
    return (time.perf_counter() - start) / times


@contextmanager
def training(options, place):
    """Steps that ranks make by themselves."""
    yield from train(options, None)


@contextmanager
def training_by_rule(options, place):
    """Steps that ranks make by themselves, and an exchange every ten."""
    yield from train(options, EASGD(10, order="free"))


def train(options, rule):
    """Yield the questions of a session with a core for each rank."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.ranks])
    (column,) = options.columns
    kind, rows = networks.step_of(column)
    graph = network(options, kind)
    step = synk.function(
        [graph.x, graph.y],
        (graph.loss, "avg"),
        updates=descent(graph.params, pytensor.grad(graph.loss, graph.params)),
        local=True,
        mode=options.mode,
    )
    batch = rows * options.ranks
    with synk.session(options.ranks):
        data = list(map(synk.data, networks.data(options, kind)))
        order = np.random.default_rng(1).permutation(options.rows)
        batches = [order[i : i + batch] for i in range(0, options.rows, batch)]
        if rule is None:
            epoch = lambda: step.run(batches, *data)  # noqa: E731
        else:
            how = {"batch_size": batch, "epochs": 1, "progress": False}
            trainer = synk.Trainer(step, graph.params, rule)
            epoch = lambda: trainer.fit(*data, **how)  # noqa: E731
        measure = timed(epoch)
        yield {
            f"check {column}": lambda _: [float(step(*data, batch=slice(rows)))],
            f"time {column}": lambda number: measure(number) / options.rows,
        }
