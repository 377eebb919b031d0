"""The training step in plain PyTensor, in one process with all cores."""

from contextlib import contextmanager

import pytensor

from bench import graphs, networks
from bench.work import questions


@contextmanager
def opened(options, place):
    def prepare(column):
        kind, batch = networks.step_of(column)
        rows, labels = networks.data(options, kind)

        def build():
            graph = graphs.network(options, kind)
            train = compiled(graph, options.mode)

            def restart():
                values = graphs.values(options, kind)
                for param, value in zip(graph.params, values, strict=True):
                    param.set_value(value)

            return networks.work(
                options,
                batch,
                lambda x, y: float(train(x, y)),
                lambda chosen: (rows[chosen], labels[chosen]),
                restart,
            )

        return build

    yield questions(options.columns, prepare)


def compiled(graph, mode):
    grads = pytensor.grad(graph.loss, graph.params)
    return pytensor.function(
        [graph.x, graph.y],
        graph.loss,
        updates=graphs.descent(graph.params, grads),
        mode=mode,
    )
