"""Log-densities of PyMC models, with gradients: ``python tests/bench/pymc_models.py``.

Each model is computed by synk on all ranks, by plain PyMC in each of PyTensor's modes,
and by what numpyro, nutpie and blackjax call: the graph as PyMC's JAX functions have
it, compiled by JAX, and by numba (nutpie's default). All have all cores, and a process
each; they compute at the same points, in turns, and medians are shown, in ms. The
values are compared with those of the first.

What is not installed is left out, and said to be: ``pip install 'synk[pymc,jax]'``.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

WAYS = ("synk", "C", "numba", "JAX")
ROUNDS = 9
SECONDS = 0.3
"""Of a turn."""
FIRST = 6.0
"""Seconds for which each computes before, as a chain does for minutes: synk tries ways
of going through the rows meanwhile."""


def build(kind: str, rows: int, columns: int = 20, groups: int = 500) -> Any:
    """Return a model with simulated data."""
    import numpy as np
    import pymc as pm

    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, columns))
    eta = x @ (rng.normal(size=columns) / columns**0.5)
    group = rng.integers(0, groups, rows)
    with pm.Model() as model:
        predictor = x @ pm.Normal("slopes", shape=columns)
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
            effects = pm.Normal("effects", 0, pm.HalfNormal("spread"), shape=groups)
            seen = eta + rng.normal(size=rows)
            mu = effects[group] + predictor
            pm.Normal("y", mu, pm.HalfNormal("sigma"), observed=seen)
    return model


KINDS = ("logistic", "Poisson", "Student-t", "negative binomial", "hierarchical")


def function(kind: str, rows: int, way: str) -> tuple[Any, Any]:
    """Return a function of the ravelled point, and the point to begin with."""
    import numpy as np
    from pymc.blocking import DictToArrayBijection

    model = build(kind, rows)
    start = DictToArrayBijection.map(model.initial_point(0)).data + 0.05
    if way == "synk":
        import synk

        synk.fork()
        made = synk.pymc.logp_dlogp(model)
        for part in made.parts:
            synk.tune(part.function, *part.arguments(start))
        return made, start
    if way == "JAX":
        import jax

        jax.config.update("jax_enable_x64", True)
        from pymc.sampling.jax import get_jaxified_logp

        logp = get_jaxified_logp(model)
        shapes = [np.shape(v) for v in model.initial_point(0).values()]
        ends = np.cumsum([int(np.prod(shape)) for shape in shapes])[:-1]

        def ravelled(q: Any) -> Any:
            parts = jax.numpy.split(q, ends)
            return logp([p.reshape(s) for p, s in zip(parts, shapes, strict=True)])

        both = jax.jit(jax.value_and_grad(ravelled))
        return lambda q: [np.asarray(v) for v in both(q)], start
    mode = {"C": "CVM", "numba": "NUMBA"}[way]
    made = model.logp_dlogp_function(ravel_inputs=True, mode=mode)
    made.set_extra_values({})
    return made._pytensor_function, start


def serve(kind: str, rows: int, way: str) -> None:
    """Compute when asked to, by lines of the standard input."""
    out, sys.stdout = sys.stdout, sys.stderr  # what is printed on the way
    computed, start = function(kind, rows, way)
    logp, gradient = computed(start)
    found = [float(logp), float(gradient.sum())]
    begun = time.perf_counter()
    while time.perf_counter() - begun < FIRST:
        computed(start)
    print(json.dumps(found), file=out, flush=True)
    for _ in sys.stdin:
        taken = []
        begun = time.perf_counter()
        while time.perf_counter() - begun < SECONDS or len(taken) < 3:
            at = time.perf_counter()
            computed(start)
            taken.append(time.perf_counter() - at)
        print(json.dumps(statistics.median(taken)), file=out, flush=True)


class Server:
    """A process that computes a model in one way, when it is asked to.

    Parameters
    ----------
    command : list of str
    **environment : str
    """

    def __init__(self, command: list[str], **environment: str) -> None:
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=os.environ | environment,
        )

    def said(self) -> Any:
        """Return what it says next; None if it has ended.

        That is first the value and the sum of the gradient, and then the median of the
        seconds that a call took in a turn.
        """
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        return json.loads(line) if line else None

    def ask(self) -> None:
        """Have it take its turn."""
        assert self._process.stdin is not None
        print(file=self._process.stdin, flush=True)

    def end(self) -> None:
        """Let it go."""
        self._process.communicate(timeout=60)


def server_of(kind: str, rows: int, way: str, **environment: str) -> Server:
    """Return a process that computes a model in one of our ways."""
    command = [sys.executable, __file__, "--serve", way, "--rows", str(rows)]
    return Server([*command, "--only", kind], **environment)


def measure(kind: str, rows: int, ways: list[str], beside: dict[str, str]) -> None:
    """Print a line with the times of a model's log-density."""
    servers: dict[str, Server] = {}
    found: dict[str, list[float]] = {}
    for way in [*ways, *beside]:
        words = beside[way].split() if way in beside else None
        server = Server(words) if words else server_of(kind, rows, way)
        said = server.said()
        if said is None:
            print(f"{kind}: {way} is not here, or failed", file=sys.stderr)
            server.end()
            continue
        servers[way], found[way] = server, said
    times: dict[str, list[float]] = {way: [] for way in servers}
    for i in range(ROUNDS):
        order = list(servers)[i % len(servers) :] + list(servers)[: i % len(servers)]
        for way in order:
            servers[way].ask()
            times[way].append(servers[way].said())
    first = next(iter(found.values()))
    for way, server in servers.items():
        server.end()
        apart = max(
            abs(a - b) / max(1.0, abs(b))
            for a, b in zip(found[way], first, strict=True)
        )
        note = "" if apart < 1e-9 else f"  differs by {apart:.1e}"
        print(f"{kind:20}{way:8}{statistics.median(times[way]) * 1e3:10.3f}{note}")
    sys.stdout.flush()


def main() -> None:
    """Measure, or serve a process that does."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--only", choices=KINDS, help="one model")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    what = "another program: see `Server.said` for what it says"
    parser.add_argument(
        "--beside", metavar="NAME=COMMAND", action="append", default=[], help=what
    )
    parser.add_argument("--serve", choices=WAYS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
        serve(args.only, args.rows, args.serve)
        return
    print(f"{'':20}{'':8}{'ms':>10}")
    for kind in [args.only] if args.only else KINDS:
        beside = dict(each.split("=", 1) for each in args.beside)
        measure(kind, args.rows, args.ways, beside)


if __name__ == "__main__":
    main()
