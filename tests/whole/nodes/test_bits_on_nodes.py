"""Bits on several nodes: one machine's, or the same of any MPI.

What one machine combines exactly, or in the order of its ranks, has its bits on nodes.
Of many floats a node's sum, average or product is rounded once before it is combined
with the others': that differs from one machine's by as much, and by nothing else.
"""

from __future__ import annotations

import functools
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from launching import MPICH, launcher, run

SCRIPT = """
import sys
import numpy as np, pytensor, pytensor.tensor as pt
import synk

pytensor.config.cxx = ""  # nothing is compiled for long
n = synk.fork(int(sys.argv[1]))
rng = np.random.default_rng(0)
dtypes = "float64 float32 float16 complex64 int32 uint8 bool".split()


def show(name, values):
    values = np.asarray(values)
    print(name, values.dtype, values.tobytes().hex() or "-", sep="\\t")


def draw(dtype, size):
    values = rng.normal(size=size) * 10.0 ** rng.integers(-3, 2, size)
    values[rng.random(size) < 0.01] = np.nan if np.dtype(dtype).kind in "fc" else 0
    return np.abs(values).astype(dtype) if dtype[0] in "ub" else values.astype(dtype)


for dtype in dtypes:
    for size in (3, 512, 5001):
        values = [draw(dtype, size) for _ in range(n)]
        for op in ("sum", "avg", "min", "max", "prod"):
            v = pytensor.shared(values[0], "v")
            synk.scatter(v, np.concatenate(values))
            try:
                synk.all_reduce([v], op)
            except TypeError:  # no order of complex numbers, no average of bools
                continue
            show(f"{op} of {size}", synk.get_value(n - 1, v))

x, b = pt.dmatrix("x"), pt.dvector("b")
X, B = rng.normal(size=(97, 5)), rng.normal(size=97)
few, many = (pytensor.shared(np.zeros((5, size)), "w") for size in (3, 700))


def compiled(w):
    loss = ((pt.tanh(x @ w).sum(1) - b) ** 2).mean()
    outputs = [
        *(loss, x.sum(0), x.prod(0), x.max(0), x.min(0), (x > 0).sum(), x.var(0)),
        *((x * 9).astype("int32").mean(), x.astype("float16").sum(0), x[:, 0] * 2),
    ]
    updates = [(w, w - 0.01 * pytensor.grad(loss, w))]
    return synk.function([x, b], outputs, updates=updates, mode="FAST_COMPILE")


for w in (few, many):
    f = compiled(w)
    for rows in (slice(0, 40), slice(0, 1), slice(0, 2), slice(96, 97), slice(60, 97)):
        for k, value in enumerate(f(X[rows], B[rows])):
            show(f"output {k} beside {w.get_value().size} weights", value)
        show(f"{w.get_value().size} weights", w.get_value())
X[50, 3] = np.nan
f = synk.function([x], [x.min(0), x.max(0), x.sum(0)], mode="FAST_COMPILE")
for k, value in enumerate(f(X)):
    show(f"output {k} with NaN", value)
"""


@functools.cache
def lines(mpi: str, nodes: int, ranks: int) -> list[tuple[str, np.ndarray]]:
    """Return what the script shows, with the name of each, once."""
    with tempfile.TemporaryDirectory() as folder:
        if nodes > 1:
            status, out, error = run(SCRIPT, Path(folder), nodes, ranks, mpi=mpi)
        else:
            done = subprocess.run(
                [sys.executable, "-c", SCRIPT, str(ranks)],
                env=launcher(mpi, 1)[1],
                capture_output=True,
                text=True,
                timeout=90,
                check=False,
            )
            status, out, error = done.returncode, done.stdout, done.stderr
    assert status == 0, error
    found = []
    for line in out.splitlines():
        name, dtype, digits = line.split("\t")
        data = bytes.fromhex(digits.replace("-", ""))
        found.append((f"{name}: {dtype}", np.frombuffer(data, dtype)))
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("nodes", "ranks"), [(2, 2), (3, 2)])
def test_values_have_the_bits_of_one_machine_or_are_rounded_once_more(nodes, ranks):
    right, ours = (
        lines("openmpi", *how) for how in ((1, nodes * ranks), (nodes, ranks))
    )
    assert [name for name, _ in ours] == [name for name, _ in right]
    for (name, expected), (_, found) in zip(right, ours, strict=True):
        if not _is_rounded_by_node(name):
            assert found.tobytes() == expected.tobytes(), name
            continue
        np.testing.assert_array_equal(np.isnan(found), np.isnan(expected), name)
        most = 64 * np.finfo(expected.dtype).eps * np.nanmax(np.abs(expected))
        np.testing.assert_allclose(found, expected, 0, most, err_msg=name)


def _is_rounded_by_node(name: str) -> bool:
    """Tell whether a value is of many floats that are summed, averaged or multiplied.

    Averages that meet in one exchange count together: those beside many weights, and
    what follows from these in later steps.
    """
    if "output" in name or "weights" in name:
        is_average = re.match("output [067] |3500 weights", name)
        return "3500 weights" in name and is_average is not None
    is_of_many = "of 5001" in name and name.endswith(("32", "64")) and "int" not in name
    return is_of_many and name.startswith(("sum", "avg", "prod"))


@pytest.mark.slow
@pytest.mark.skipif(not MPICH, reason="SYNK_MPICH does not say where MPICH lies")
def test_mpich_gives_the_bits_of_open_mpi():
    ours, right = lines("mpich", 2, 2), lines("openmpi", 2, 2)
    assert [name for name, _ in ours] == [name for name, _ in right]
    for (name, found), (_, expected) in zip(ours, right, strict=True):
        assert found.tobytes() == expected.tobytes(), name
