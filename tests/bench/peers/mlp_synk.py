"""The training step in synk: one function, with the all-reduce in its graph."""

from contextlib import contextmanager

import synk
from bench import graphs, mlp


@contextmanager
def opened(options, place):
    graph = graphs.build(options)
    with synk.session(options.ranks):
        grads = synk.grad(graph.loss, graph.params)
        train = synk.function(
            [graph.x, graph.y],
            (graph.loss, "avg"),
            updates=graphs.descent(graph.params, grads),
        )
        rows, labels = map(synk.data, mlp.data(options))
        yield mlp.questions(
            options,
            lambda chosen: float(train(rows, labels, batch=chosen)),
            lambda chosen: (chosen,),
            lambda: synk.broadcast(graph.params, graphs.values(options)),
        )
