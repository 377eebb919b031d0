"""Training on rows that lie on the ranks, which calls choose among by `batch_s`."""

import numpy as np
import theano
import theano.tensor as T

import synkhronos as synk
from synkhronos.extensions import updates

n = synk.fork(2)
floatX = theano.config.floatX
rng = np.random.RandomState(1)
X = rng.randn(50, 4).astype(floatX)
Y = X.dot(rng.randn(4, 3)).argmax(axis=1).astype("int32")

s_x = theano.shared(X[:2], name="s_x")
s_y = theano.shared(Y[:2], name="s_y")
x, y = T.matrix("x"), T.ivector("y")
W = theano.shared(np.zeros((4, 3), floatX), name="W")


def losses(rows, labels):
    p = T.nnet.softmax(rows.dot(W))
    wrong = T.neq(T.argmax(p, axis=1), labels)
    return -T.log(p)[T.arange(labels.shape[0]), labels].mean(), wrong.mean()


loss, _ = losses(s_x, s_y)
of_gradients, of_params, gradients = updates.nesterov_momentum(
    loss, [W], learning_rate=0.5, momentum=0.9
)
f_gradients = synk.function(
    [], outputs=loss, updates=of_gradients, sliceable_shareds=[s_x, s_y]
)
f_params = synk.function([], updates=of_params)
f_valid = synk.function([], list(losses(s_x, s_y)), sliceable_shareds=[s_x, s_y])
f_test = synk.function([x, y], list(losses(x, y)))
synk.distribute()
synk.scatter([s_x, s_y], [X, Y])
length = min(synk.get_lengths(s_y))
assert length == 25

V, velocity = np.zeros((4, 3)), np.zeros((4, 3))


def numbers(rows):
    e = np.exp(X[rows].dot(V))
    e /= e.sum(axis=1, keepdims=True)
    value = -np.log(e[np.arange(len(rows)), Y[rows]]).mean()
    slope = X[rows].T.dot(e - np.eye(3)[Y[rows]]) / len(rows)
    return value, (e.argmax(axis=1) != Y[rows]).mean(), slope


for first in range(0, length, 10):
    chosen = np.arange(first, min(first + 10, length))
    value = f_gradients(batch_s=chosen)
    synk.all_reduce(gradients)
    f_params()
    expected, _, slope = numbers(np.r_[chosen, 25 + chosen])
    velocity = 0.9 * velocity - 0.5 * slope
    V = V + 0.9 * velocity - 0.5 * slope
    np.testing.assert_allclose(value, expected, rtol=1e-9)
    np.testing.assert_allclose(synk.get_value(1, W), V, rtol=1e-9)
everything = numbers(np.arange(50))[:2]
np.testing.assert_allclose(f_valid(), everything, rtol=1e-9)
np.testing.assert_allclose(f_valid(num_slices=3), everything, rtol=1e-9)
np.testing.assert_allclose(f_test(X, Y), everything, rtol=1e-9)

print("scattered: passed")
