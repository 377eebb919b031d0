"""Training rules on several nodes: the workers of all, or each node as one worker."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from launching import MPIS, ROOT, run

BEGIN = """
import sys
import numpy as np, pytensor, pytensor.tensor as pt
from pytensor.compile.mode import Mode
import synk
from synk.memory.partition import cuts
from synk.rules import EASGD, DiLoCo, Downpour, Gossip, LocalSGD, simulate

PY = Mode("py", None)  # compiles at once
n = synk.fork(int(sys.argv[1]))
SIZE, ROWS, BATCH = int(sys.argv[2]), 161, 24  # of the last batch some are left
random = np.random.default_rng(0)
X = random.normal(size=(ROWS, SIZE))
Y = X @ random.normal(size=SIZE)

def made(local):
    x, y = pt.dmatrix("x"), pt.dvector("y")
    w = pytensor.shared(np.zeros(SIZE), "w")
    loss = ((x @ w - y) ** 2).mean()
    gradient = pytensor.grad(loss, w)
    updates = synk.updates.momentum([gradient], [w], learning_rate=0.01 / SIZE)
    made = synk.function([x, y], loss, updates=updates, local=local, mode=PY)
    return made, w, loss

def fit(trainer, epochs, *data):
    data = data or (X, Y)
    return trainer.fit(*data, batch_size=BATCH, epochs=epochs, progress=False)
"""

OF_RANKS = (
    BEGIN
    + """
RULES = [
    LocalSGD(3),
    EASGD(2, order="turns"),
    Downpour(2, learning_rate=0.1, order="turns"),
    DiLoCo(4, fragments=2, delay=2),
    DiLoCo(4, fragments=2, delay=2, order="turns"),
    Gossip(0.5, order="turns"),
]
for rule in RULES:
    step, w, _ = made(local=True)
    trainer = synk.Trainer(step, [w], rule)
    history = fit(trainer, 2)  # 14 steps: of some rules the last round is not whole
    found = [w.get_value(), *trainer.average()]
    trainer.save(sys.argv[3])
    fit(trainer, 1)
    found.append(w.get_value())
    trainer.load(sys.argv[3])
    fit(trainer, 1)
    np.testing.assert_array_equal(w.get_value(), found[-1])
    for rank in range(n):
        np.testing.assert_array_equal(synk.get_value(rank, [w])[0], found[-1])
    assert history.losses[-1] < history.losses[0]
    print(rule, *(value.tobytes().hex() for value in found))
try:
    free = synk.Trainer(step, [w], EASGD(2, order="free"))
    fit(free, 1)
    print("is free")
except synk.StateError as error:
    assert "one machine" in str(error), error
print("done")
"""
)

OF_NODES = (
    BEGIN
    + """
nodes = int(sys.argv[3])
ranks = n // nodes
assert len(synk.nodes()) == nodes or nodes == 1
RULES = [
    LocalSGD(3),
    EASGD(2, order="turns"),
    DiLoCo(4, fragments=2, delay=2),
    DiLoCo(4, fragments=2, delay=2, order="turns"),
]
batches = [slice(i, min(i + BATCH, ROWS)) for i in range(0, ROWS, BATCH)] * 4

def rows_of(node, k):
    first = batches[k].start
    ends = cuts(batches[k].stop - first, n)
    return slice(first + ends[node * ranks], first + ends[(node + 1) * ranks])

for rule in RULES:
    step, w, loss = made(local=False)
    how = dict(workers="nodes", shuffle=False)
    trainer = synk.Trainer(step, [w], rule, **how)
    velocity = np.zeros((nodes, SIZE))

    def by_hand(w, node, k):
        x, y = X[rows_of(node, k)], Y[rows_of(node, k)]
        gradient = 2 * x.T @ (x @ w - y) / len(x)
        velocity[node] = 0.9 * velocity[node] - 0.01 / SIZE * gradient
        return w + velocity[node]

    def count(node, k):
        return rows_of(node, k).stop - rows_of(node, k).start

    history = fit(trainer, 3)  # 21 steps
    expected = simulate(rule, by_hand, 21, nodes, np.zeros(SIZE), rows=count)
    close = dict(rtol=1e-9, atol=1e-12)
    for found, right in [
        (trainer.average()[0], expected.average()),
        *([(w.get_value(), expected.result())] if not rule.delay else ()),
    ]:
        np.testing.assert_allclose(found, right, **close)
    assert np.isclose(history.losses[0], (Y[:BATCH] ** 2).mean())
    fit(trainer, 1)
    expected.run(7)
    np.testing.assert_allclose(trainer.average()[0], expected.average(), **close)
    for rank in range(n):
        np.testing.assert_array_equal(synk.get_value(rank, [w])[0], w.get_value())
    trainer.save(sys.argv[4])
    fit(trainer, 1)
    after = w.get_value()
    trainer.load(sys.argv[4])
    fit(trainer, 1)
    np.testing.assert_array_equal(w.get_value(), after)

