"""Fit a logistic regression by L-BFGS, on all ranks and serially, side by side.

Run it with ``python demos/logistic_regression.py``. The optimiser is scipy's and knows
nothing of ranks: it calls a function of the coefficients for the loss and its gradient.
That function is where all the time goes, and is one call of a `synk.function`::

    scipy.optimize.minimize(lambda w: f(X, Y, w), start, jac=True)

The rows lie in shared memory, and the coefficients go whole to every rank. The serial
run is plain PyTensor with the same graph, on all cores that it cares to use.
"""

from __future__ import annotations

import argparse
import time
from typing import NamedTuple

import numpy as np
import pytensor
import pytensor.tensor as pt
import scipy.optimize

import synk


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--ranks", type=int, help="default: all usable cores")
    add("--rows", type=int, default=1_000_000)
    add("--columns", type=int, default=20)
    add("--seed", type=int, default=0)
    args = parser.parse_args()
    if args.columns < 1 or args.rows < 100 * args.columns:
        # Few rows may be separable: then no coefficients are the best.
        parser.error(
            "needs at least 1 column and 100 rows for each, got"
            f" {args.rows} rows of {args.columns}"
        )
    return args


# -- the model: nothing here knows of synk -------------------------------------------

x, y, w = pt.dmatrix("x"), pt.vector("y", dtype="int8"), pt.dvector("w")
score = x @ w
loss = (pt.softplus(score) - y * score).mean()  # minus the mean log-likelihood
gradient = pt.grad(loss, w)
p = pt.sigmoid(score)
information = (x * (p * (1 - p))[:, None]).T @ x  # Fisher's, summed over the rows


def simulate(rows: int, columns: int, seed: int):
    """Return features, outcomes, and the coefficients that they were drawn with."""
    rng = np.random.default_rng(seed)
    truth = rng.normal(size=columns) / np.sqrt(columns)
    features = rng.normal(size=(rows, columns))
    odds = np.exp(features @ truth)
    return features, (rng.random(rows) < odds / (1 + odds)).astype("int8"), truth


# -- fitting -------------------------------------------------------------------------


class Fit(NamedTuple):
    """Where L-BFGS ended, and how long it took."""

    coefficients: np.ndarray
    evaluations: int
    seconds: float

    @property
    def milliseconds(self) -> float:
        """Time for one evaluation of loss and gradient, the optimiser's included."""
        return 1000 * self.seconds / self.evaluations

    def __str__(self) -> str:
        return (
            f"{self.evaluations} evaluations in {self.seconds:.2f} s,"
            f" {self.milliseconds:.1f} ms each"
        )


def fit(evaluate, columns: int) -> Fit:
    """Minimise ``evaluate(w)``, which returns loss and gradient."""
    start = time.perf_counter()
    found = scipy.optimize.minimize(
        evaluate,
        np.zeros(columns),
        jac=True,
        method="L-BFGS-B",
        options={"gtol": 1e-7, "ftol": 0},
    )
    seconds = time.perf_counter() - start
    assert found.success, found.message
    return Fit(found.x, found.nfev, seconds)


def main() -> None:
    args = parse_arguments()
    outputs = [(loss, "avg"), (gradient, "avg")]
    f = synk.function([x, y], outputs, bcast_inputs=[w], name="loss_and_gradient")
    summed = synk.function([x], (information, "sum"), bcast_inputs=[w])
    zeros = np.zeros(args.columns)
    with synk.session(args.ranks) as n:
        print(f"{n} rank{'s' * (n > 1)}, {args.rows:,} rows of {args.columns}")
        features, outcomes, truth = simulate(args.rows, args.columns, args.seed)
        X, Y = synk.data(features), synk.data(outcomes)
        f(X, Y, zeros, batch=1000)  # compiles
        parallel = fit(lambda w: f(X, Y, w), args.columns)
        print(f"parallel: {parallel}")
        errors = np.sqrt(np.diag(np.linalg.inv(summed(X, parallel.coefficients))))

    plain = pytensor.function([x, y, w], [loss, gradient])
    plain(features[:1000], outcomes[:1000], zeros)
    serial = fit(lambda w: plain(features, outcomes, w), args.columns)
    print(f"serial:   {serial}")
    speed_up = serial.milliseconds / parallel.milliseconds
    print(f"speed-up: {speed_up:.2f}, by the time of an evaluation")

    apart = np.abs(parallel.coefficients - serial.coefficients).max()
    print(f"optimum: coefficients differ by {apart:.1e} at the most")
    assert apart < 1e-5
    off = np.abs(parallel.coefficients - truth) / errors
    print(f"truth: coefficients are off by {off.max():.1f} standard errors at the most")
    assert off.max() < 5
    print("logistic_regression: both found the same optimum, and it is near the truth")


if __name__ == "__main__":
    main()
