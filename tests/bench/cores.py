"""PyMC's models that are compared, and how far more cores carry them.

``python -m tests.bench.cores`` goes through 1, 2, 4, ... ranks, up to the cores that
there are, each a process of its own, and takes some two minutes on two; it needs PyMC
and nutpie, and no network. It prints medians: of calls of the models' log-densities
with gradients, of all-reduces, of calls on 1, 2, 4, ... groups of the ranks at once,
and of whole runs of nutpie, of as many chains as cores and four at most: by itself, in
a block of `synk.pymc.parallel`, and there by all ranks in turn.
"""

import logging
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial

import numpy as np
import pymc as pm
import pytensor

import synk
from synk.workers.affinity import usable_cores

from .beside import interleave

COLUMNS, GROUPS = 20, 500
ROWS = 200_000
KINDS = "logistic", "Poisson", "Student-t", "negative binomial", "hierarchical"
NBYTES = 1 << 16, 5_000_000
DRAWS = {"draws": 50, "tune": 50, "random_seed": 3}
QUIET = {"progressbar": False, "compute_convergence_checks": False}


def build(kind: str, rows: int) -> pm.Model:
    """Return a model of one of the kinds."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, COLUMNS))
    eta = x @ (rng.normal(size=COLUMNS) / COLUMNS**0.5)
    group = rng.integers(0, GROUPS, rows)
    with pm.Model() as model:
        predictor = x @ pm.Normal("slopes", shape=COLUMNS)
        if kind == "logistic":
            pm.Bernoulli("y", logit_p=predictor, observed=rng.random(rows) < 0.5)
        elif kind == "Poisson":
            pm.Poisson("y", pm.math.exp(predictor), observed=rng.poisson(np.exp(eta)))
        elif kind == "Student-t":
            nu, sigma = pm.Gamma("nu", 2, 0.1), pm.HalfNormal("sigma")
            seen = eta + rng.normal(size=rows)
            pm.StudentT("y", nu=nu, mu=predictor, sigma=sigma, observed=seen)
        elif kind == "negative binomial":
            alpha, mu = pm.Exponential("alpha", 1.0), pm.math.exp(predictor)
            seen = rng.poisson(np.exp(eta))
            pm.NegativeBinomial("y", mu=mu, alpha=alpha, observed=seen)
        else:
            effects = pm.Normal("effects", 0, pm.HalfNormal("spread"), shape=GROUPS)
            seen = eta + rng.normal(size=rows)
            mu = effects[group] + predictor
            pm.Normal("y", mu, pm.HalfNormal("sigma"), observed=seen)
    return model


def on_ranks(ranks: int) -> None:
    """Print what one number of ranks takes, in ms."""
    with synk.session(ranks):
        for kind in KINDS:
            density = synk.pymc.logp_dlogp(build(kind, ROWS))
            (took,) = interleave([partial(density, density.start)], 30)
            print(f"{ranks:3} ranks  {kind:24} {took * 1e3:9.2f} ms", flush=True)
        for nbytes in NBYTES:
            var = pytensor.shared(np.zeros(nbytes // 8))
            (took,) = interleave([partial(synk.all_reduce, var, "sum")], 100)
            of = f"all-reduce of {nbytes:9,} B"
            print(f"{ranks:3} ranks  {of} {took * 1e3:9.3f} ms", flush=True)


def on_groups(ranks: int) -> None:
    """Print what calls take, in ms, while all groups make some."""
    groups = 1
    while groups <= ranks:
        with synk.session(ranks, groups=groups), ThreadPoolExecutor() as threads:
            density = synk.pymc.logp_dlogp(build(KINDS[0], ROWS))
            density(density.start)  # compiled, before leaders are forked
            with ExitStack() as stack:
                leaders = [each.leader(density) for each in synk.groups()]
                calls = [stack.enter_context(leader) for leader in leaders]
                made = [[partial(call, density.start)] for call in calls]
                took = max(threads.map(lambda some: interleave(some, 30), made))[0]
                of = f"{groups:3} groups of {ranks // groups:3}"
                print(f"{of}  {KINDS[0]:15} {took * 1e3:9.2f} ms", flush=True)
        groups *= 2


def chains(ranks: int) -> None:
    """Print what runs of chains take, in s, in turns."""
    model = build("logistic", ROWS)
    given = DRAWS | QUIET | {"chains": min(4, ranks), "nuts_sampler": "nutpie"}

    def sample(cores: int) -> object:
        return pm.sample(model=model, cores=cores, **given)

    (took,) = interleave([partial(sample, ranks)], 2)
    print(f"{given['chains']} chains  by nutpie {took:.2f} s")
    with synk.session(ranks), synk.pymc.parallel(model):
        for cores, what in ((ranks, "in a block"), (1, "in turn by all ranks")):
            (took,) = interleave([partial(sample, cores)], 2)
            print(f"{given['chains']} chains  {what} {took:.2f} s", flush=True)


def main() -> None:
    """Measure, each number of ranks in a process of its own."""
    warnings.simplefilter("ignore")
    logging.getLogger("pymc").setLevel(logging.ERROR)
    cores = len(usable_cores())
    if len(sys.argv) > 1:
        on_ranks(int(sys.argv[1]))
        return
    ranks = 1
    while ranks <= cores:
        subprocess.run(
            [sys.executable, "-m", "tests.bench.cores", str(ranks)], check=True
        )
        ranks *= 2
    on_groups(cores)
    chains(cores)


if __name__ == "__main__":
    main()
