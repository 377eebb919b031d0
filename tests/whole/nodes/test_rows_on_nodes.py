"""What is sent to other nodes: to each the rows of its ranks, and what stays once.

Rows in files each node reads itself.
"""

from launching import APART, STOPS, run

IMPORTS = """
import os, sys, warnings
import numpy as np, pytensor, pytensor.tensor as pt
import synk
from synk.call.uses import takes_own_rows
from synk.ranks.session import SESSION

how = dict(mode="FAST_COMPILE")
rng = np.random.default_rng(0)
"""

SENT = """
n = synk.fork(1)
nodes, link = len(synk.nodes()), SESSION.cluster.link
x, y, k = pt.dmatrix("x"), pt.dvector("y"), pt.dvector("k")
X, Y = rng.normal(size=(1200, 50)), rng.normal(size=1200)
size = X.nbytes + Y.nbytes
f = synk.function([x, y], [x.sum(0), (x.T * y).sum(1), x[:, 0] * y], **how)

def sent():
    '''Return the bytes that each other node has got since it was asked for last.'''
    found, link.bytes_sent = link.bytes_sent / (nodes - 1), 0
    return found

def expect(rows, numbers=0, commands=1):
    '''Check how many rows and row numbers were sent, and little besides.'''
    found, right = sent(), rows * size / 1200 + 8 * numbers
    assert right <= found <= 1.05 * right + 1000 * commands, (found, right)

def same(made, A, B):
    right = A.sum(0), (A.T * B).sum(1), A[:, 0] * B
    for mine, value in zip(made, right, strict=True):
        np.testing.assert_allclose(mine, value, rtol=1e-9, atol=1e-9)

def call(a, b, batch=None):
    chosen = slice(None) if batch is None else batch
    same(f(a, b, batch=batch), X[chosen], Y[chosen])

def epoch(batches, a, b):
    made = f.run(batches, a, b)
    for i, batch in enumerate(batches):
        same([values[i] for values in made], X[batch], Y[batch])

def shuffled():
    order = rng.permutation(1200)
    return [order[i : i + 120] for i in range(0, 1200, 120)]

slices = [slice(i, i + 120) for i in range(0, 1200, 120)]
own = 1200 / n  # rows of a node

f(X[:n], Y[:n]), sent()
a, b = synk.data(X), synk.data(Y)
for rows in (own, 0):  # kept from the second on
    call(a, b), expect(rows)
call(a, b)
assert sent() == 0  # nor is the call said again
for rows in (own, 0):
    epoch(slices, a, b), expect(rows)
for batch in slices:
    call(a, b, batch)
expect(0, 0, 10)
for _ in range(2):  # arrays of the script may change
    call(X, Y), expect(own)
    epoch(slices, X, Y), expect(own)
epoch(shuffled() + slices, X, b), expect(2 * own, own)
del a, b

a, b = synk.data(X), synk.data(Y)
epoch(shuffled(), a, b), expect(1200, own)  # with the numbers of rows
epoch(shuffled(), a, b), expect(0, own)
for batch in shuffled():
    call(a, b, batch)
expect(0, own, 10)
epoch(slices, a, b), call(a, b), expect(0, 0, 2)

a, b = synk.data(X), synk.data(Y)
for rows, numbers in (1200 + 0.9 * own, 0.1 * own), (0, own):
    for batch in shuffled():
        call(a, b, batch)
    expect(rows, numbers, 10)

# Each kind of write is seen; what is written to once is sent once.
def write_slice():
    a[3] = X[3] = rng.normal()

def write_view():
    a.data[5:9] = X[5:9] = rng.normal()

def write_value():
    global X
    X = X[::-1].copy()
    a.set_value(X)

def write_anew():
    a.free_memory(), a.set_value(X)

for write in (write_slice, write_view, write_value, write_anew):
    call(a, b), sent()
    write()
    call(a, b), call(a, b, slice(3, 700)), call(a, b, slices[-1])
    assert sent() > X.nbytes / n
    call(a, b), call(a, b, slice(3, 700)), expect(0, 0, 2)
for _ in range(3):  # of data that changes in each epoch a node gets its ranks' rows
    write_slice()
    epoch(shuffled(), a, b), sent()
write_slice()
epoch(shuffled(), a, b), expect(own * 50 / 51, own)
epoch(shuffled(), a, b), expect(1200 * 50 / 51, own)  # all of it, when it has stayed
epoch(shuffled(), a, b), expect(0, own)
view = a[:]  # who has a view may write to it at any time
for _ in range(2):
    view[5] = X[5] = rng.normal()
    call(a, b), expect(own * 50 / 51)
del view
call(a, b), expect(own * 50 / 51)
call(a, b), expect(0)
child = os.fork()  # and so may a child, whose writing nobody sees
if not child:
    a[7] = 7.0
    os._exit(0)
os.waitpid(child, 0)
X[7] = 7.0
call(a, b), call(a, b), expect(2 * own, 0, 2)

# Other commands.
v = pytensor.shared(np.zeros((2, 50)), "v")
big = np.arange(1200.0 * 50).reshape(1200, 50)
data = synk.data(big)
synk.broadcast(v, big), sent()
for value in (big, data):
    for batch in (None, slice(100, 700), rng.permutation(1200)):
        chosen = big[slice(None) if batch is None else batch]
        synk.scatter(v, value, batch=batch)
        found = sent()
        assert found <= 1.05 * chosen.nbytes / n + 1500, (found, chosen.nbytes)
        np.testing.assert_array_equal(synk.gather(v, nd_up=0), chosen)
    sent()
    for rank in range(n):
        synk.set_value(rank, v, value)
        found = sent() * (nodes - 1)
        assert found <= (1.05 * big.nbytes if rank else 0) + 1500 * nodes, (found, rank)
        np.testing.assert_array_equal(synk.get_value(rank, v), big)
        sent()

# A call that is made again is told by next to nothing, with other values or not.
few = synk.data(X[: 2 * n])
s = synk.function([x], (x * k[0]).sum() + k[1], [k], **how)
for values in rng.normal(size=(3, 2)):
    for _ in range(2):
        sent()
        right = X[: 2 * n].sum() * values[0] + values[1]
        np.testing.assert_allclose(s(few, values), right)
assert sent() < 300

# All of data that every rank reads is sent once, too.
synk.broadcast(v, data), sent()
synk.broadcast(v, data)
assert sent() < 1500
table, at = synk.data(big), pt.dmatrix("at")
g = synk.function([y], (y.sum() * at[3]).sum(), [at], **how)
for value, is_sent in (table, 1), (table, 0), (big, 1), (table, 0):
    np.testing.assert_allclose(g(Y, value), Y.sum() * big[3].sum())
    assert is_sent * big.nbytes <= sent() < is_sent * big.nbytes * 1.05 + 20_000
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    h = synk.function([y], pt.sort(y)[:5], **how)  # every rank reads all rows
b = synk.data(Y)
for batch in (None, slice(9, 700), rng.permutation(1200)[:500], slice(9, 700)):
    chosen = Y[slice(None) if batch is None else batch]
    np.testing.assert_array_equal(h(b, batch=batch), np.sort(chosen)[:5])
    last = sent()
assert last < 1500
made = h.run([slice(0, 40), np.arange(900, 70, -1)], b)
np.testing.assert_array_equal(made, [np.sort(Y[:40])[:5], np.sort(Y[71:901])[:5]])
m = synk.data(Y[::-1], minibatch=True)
for _ in range(2):
    same(f(synk.data(X), m), X, Y[::-1])

# An interrupt at any point leaves what nodes keep right.
a, b, stops = synk.data(X), synk.data(Y), 0
call(a, b), epoch(slices, a, b), epoch(shuffled(), a, b), synk.scatter(v, X)
for i in range(20):
    if i % 3 == 0:
        j = rng.integers(1200)
        a[j] = X[j] = rng.normal()
    if i % 7 == 0:
        a, b = synk.data(X), synk.data(Y)
    todo = [
        lambda: f(a, b), lambda: f.run(slices, a, b), lambda: f.run(shuffled(), a, b),
        lambda: f(a, b, batch=shuffled()[0]), lambda: synk.scatter(v, a),
    ]
    work = lambda: [todo[each]() for each in rng.permutation(5)]
    stops += is_stopped(rng.uniform(1e-5, 10e-3), work)
    call(a, b), call(a, b, slices[i % 10])
    epoch(slices[i % 5 :] + shuffled()[:3], a, b)
    synk.scatter(v, a)
    np.testing.assert_array_equal(synk.gather(v, nd_up=0), X)
epoch(shuffled() * 2, a, b), sent()
epoch(shuffled(), a, b), expect(0, own)
assert stops > 10, stops

X[0, 0] = -np.inf  # and where there is no memory to keep it
SESSION.cluster.cache.room = 0
a = synk.data(X)
for _ in range(2):
    sent(), epoch(slices, a, Y), expect(own)

# Of outputs a node returns what its ranks give together.
synk.close()
n = synk.fork(2)
link, inner, got = SESSION.cluster.link, SESSION.cluster.link.gather, []

def gather(mine, heads):
    got.append(sum(heads.lengths))
    return inner(mine, heads)

link.gather = gather
x, k = pt.dmatrix("x"), pt.dscalar("k")
X = np.random.default_rng(0).normal(size=(50, 700))
outputs = [(x * k).mean(0), x.max(0), x[:, :3].sum(0), x.prod(0)]
f = synk.function([x], [*outputs, x.astype("float16").sum(0)], [k], **how)
rows = synk.function([x], x * 2, **how)
w = pytensor.shared(np.arange(700.0), "w")
common = synk.function([], (w * k, "avg"), [k], **how)
for size in (50, 5, 3, 2, 1):  # also of fewer rows than ranks
    part = X[:size]
    right = part.mean(0) * 2, part.max(0), part[:, :3].sum(0), part.prod(0)
    for _ in range(2):
        got.clear()
        *found, rounded = f(part, 2.0)
        for mine, value in zip(found, right, strict=True):
            np.testing.assert_allclose(mine, value, rtol=1e-12, atol=1e-13)
        np.testing.assert_allclose(rounded, part.astype("f2").sum(0), 1e-2, 1e-2)
        if size == 50:  # but for few and float16, what one rank has
            of_one, of_all = 3 * 700 * 8, n * (700 * 2 + 3 * 8)
            assert sum(got) < (len(synk.nodes()) - 1) * of_one + of_all + 3000, got
    np.testing.assert_array_equal(rows(part), part * 2)
synk.set_value(n - 1, w, np.ones(700))
right = (np.arange(700.0) * (n - 1) + 1) / n
np.testing.assert_allclose(common(3.0), right * 3)
print("done")
"""


