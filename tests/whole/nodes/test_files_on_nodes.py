"""Rows in files on several nodes: each reads its own ranks'; the numbers are right."""

from __future__ import annotations

import pytest
from launching import APART, run

BEGIN = """
import os, signal, sys, warnings
import numpy as np, pytensor, pytensor.tensor as pt
import synk
from synk.files.order import order_of_epoch
from synk.ranks.session import SESSION
from synk.rules import LocalSGD, simulate

n = synk.fork(int(sys.argv[1]))
nodes = len(synk.nodes())
link = SESSION.cluster.link
rng = np.random.default_rng(0)
COUNTS, WIDTH, BATCH = (90, 40, 130, 7, 60), 400, 32
ROWS = sum(COUNTS)
X, Y = rng.normal(size=(ROWS, WIDTH)), rng.normal(size=ROWS)
folder = os.path.join(sys.argv[2], "rows")
os.makedirs(folder)
ends = np.cumsum(COUNTS)
FILES = [os.path.join(folder, f"{i}.npy") for i in range(len(COUNTS))]
for path, piece in zip(FILES, np.split(X, ends[:-1]), strict=True):
    np.save(path, piece)

def rows_of_files(**options):
    os.chdir(folder)  # paths are those of the script's folder
    found = synk.files.arrays(sorted(os.listdir(".")), labels=Y, **options)
    return found

def made(change=lambda x: x, **how):
    x, y = pt.dmatrix("x"), pt.dvector("y")
    w = pytensor.shared(np.zeros(WIDTH), "w")
    loss = ((change(x) @ w - y) ** 2).mean()
    updates = {w: w - 0.01 * pytensor.grad(loss, w)}
    return synk.function([x, y], loss, updates=updates, mode="FAST_COMPILE", **how), w

def batches(epoch, seed=0, window=1):
    order, _ = order_of_epoch(COUNTS, window, seed, epoch, True)
    return [order[i : i + BATCH] for i in range(0, ROWS, BATCH)]

def by_hand(epochs, w=None, seed=0, window=1, change=lambda x: x):
    w, losses = np.zeros(WIDTH) if w is None else w, []
    for epoch in range(epochs):
        for some in batches(epoch, seed, window):
            x = change(X[some])
            left = x @ w - Y[some]
            losses.append((left**2).mean())
            w = w - 0.01 * 2 * x.T @ left / len(some)
    return losses, w

def sent():
    found, link.bytes_sent = link.bytes_sent, 0
    return found

def check(trainer, rows, w, epochs=2, **options):
    history = trainer.fit(rows, batch_size=BATCH, epochs=epochs, progress=False)
    losses, right = by_hand(len(history), **options)
    np.testing.assert_allclose(history.losses, losses, rtol=1e-9)
    np.testing.assert_allclose(w.get_value(), right, rtol=1e-9)
"""

TRAINING = (
    BEGIN
    + """
for window in (1, 3):
    rows = rows_of_files(window=window)
    step, w = made()
    trainer = synk.Trainer(step, [w], seed=window)
    sent()
    check(trainer, rows, w, seed=window, window=window)
    assert sent() < 0.1 * 2 * X.nbytes  # commands, and no rows
    check(trainer, rows, w, seed=window, window=window)

# What is asked for in the script has all rows, also in memory that others have used.
parts = list((part.batches, [each[:].copy() for each in part.inputs])
             for part in rows.parts(1, BATCH, seed=5))
found = [inputs[0][batch] for part, inputs in parts for batch in part]
right = X[np.concatenate(batches(1, 5, 3))]
np.testing.assert_array_equal(np.concatenate(found), right)

# Outputs for validation, and images of which something is drawn.
pixels = rng.integers(0, 255, size=(60, 3, 8, 9)).astype(np.uint8)
for i in range(3):
    np.save(os.path.join(folder, f"images{i}.npy"), pixels[20 * i : 20 * i + 20])
names = [os.path.join(folder, f"images{i}.npy") for i in range(3)]
how = dict(layout="bc01", crop=5, mirror=True, mean=100.0)
images = synk.files.images(names, **how)
z, v = pt.ftensor4("z"), pytensor.shared(np.float32(0.0), "v")
mean = (z * z).mean()
sums = synk.function([z], mean, updates={v: v + z.sum()}, mode="FAST_COMPILE")
trainer = synk.Trainer(sums, [v], seed=3)
held_out = synk.function([z], [mean, z.max()], mode="FAST_COMPILE")
validation = held_out, images
sent()
history = trainer.fit(
    images, batch_size=13, epochs=2, validation=validation, progress=False
)
assert sent() < 60_000  # of 54_000 an epoch, twice, and as much for validation
drawn = [images.take(np.arange(60), epoch, seed=3)[0] for epoch in range(2)]
total = sum(each.astype(float).sum() for each in drawn)
np.testing.assert_allclose(v.get_value(), total, rtol=1e-4)
for epoch, each in enumerate(drawn):
    losses = history.losses[5 * epoch : 5 * epoch + 5]
    weighed = np.average(losses, weights=[13, 13, 13, 13, 8])
    np.testing.assert_allclose(weighed, (each.astype(float) ** 2).mean(), rtol=1e-5)
first = images.take(np.arange(60), 0, seed=0)[0]
seen = history.epochs[0]
right = (first.astype(float) ** 2).mean()
np.testing.assert_allclose(seen["val_loss"], right, rtol=1e-5)
np.testing.assert_allclose(seen["val_1"], first.max())
print("done")
"""
)

