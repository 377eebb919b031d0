"""The training step in JAX: one compiled function, with its parameters donated."""

from contextlib import contextmanager
from functools import partial

import jax
import jax.numpy as jnp

from bench import mlp

ACTIVATIONS = {"relu": jax.nn.relu, "tanh": jnp.tanh}


def cost(params, x, y, activation):
    for w, b in params[:-1]:
        x = ACTIVATIONS[activation](x @ w + b)
    w, b = params[-1]
    log_p = jax.nn.log_softmax(x @ w + b)
    return -jnp.take_along_axis(log_p, y[:, None], axis=1).mean()


@partial(jax.jit, donate_argnums=0, static_argnums=3)
def train(params, x, y, activation):
    loss, grads = jax.value_and_grad(cost)(params, x, y, activation)
    return jax.tree.map(lambda p, g: p - mlp.RATE * g, params, grads), loss


@contextmanager
def opened(options, place):
    rows, labels = mlp.data(options)
    params = None

    def restart():
        nonlocal params
        params = [tuple(map(jnp.array, pair)) for pair in mlp.weights(options)]

    def step(x, y):
        nonlocal params
        params, loss = train(params, x, y, options.activation)
        return float(loss)

    restart()
    yield mlp.questions(
        options,
        step,
        lambda chosen: (jnp.array(rows[chosen]), jnp.array(labels[chosen])),
        restart,
    )