def test_a_node_is_sent_its_own_rows_and_those_that_stay_once(tmp_path):
    status, out, error = run(IMPORTS + STOPS + SENT, tmp_path, 3, mpi=APART)
    assert out.split() == ["done"], out + error
    assert status == 0


# -- rows in files

OF_FILES = """
from synk.files.order import Order
from synk.rules import LocalSGD

n = synk.fork(2)
link = SESSION.cluster.link
COUNTS, WIDTH, BATCH = (90, 40, 130, 7, 60), 400, 32
ROWS = sum(COUNTS)
X, Y = rng.normal(size=(ROWS, WIDTH)), rng.normal(size=ROWS)
folder = os.path.join(sys.argv[1], "rows")
os.makedirs(folder)
os.chdir(folder)  # paths are those of the script's folder

def written(name, pieces):
    '''Write a file for each piece; return their names.'''
    names = [f"{name}{i}.npy" for i in range(len(pieces))]
    for path, piece in zip(names, pieces, strict=True):
        np.save(path, piece)
    return names

FILES = written("rows", np.split(X, np.cumsum(COUNTS)[:-1]))

def made(change=lambda x: x, **options):
    x, y = pt.dmatrix("x"), pt.dvector("y")
    w = pytensor.shared(np.zeros(WIDTH), "w")
    loss = ((change(x) @ w - y) ** 2).mean()
    updates = {w: w - 0.01 * pytensor.grad(loss, w)}
    return synk.function([x, y], loss, updates=updates, **how, **options), w

def batches(epoch, seed=0, window=1):
    order = Order(COUNTS, window, seed, epoch, True).between(0, ROWS)
    return [order[i : i + BATCH] for i in range(0, ROWS, BATCH)]

def sent():
    found, link.bytes_sent = link.bytes_sent, 0
    return found

def check(trainer, rows, w, epochs=2, change=lambda x: x, **order):
    '''Train, and compare with the steps of NumPy.'''
    history = trainer.fit(rows, batch_size=BATCH, epochs=epochs, progress=False)
    right, losses = np.zeros(WIDTH), []
    for epoch in range(len(history)):
        for some in batches(epoch, **order):
            x = change(X[some])
            left = x @ right - Y[some]
            losses.append((left**2).mean())
            right = right - 0.01 * 2 * x.T @ left / len(some)
    np.testing.assert_allclose(history.losses, losses, rtol=1e-9)
    np.testing.assert_allclose(w.get_value(), right, rtol=1e-9)
"""

