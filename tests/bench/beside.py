"""What synk costs and gains on this machine, beside the plain function.

``python -m tests.bench.beside`` prints a table: each figure beside another of the same
run, taken in turns.
"""

import argparse
import contextlib
import functools
import itertools
import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt

import synk
from synk.memory.rows import RowTaker
from synk.ranks.context import RankContext
from synk.ranks.session import SESSION
from synk.workers.affinity import usable_cores

PAUSE = 0.2
"""Seconds; see `interleave`."""


def show(
    what: str, ours: float, other: float, bound: str = "", beside: str = ""
) -> None:
    """Print a line: two times of one run in seconds, and their ratio.

    It is synk's time over the other's, which is to be small; or a speed-up, where the
    bound is one from below, as ">= 2".
    """
    sign, _, target = bound.partition(" ")
    ratio = other / ours if sign == ">=" else ours / other
    if target:
        is_reached = (ratio >= float(target)) == (sign == ">=")
        bound += " yes" if is_reached else " NO"
    shown = bound if target else ""
    times = f"{_seconds(ours):>10}{_seconds(other):>10}{ratio:>8.2f}x"
    print(f"{what:42}{times}  {shown:12}{beside}", flush=True)


def _seconds(value: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value * 1e6:.3g} us"


def interleave(
    functions: Sequence[Callable[[], object]],
    repeats: int,
    number: int = 1,
    pause: float = 0,
) -> list[float]:
    """Return the median seconds of each function, run in turns.

    Turns, because the speed of a machine that others use drifts: what is compared
    must be measured at the same time.

    Each has so many turns, of a number of calls. There is a pause before each turn, in
    seconds, for what the last one has left running: BLAS threads look out for more work
    for some time after a call.
    """
    times: list[list[float]] = [[] for _ in functions]
    for function in functions:
        function()
    for _ in range(repeats):
        for function, of_function in zip(functions, times, strict=True):
            time.sleep(pause)
            start = time.perf_counter()
            for _ in range(number):
                function()
            of_function.append((time.perf_counter() - start) / number)
    return [statistics.median(of_function) for of_function in times]


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


def call_overhead(ranks: int, quick: bool) -> None:
    """Time a function that does nothing: launch and join, and all of Python between."""
    plain = pytensor.function([], [])
    with synk.session(ranks):
        empty = synk.function([], [])
        repeats = 5 if quick else 25
        ours, theirs = interleave([empty, plain], repeats, 500)
        show("call of an empty function", ours, theirs, "<= 25", "plain call")
        # The scattered inputs are looked up, checked, cut, described and mapped.
        x = pt.matrix("x", dtype="float32")
        total = synk.function([x], (x.sum(), "sum"))
        plain_total = pytensor.function([x], x.sum())
        array = np.ones((8, 4), "float32")
        data = synk.data(array)
        ours, theirs = interleave(
            [lambda: total(data), lambda: plain_total(array)], repeats, 500
        )
        show("call with one input and one output", ours, theirs, "", "plain call")


def all_reduce(ranks: int, quick: bool) -> None:
    """Time all-reduces beside one copy of as many bytes."""
    with synk.session(ranks):
        for size in (1_000_000,) if quick else (65_536, 100_000_000):
            _all_reduce(size, 5 if quick else 15)


