"""Likelihoods and training steps in JAX, as one writes them."""

from contextlib import contextmanager
from functools import partial

import jax
import jax.numpy as jnp
from bench import likelihoods, networks
from bench.work import questions
from jax.scipy.special import gammaln

jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)  # keeps all


class _Functions:
    exp, log, log1p, gammaln = jnp.exp, jnp.log, jnp.log1p, gammaln
    softplus = jax.nn.softplus


TERMS = likelihoods.terms_by(_Functions)


def total(column, beta, x, y):
    return TERMS[column](y, x @ beta).sum()


@contextmanager
def likelihood(options, place):
    """Compiled value and gradient."""
    jax.config.update("jax_enable_x64", True)
    rows = likelihoods.rows(options)
    x, beta = jnp.array(rows), jnp.array(likelihoods.beta())

    def prepare(column):
        y = jnp.array(likelihoods.outcomes(column, rows))
        yield
        f = jax.jit(jax.value_and_grad(partial(total, column)))
        yield likelihoods.work(lambda: jax.block_until_ready(f(beta, x, y)))

    yield questions(likelihoods.COLUMNS, prepare)


ACTIVATIONS = {"relu": jax.nn.relu, "tanh": jnp.tanh}


def layer_of(x, w, b, activation):
    if w.ndim == 4:
        z = jax.lax.conv_general_dilated(x, w, (1, 1), "SAME") + b[:, None, None]
        window = (1, 1, 2, 2)
        return jax.lax.reduce_window(
            activation(z), -jnp.inf, jax.lax.max, window, window, "VALID"
        )
    return activation(x.reshape(len(x), -1) @ w + b)


def cost(params, x, y, activation):
    for w, b in params[:-1]:
        x = layer_of(x, w, b, ACTIVATIONS[activation])
    w, b = params[-1]
    log_p = jax.nn.log_softmax(x @ w + b)
    return -jnp.take_along_axis(log_p, y[:, None], axis=1).mean()


@partial(jax.jit, donate_argnums=0, static_argnums=3)
def train(params, x, y, activation):
    loss, grads = jax.value_and_grad(cost)(params, x, y, activation)
    return jax.tree.map(lambda p, g: p - networks.RATE * g, params, grads), loss


@contextmanager
def training(options, place):
    """One compiled function, with its parameters donated."""

    def prepare(column):
        of_column = networks.step_of(column)
        rows, labels = networks.data(options, of_column.kind)
        params = None

        def restart():
            nonlocal params
            initial = networks.weights(options, of_column.kind)
            params = [tuple(map(jnp.array, pair)) for pair in initial]

        def step(x, y):
            nonlocal params
            params, loss = train(params, x, y, of_column.activation)
            return float(loss)

        def batch_of(chosen):
            return jnp.array(rows[chosen]), jnp.array(labels[chosen])

        yield
        restart()
        yield networks.work(options, of_column.batch, step, batch_of, restart)

    yield questions(options.columns, prepare)
