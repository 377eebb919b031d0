"""The training step in synk with one rank, and in plain PyTensor, in one process.

In one process, as a difference of 1 % between two is nothing: memory that happens to be
laid out otherwise makes as much.
"""

from contextlib import contextmanager

import pytensor

import synk
from bench import graphs, networks
from bench.timing import timed


@contextmanager
def opened(options, place):
    chosen = slice(0, options.alone)
    rows, labels = networks.data(options, "relu")
    with synk.session(1):
        ours, theirs = (graphs.network(options, "relu") for _ in range(2))
        train = synk.function(
            [ours.x, ours.y],
            (ours.loss, "avg"),
            updates=graphs.descent(ours.params, synk.grad(ours.loss, ours.params)),
        )
        plain = pytensor.function(
            [theirs.x, theirs.y],
            theirs.loss,
            updates=graphs.descent(
                theirs.params, pytensor.grad(theirs.loss, theirs.params)
            ),
        )
        x, y = synk.data(rows), synk.data(labels)

        def ours_once():
            return float(train(x, y, batch=chosen))

        def theirs_once():
            return float(plain(rows[chosen], labels[chosen]))

        yield {
            "check synk": lambda number: [ours_once() for _ in range(number)],
            "check plain": lambda number: [theirs_once() for _ in range(number)],
            "step synk": timed(ours_once),
            "step plain": timed(theirs_once),
        }
