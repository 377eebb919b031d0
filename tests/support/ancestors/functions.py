"""Outputs, broadcast inputs, build_inputs, batches and minibatch data."""

import numpy as np
import theano
import theano.tensor as T

import synkhronos as synk

n = synk.fork(2)
assert n == 2

x, w, y = T.matrix("x"), T.matrix("w"), T.matrix("y")
z = (x * w).dot(y)
f = synk.function(
    inputs=[x, w],
    bcast_inputs=[y],
    outputs=[T.mean(z, axis=0), (T.sum(z, axis=0), "c_sum"), (T.max(z, axis=0), "max")],
)
synk.distribute()

rng = np.random.RandomState(0)
floatX = theano.config.floatX
X, W = rng.randn(51, 4).astype(floatX), rng.randn(51, 4).astype(floatX)
Y = rng.randn(4, 3).astype(floatX)


def check(got, rows, weights):
    each = (rows * weights).dot(Y)
    for value, expected in zip(got, (each.mean(0), each.sum(0), each.max(0))):
        np.testing.assert_allclose(value, expected, rtol=1e-10, atol=1e-12)


check(f.as_theano(X, W, Y), X, W)
X_data, W_data, Y_data = f.build_inputs(X, W, y=Y)
assert (X_data.name, W_data.name, Y_data.name) == ("x", "w", "y")
for num_slices in 1, 4:
    check(f(X_data, W_data, Y_data, num_slices=num_slices), X, W)

# One row of weights for each row of the batch, in the order of the batch.
order = rng.randint(0, 51, 30)
part = W[:30]
part_data = synk.data(part, minibatch=True)
for batch, rows in (30, X[:30]), (slice(10, 40), X[10:40]), (order, X[order]):
    for num_slices in 1, 4:
        got = f(X_data, part_data, Y_data, batch=batch, num_slices=num_slices)
        check(got, rows, part)

print("functions: passed")
