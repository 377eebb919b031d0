"""Graphs that draw what is not for rows: the serial numbers are wanted on any ranks."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.compile.builders import OpFromGraph

X, Y = pt.dmatrix("x"), pt.dvector("y")
INPUTS = [X, Y]
N = X.shape[0]


def values(rows: int) -> list[np.ndarray]:
    """Return rows of every input."""
    rng = np.random.default_rng(rows)
    return [rng.normal(size=(rows, 3)), rng.uniform(0.1, 0.9, rows)]


def draw(op, *parameters, rng, **options):
    """Return the next state of a stream and what was drawn from it."""
    return op(*parameters, rng=rng, **options).owner.outputs


class Script:
    """A graph with parameters and a stream, each made anew: one for each function."""

    def __init__(self) -> None:
        self.rng = pytensor.shared(np.random.default_rng(5), "rng")
        self.w = pytensor.shared(np.array([0.5, -0.3, 0.2]), "w")

    def normal(self, *parameters, size=None):
        """Draw from the stream, which goes on from there."""
        after, drawn = draw(pt.random.normal, *parameters, rng=self.rng, size=size)
        return drawn, {self.rng: after}


def a_scalar(script):
    drawn, updates = script.normal()
    return [drawn, (X * drawn).sum()], updates


def of_fixed_size(script):
    drawn, updates = script.normal(size=(2, 3))
    return [drawn, (X @ drawn.T).mean(axis=0)], updates


def as_wide_as_rows(script):
    drawn, updates = script.normal(size=(X.shape[1],))
    return [(X * drawn).sum(axis=0)], updates


def with_a_mean_as_parameter(script):
    drawn, updates = script.normal(X.mean(axis=0), Y.max())
    return [drawn, (X - drawn).mean()], updates


def one_after_the_other(script):
    """The second has to wait for what the ranks combine of the first."""
    first, updates = script.normal(size=(3,))
    spread = (X @ first).var()
    after, second = draw(
        pt.random.uniform, 0, spread, rng=updates[script.rng], size=(2,)
    )
    return [first, second], {script.rng: after}


def both_from_one_state(script):
    """Two draws that begin alike, one of them behind a reduction."""
    first, updates = script.normal(size=(3,))
    second, _ = script.normal(X.mean(), 1, size=(2,))
    return [first, second], updates


def noise_on_parameters(script):
    """Langevin dynamics: a step down the gradient, and noise."""
    loss = ((X @ script.w - Y) ** 2).mean()
    noise, updates = script.normal(size=script.w.shape)
    step = 0.1 * pytensor.grad(loss, script.w)
    updates[script.w] = script.w - step + 0.01 * noise
    return [loss], updates


def dropped_weights(script):
    after, kept = draw(pt.random.bernoulli, 0.5, rng=script.rng, size=script.w.shape)
    loss = ((X @ (script.w * kept) - Y) ** 2).mean()
    gradient = pytensor.grad(loss, script.w)
    return [loss], {script.rng: after, script.w: script.w - 0.1 * gradient}


def behind_exponentials(script):
    """Which PyTensor stabilises before anything is placed."""
    noise, updates = script.normal(size=script.w.shape)
    z = X @ (script.w + noise)
    loss = pt.log(pt.exp(z).sum()) - z.mean()
    updates[script.w] = script.w - 0.1 * pytensor.grad(loss, script.w)
    return [loss], updates


def in_a_graph_of_its_own(script):
    """As an Op, which has statistics of the rows as well."""
    rng, x = script.rng.type("rng"), pt.dmatrix("rows")
    after, drawn = draw(pt.random.normal, rng=rng, size=(3,))
    op = OpFromGraph([rng, x], [after, (x - x.mean(axis=0)) * drawn])
    after, scaled = op(script.rng, X)
    return [scaled], {script.rng: after}


def a_random_order(script):
    after, order = draw(pt.random.permutation, N, rng=script.rng)
    return [Y[order], order], {script.rng: after}


def shuffled_rows(script):
    after, rows = draw(pt.random.permutation, X, rng=script.rng)
    return [rows[:2]], {script.rng: after}


def a_sample_of_rows(script):
    after, taken = draw(pt.random.integers, 0, N, rng=script.rng, size=(4,))
    return [Y[taken].mean(), taken], {script.rng: after}


def a_choice_by_rows_as_odds(script):
    odds = Y / Y.sum()
    after, one = draw(pt.random.categorical, odds, rng=script.rng, size=(5,))
    return [one], {script.rng: after}


def a_normal_of_many(script):
    covariance = (X - X.mean(axis=0)).T @ (X - X.mean(axis=0)) + pt.eye(3)
    after, one = draw(
        pt.random.multivariate_normal, X.mean(axis=0), covariance, rng=script.rng
    )
    return [one], {script.rng: after}


def a_gibbs_chain(script):
    """A chain in a loop, which the variable goes on with: it is of no row."""
    chain = pytensor.shared(np.zeros((2, 3)), "chain")

    def step(state, rng, w):
        rng, state = draw(pt.random.normal, state * w, 1.0, rng=rng)
        return state, rng

    states, rng = pytensor.scan(
        step,
        outputs_info=[chain, script.rng],
        non_sequences=[script.w],
        n_steps=3,
        return_updates=False,
    )
    cost = (X @ script.w).mean() - (states[-1] @ script.w).mean()
    return [cost, states], {chain: states[-1], script.rng: rng}


def without_an_update(script):
    drawn, _ = script.normal(size=(3,))
    return [drawn], {script.w: script.w + drawn}


def nothing_but_an_update(script):
    _, updates = script.normal(size=(3,))
    return [X.sum()], updates


CASES = [
    a_scalar,
    of_fixed_size,
    as_wide_as_rows,
    with_a_mean_as_parameter,
    one_after_the_other,
    both_from_one_state,
    noise_on_parameters,
    dropped_weights,
    behind_exponentials,
    in_a_graph_of_its_own,
    a_random_order,
    shuffled_rows,
    a_sample_of_rows,
    a_choice_by_rows_as_odds,
    a_normal_of_many,
    a_gibbs_chain,
    without_an_update,
    nothing_but_an_update,
]
