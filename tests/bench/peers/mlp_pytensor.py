"""The training step in plain PyTensor, in one process with all cores."""

from contextlib import contextmanager

import pytensor

from bench import graphs, mlp


@contextmanager
def opened(options, place):
    graph = graphs.build(options)
    grads = pytensor.grad(graph.loss, graph.params)
    train = pytensor.function(
        [graph.x, graph.y], graph.loss, updates=graphs.descent(graph.params, grads)
    )
    rows, labels = mlp.data(options)

    def restart():
        for param, value in zip(graph.params, graphs.values(options), strict=True):
            param.set_value(value)

    yield mlp.questions(
        options,
        lambda x, y: float(train(x, y)),
        lambda chosen: (rows[chosen], labels[chosen]),
        restart,
    )
