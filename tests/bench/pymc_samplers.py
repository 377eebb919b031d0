"""Whole runs of samplers, compiling included: ``python tests/bench/pymc_samplers.py``.

A model of `pymc_models` is sampled in one chain by each sampler, in a process of its
own: by nutpie and PyMC's NUTS with the log-density of ranks, as ``pm.sample`` in a
block of `synk.pymc.parallel`, and as users would run them without. All have all cores.
Each runs twice, and the second time is shown, which has code of the first on disk; with
the steps of the chain, as samplers take more or fewer.

``python tests/bench/pymc_samplers.py chains`` computes as many chains as cores in two
ways: each in a process of its own with one core, as ``pm.sample(cores=...)`` has them,
by plain PyMC in its fastest mode; and in turn, each call by all ranks. What is measured
is how long a call of the log-density and its gradient takes, of which a chain is made;
the processes compute at the same time. Shown are medians in ms of what a step of all
chains takes, and how many times longer side by side: more than 1 is where ranks are
faster.

What is not installed, or fails, is left out, and said to be: ``pip install
'synk[pymc,jax]' nutpie numpyro blackjax``.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

from pymc_models import KINDS, ROUNDS, build, server_of

WAYS: dict[str, dict[str, Any]] = {
    "nutpie, synk": {"nuts_sampler": "nutpie"},
    "PyMC, synk": {"nuts_sampler": "pymc"},
    "nutpie, numba": {"nuts_sampler": "nutpie"},
    "nutpie, JAX": {"nuts_sampler": "nutpie", "compile_kwargs": {"mode": "JAX"}},
    "numpyro": {"nuts_sampler": "numpyro"},
    "blackjax": {"nuts_sampler": "blackjax"},
    "PyMC": {"nuts_sampler": "pymc"},
}


def sample(kind: str, rows: int, way: str, iterations: int) -> dict[str, float]:
    """Return the seconds of a run, and the steps that it took."""
    import pymc as pm

    import synk

    model = build(kind, rows)
    begun = time.perf_counter()
    by_ranks = way.endswith("synk")
    block = synk.pymc.parallel(model) if by_ranks else contextlib.nullcontext()
    with block:
        idata = pm.sample(
            iterations,
            tune=iterations,
            chains=1,
            cores=1,
            random_seed=3,
            progressbar=False,
            compute_convergence_checks=False,
            discard_tuned_samples=False,
            model=model,
            **WAYS[way],
        )
    seconds = time.perf_counter() - begun
    steps = 0
    for group in ("sample_stats", "warmup_sample_stats"):
        with contextlib.suppress(KeyError, AttributeError):
            stats = idata[group]
            name = next(n for n in ("n_steps", "num_steps") if n in stats)
            steps += int(stats[name].sum())
    return {"seconds": seconds, "steps": steps}


def run(kind: str, rows: int, way: str, iterations: int) -> dict[str, float] | None:
    """Run it in a process of its own; return None if that fails."""
    command = [sys.executable, __file__, "--rows", str(rows), "--only", kind]
    command += ["--way", way, "--iterations", str(iterations)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:]
        print(f"{kind}: {way} is not here, or failed: {last}", file=sys.stderr)
        return None
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    """Measure, or be a process that does."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument(
        "--iterations", type=int, default=200, help="twice: to tune, too"
    )
    parser.add_argument("--only", choices=KINDS, help="one model")
    parser.add_argument("--way", choices=list(WAYS), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.way:
        sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
        warnings.simplefilter("ignore")
        found = sample(args.only, args.rows, args.way, args.iterations)
        print(json.dumps(found))
        return
    print(f"{'':20}{'':16}{'s':>8}{'steps':>8}{'ms a step':>12}")
    for kind in [args.only] if args.only else KINDS:
        for way in WAYS:
            for _ in range(2):
                found = run(kind, args.rows, way, args.iterations)
            if found is not None:
                seconds, steps = found["seconds"], found["steps"]
                each = f"{seconds / steps * 1e3:12.2f}" if steps else ""
                print(f"{kind:20}{way:16}{seconds:8.1f}{steps:8}{each}", flush=True)


# -- chains side by side, or one after the other by all ranks

THREADS = "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"
ONE_THREAD = dict.fromkeys(THREADS, "1")


def measure_chains(kind: str, rows: int, mode: str) -> None:
    """Print a line with the times of a step of all chains."""
    chains = len(os.sched_getaffinity(0))
    beside = [server_of(kind, rows, mode, **ONE_THREAD) for _ in range(chains)]
    by_ranks = server_of(kind, rows, "synk")
    if None in [server.said() for server in (*beside, by_ranks)]:
        raise SystemExit("a process has failed")
    times: tuple[list[float], list[float]] = [], []
    for _ in range(ROUNDS):
        for server in beside:
            server.ask()
        times[0].append(max(server.said() for server in beside))
        by_ranks.ask()
        times[1].append(chains * by_ranks.said())
    for server in (*beside, by_ranks):
        server.end()
    side, turn = (statistics.median(each) * 1e3 for each in times)
    print(f"{kind:20}{rows:10,}{side:12.3f}{turn:12.3f}{side / turn:8.2f}", flush=True)


def main_of_chains() -> None:
    """Measure models of several numbers of rows."""
    parser = argparse.ArgumentParser("pymc_samplers.py chains")
    usual = [1_000, 3_000, 10_000, 30_000, 100_000, 300_000]
    parser.add_argument("--rows", type=int, nargs="+", default=usual)
    parser.add_argument("--only", choices=KINDS, nargs="+", default=KINDS[:1])
    parser.add_argument("--mode", choices=("C", "numba"), default="C")
    args = parser.parse_args(sys.argv[2:])
    print(f"{'model':20}{'rows':>10}{'side by side':>14}{'in turn':>10}{'ratio':>8}")
    for kind in args.only:
        for rows in args.rows:
            measure_chains(kind, rows, args.mode)


if __name__ == "__main__":
    main_of_chains() if sys.argv[1:2] == ["chains"] else main()
