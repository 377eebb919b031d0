"""Training rules on several nodes: the workers of all, or each node as one worker."""

import sys

from launching import finished, launcher, run

SCRIPT = """
import sys
import numpy as np, pytensor, pytensor.tensor as pt
from pytensor.compile.mode import Mode
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
import synk
from synk.memory.partition import cuts
from synk.rules import EASGD, DiLoCo, Gossip, LocalSGD, simulate

PY = Mode("py", None)  # compiles at once
ranks, nodes, saved = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
n = synk.fork(ranks)
assert len(synk.nodes()) == nodes
ROWS, BATCH, STEPS = 89, 24, 4  # of an epoch; the last batch has fewer rows
RATE = 0.05
random = np.random.default_rng(0)

def data(size):
    X = random.normal(size=(ROWS, size))
    return X, X @ random.normal(size=size)

def made(size, local):
    x, y = pt.dmatrix("x"), pt.dvector("y")
    w = pytensor.shared(np.zeros(size), "w")
    loss = ((x @ w - y) ** 2).mean()
    gradient = pytensor.grad(loss, w)
    updates = synk.updates.momentum([gradient], [w], learning_rate=RATE / size)
    return synk.function([x, y], loss, updates=updates, local=local, mode=PY), w

def fit(trainer, epochs, *data):
    return trainer.fit(*data, batch_size=BATCH, epochs=epochs, progress=False)
"""

OF_RANKS = """
X, Y = data(5)
RULES = [
    LocalSGD(3),
    EASGD(2, order="turns"),
    DiLoCo(4, fragments=2, delay=2, order="turns"),
    Gossip(0.5, order="turns"),
]
for rule in RULES:
    step, w = made(5, local=True)
    trainer = synk.Trainer(step, [w], rule)
    history = fit(trainer, 2, X, Y)  # of some rules the last round is not whole
    found = [w.get_value(), *trainer.average()]
    trainer.save(saved)
    fit(trainer, 1, X, Y)
    found.append(w.get_value())
    trainer.load(saved)
    fit(trainer, 1, X, Y)
    np.testing.assert_array_equal(w.get_value(), found[-1])
    for rank in range(n):
        np.testing.assert_array_equal(synk.get_value(rank, [w])[0], found[-1])
    assert history.losses[-1] < history.losses[0]
    print(rule, *(value.tobytes().hex() for value in found))
if nodes > 1:
    try:
        fit(synk.Trainer(step, [w], EASGD(2, order="free")), 1, X, Y)
        raise SystemExit("workers come when they are ready")
    except synk.StateError as error:
        assert f"one machine only so far, and this session has {nodes}" in str(error)
"""

OF_NODES = """
RULES = [
    (5, EASGD(2, order="turns")),
    (5, DiLoCo(4, fragments=2, delay=2)),
    (3000, DiLoCo(4, fragments=2, delay=2, order="turns")),
]
batches = [slice(i, min(i + BATCH, ROWS)) for i in range(0, ROWS, BATCH)] * 4
how = dict(workers="nodes", shuffle=False)
close = dict(rtol=1e-9, atol=1e-12)

def rows_of(node, k):
    first = batches[k].start
    ends = cuts(batches[k].stop - first, n)
    return slice(first + ends[node * ranks], first + ends[(node + 1) * ranks])

def count(node, k):
    return rows_of(node, k).stop - rows_of(node, k).start

for size, rule in RULES:
    X, Y = data(size)
    step, w = made(size, local=False)
    trainer = synk.Trainer(step, [w], rule, **how)
    velocity = np.zeros((nodes, size))

    def by_hand(w, node, k):
        x, y = X[rows_of(node, k)], Y[rows_of(node, k)]
        gradient = 2 * x.T @ (x @ w - y) / len(x)
        velocity[node] = 0.9 * velocity[node] - RATE / size * gradient
        return w + velocity[node]

    history = fit(trainer, 3, X, Y)
    expected = simulate(rule, by_hand, 3 * STEPS, nodes, np.zeros(size), rows=count)
    np.testing.assert_allclose(trainer.average()[0], expected.average(), **close)
    if not rule.delay:
        np.testing.assert_allclose(w.get_value(), expected.result(), **close)
    assert np.isclose(history.losses[0], (Y[:BATCH] ** 2).mean())
    fit(trainer, 1, X, Y)
    expected.run(STEPS)
    np.testing.assert_allclose(trainer.average()[0], expected.average(), **close)
    for rank in range(n):
        np.testing.assert_array_equal(synk.get_value(rank, [w])[0], w.get_value())
    trainer.save(saved)
    fit(trainer, 1, X, Y)
    after = w.get_value()
    trainer.load(saved)
    fit(trainer, 1, X, Y)
    np.testing.assert_array_equal(w.get_value(), after)

# Velocities are each node's own, and the step itself is exact training again.
if nodes > 1:
    try:
        step(X, Y)
        raise SystemExit("a node's velocity was taken for that of all")
    except synk.SplitError as error:
        assert "velocity" in str(error) or "own" in str(error), error

# Of one row only one node has any: the others make no step.
step, w = made(5, local=False)
trainer = synk.Trainer(step, [w], LocalSGD(1), **how)
X, Y = data(5)
fit(trainer, 1, X[:1], Y[:1])
np.testing.assert_allclose(w.get_value(), 2 * RATE / 5 * X[0] * Y[0], rtol=1e-12)
"""

FAULTS = """
class Fails(Op):
    "Where it is told so."
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
w = pytensor.shared(np.zeros(5), "w")
loss = ((x @ w - y) ** 2).mean()
updates = synk.updates.sgd([pytensor.grad(loss, w)], [w], learning_rate=RATE / 5)
outputs = loss + 1e-30 * Fails()(y).sum()
step = synk.function([x, y], (outputs, "avg"), updates=updates, local=True, mode=PY)
for rule in (EASGD(2), Gossip(0.5, order="turns")):
    trainer = synk.Trainer(step, [w], rule)
    w.set_value(np.zeros(5))
    fit(trainer, 1, X, Y)
    for row in (0, ROWS - 1):
        wrong = Y.copy()
        wrong[row] = 1e6
        try:
            fit(trainer, 1, X, wrong)
            raise SystemExit("nothing was raised")
        except ZeroDivisionError as error:
            assert "on rank" in str(error.__notes__), error.__notes__
        before = len(trainer.history)
        fit(trainer, 1, X, Y)
        assert len(trainer.history) == before + 1
        for rank in range(n):
            np.testing.assert_array_equal(synk.get_value(rank, [w])[0], w.get_value())
    assert np.isfinite(w.get_value()).all()
print("done")
"""


def test_rules_of_ranks_have_one_machines_bits_and_those_of_nodes_the_simulators(
    tmp_path,
):
    """One machine is one worker. An error on any rank leaves all together."""
    script, saved = SCRIPT + OF_RANKS + OF_NODES, tmp_path / "saved.npz"
    words = [sys.executable, "-c", script, 4, 1, saved]
    alone = finished(words, launcher("openmpi", 1)[1], tmp_path)
    assert alone.returncode == 0, alone.stderr
    status, out, error = run(script + FAULTS, tmp_path, 2, 2, 2, saved)
    assert status == 0, error
    assert out == alone.stdout + "done\n"
