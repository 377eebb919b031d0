"""The training step in synk: the serial graph."""

from contextlib import contextmanager

import pytensor

import synk
from bench import graphs, networks
from bench.work import questions

from .tuned import tuned


@contextmanager
def opened(options, place):
    with synk.session(options.ranks):

        def prepare(column):
            kind, batch = networks.step_of(column)
            rows, labels = map(synk.data, networks.data(options, kind))

            def build():
                graph = graphs.network(options, kind)
                train = compiled(graph, options.mode)
                return networks.work(
                    options,
                    batch,
                    lambda chosen: float(train(rows, labels, batch=chosen)),
                    lambda chosen: (chosen,),
                    lambda: synk.broadcast(graph.params, graphs.values(options, kind)),
                    lambda chosen: tuned(train, rows, labels, batch=chosen),
                )

            return build

        yield questions(options.columns, prepare)


def compiled(graph, mode):
    grads = pytensor.grad(graph.loss, graph.params)
    return synk.function(
        [graph.x, graph.y],
        graph.loss,
        updates=graphs.descent(graph.params, grads),
        mode=mode,
    )
