"""Functions, variables and collectives on several nodes: the serial run's numbers."""

from __future__ import annotations

import subprocess
import sys

import pytest
from launching import APART, MPIS, ROOT, launcher, run

BEGIN = """
import os, sys, time
import numpy as np, pytensor, pytensor.tensor as pt
import synk

ranks = int(sys.argv[1])
n = synk.fork(ranks)
x, y, k = pt.dmatrix("x"), pt.dvector("y"), pt.iscalar("k")
"""

FUNCTIONS = (
    BEGIN
    + """
nodes = int(sys.argv[2])
assert n == synk.size() == nodes * ranks, n
assert [node.ranks for node in synk.nodes()] == [ranks] * nodes, synk.nodes()
rng = np.random.default_rng(0)
X, Y = rng.normal(size=(101, 5)), rng.normal(size=101)
w, big = pytensor.shared(np.zeros(5), "w"), pytensor.shared(rng.normal(size=(5, 700)))
plain, plain_big = (pytensor.shared(v.get_value(), v.name) for v in (w, big))

def graph(w, big):
    rest = pt.tanh(x @ big).mean(1) + x @ w - y
    loss = (rest**2).mean()
    updates = [(v, v - 0.1 * pytensor.grad(loss, v)) for v in (w, big)]
    top = pt.where(x[:, 0] > 1.4, np.nan, x[:, 0]).min()
    return [loss, rest, x.max(0), x.prod(0), (x > 0).sum(0), top], updates

outputs, updates = graph(w, big)
f = synk.function([x, y], outputs, updates=updates)
outputs, updates = graph(plain, plain_big)
g = pytensor.function([x, y], outputs, updates=updates)
SX, SY = synk.data(X), synk.data(Y)
half = x.astype("float16")
h = synk.function([x], [half.max(), x.astype("int32").sum()], mode="FAST_COMPILE")

def same(ours, right):
    for a, b in zip(ours, right, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-14)

batches = [None, slice(3, 90), rng.permutation(101)[:64], slice(0, 1), slice(7, 9)]
for batch in batches:
    chosen = slice(None) if batch is None else batch
    right = g(X[chosen], Y[chosen])
    same(f(SX, SY, batch=batch), right)
    same([w.get_value(), big.get_value()], [plain.get_value(), plain_big.get_value()])
for rank in range(n):
    same(synk.get_value(rank, [w, big]), [w.get_value(), big.get_value()])
made = f.run([np.arange(i, i + 30) for i in range(3)], SX, SY)
right = [g(X[i : i + 30], Y[i : i + 30]) for i in range(3)]
for i in range(3):
    same([values[i] for values in made], right[i])
same(f(X, Y, num_slices=2), g(X, Y))
assert h(X) == [X.astype("f2").max(), X.astype("i4").sum()]
print("done")
"""
)

COLLECTIVES = (
    BEGIN
    + """
from synk.reduce_ops import combine
rng = np.random.default_rng(0)
for dtype in ("float32", "float64", "float16", "int32", "uint8", "complex64", "bool"):
    for size in (0, 3, 9_000):
        for op in ("sum", "avg", "min", "max", "prod"):
            values = [(rng.normal(size=size) * 9).astype(dtype) for _ in range(n)]
            if dtype.startswith("f") and size:
                values[n - 1][0] = np.nan
            v = pytensor.shared(values[0], "v")
            for rank in range(n):
                synk.set_value(rank, v, values[rank])
            try:
                synk.all_reduce([v], op)
            except TypeError:
                continue
            right = combine(op, values, [1] * n)
            if op == "avg" and dtype[0] in "iu":
                right = np.rint(right).astype(dtype)
            found = [synk.get_value(rank, v) for rank in range(n)]
            for each in found:
                assert each.tobytes() == found[0].tobytes(), (dtype, size, op)
            # Few values are combined in the order of ranks, as on one machine; many
            # within the nodes first, and rounded there.
            if dtype[0] in "iub" or size <= 3:
                np.testing.assert_array_equal(found[0], right, (dtype, size, op))
            else:
                most = {"float16": 2e-3, "float64": 1e-12}.get(dtype, 2e-6)
                np.testing.assert_allclose(found[0], right, most, 10 * most)
v = pytensor.shared(np.arange(10.0), "v")
synk.scatter(v, np.arange(10.0))
np.testing.assert_array_equal(synk.all_gather(v), np.arange(10.0))
synk.broadcast(v, np.ones(3))
np.testing.assert_array_equal(synk.get_value(n - 1, v), np.ones(3))
print("done")
"""
)


