"""Collectives on shared variables, and calls that take some of their rows."""

import numpy as np
import theano

import synkhronos as synk

n = synk.fork(2)
floatX = theano.config.floatX
ROWS = 20  # on each rank
s_x = theano.shared(np.zeros((ROWS, 4), floatX), name="s_x")
s_y = theano.shared(np.zeros((4, 3), floatX), name="s_y")
total = s_x.dot(s_y).sum(axis=0)
f = synk.function([], sliceable_shareds=[s_x], outputs=(total, "sum"))
synk.distribute()
assert synk.get_lengths(s_x) == [ROWS, ROWS]
assert synk.get_shapes(shared_vars=s_x) == [(ROWS, 4), (ROWS, 4)]

rng = np.random.RandomState(0)
X, Y = rng.randn(ROWS * n, 4).astype(floatX), rng.randn(4, 3).astype(floatX)
synk.scatter(shared_vars=s_x, values=X)
synk.broadcast(s_y, Y, nccl=False)
np.testing.assert_array_equal(synk.gather(s_x, nd_up=0), X)
assert synk.gather(shared_vars=s_y).shape == (n, 4, 3)

# One choice for both ranks, or one for each.
parts = np.split(X, n)
rows = rng.randint(0, ROWS, 10)
each = [slice(0, 8), slice(5, 17)]
for batch_s, chosen in (
    (None, parts),
    (slice(5, 15), [part[5:15] for part in parts]),
    (rows, [part[rows] for part in parts]),
    (each, [part[some] for part, some in zip(parts, each)]),
    ([rows, rows[:3]], [parts[0][rows], parts[1][rows[:3]]]),
):
    expected = np.concatenate(chosen).dot(Y).sum(axis=0)
    for num_slices in 1, 4:
        got = f(batch_s=batch_s, num_slices=num_slices)
        np.testing.assert_allclose(got, expected, rtol=1e-10, atol=1e-12)

synk.all_reduce(shared_vars=s_x, op="avg", nccl=True)
mean = np.mean(parts, axis=0)
np.testing.assert_allclose(synk.gather(s_x), [mean, mean])
synk.set_value(rank=1, shared_vars=s_x, values=parts[1])
np.testing.assert_array_equal(synk.get_value(1, s_x), parts[1])
np.testing.assert_allclose(synk.get_value(rank=0, shared_vars=s_x), mean)
highest = synk.reduce(shared_vars=[s_x], op="max", in_place=False)
np.testing.assert_allclose(highest, [np.maximum(mean, parts[1])])
synk.all_gather(s_x)
assert synk.get_shapes(s_x) == [(2 * ROWS, 4)] * n

print("shared: passed")