def _all_reduce(size: int, repeats: int) -> None:
    source = np.ones(size // 4, "float32")
    target = np.empty_like(source)
    var = pytensor.shared(source)
    ours, copy = interleave(
        [lambda: synk.all_reduce(var), lambda: np.copyto(target, source)],
        repeats,
        max(1, min(1000, 10_000_000 // size)),
    )
    show(
        f"all-reduce, {size / 1e6:.3g} MB in shared memory",
        ours,
        copy,
        "<= 1.6" if size >= 100_000_000 else "",
        f"memcpy; {size / ours / 1e9:.3g} GB/s, memcpy {size / copy / 1e9:.3g}",
    )


def row_gathering(ranks: int, quick: bool) -> None:
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
    show(
        "512 shuffled rows of 784 float32 per rank",
        ours,
        take,
        "<= 1",
        f"numpy.take; {size / ours / 1e9:.3g} GB/s; the slowest rank",
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


def logistic_regression(ranks: int, quick: bool) -> None:
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
            [lambda: split(*data, point), other], 3 if quick else 11, pause=PAUSE
        )
    bound = ">= 1.85" if ranks == 2 and not quick else ">="
    what = f"logistic log-likelihood + gradient, {n:,} x 20"
    show(what, ours, theirs, bound, "plain, all cores")


def speed_up(ranks: int, quick: bool) -> None:
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
            show(f"{name}, {n} ranks", ours, theirs, ">=", "plain, all cores")


def many_arrays(ranks: int, quick: bool) -> None:
    """Time a step of as many arrays as ResNet-50's, but small ones, in JAX mode."""
    import jax
    import jax.numpy as jnp

    layers, rate, decay = 10 if quick else 107, np.float32(1e-6), np.float32(0.9)
    weights = np.random.default_rng(0).normal(size=(layers + 2, 4, 4)) / 2
    *weights, first, second = weights.astype("float32")
    rows = np.concatenate([first, second])
    start = [each for w in weights for each in (w, np.zeros(4, "float32"))]

    def loss(parameters: Any, x: Any) -> Any:
        for w, b in zip(parameters[::2], parameters[1::2], strict=True):
            x = x @ w + b
        return (x**2).mean()

    @jax.jit
    def step(parameters: list, moments: list, x: Any) -> tuple:
        value, gradients = jax.value_and_grad(loss)(parameters, x)
        pairs = zip(moments, gradients, strict=True)
        moments = [decay * m - rate * g for m, g in pairs]
        pairs = zip(parameters, moments, strict=True)
        return [p + m for p, m in pairs], moments, value

    state = [list(map(jnp.array, start)), list(map(jnp.zeros_like, start))]

    def by_hand() -> None:
        *state[:], value = step(*state, rows)
        jax.block_until_ready((state, value))

    with synk.session(1):
        x = pt.matrix("x", dtype="float32")
        parameters = [pytensor.shared(each) for each in start]
        moments = [pytensor.shared(np.zeros_like(each)) for each in start]
        value = loss(parameters, x)
        updates: list[tuple[Any, Any]] = []
        gradients = pt.grad(value, parameters)
        for p, m, g in zip(parameters, moments, gradients, strict=True):
            updates += [(m, decay * m - rate * g), (p, p + decay * m - rate * g)]
        ours = synk.function([x], value, updates=updates, mode="JAX")
        both = interleave([lambda: ours(rows), by_hand], 5 if quick else 51, 10)
        show(f"step of {len(updates)} small arrays by JAX", *both, "", "JAX by hand")


CASES: dict[str, Callable[[int, bool], None]] = {
    "call": call_overhead,
    "all-reduce": all_reduce,
    "rows": row_gathering,
    "logistic": logistic_regression,
    "speed-up": speed_up,
    "many arrays": many_arrays,
}


def main() -> None:
    """Run the measurements and print a table; timings are no test."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.beside", description=__doc__
    )
    cores = len(usable_cores())
    parser.add_argument("--ranks", type=int, default=cores, help="default: %(default)s")
    parser.add_argument("--quick", action="store_true", help="small sizes, few repeats")
    parser.add_argument("--only", metavar="TEXT", help="cases whose name contains this")
    args = parser.parse_args()
    print(f"{args.ranks} ranks on {cores} cores; medians of interleaved runs\n")
    print(f"{'':42}{'synk':>10}{'beside':>10}{'ratio':>9}  target")
    for name, case in CASES.items():
        if args.only is None or args.only in name:
            case(args.ranks, args.quick)


if __name__ == "__main__":
    main()
