"""The likelihoods in JAX, as one writes them: compiled value and gradient."""

from contextlib import contextmanager
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln

from bench import likelihoods
from bench.likelihoods import ALPHA, NU
from bench.work import questions

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)  # keeps all


def student(y, eta):
    constant = gammaln(NU / 2) - gammaln((NU + 1) / 2) + np.log(NU * np.pi) / 2
    return constant + (NU + 1) / 2 * jnp.log1p((y - eta) ** 2 / NU)


def negative_binomial(y, eta):
    constant = gammaln(ALPHA) - ALPHA * np.log(ALPHA)
    terms = gammaln(y + 1) - gammaln(y + ALPHA) + constant
    return terms + (y + ALPHA) * jnp.log(ALPHA + jnp.exp(eta)) - y * eta


TERMS = {
    "logistic": lambda y, eta: jax.nn.softplus(eta) - y * eta,
    "poisson": lambda y, eta: jnp.exp(eta) - y * eta + gammaln(y + 1),
    "student": student,
    "negative-binomial": negative_binomial,
}


def total(column, beta, x, y):
    return TERMS[column](y, x @ beta).sum()


@contextmanager
def opened(options, place):
    rows = likelihoods.rows(options)
    x, beta = jnp.array(rows), jnp.array(likelihoods.beta())

    def prepare(column):
        y = jnp.array(likelihoods.outcomes(column, rows))

        def build():
            f = jax.jit(jax.value_and_grad(partial(total, column)))
            return likelihoods.work(lambda: jax.block_until_ready(f(beta, x, y)))

        return build

    yield questions(likelihoods.COLUMNS, prepare)