OTHERS = (
    BEGIN
    + """
rows = rows_of_files()

# By rules: of ranks, and of nodes.
step, w = made(local=True)
def one(w, rank, k, ranks=n):
    some = np.array_split(batches(k // 11)[k % 11], ranks)[rank]
    x = X[some]
    return w - 0.01 * 2 * x.T @ (x @ w - Y[some]) / max(1, len(some))
trainer = synk.Trainer(step, [w], LocalSGD(2))
sent()
trainer.fit(rows, batch_size=BATCH, epochs=2, progress=False)
assert sent() < 0.1 * 2 * X.nbytes
cuts = lambda k, rank: len(np.array_split(batches(k // 11)[k % 11], n)[rank])
right = simulate(LocalSGD(2), one, 22, n, np.zeros(WIDTH), rows=lambda r, k: cuts(k, r))
np.testing.assert_allclose(trainer.average()[0], right.average(), rtol=1e-9, atol=1e-12)
step, w = made()
trainer = synk.Trainer(step, [w], LocalSGD(1), workers="nodes")
trainer.fit(rows, batch_size=BATCH, epochs=2, progress=False)
assert trainer.history.losses[-1] < trainer.history.losses[0]
assert sent() < 0.1 * 2 * X.nbytes

# A step in which ranks read all rows: node 0 reads them all.
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    step, w = made(change=lambda x: pt.sort(x, axis=0))
assert not step.takes_own_rows()
check(synk.Trainer(step, [w]), rows, w, change=lambda x: np.sort(x, axis=0))

# A child of the script, which might write to rows: they are sent with each call.
step, w = made()
trainer = synk.Trainer(step, [w])
check(trainer, rows, w)
child = os.fork()
if not child:
    os._exit(0)
os.waitpid(child, 0)
check(trainer, rows, w)

# Those of a file that only another node reads are missing; and then they are there.
counts = np.array([50, 50] * 3)
os.makedirs(os.path.join(folder, "halves"))
halves = [os.path.join(folder, "halves", f"{i}.npy") for i in range(6)]
for path, piece in zip(halves, np.split(X[:300], np.cumsum(counts)[:-1]), strict=True):
    np.save(path, piece)
rows = synk.files.arrays(halves, labels=Y[:300], window=2)
step, w = made()
kept = open(halves[3], "rb").read()
for _ in range(2):
    trainer = synk.Trainer(step, [w], shuffle=False)
    trainer.fit(rows, batch_size=100, epochs=1, progress=False)
    before = w.get_value()
    with open(halves[3], "wb") as file:
        file.write(kept[:-100])
    try:
        trainer.fit(rows, batch_size=100, epochs=1, progress=False)
    except ValueError as error:
        assert "3.npy" in str(error), error
    else:
        raise AssertionError("a file is damaged")
    with open(halves[3], "wb") as file:
        file.write(kept)
    rows = synk.files.arrays(halves, labels=Y[:300], window=2)

# Another session has other readers.
rows = synk.files.arrays(FILES, labels=Y)
for _ in range(2):
    step, w = made()
    check(synk.Trainer(step, [w]), rows, w, 1)
    synk.close()
    synk.fork(int(sys.argv[1]))

# Interrupts at any point.
class Stop(BaseException):  # PyTensor may lose an Exception that comes as it begins
    pass

def stop(*_):
    raise Stop

signal.signal(signal.SIGALRM, stop)
stops = 0
step, w = made()
check(synk.Trainer(step, [w]), rows, w, 1)
for i in range(25):
    trainer = synk.Trainer(step, [w])
    try:
        signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-3, 0.12))
        trainer.fit(rows, batch_size=BATCH, epochs=50, progress=False)
    except Stop:
        stops += 1
    signal.setitimer(signal.ITIMER_REAL, 0)
    if i % 5 == 4:
        w.set_value(np.zeros(WIDTH))
        check(synk.Trainer(step, [w]), rows, w, 1)
assert stops > 20, stops
print("done")
"""
)

ELSEWHERE = (
    BEGIN
    + """
rows = rows_of_files()
step, w = made()
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    trainer = synk.Trainer(step, [w])
    check(trainer, rows, w)
    check(trainer, rows, w, 1)
said = [str(each.message) for each in seen if each.category is RuntimeWarning]
assert len(said) == 1 and "the first machine reads" in said[0] and "0.npy" in said[0]
print("done")
"""
)


@pytest.mark.parametrize(
    ("mpi", "nodes", "ranks"), [("openmpi", 2, 2), (APART, 3, 1)], ids=str
)
def test_every_node_reads_its_own_rows(tmp_path, mpi, nodes, ranks):
    status, out, error = run(TRAINING, tmp_path, nodes, ranks, tmp_path, mpi=mpi)
    assert out.split() == ["done"], out + error
    assert status == 0


def test_what_else_may_happen_while_nodes_read(tmp_path):
    status, out, error = run(OTHERS, tmp_path, 2, 1, tmp_path)
    assert out.split() == ["done"], out + error
    assert status == 0


def test_where_a_node_has_not_the_files_the_first_reads_for_all(tmp_path):
    # Each node has a folder of its own here.
    status, out, error = run(ELSEWHERE, tmp_path, 2, 1, "/dev/shm/files", mpi=APART)
    assert out.split() == ["done"], out + error
    assert status == 0
