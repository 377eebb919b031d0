"""Chains side by side, or one after the other by all ranks: ``pymc_chains.py --help``.

As many chains as cores are computed in two ways: each in a process of its own with one
core, as ``pm.sample(cores=...)`` has them, by plain PyMC in its fastest mode; and in
turn, each call by all ranks. What is measured is how long a call of the log-density and
its gradient takes, of which a chain is made; the processes compute at the same time.
Shown are medians in ms of what a step of all chains takes, and how many times longer
side by side: more than 1 is where ranks are faster.
"""

from __future__ import annotations

import argparse
import os
import statistics

from pymc_models import KINDS, ROUNDS, server_of

THREADS = "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"
ONE_THREAD = dict.fromkeys(THREADS, "1")


def measure(kind: str, rows: int, mode: str) -> None:
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


def main() -> None:
    """Measure models of several numbers of rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    usual = [1_000, 3_000, 10_000, 30_000, 100_000, 300_000]
    parser.add_argument("--rows", type=int, nargs="+", default=usual)
    parser.add_argument("--only", choices=KINDS, nargs="+", default=KINDS[:1])
    parser.add_argument("--mode", choices=("C", "numba"), default="C")
    args = parser.parse_args()
    print(f"{'model':20}{'rows':>10}{'side by side':>14}{'in turn':>10}{'ratio':>8}")
    for kind in args.only:
        for rows in args.rows:
            measure(kind, rows, args.mode)


if __name__ == "__main__":
    main()
