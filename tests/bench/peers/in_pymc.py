"""Log-densities of PyMC's models with gradients: by ranks, by PyMC, and in JAX.

In JAX it is what numpyro, blackjax and nutpie's JAX backend call: the graph as PyMC's
JAX functions have it.
"""

from contextlib import contextmanager

import numpy as np
from bench.cores import build
from bench.work import Work, questions
from pymc.blocking import DictToArrayBijection


def asked(options, function_of):
    """Return the questions about models, of which a function is made of the point."""

    def prepare(column):
        kind, _, rows = column.rpartition(" ")
        model = build(kind, int(rows))
        start = DictToArrayBijection.map(model.initial_point(0)).data + 0.05

        yield
        computed = function_of(model)

        def check(_):
            logp, gradient = computed(start)
            return [logp, gradient.sum()]

        yield Work(lambda: computed(start), check)

    return questions(options.columns, prepare)


@contextmanager
def by_pymc(options, place):
    """In PyTensor's mode."""

    def function_of(model):
        made = model.logp_dlogp_function(ravel_inputs=True, mode=options.mode)
        made.set_extra_values({})
        return made._pytensor_function

    yield asked(options, function_of)


@contextmanager
def in_jax(options, place):
    import jax
    from pymc.sampling.jax import get_jaxified_logp

    jax.config.update("jax_enable_x64", True)

    def function_of(model):
        logp = get_jaxified_logp(model)
        shapes = [np.shape(v) for v in model.initial_point(0).values()]
        ends = np.cumsum([int(np.prod(shape)) for shape in shapes])[:-1]

        def ravelled(q):
            parts = jax.numpy.split(q, ends)
            return logp([p.reshape(s) for p, s in zip(parts, shapes, strict=True)])

        both = jax.jit(jax.value_and_grad(ravelled))
        return lambda q: [np.asarray(v) for v in both(q)]

    yield asked(options, function_of)


@contextmanager
def by_ranks(options, place):
    """And what as many chains as cores take in turn, each call by all ranks."""
    import synk

    def in_turn(time_of_one):
        return lambda number: options.cores * time_of_one(number)

    with synk.session(options.ranks):
        found = asked(options, synk.pymc.logp_dlogp)
        for column in options.columns:
            found[f"in turn {column}"] = in_turn(found[f"time {column}"])
        yield found
