"""Scripts on several nodes: the serial run's numbers, and one machine's bits.

What one machine combines exactly, or in the order of its ranks, has its bits on nodes.
Of many floats a node's sum, average or product is rounded once before it is combined
with the others': that differs from one machine's by as much, and by nothing else.
"""

import functools
import re
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from launching import APART, MPIS, ROOT, finished, launcher, run

FUNCTIONS = """
import sys
import numpy as np, pytensor, pytensor.tensor as pt
import synk

pytensor.config.mode, pytensor.config.cxx = "FAST_COMPILE", ""  # compiles at once
ranks, nodes = map(int, sys.argv[1:])
n = synk.fork(ranks)
assert n == synk.size() == nodes * ranks, n
if nodes > 1:
    assert [node.ranks for node in synk.nodes()] == [ranks] * nodes, synk.nodes()
x, y = pt.dmatrix("x"), pt.dvector("y")
rng = np.random.default_rng(0)
X, Y = rng.normal(size=(101, 5)), rng.normal(size=101)
w, big = pytensor.shared(np.zeros(5), "w"), pytensor.shared(rng.normal(size=(5, 170)))
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
h = synk.function([x], [half.max(), x.astype("int32").sum()])

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
v = pytensor.shared(np.arange(10.0), "v")
synk.scatter(v, np.arange(10.0))
np.testing.assert_array_equal(synk.all_gather(v), np.arange(10.0))
synk.broadcast(v, np.ones(3))
np.testing.assert_array_equal(synk.get_value(n - 1, v), np.ones(3))
print("done")
"""

BITS = """
REFUSED = {("min", "complex64"), ("max", "complex64"), ("avg", "bool")}

def show(name, values):
    values = np.asarray(values)
    print(name, values.dtype, values.tobytes().hex() or "-", sep="\\t")

def draw(dtype, size):
    values = rng.normal(size=size) * 10.0 ** rng.integers(-3, 2, size)
    values[rng.random(size) < 0.01] = np.nan if np.dtype(dtype).kind in "fc" else 0
    return np.abs(values).astype(dtype) if dtype[0] in "ub" else values.astype(dtype)

DTYPES = "float64 float32 float16 complex64 int32 uint8 bool".split()
# 512 of float64 are the most that travel as ranks have them; what meets counts in all.
for size, dtypes in (3, DTYPES), (512, DTYPES[:1]), (5001, DTYPES):
    values = [[draw(dtype, size) for dtype in dtypes] for _ in range(n)]
    for op in ("sum", "avg", "min", "max", "prod"):
        some = [i for i, dtype in enumerate(dtypes) if (op, dtype) not in REFUSED]
        v = [pytensor.shared(values[0][i], dtypes[i]) for i in some]
        synk.scatter(v, [np.concatenate([mine[i] for mine in values]) for i in some])
        synk.all_reduce(v, op)
        found = synk.get_value(n - 1, v)
        for each, ours in zip(found, v, strict=True):
            show(f"{op} of {size}", each)
            assert each.tobytes() == ours.get_value().tobytes(), (ours, size, op)

X, Y = rng.normal(size=(97, 5)), rng.normal(size=97)
few, many = (pytensor.shared(np.zeros((5, size)), "w") for size in (3, 170))
for w in (few, many):
    loss = ((pt.tanh(x @ w).sum(1) - y) ** 2).mean()
    outputs = [
        *(loss, x.sum(0), x.prod(0), x.max(0), x.min(0), (x > 0).sum(), x.var(0)),
        *((x * 9).astype("int32").mean(), x.astype("float16").sum(0), x[:, 0] * 2),
    ]
    updates = [(w, w - 0.01 * pytensor.grad(loss, w))]
    f = synk.function([x, y], outputs, updates=updates)
    for rows in (slice(0, 40), slice(0, 1), slice(0, 2), slice(96, 97), slice(60, 97)):
        for k, value in enumerate(f(X[rows], Y[rows])):
            show(f"output {k} beside {w.get_value().size} weights", value)
        show(f"{w.get_value().size} weights", w.get_value())
X[50, 3] = np.nan
f = synk.function([x], [x.min(0), x.max(0), x.sum(0)])
for k, value in enumerate(f(X)):
    show(f"output {k} with NaN", value)
"""


