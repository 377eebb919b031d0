"""Whole runs of samplers, compiling included: ``python tests/bench/pymc_samplers.py``.

A model of `pymc_models` is sampled in one chain by each sampler, in a process of its
own: by nutpie and PyMC's NUTS with the log-density of ranks, as ``pm.sample`` in a
block of `synk.pymc.parallel`, and as users would run them without. All have all cores.
Each runs twice, and the second time is shown, which has code of the first on disk; with
the steps of the chain, as samplers take more or fewer.

What is not installed, or fails, is left out, and said to be: ``pip install
'synk[pymc,jax]' nutpie numpyro blackjax``.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

KINDS = ("logistic", "Poisson", "Student-t", "negative binomial", "hierarchical")
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
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    import pymc as pm
    from pymc_models import build

    import synk

    warnings.simplefilter("ignore")
    model = build(kind, rows)
    begun = time.perf_counter()
    by_ranks = way.endswith("synk")
    given = dict.fromkeys(("progressbar", "compute_convergence_checks"), False)
    with synk.pymc.parallel(model) if by_ranks else contextlib.nullcontext():
        idata = pm.sample(
            iterations,
            tune=iterations,
            chains=1,
            cores=1,
            random_seed=3,
            discard_tuned_samples=False,
            model=model,
            **given,
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


def run(kind: str, way: str, args: argparse.Namespace) -> dict[str, float] | None:
    """Run it in a process of its own; return None if that fails."""
    command = [sys.executable, __file__, "--rows", str(args.rows), "--only", kind]
    command += ["--way", way, "--iterations", str(args.iterations)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:]
        print(f"{kind}: {way} is not here, or failed: {last}", file=sys.stderr)
        return None
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    """Measure, or be a process that does."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--rows", type=int, default=200_000)
    add("--iterations", type=int, default=200, help="twice: to tune, too")
    add("--only", choices=KINDS, help="one model")
    add("--way", choices=list(WAYS), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.way:
        print(json.dumps(sample(args.only, args.rows, args.way, args.iterations)))
        return
    print(f"{'':20}{'':16}{'s':>8}{'steps':>8}{'ms a step':>12}")
    for kind in [args.only] if args.only else KINDS:
        for way in WAYS:
            found = [run(kind, way, args) for _ in range(2)][-1]
            if found is not None:
                seconds, steps = found["seconds"], found["steps"]
                each = f"{seconds / steps * 1e3:12.2f}" if steps else ""
                print(f"{kind:20}{way:16}{seconds:8.1f}{steps:8}{each}", flush=True)


if __name__ == "__main__":
    main()
