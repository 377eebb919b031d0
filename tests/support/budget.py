"""What the tests may take: seconds of all workers, on a machine as fast as usual.

Whoever adds tests takes as many seconds away elsewhere. ``SYNK_TEST_BUDGET=1``, as in
``.ci/run``, has a run of all tests fail where they took a quarter more, if two fixed
tasks take no longer than usual before it begins or when it ends. A slower machine
decides nothing.
"""

import os
import time
from collections import Counter
from collections.abc import Iterable

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.compile.mode import Mode

SECONDS = 1_900
"""Of all workers together; three of them on two cores. 1,700 are aimed at."""

MARGIN = 1.25
USUAL = {"product": 0.10, "compilation": 0.085}
"""Seconds of the tasks on two cores where nothing else runs, and a fifth more."""

VARIABLE = "SYNK_TEST_BUDGET"
FLOORS = ("behaviour", "parts", "whole")


def is_asked_for() -> bool:
    """Tell whether a run that takes too long is to fail."""
    return bool(os.environ.get(VARIABLE))


def slowness() -> float:
    """Return how many times as long as usual the slower of the tasks takes."""
    return max(task() / USUAL[name] for name, task in TASKS.items())


def _product() -> float:
    """Time matrix products of NumPy; the least of three times, in seconds."""
    a = np.random.default_rng(0).normal(size=(1000, 1000))

    def products() -> None:
        for _ in range(5):
            a @ a

    return min(_timed(products) for _ in range(3))


def _compilation() -> float:
    """Time what PyTensor makes of a fixed graph, in Python; likewise."""
    x, w = pt.dmatrix("x"), pt.dvector("w")
    loss = pt.log1p(pt.exp(-pt.tanh(x @ w) * x.sum(axis=1))).mean()
    outputs = [loss, *pytensor.grad(loss, [x, w])]
    mode = Mode("py", "fast_run")
    return min(
        _timed(lambda: pytensor.function([x, w], outputs, mode=mode)) for _ in range(3)
    )


def _timed(task) -> float:
    start = time.perf_counter()
    task()
    return time.perf_counter() - start


TASKS = {"product": _product, "compilation": _compilation}


def by_floor(seconds: Counter[str]) -> Counter[str]:
    """Add up the seconds of files by the floor they lie on, doctests by themselves."""
    found: Counter[str] = Counter()
    for name, spent in seconds.items():
        parts = name.split("/")
        inside = parts[0] == "tests" and len(parts) > 2 and parts[1] in FLOORS
        found[f"tests/{parts[1]}" if inside else "doctests and others"] += spent
    return found


def lines(seconds: Counter[str]) -> Iterable[str]:
    """Yield what is to be printed of the seconds of files: those of floors first."""
    for name, spent in by_floor(seconds).most_common():
        yield f"{spent:7.1f}  {name}"
    yield ""
    for name, spent in seconds.most_common():
        if spent >= 1:
            yield f"{spent:7.1f}  {name}"
    rest = [spent for spent in seconds.values() if spent < 1]
    yield f"{sum(rest):7.1f}  {len(rest)} other files"
    yield f"{seconds.total():7.1f}  all, of all workers"


def verdict(total: float, slow: float) -> tuple[bool, str]:
    """Return whether the tests took too long, and what is to be said of it."""
    most = MARGIN * SECONDS
    said = f"{total:.0f} s of {SECONDS}; this machine takes {slow:.2f} x the usual time"
    if total <= most:
        return False, said
    if slow > 1:
        return False, f"{said}: too long, but the machine is slow"
    return True, f"{said}: more than {most:.0f} s. What was added, take away elsewhere"
