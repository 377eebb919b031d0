"""The likelihoods in synk: the rows lie in shared memory."""

from contextlib import contextmanager

import synk
from bench import graphs, likelihoods
from bench.work import questions

from .tuned import tuned


@contextmanager
def opened(options, place):
    with synk.session(options.ranks):
        x, beta = likelihoods.rows(options), likelihoods.beta()
        X = synk.data(x)

        def prepare(column):
            Y = synk.data(likelihoods.outcomes(column, x))

            def build():
                graph = graphs.likelihood(column)
                f = synk.function(
                    [graph.x, graph.y], graph.outputs, [graph.beta], mode=options.mode
                )
                return likelihoods.work(
                    lambda: f(X, Y, beta), lambda: tuned(f, X, Y, beta)
                )

            return build

        yield questions(likelihoods.COLUMNS, prepare)
