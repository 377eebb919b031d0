"""The modes of PyTensor beside each other: ``python tests/bench/modes.py``.

Each mode runs in a process of its own with 1 rank, which has all cores as threads, and
in another with 2 ranks. They take turns of some 0.3 s, round after round, and wait in a
read meanwhile; medians and minima are shown, and multiples of the fastest median.

The first call on 2 ranks is made twice, in a process with empty compile directories
(cold) and in one with these directories again (warm). It includes compiling, and no
imports. Beside its time is the CPU time of rank 0, C compilers included: other programs
add little to that. Results are compared with those of the first mode. ``--rst
docs/modes.inc`` writes the tables of the documentation.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import statistics
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.report import machine, seconds, three, versions
from synk.workers.affinity import usable_cores

MODES = ("NUMBA", "CVM", "JAX", "FAST_COMPILE")
WORKS = {
    "likelihood": "Logistic log-likelihood and its gradient, {rows:,} x 20, float64",
    "mlp": "Training step, 784-800-800-10, relu, SGD, {rows} rows, float32",
    "cnn": "Training step, two convolutions like LeNet's, {rows} images, float32",
}
RANKS = (1, 2)
TURN = 0.3
"""Seconds."""

PROGRAM = Path(__file__).with_name("modes_work.py")
LIMIT = 900
"""Seconds to wait for an answer; compiling takes a minute or two at most."""


class Served:
    """A process that computes something in a mode on some ranks."""

    def __init__(
        self, work: str, mode: str, ranks: int, rows: int, folder: str
    ) -> None:
        self.mode, self.ranks = mode, ranks
        flags = f"base_compiledir={folder}"
        if work != "likelihood":
            flags += ",floatX=float32"
        self._process = subprocess.Popen(
            [sys.executable, str(PROGRAM), work, mode, str(ranks), str(rows)],
            env={**os.environ, "PYTENSOR_FLAGS": flags},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        told = self._read()
        self.first, self.value = told["first"], told["value"]
        once = self.calls(1)
        self.turn = max(1, round(TURN / min(once, self.calls(1))))
        self.times: list[float] = []
        self.cold: list[float] = []

    def calls(self, number: int) -> float:
        """Return the seconds of one call."""
        self._process.stdin.write(f"{number}\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> Any:
        ready, _, _ = select.select([self._process.stdout], [], [], LIMIT)
        line = self._process.stdout.readline() if ready else ""
        if not line:
            self._process.kill()
            self._process.wait()  # or it stays, as a zombie
            raise RuntimeError(f"{self.mode} on {self.ranks} ranks ended unasked")
        return json.loads(line)

    def end(self) -> None:
        """Close its input, at which it ends."""
        self._process.stdin.close()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()

    @property
    def median(self) -> float:
        """Seconds of a call."""
        return statistics.median(self.times)


def start(work: str, modes: list[str], rows: int, folder: str) -> Iterator[Served]:
    """Start the processes of all modes, the first calls one after the other."""
    for mode in modes:
        mine = str(Path(folder, mode))
        cold = Served(work, mode, RANKS[-1], rows, mine)
        cold.end()
        for ranks in RANKS:
            served = Served(work, mode, ranks, rows, mine)
            served.cold = cold.first
            if ranks == RANKS[-1]:
                times = (*cold.first, *served.first)
                cells = "".join(f"{time:9.2f} s" for time in times)
                print(f"{mode:12}{cells}", flush=True)
            yield served


def measure(work: str, modes: list[str], rows: int, rounds: int) -> list[Served]:
    """Print the figures of one work, and return what has them."""
    print(f"\n{WORKS[work].format(rows=rows)}", flush=True)
    print("first call         cold   cold, CPU       warm   warm, CPU", flush=True)
    served: list[Served] = []
    with tempfile.TemporaryDirectory() as folder:
        try:
            for one in start(work, modes, rows, folder):
                served.append(one)
            for i in range(rounds):
                first = i % len(served)
                for one in (*served[first:], *served[:first]):
                    time.sleep(0.1)  # threads of the last one look out for work
                    one.times.append(one.calls(one.turn))
        finally:
            for one in served:
                one.end()
    _print_times(served)
    return served


def _print_times(served: list[Served]) -> None:
    best = min(one.median for one in served)
    print("a call             median        x   minimum")
    for one in served:
        label, least = f"{one.mode}, {one.ranks}", min(one.times) * 1e3
        times = f"{one.median * 1e3:9.2f} ms {one.median / best:7.2f} {least:8.2f} ms"
        print(f"{label:15}{times}")
    expected = served[0].value
    for one in served:
        if abs(one.value - expected) > 1e-4 * abs(expected):
            print(f"WRONG: {one.mode}, {one.ranks}: {one.value}, not {expected}")


# -- for the documentation


def rst(found: dict[str, list[Served]], rounds: int) -> str:
    """Return a table for each work; its times are CPU seconds, and medians."""
    said = ", ".join(f"{name} {version}" for name, version in versions(()).items())
    busy = f"{os.getloadavg()[2]:.1f}"
    text = (
        f"{machine(len(usable_cores()))}; {said}. Medians of {rounds} interleaved"
        " rounds, and in brackets the multiple of the fastest. First calls are on 2"
        " ranks, in seconds of CPU time of rank 0. Other programs ran meanwhile"
        f" (load {busy})."
    )
    lines = textwrap.wrap(text, 96, break_on_hyphens=False)
    for title, served in found.items():
        lines += ["", f"{title}:", "", *_rst_table(served)]
    return "\n".join(lines) + "\n"


def _rst_table(served: list[Served]) -> list[str]:
    best = min(one.median for one in served)
    rows = [["mode", "first call", "again", *(_ranks(n) for n in RANKS)]]
    for mode in dict.fromkeys(one.mode for one in served):
        mine = {one.ranks: one for one in served if one.mode == mode}
        last = mine[RANKS[-1]]
        times = (
            f"{seconds(mine[n].median)} ({three(mine[n].median / best)})" for n in RANKS
        )
        row = [f"``{mode}``", f"{last.cold[1]:.1f} s", f"{last.first[1]:.1f} s", *times]
        rows.append(row)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    rule = "  ".join("=" * width for width in widths)
    body = [
        "  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True))
        for row in rows
    ]
    return [rule, body[0].rstrip(), rule, *(line.rstrip() for line in body[1:]), rule]


def _ranks(n: int) -> str:
    return f"{n} rank{'s' * (n > 1)}"


def main() -> None:
    """Measure what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--only", choices=WORKS, action="append", help="can be given several times")
    add("--modes", choices=MODES, nargs="+", default=list(MODES))
    add("--rounds", type=int, default=11)
    add("--likelihood-rows", type=int, default=1_000_000)
    add("--mlp-rows", type=int, default=512)
    add("--cnn-rows", type=int, default=64)
    add("--rst", metavar="FILE", help="write the tables there, for the documentation")
    args = parser.parse_args()
    found = {}
    for work in args.only or WORKS:
        rows = vars(args)[f"{work}_rows"]
        title = WORKS[work].format(rows=rows)
        found[title] = measure(work, args.modes, rows, args.rounds)
    if args.rst:
        Path(args.rst).write_text(rst(found, args.rounds))


if __name__ == "__main__":
    main()
