"""What synk mends in numba and JAX mode: ``python tests/bench/mended.py``.

A log-likelihood of 1,000,000 x 20 and its gradient, compiled by plain PyTensor and by
what synk compiles with, each in a process of its own on one core. The processes come in
turns; the minimum of all calls is shown, in ms, as other programs may use the machine.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROUNDS = 3
CALLS = 10
COLUMNS = ("logistic", "poisson", "student", "negative-binomial")
MODES = ("NUMBA", "JAX")


def best(column: str, mode: str, mended: bool) -> float:
    """Return the milliseconds of the fastest call in a process of its own."""
    core = min(os.sched_getaffinity(0))
    done = subprocess.run(
        [sys.executable, __file__, column, mode, "mended" if mended else "plain"],
        env={**os.environ, "JAX_PLATFORMS": "cpu", "OMP_NUM_THREADS": "1"},
        preexec_fn=lambda: os.sched_setaffinity(0, [core]),
        capture_output=True,
        text=True,
        check=True,
    )
    return float(done.stdout)


def main() -> None:
    """Print a table."""
    for column in COLUMNS:
        for mode in MODES:
            times = [
                [best(column, mode, mended) for mended in (False, True)]
                for _ in range(ROUNDS)
            ]
            plain, mended = map(min, zip(*times, strict=True))
            print(f"{column:20}{mode:8}{plain:8.1f}{mended:8.1f}", flush=True)


def measure(column: str, mode: str, mended: str) -> None:
    """Print the milliseconds of the fastest call here."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

    import time

    import numpy as np
    import pytensor

    from bench import likelihoods
    from bench.peers import in_pytensor
    from bench.work import Options

    if mode == "JAX":
        import jax

        jax.config.update("jax_enable_x64", True)
    graph = in_pytensor.likelihood(column)
    inputs = [graph.x, graph.y, graph.beta]
    if mended == "mended":
        from synk.engines import engine_for

        compile_graph = engine_for(mode).compile_graph
        f = compile_graph(inputs, graph.outputs, [], mode, None, {})
    else:
        f = pytensor.function(inputs, graph.outputs, mode=mode, trust_input=True)
    x = likelihoods.rows(Options(ranks=1, cores=1))
    args = x, likelihoods.outcomes(column, x), likelihoods.beta()
    if mode == "JAX":  # which copies numpy's arrays, unless they are aligned
        args = tuple(map(jax.numpy.asarray, args))
    times = []
    for _ in range(CALLS + 1):
        start = time.perf_counter()
        for value in f(*args):
            np.asarray(value)  # JAX's comes when it is computed
        times.append(time.perf_counter() - start)
    assert ("synk" in sys.modules) is (mended == "mended")
    print(min(times[1:]) * 1e3)


if __name__ == "__main__":
    measure(*sys.argv[1:]) if len(sys.argv) > 1 else main()