@pytest.mark.parametrize("mpi", [*MPIS, APART])
@pytest.mark.parametrize(("nodes", "ranks"), [(2, 2), (3, 1)])
def test_functions_are_those_of_the_serial_run(
    tmp_path, nodes, ranks, mpi, monkeypatch
):
    if (nodes, mpi) != (2, MPIS[0]):  # numba takes seconds, each time
        monkeypatch.setenv("PYTENSOR_FLAGS", "mode=FAST_COMPILE,cxx=")
    status, out, error = run(FUNCTIONS, tmp_path, nodes, ranks, nodes, mpi=mpi)
    assert out.split()[-1:] == ["done"], out + error
    assert status == 0


@pytest.mark.parametrize("mpi", [*MPIS, APART])
def test_collectives_of_every_op_and_dtype(tmp_path, mpi):
    status, out, error = run(COLLECTIVES, tmp_path, 2, 2, mpi=mpi)
    assert out.split() == ["done"], out + error
    assert status == 0


ALONE = """
import sys, synk
with synk.session(2):
    assert len(synk.nodes()) == 1 and synk.nodes()[0].ranks == 2
    assert not any(name.startswith("mpi4py") for name in sys.modules)
    assert not any(name == "synk.cluster.link" for name in sys.modules)
print("done")
"""


def test_on_one_machine_there_is_no_mpi(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(ALONE)
    command = [sys.executable, "-m", "synk", str(path)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.split() == ["done"], done.stderr


def test_info_shows_the_nodes(tmp_path):
    words, environment = launcher("openmpi", 2)
    done = subprocess.run(
        [*words, sys.executable, "-m", "synk", "info"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    title, mpi, *others = done.stdout.strip().splitlines()
    assert title == "nodes"
    assert "Open MPI" in mpi
    nodes = [line for line in others if line.startswith("  node")]
    assert [line.split()[:2] for line in nodes] == [["node", "0"], ["node", "1"]]
    assert all(" rank" in line and "bound to" in line for line in nodes)


@pytest.mark.parametrize("ending", ["", "sys.exit(3)", "raise KeyError('x')"])
def test_the_exit_status_is_the_scripts(tmp_path, ending):
    script = f"import sys, synk\nif len(sys.argv) > 1:\n    synk.fork(1)\n{ending}\n"
    right = {"": 0, "sys.exit(3)": 3}.get(ending, 1)
    for args in ((), ("fork",)):
        status, _, error = run(script, tmp_path, 2, *args)
        assert status == right, error
        assert ("KeyError: 'x'" in error) is (right == 1)


def test_what_is_not_done_on_several_nodes_says_so(tmp_path):
    script = (
        BEGIN
        + """
w = pytensor.shared(np.zeros(5), "w")
step = synk.function([x], updates=[(w, w + x.mean(0))], local=True)
trainer = synk.Trainer(step, [w], synk.rules.EASGD(2, order="free"))
try:
    trainer.fit(np.ones((8, 5)), batch_size=4, epochs=1, progress=False)
except synk.StateError as error:
    print(error)
"""
    )
    _, out, error = run(script, tmp_path, 2, 1)
    assert "on one machine only so far, and this session has 2 nodes" in out, error