# Velocities are each node's own, and the step itself is exact training again.
if nodes > 1:
    try:
        step(X, Y)
        raise SystemExit("a node's velocity was taken for that of all")
    except synk.SplitError as error:
        assert "velocity" in str(error) or "own" in str(error), error

# Of one row only one node has any: the others make no step.
step, w, _ = made(local=False)
trainer = synk.Trainer(step, [w], LocalSGD(1), workers="nodes", shuffle=False)
fit(trainer, 1, X[:1], Y[:1])
np.testing.assert_allclose(w.get_value(), 0.02 / SIZE * X[0] * Y[0], rtol=1e-12)
print("done")
"""
)

FAULTS = (
    BEGIN
    + """
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op

class Fails(Op):
    "On one rank, when it is told so."
    __props__ = ()

    def make_node(self, x):
        return Apply(self, [x], [x.type()])

    def perform(self, node, inputs, outputs):
        if (inputs[0] == 1e6).any():
            raise ZeroDivisionError("on purpose")
        outputs[0][0] = inputs[0].copy()

    def connection_pattern(self, node):
        return [[False]]

x, y = pt.dmatrix("x"), pt.dvector("y")
w = pytensor.shared(np.zeros(SIZE), "w")
loss = ((x @ w - y) ** 2).mean()
updates = synk.updates.sgd([pytensor.grad(loss, w)], [w], learning_rate=0.01 / SIZE)
outputs = loss + 1e-30 * Fails()(y).sum()
step = synk.function([x, y], (outputs, "avg"), updates=updates, local=True, mode=PY)
for rule in (EASGD(2), Gossip(0.5, order="turns")):
    trainer = synk.Trainer(step, [w], rule)
    w.set_value(np.zeros(SIZE))
    fit(trainer, 1)
    for row in random.integers(ROWS, size=4):
        wrong = Y.copy()
        wrong[row] = 1e6
        try:
            fit(trainer, 1, X, wrong)
            raise SystemExit("nothing was raised")
        except ZeroDivisionError as error:
            assert "on rank" in str(error.__notes__), error.__notes__
        before = len(trainer.history)
        fit(trainer, 1)
        assert len(trainer.history) == before + 1
        for rank in range(n):
            np.testing.assert_array_equal(synk.get_value(rank, [w])[0], w.get_value())
    assert np.isfinite(w.get_value()).all()
print("done")
"""
)


def on_one_machine(script: str, folder, *args) -> str:
    """Return what a script prints without a launcher."""
    done = subprocess.run(
        [sys.executable, "-c", script, *map(str, args)],
        env=dict(os.environ, PYTHONPATH=str(ROOT)),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("mpi", MPIS)
def test_ranks_of_nodes_train_by_rules_with_the_bits_of_one_machine(mpi, tmp_path):
    saved = tmp_path / "saved.npz"
    alone = on_one_machine(
        OF_RANKS.replace("fit(free, 1)", "pass"), tmp_path, 4, 5, saved
    )
    status, out, error = run(OF_RANKS, tmp_path, 2, 2, 5, saved, mpi=mpi)
    assert status == 0, error
    assert out == alone.replace("is free\n", "")
    assert out.endswith("done\n")


@pytest.mark.slow
@pytest.mark.parametrize(("nodes", "ranks", "size"), [(2, 2, 5), (3, 1, 3000)])
def test_nodes_as_workers_are_those_of_the_simulator(nodes, ranks, size, tmp_path):
    args = ranks, size, nodes, tmp_path / "saved.npz"
    status, out, error = run(OF_NODES, tmp_path, nodes, *args)
    assert (status, out) == (0, "done\n"), error


def test_one_machine_is_one_worker(tmp_path):
    args = 2, 5, 1, tmp_path / "saved.npz"
    assert on_one_machine(OF_NODES, tmp_path, *args) == "done\n"


def test_training_goes_on_after_errors_on_any_rank(tmp_path):
    status, out, error = run(FAULTS, tmp_path, 2, 2, 5)
    assert (status, out) == (0, "done\n"), error
