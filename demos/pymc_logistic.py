"""Sample a PyMC logistic regression of a million rows, with one chain on all cores.

Run it with ``python demos/pymc_logistic.py``; it needs ``pip install 'synk[pymc]'``.
The model is PyMC's and knows nothing of ranks. In the block of `synk.pymc.parallel` its
log-density is computed by all of them::

    with synk.pymc.parallel(model):
        idata = pm.sample(cores=1)

With ``--compare`` PyMC samples it by itself as well, with the same seed. With
``--plot FILE`` (and matplotlib) the draws of each coefficient are drawn beside the one
that the data were simulated with.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np
import pymc as pm

import synk


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--ranks", type=int, help="default: all usable cores")
    add("--rows", type=int, default=1_000_000)
    add("--columns", type=int, default=20)
    add("--draws", type=int, default=200)
    add("--tune", type=int, default=300)
    add("--seed", type=int, default=0)
    add("--compare", action="store_true", help="sample serially as well")
    add("--plot", metavar="FILE", help="draw the coefficients, as the extension says")
    args = parser.parse_args()
    if min(args.rows, args.columns, args.draws) < 1:
        parser.error("rows, columns and draws are at least 1")
    return args


def simulate(rows: int, columns: int, seed: int):
    """Return features, outcomes, and the coefficients that they were drawn with."""
    rng = np.random.default_rng(seed)
    truth = rng.normal(size=columns) / np.sqrt(columns)
    features = rng.normal(size=(rows, columns))
    return features, rng.random(rows) < 1 / (1 + np.exp(-features @ truth)), truth


def build(features: np.ndarray, outcomes: np.ndarray) -> pm.Model:
    """Return the model: nothing here knows of synk."""
    with pm.Model() as model:
        slopes = pm.Normal("slopes", 0, 1, shape=features.shape[1])
        pm.Bernoulli("y", logit_p=features @ slopes, observed=outcomes)
    return model


def sample(args: argparse.Namespace, what: str) -> Any:
    """Return one chain's draws, and print what they took."""
    start = time.perf_counter()
    idata = pm.sample(
        draws=args.draws,
        tune=args.tune,
        chains=1,
        cores=1,
        random_seed=args.seed,
        nuts_sampler="pymc",  # both runs, though nutpie be installed
        progressbar=False,
        compute_convergence_checks=False,
    )
    seconds = time.perf_counter() - start
    steps = int(idata.sample_stats["n_steps"].sum())
    print(f"{what}: {seconds:.1f} s, {steps} leapfrog steps in {args.draws} draws")
    return idata


def plot(draws: np.ndarray, truth: np.ndarray, path: str) -> None:
    """Draw each coefficient's draws beside the true one."""
    from matplotlib.figure import Figure

    figure = Figure(layout="constrained")
    ax = figure.subplots()
    places = np.arange(len(truth))
    ax.errorbar(places, draws.mean(axis=0), 2 * draws.std(axis=0), fmt="o", ms=3)
    ax.plot(places, truth, "x", color="black")
    ax.set(xlabel="coefficient", title="mean of the draws, 2 standard deviations; true")
    figure.savefig(path)


def main() -> None:
    args = parse_arguments()
    if args.plot:
        import matplotlib.figure  # noqa: F401  # if it is missing, an error at once
    features, outcomes, truth = simulate(args.rows, args.columns, args.seed)
    model = build(features, outcomes)
    if args.compare:
        with model:
            expected = sample(args, "serial")
    with synk.session(args.ranks), synk.pymc.parallel(model):
        idata = sample(args, f"{synk.size()} ranks")
    draws = idata.posterior["slopes"].values[0]
    away = np.abs(draws.mean(axis=0) - truth) / draws.std(axis=0)
    print(f"the true coefficients are {away.max():.1f} deviations away at most")
    if args.compare:
        serial = expected.posterior["slopes"].values[0]
        apart = np.abs(draws.mean(axis=0) - serial.mean(axis=0)) / serial.std(axis=0)
        print(f"the means of both runs {apart.max():.3f} at most")
    if args.plot:
        plot(draws, truth, args.plot)


if __name__ == "__main__":
    main()