@functools.cache
def lines(mpi: str, nodes: int, ranks: int) -> list[tuple[str, np.ndarray]]:
    """Return what the script shows, with the name of each, once."""
    with tempfile.TemporaryDirectory() as folder:
        script, args = FUNCTIONS + BITS, (ranks, nodes)
        if nodes > 1:
            status, out, error = run(script, Path(folder), nodes, *args, mpi=mpi)
        else:
            status, out, error = alone(["-c", script, *args])
    assert status == 0, out + error
    first, *shown = out.splitlines()
    assert first == "done"
    found = []
    for line in shown:
        name, dtype, digits = line.split("\t")
        data = bytes.fromhex(digits.replace("-", ""))
        found.append((f"{name}: {dtype}", np.frombuffer(data, dtype)))
    return found


def alone(words: list, folder: Path | None = None) -> tuple[int, str, str]:
    """Run a script without a launcher; return its status and what it printed."""
    done = finished([sys.executable, *words], launcher("openmpi", 1)[1], folder)
    return done.returncode, done.stdout, done.stderr


def test_values_are_the_serial_runs_and_have_the_bits_of_one_machine():
    ours, right = lines(APART, 3, 2), lines("", 1, 6)
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
        is_average = re.match("output [067] |850 weights", name)
        return "850 weights" in name and is_average is not None
    is_of_many = "of 5001" in name and name.endswith(("32", "64")) and "int" not in name
    return is_of_many and name.startswith(("sum", "avg", "prod"))


@pytest.mark.parametrize("mpi", MPIS[1:])
def test_another_mpi_gives_the_same_bits(mpi):
    ours, right = lines(mpi, 2, 2), lines(APART, 2, 2)
    assert [name for name, _ in ours] == [name for name, _ in right]
    for (name, found), (_, expected) in zip(ours, right, strict=True):
        assert found.tobytes() == expected.tobytes(), name


