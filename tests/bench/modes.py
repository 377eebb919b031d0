"""The modes of PyTensor beside each other: ``python tests/bench/modes.py``.

Each mode runs in a process of its own with 1 rank, which has all cores as threads, and
in another with 2 ranks. They take turns of some 0.3 s, round after round, and wait in a
read meanwhile; medians and minima are shown, and multiples of the fastest median.

The first call on 2 ranks is made twice, in a process with empty compile directories
(cold) and in one with these directories again (warm). It includes compiling, and no
imports. Beside its time is the CPU time of rank 0, C compilers included: other programs
add little to that. Results are compared with those of the first mode. docs/modes.rst
has the figures.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

MODES = ("NUMBA", "CVM", "JAX", "FAST_COMPILE")
WORKS = ("likelihood", "mlp", "cnn")
RANKS = (1, 2)
TURN = 0.3
"""Seconds."""


# -- what is computed; in the processes of the modes


def likelihood(mode: str, rows: int) -> Callable[[], Any]:
    """Return a call of a logistic log-likelihood and its gradient, in float64."""
    import numpy as np
    import pytensor.tensor as pt

    import synk

    x, y, beta = pt.matrix("x"), pt.vector("y"), pt.vector("beta")
    eta = x @ beta
    cost = (pt.softplus(eta) - y * eta).sum()
    f = synk.function([x, y], [cost, pt.grad(cost, beta)], [beta], mode=mode)
    random = np.random.default_rng(0)
    X = synk.data(random.normal(size=(rows, 20)))
    Y = synk.data(random.integers(0, 2, rows).astype("float64"))
    point = random.normal(size=20) / 10
    return lambda: f(X, Y, point)[0]


def mlp(mode: str, rows: int) -> Callable[[], Any]:
    """Return a training step of 784-800-800-10, in float32."""
    import numpy as np
    import pytensor.tensor as pt

    import synk

    x = pt.matrix("x", dtype="float32")
    values, params = x, []
    random = np.random.default_rng(0)
    for n, m in ((784, 800), (800, 800), (800, 10)):
        params.append(_weights(random, (n, m), n))
        values = values @ params[-1]
        if m != 10:
            values = synk.nn.relu(values)
    return _step(mode, x, values, params, random.normal(size=(rows, 784)))


def cnn(mode: str, rows: int) -> Callable[[], Any]:
    """Return a training step of a network like LeNet, in float32."""
    import numpy as np
    import pytensor.tensor as pt

    import synk

    x = pt.tensor4("x", dtype="float32")
    values, params = x, []
    random = np.random.default_rng(0)
    for shape in ((16, 1, 5, 5), (32, 16, 5, 5)):
        params.append(_weights(random, shape, shape[1] * 25))
        values = synk.nn.conv2d(values, params[-1])
        values = synk.nn.pool_2d(synk.nn.relu(values), 2, ignore_border=True)
    params.append(_weights(random, (32 * 16, 10), 512))
    values = values.flatten(2) @ params[-1]
    return _step(mode, x, values, params, random.normal(size=(rows, 1, 28, 28)))


def _weights(random: Any, shape: tuple[int, ...], n: int) -> Any:
    import pytensor

    return pytensor.shared((random.normal(size=shape) / n**0.5).astype("float32"))


def _step(mode: str, x: Any, values: Any, params: list, rows: Any) -> Callable:
    import numpy as np
    import pytensor.tensor as pt

    import synk

    y = pt.lvector("y")
    loss = synk.nn.categorical_crossentropy(synk.nn.softmax(values), y).mean()
    rule = synk.updates.sgd(loss, params, learning_rate=np.float32(0.01))
    f = synk.function([x, y], loss, updates=rule, mode=mode)
    X = synk.data(rows.astype("float32"))
    Y = synk.data(np.arange(len(rows)) % 10)
    return lambda: f(X, Y)


def serve(work: str, mode: str, ranks: int, rows: int) -> None:
    """Say how long the first call takes; then make as many calls as each line says."""
    import synk

    synk.fork(ranks)
    call = globals()[work](mode, rows)
    began, busy = time.perf_counter(), _cpu_seconds()
    value = float(call())
    first = time.perf_counter() - began, _cpu_seconds() - busy
    print(json.dumps({"first": first, "value": value}), flush=True)
    for line in sys.stdin:
        began = time.perf_counter()
        for _ in range(int(line)):
            call()
        print((time.perf_counter() - began) / int(line), flush=True)
    synk.close()


def _cpu_seconds() -> float:
    """Return the CPU time of this process, and of the children that have ended."""
    used = (
        resource.getrusage(who)
        for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


# -- the turns


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
            [sys.executable, __file__, "--serve", work, mode, str(ranks), str(rows)],
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

    def calls(self, number: int) -> float:
        """Return the seconds of one call."""
        self._process.stdin.write(f"{number}\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> Any:
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.mode} on {self.ranks} ranks ended unasked")
        return json.loads(line)

    def end(self) -> None:
        """Close its input, at which it ends."""
        self._process.stdin.close()
        self._process.wait(60)


def start(work: str, modes: list[str], rows: int, folder: str) -> Iterator[Served]:
    """Start the processes of all modes, the first calls one after the other."""
    for mode in modes:
        mine = str(Path(folder, mode))
        cold = Served(work, mode, RANKS[-1], rows, mine)
        cold.end()
        for ranks in RANKS:
            served = Served(work, mode, ranks, rows, mine)
            if ranks == RANKS[-1]:
                times = (*cold.first, *served.first)
                cells = "".join(f"{seconds:9.2f} s" for seconds in times)
                print(f"{mode:12}{cells}", flush=True)
            yield served


def measure(work: str, modes: list[str], rows: int, rounds: int) -> None:
    """Print the tables of one work."""
    print(f"\n{work}, {rows:,} rows", flush=True)
    print("first call         cold   cold, CPU       warm   warm, CPU", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        served = []
        try:
            served += start(work, modes, rows, folder)
            for i in range(rounds):
                first = i % len(served)
                for one in (*served[first:], *served[:first]):
                    time.sleep(0.1)  # threads of the last one look out for work
                    one.times.append(one.calls(one.turn))
        finally:
            for one in served:
                one.end()
    _print_times(served)


def _print_times(served: list[Served]) -> None:
    best = min(statistics.median(one.times) for one in served)
    print("a call             median        x   minimum")
    for one in served:
        median, least = statistics.median(one.times), min(one.times)
        label = f"{one.mode}, {one.ranks}"
        times = f"{median * 1e3:9.2f} ms {median / best:7.2f} {least * 1e3:8.2f} ms"
        print(f"{label:15}{times}")
    expected = served[0].value
    for one in served:
        if abs(one.value - expected) > 1e-4 * abs(expected):
            print(
                f"WRONG: {one.mode} on {one.ranks} ranks: {one.value}, not {expected}"
            )


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
    add("--serve", nargs=4, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        work, mode, ranks, rows = args.serve
        return serve(work, mode, int(ranks), int(rows))
    for work in args.only or WORKS:
        measure(work, args.modes, vars(args)[f"{work}_rows"], args.rounds)


if __name__ == "__main__":
    main()
