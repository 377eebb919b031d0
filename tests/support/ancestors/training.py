"""A step in two halves, of `extensions.updates`: on rows that do not divide evenly, and
on rows that lie on the ranks, among which calls choose by `batch_s`.
"""

import numpy as np
import theano
import theano.gpuarray
import theano.tensor as T

import synkhronos as synk
from synkhronos.extensions import updates
from synkhronos.extensions.train import make_train_function

assert not theano.gpuarray.pygpu_activated
synk.fork(2)
floatX = theano.config.floatX
x, y = T.matrix("x"), T.ivector("y")
W = theano.shared(np.zeros((4, 3), floatX), name="W")
b = theano.shared(np.zeros(3, floatX), name="b")
p = T.nnet.softmax(x.dot(W) + b)
loss = T.nnet.categorical_crossentropy(p, y).mean()
of_gradients, of_params, gradients = updates.nesterov_momentum(
    loss, [W, b], learning_rate=0.5, momentum=0.9
)
f_gradients = synk.function([x, y], outputs=loss, updates=of_gradients)
f_params = synk.function([], updates=of_params)
synk.distribute()
assert gradients.get_value().shape == (15,)

rng = np.random.RandomState(0)
X = rng.randn(60, 4).astype(floatX)
Y = X.dot(rng.randn(4, 3)).argmax(axis=1).astype("int32")


class ByHand:
    """The same in numpy."""

    def __init__(self):
        self.params = np.zeros((5, 3))
        self.velocity = np.zeros((5, 3))

    def losses(self, rows):
        self.ones = np.c_[X[rows], np.ones(len(rows))]
        e = np.exp(self.ones.dot(self.params))
        self.p = e / e.sum(axis=1, keepdims=True)
        value = -np.log(self.p[np.arange(len(rows)), Y[rows]]).mean()
        return value, (self.p.argmax(axis=1) != Y[rows]).mean()

    def step(self, rows):
        value, _ = self.losses(rows)
        g = self.ones.T.dot(self.p - np.eye(3)[Y[rows]]) / len(rows)
        self.velocity = 0.9 * self.velocity - 0.5 * g
        self.params = self.params + 0.9 * self.velocity - 0.5 * g
        return value


X_data, Y_data = f_gradients.build_inputs(X, Y)
by_hand = ByHand()
for _ in range(3):
    rows = rng.randint(0, 60, 17)
    value = f_gradients(X_data, Y_data, batch=rows)
    synk.all_reduce(gradients)
    f_params()
    np.testing.assert_allclose(value, by_hand.step(rows), rtol=1e-9)
for rank in 0, 1:
    np.testing.assert_allclose(synk.get_value(rank, W), by_hand.params[:4], rtol=1e-9)
    np.testing.assert_allclose(synk.get_value(rank, b), by_hand.params[4], rtol=1e-9)

synk.broadcast([W, b], [np.zeros((4, 3)), np.zeros(3)])
train = make_train_function(loss, [W, b], x, y, updates.nesterov_momentum, lr=0.5)
by_hand = ByHand()
for rows in np.arange(60), np.arange(31), rng.randint(0, 60, 17):
    value = train(X_data, Y_data, batch=None if len(rows) == 60 else rows)
    np.testing.assert_allclose(value, by_hand.step(rows), rtol=1e-9)

# Rows on the ranks.
s_x = theano.shared(X[:2], name="s_x")
s_y = theano.shared(Y[:2], name="s_y")


def losses(rows, labels):
    p = T.nnet.softmax(rows.dot(W) + b)
    wrong = T.neq(T.argmax(p, axis=1), labels)
    return [-T.log(p)[T.arange(labels.shape[0]), labels].mean(), wrong.mean()]


loss, _ = losses(s_x, s_y)
of_gradients, of_params, gradients = updates.nesterov_momentum(
    loss, [W, b], learning_rate=0.5, momentum=0.9
)
f_gradients = synk.function(
    [], outputs=loss, updates=of_gradients, sliceable_shareds=[s_x, s_y]
)
f_params = synk.function([], updates=of_params)
f_valid = synk.function([], losses(s_x, s_y), sliceable_shareds=[s_x, s_y])
f_test = synk.function([x, y], losses(x, y))
synk.distribute()
synk.scatter([s_x, s_y], [X, Y])
synk.broadcast([W, b], [np.zeros((4, 3)), np.zeros(3)])
by_hand, length = ByHand(), min(synk.get_lengths(s_y))
assert length == 30
for first in range(0, length, 12):
    chosen = np.arange(first, min(first + 12, length))
    value = f_gradients(batch_s=chosen)
    synk.all_reduce(gradients)
    f_params()
    expected = by_hand.step(np.r_[chosen, length + chosen])
    np.testing.assert_allclose(value, expected, rtol=1e-9)
np.testing.assert_allclose(synk.get_value(1, W), by_hand.params[:4], rtol=1e-9)
expected = by_hand.losses(np.arange(60))
for found in f_valid(), f_valid(num_slices=3), f_test(X, Y):
    np.testing.assert_allclose(found, expected, rtol=1e-9)

print("training: passed")