def test_a_demo_prints_what_it_prints_on_one_machine(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTENSOR_FLAGS", "mode=FAST_COMPILE,cxx=")
    demo = [ROOT / "demos" / "logistic_regression.py", "--rows", 2000]
    words, environment = launcher("openmpi", 2)
    words += [sys.executable, "-m", "synk", *demo, "--ranks", 1]
    done = finished(words, environment, tmp_path)
    assert done.returncode == 0, done.stderr
    status, expected, error = alone([*demo, "--ranks", 2], tmp_path)
    assert status == 0, error
    ours, right = (
        re.sub(r"[\d.]+ m?s\b|speed-up: [\d.]+", "", text).splitlines()
        for text in (done.stdout, expected)
    )
    assert ours == right
    assert ours[-1].startswith("logistic_regression: both found"), ours


def test_info_shows_the_nodes():
    words, environment = launcher("openmpi", 2)
    done = finished([*words, sys.executable, "-m", "synk", "info"], environment)
    assert done.returncode == 0, done.stderr
    assert "runs this script" not in done.stderr
    title, mpi, *others = done.stdout.strip().splitlines()
    assert title == "nodes"
    assert "Open MPI" in mpi
    nodes = [line for line in others if line.startswith("  node")]
    assert [line.split()[:2] for line in nodes] == [["node", "0"], ["node", "1"]]
    assert all(" rank" in line and "bound to" in line for line in nodes)


@pytest.mark.parametrize(
    ("script", "right"),
    [
        ("import sys, synk\nsynk.fork(1)\nprint()\nsys.exit(3)", 3),
        ("print()\nraise KeyError('x')", 1),  # no ranks were forked
    ],
)
def test_output_and_exit_status_are_the_scripts(tmp_path, script, right):
    status, out, error = run(script, tmp_path, 2)
    assert out == "\n"  # of the first node alone
    assert status == right, error
    assert ("KeyError: 'x'" in error) is (right == 1)


def test_mpirun_of_the_script_itself_is_warned_of_once(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("import synk\nsynk.fork(1)\nsynk.close()\n")
    words, environment = launcher("openmpi", 2)
    done = finished([*words, sys.executable, script], environment)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("mpirun runs this script 2 times") == 1


# -- GPUs of several nodes, with stand-ins for NVML and NCCL on the CPU

GPUS = """
import os, sys, time
import numpy as np, pytensor, pytensor.tensor as pt
import synk

n = synk.fork(2)
assert [node.gpus for node in synk.nodes()] == [2, 2], synk.nodes()
x, y = pt.matrix("x"), pt.vector("y")
w, v = (pytensor.shared(np.zeros(5), "w") for _ in range(2))

def graph(w):
    loss = ((x @ w - y) ** 2).mean()
    return loss, [(w, w - 0.05 * pytensor.grad(loss, w))]

loss, updates = graph(w)
f = synk.function([x, y], loss, updates=updates)
loss, updates = graph(v)
g = pytensor.function([x, y], loss, updates=updates, mode="FAST_COMPILE")
rng = np.random.default_rng(0)
X, Y = rng.normal(size=(31, 5)), rng.normal(size=31)
same = dict(rtol=1e-5, atol=1e-7)
for stop in (31, 1):
    np.testing.assert_allclose(f(X[:stop], Y[:stop]), g(X[:stop], Y[:stop]), **same)
    np.testing.assert_allclose(w.get_value(), v.get_value(), **same)

# What the transport does not know goes by the masters: complex numbers.
for dtype in ("float32", "complex64"):
    of_ranks = pytensor.shared(np.zeros(3, dtype), "of_ranks")
    values = np.repeat(np.arange(n) + 1, 3).astype(dtype)
    synk.scatter(of_ranks, values)
    assert (synk.all_gather(of_ranks) == values).all()
    synk.broadcast(of_ranks, values[:3])
    for rank in range(n):
        assert (synk.get_value(rank, of_ranks) == 1).all()

for _ in range(2):
    open(os.environ["STUCK"], "w").close()
    start, before = time.monotonic(), w.get_value()
    try:
        f(X, Y)
        raise SystemExit("nothing was raised")
    except ZeroDivisionError as error:
        assert f"on rank {n - 1} of {n}" in str(error.__notes__), error.__notes__
    assert time.monotonic() - start < 30
    os.remove(os.environ["STUCK"])
    np.testing.assert_array_equal(w.get_value(), before)
    np.testing.assert_allclose(f(X, Y), g(X, Y), **same)
print("done")
"""


def on_fake_gpus(script: str, folder: Path, gpus: str) -> tuple[int, str, str]:
    """Run a script on two nodes that seem to have so many GPUs each."""
    pytest.importorskip("jax", reason="JAX, of the extra synk[jax], is missing")
    words, environment = launcher("openmpi", 2)
    environment |= {"STUCK": str(folder / "stuck"), "GPUS": gpus}
    (folder / "script.py").write_text(script)
    mine = [sys.executable, Path(__file__).parent / "with_fake_gpus.py", "script.py"]
    done = finished([*words, *mine], environment, folder)
    return done.returncode, done.stdout, done.stderr


def test_functions_and_variables_and_a_rank_that_fails_in_nccl(tmp_path):
    status, out, error = on_fake_gpus(GPUS, tmp_path, "2 2")
    assert (status, out) == (0, "done\n"), error


def test_nodes_with_gpus_and_without_are_not_mixed(tmp_path):
    status, _, error = on_fake_gpus("import synk\nsynk.fork(1)\n", tmp_path, "2 0")
    assert status == 1
    assert "StateError" in error
    assert "have GPUs" in error