TRAINING = """
rows = synk.files.arrays(FILES, labels=Y, window=3)
step, w = made()
trainer = synk.Trainer(step, [w], seed=3)
sent()
check(trainer, rows, w, seed=3, window=3)
assert sent() < 0.1 * 2 * X.nbytes  # commands, and no rows
check(trainer, rows, w, seed=3, window=3)

# What is asked for in the script has all rows, also in memory that others have used.
parts = list((part.batches, [each[:].copy() for each in part.inputs])
             for part in rows.parts(1, BATCH, seed=5))
found = [inputs[0][batch] for part, inputs in parts for batch in part]
right = X[np.concatenate(batches(1, 5, 3))]
np.testing.assert_array_equal(np.concatenate(found), right)

# Outputs for validation, and images of which something is drawn.
pixels = rng.integers(0, 255, size=(3, 20, 3, 8, 9)).astype(np.uint8)
drawing = dict(layout="bc01", crop=5, mirror=True, mean=100.0)
images = synk.files.images(written("images", pixels), **drawing)
z, v = pt.ftensor4("z"), pytensor.shared(np.float32(0.0), "v")
mean = (z * z).mean()
sums = synk.function([z], mean, updates={v: v + z.sum()}, **how)
trainer = synk.Trainer(sums, [v], seed=3)
validation = synk.function([z], [mean, z.max()], **how), images
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
first, seen = images.take(np.arange(60), 0, seed=0)[0], history.epochs[0]
right = (first.astype(float) ** 2).mean()
np.testing.assert_allclose(seen["val_loss"], right, rtol=1e-5)
np.testing.assert_allclose(seen["val_1"], first.max())

# By rules: of ranks, and of nodes.
rows = synk.files.arrays(FILES, labels=Y)
sent()
for options, workers in ({"local": True}, "ranks"), ({}, "nodes"):
    step, w = made(**options)
    trainer = synk.Trainer(step, [w], LocalSGD(2), workers=workers)
    trainer.fit(rows, batch_size=BATCH, epochs=2, progress=False)
    assert trainer.history.losses[-1] < trainer.history.losses[0]
assert sent() < 0.1 * 4 * X.nbytes

# A step in which ranks read all rows: node 0 reads them all.
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    step, w = made(change=lambda x: pt.sort(x, axis=0))
assert not takes_own_rows(step)
check(synk.Trainer(step, [w]), rows, w, 1, change=lambda x: np.sort(x, axis=0))

# A child of the script, which might write to rows: they are sent with each call.
step, w = made()
trainer = synk.Trainer(step, [w])
check(trainer, rows, w, 1)
child = os.fork()
if not child:
    os._exit(0)
os.waitpid(child, 0)
check(trainer, rows, w, 1)

# Those of a file that only another node reads are missing; and then they are there.
halves = written("halves", np.split(X[:300], 6))
step, w = made()
kept = open(halves[3], "rb").read()
for _ in range(2):
    rows = synk.files.arrays(halves, labels=Y[:300], window=2)
    trainer = synk.Trainer(step, [w], shuffle=False)
    trainer.fit(rows, batch_size=100, epochs=1, progress=False)
    with open(halves[3], "wb") as file:
        file.write(kept[:-100])
    try:
        trainer.fit(rows, batch_size=100, epochs=1, progress=False)
    except ValueError as error:
        assert "halves3.npy" in str(error), error
    else:
        raise AssertionError("a file is damaged")
    with open(halves[3], "wb") as file:
        file.write(kept)

# Another session has other readers; and interrupts at any point.
rows = synk.files.arrays(FILES, labels=Y)
step, w = made()
check(synk.Trainer(step, [w]), rows, w, 1)
synk.close()
synk.fork(2)
step, w = made()
check(synk.Trainer(step, [w]), rows, w, 1)
stops = 0
for i in range(15):
    trainer = synk.Trainer(step, [w])
    work = lambda: trainer.fit(rows, batch_size=BATCH, epochs=50, progress=False)
    stops += is_stopped(rng.uniform(1e-3, 0.12), work)
    if i % 5 == 4:
        w.set_value(np.zeros(WIDTH))
        check(synk.Trainer(step, [w]), rows, w, 1)
assert stops > 12, stops
print("done")
"""

ELSEWHERE = """
rows = synk.files.arrays(FILES, labels=Y)
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


def test_every_node_reads_its_own_rows(tmp_path):
    script = IMPORTS + OF_FILES + STOPS + TRAINING
    status, out, error = run(script, tmp_path, 2, tmp_path, mpi=APART)
    assert out.split() == ["done"], out + error
    assert status == 0


def test_where_a_node_has_not_the_files_the_first_reads_for_all(tmp_path):
    # Each node has a folder of its own here.
    script = IMPORTS + OF_FILES + ELSEWHERE
    status, out, error = run(script, tmp_path, 2, "/dev/shm/files", mpi=APART)
    assert out.split() == ["done"], out + error
    assert status == 0
