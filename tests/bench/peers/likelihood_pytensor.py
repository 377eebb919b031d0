"""The likelihoods in plain PyTensor, in one process with all cores."""

from contextlib import contextmanager

import numpy as np
import pytensor

from bench import graphs, likelihoods
from bench.work import questions


@contextmanager
def opened(options, place):
    x, beta = likelihoods.rows(options), likelihoods.beta()

    def prepare(column):
        y = likelihoods.outcomes(column, x)

        def build():
            graph = graphs.likelihood(column)
            inputs = [graph.x, graph.y, graph.beta]
            f = pytensor.function(inputs, graph.outputs, mode=options.mode)
            # In JAX mode results come before they are computed, as JAX's own.
            return likelihoods.work(lambda: tuple(map(np.asarray, f(x, y, beta))))

        return build

    yield questions(likelihoods.COLUMNS, prepare)
