"""What ``python -m synk bench`` measures; each case forks a session of its own."""

from __future__ import annotations

import contextlib
import functools
import itertools
import mmap
import multiprocessing
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt

import synk

from ..engines import host
from ..memory.rows import RowTaker
from ..ranks.context import RankContext
from ..ranks.replication import master_replicate_variables
from ..ranks.session import SESSION
from .bench_rows import Row, interleave

PAUSE = 0.2
"""Seconds; see `interleave`."""


@contextlib.contextmanager
def alone(function: Callable, *args: Any) -> Iterator[Callable[[], object]]:
    """Return a call in a process of its own, which has all cores and is not synk's."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, function, args), daemon=True)
    process.start()
    theirs.close()

    def call() -> None:
        ours.send(True)
        ours.recv()

    try:
        yield call
    finally:
        ours.close()
        process.join(10)


def _serve(connection: Any, function: Callable, args: tuple) -> None:
    with contextlib.suppress(EOFError):
        while connection.recv():
            function(*args)
            connection.send(True)


def call_overhead(ranks: int, quick: bool) -> Iterator[Row]:
    """Time a function that does nothing: launch and join, and all of Python between."""
    plain = pytensor.function([], [])
    with synk.session(ranks):
        empty = synk.function([], [])
        repeats = 5 if quick else 25
        ours, theirs = interleave([empty, plain], repeats, 500)
        yield Row("call of an empty function", ours, "plain call", theirs, "<", 25)
        # The scattered inputs are looked up, checked, cut, described and mapped.
        x = pt.matrix("x", dtype="float32")
        total = synk.function([x], (x.sum(), "sum"))
        plain_total = pytensor.function([x], x.sum())
        array = np.ones((8, 4), "float32")
        data = synk.data(array)
        ours, theirs = interleave(
            [lambda: total(data), lambda: plain_total(array)], repeats, 500
        )
        yield Row(
            "call with one input and one output", ours, "plain call", theirs, "<", None
        )


def all_reduce(ranks: int, quick: bool) -> Iterator[Row]:
    """Time all-reduces beside one copy of as many bytes."""
    with synk.session(ranks):
        for size in (1_000_000,) if quick else (65_536, 100_000_000):
            yield from _all_reduce(size, 5 if quick else 15)


def _all_reduce(size: int, repeats: int) -> Iterator[Row]:
    source = np.ones(size // 4, "float32")
    target = np.empty_like(source)
    var = pytensor.shared(source)
    ours, copy = interleave(
        [lambda: synk.all_reduce(var), lambda: np.copyto(target, source)],
        repeats,
        max(1, min(1000, 10_000_000 // size)),
    )
    large = size >= 100_000_000
    yield Row(
        f"all-reduce, {size / 1e6:.3g} MB in shared memory",
        ours,
        "memcpy",
        copy,
        "<",
        1.6 if large else None,
        f"{size / ours / 1e9:.3g} GB/s, memcpy {size / copy / 1e9:.3g}",
    )
    if large:
        ours, copy = _with_copies(var, source, target, repeats)
        what = f"all-reduce, {size / 1e6:.3g} MB with copies in and out"
        yield Row(what, ours, "memcpy", copy, "<", 4)


def _with_copies(
    var: Any, source: np.ndarray, target: np.ndarray, repeats: int
) -> list[float]:
    """Time a reduction of values that lie elsewhere, and a copy of the result."""
    times: list[list[float]] = [[], []]
    (number,) = master_replicate_variables([var])
    for _ in range(repeats):
        SESSION.run(worker_move_out, number)
        start = time.perf_counter()
        synk.all_reduce(var)
        np.copyto(target, var.get_value(borrow=True))
        times[0].append(time.perf_counter() - start)
        start = time.perf_counter()
        np.copyto(target, source)
        times[1].append(time.perf_counter() - start)
    return [float(np.median(of_kind)) for of_kind in times]


_OUTSIDE: dict[int, np.ndarray] = {}


def worker_move_out(context: RankContext, number: int) -> None:
    """Give a variable a value outside of its place, the same memory every time."""
    var = context.registry.variables[number]
    if number not in _OUTSIDE:
        _OUTSIDE[number] = host.get_value(var).copy()
    host.set_value(var, _OUTSIDE[number])


def row_gathering(ranks: int, quick: bool) -> Iterator[Row]:
    """Time taking 512 shuffled rows on every rank at once, beside ``numpy.take``."""
    rows = 5_000 if quick else 60_000
    with synk.session(ranks):
        data = synk.data(shape=(rows, 784), dtype="float32")
        data[:] = 1
        repeats = 21 if quick else 401  # odd: both kinds see all batches
        window = data._window()
        per_rank = SESSION.run(worker_time_gathering, window, repeats)
        ours, take = max(per_rank, key=lambda times: times[0] / times[1])
    size = 512 * 784 * 4
    yield Row(
        "512 shuffled rows of 784 float32 per rank",
        ours,
        "numpy.take",
        take,
        "<",
        1,
        f"{size / ours / 1e9:.3g} GB/s; the slowest rank",
    )


def worker_time_gathering(
    context: RankContext, window: tuple, repeats: int
) -> tuple[float, float]:
    """Time taking rows, and ``numpy.take``, while the other ranks do the same."""
    array = context.attachments.array(window)
    order = np.random.default_rng(context.rank).permutation(len(array))
    # Other rows at every turn, as in training: repeated ones would come from the cache.
    batches = itertools.cycle(
        np.split(order[: len(order) // 512 * 512], len(order) // 512)
    )
    taker = RowTaker()
    context.comm.barrier()
    ours, take = interleave(
        [
            lambda: taker.take(array, next(batches)),
            lambda: np.take(array, next(batches), axis=0),
        ],
        repeats,
    )
    return ours, take


def logistic_regression(ranks: int, quick: bool) -> Iterator[Row]:
    """Time a log-likelihood and its gradient over 1,000,000 x 20 values."""
    n = 50_000 if quick else 1_000_000
    x, y, beta = pt.matrix("x"), pt.vector("y"), pt.vector("beta")
    eta = x @ beta
    loss = (pt.softplus(eta) - y * eta).sum()
    gradient: Any = pt.grad(loss, beta)
    plain = pytensor.function([x, y, beta], [loss, gradient])
    random = np.random.default_rng(0)
    values = random.normal(size=(n, 20)), random.integers(0, 2, n).astype("float64")
    point = random.normal(size=20) / 10
    with alone(plain, *values, point) as other, synk.session(ranks):
        split = synk.function(
            [x, y], [(loss, "sum"), (gradient, "sum")], bcast_inputs=[beta]
        )
        data = split.build_inputs(*values)
        ours, theirs = interleave(
            [lambda: split(*data, point), other],
            3 if quick else 11,
            pause=PAUSE,
        )
    yield Row(
        f"logistic log-likelihood + gradient, {n:,} x 20",
        ours,
        "plain, all cores",
        theirs,
        ">",
        1.85 if ranks == 2 and not quick else None,
    )


def speed_up(ranks: int, quick: bool) -> Iterator[Row]:
    """Time a matrix step and an element-wise step at 1 to n ranks."""
    x = pt.matrix("x", dtype="float32")
    w = pytensor.shared(
        np.random.default_rng(0).normal(size=(784, 800)).astype("float32") / 28
    )
    steps = {
        "matrix step": (pt.tanh(x @ w) @ w.T - x) ** 2,
        "element-wise step": pt.exp(-(x**2)) * pt.log1p(pt.abs(x)),
    }
    array = np.random.default_rng(1).normal(size=(512 if quick else 4096, 784))
    array = array.astype("float32")
    for name, step in steps.items():
        cost = step.mean()
        plain = pytensor.function([x], cost)
        for n in range(1, ranks + 1):
            with alone(plain, array) as other, synk.session(n):
                split = synk.function([x], (cost, "avg"))
                data = synk.data(array)
                ours, theirs = interleave(
                    [functools.partial(split, data), other],
                    3 if quick else 15,
                    pause=PAUSE,
                )
            yield Row(f"{name}, {n} ranks", ours, "plain, all cores", theirs, ">", None)


def memory(ranks: int, quick: bool) -> Iterator[Row]:
    """Compare the resident memory of the ranks before and after 10,000 calls."""
    x = pt.matrix("x", dtype="float32")
    with synk.session(ranks):
        total = synk.function([x], (x.sum(), "sum"))
        data = synk.data(np.ones((64, 8), "float32"))
        for _ in range(1_000):
            total(data, batch=[1, 2, 3])
        before = SESSION.run(worker_resident)
        for _ in range(1_000 if quick else 10_000):
            total(data, batch=[1, 2, 3])
        after = SESSION.run(worker_resident)
    growth = [b - a for a, b in zip(before, after, strict=True)]
    print(f"growth over the calls, by rank: {[f'{n / 1024:.0f} kB' for n in growth]}")
    yield from ()


def worker_resident(_: RankContext) -> int:
    """Return this rank's resident memory in bytes."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * mmap.PAGESIZE


CASES: dict[str, Callable[[int, bool], Iterator[Row]]] = {
    "call": call_overhead,
    "all-reduce": all_reduce,
    "rows": row_gathering,
    "logistic": logistic_regression,
    "speed-up": speed_up,
    "memory": memory,
}
