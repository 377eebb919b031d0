"""Small programs in the manner of Theano's tutorial and the Deep Learning Tutorials.

Each is a function that builds a model, trains it, and returns its costs. They know
nothing of synk, and use what those programs used: the number of a batch and `givens`,
inputs with a value, streams of draws, scans with updates. The models are those of the
scripts in ``docs/moving``, which are to be importable.
"""

import numpy
import theano
import theano.tensor as T
from logistic import LogisticRegression
from mlp import HiddenLayer
from rbm import RBM
from theano.tensor.shared_randomstreams import RandomStreams

ROWS, BATCH, SIDE, CLASSES = 42, 14, 6, 3


def images(seed=1):
    """Return shared variables of images between 0 and 1 and of their labels."""
    rng = numpy.random.RandomState(seed)
    x = rng.uniform(size=(ROWS, SIDE * SIDE)).astype(theano.config.floatX)
    labels = theano.shared(rng.randint(CLASSES, size=ROWS).astype("float64"))
    return theano.shared(x, borrow=True), T.cast(labels, "int32")


def on_batches(index, data, x, y=None):
    """Return the givens of a function of a batch's number."""
    rows = slice(index * BATCH, (index + 1) * BATCH)
    found = {x: data[0][rows]}
    return found if y is None else found | {y: data[1][rows]}


def epochs(train, times=2):
    return [float(train(i)) for _ in range(times) for i in range(ROWS // BATCH)]


def fine_tuned(data, given, n_in, layers, index, x, y):
    """Return the costs of training a classifier on top of layers, and these."""
    top = LogisticRegression(given, n_in, CLASSES)
    cost = top.negative_log_likelihood(y)
    params = [p for layer in [*layers, top] for p in layer.params]
    gparams = T.grad(cost, params)
    updates = [(p, p - 0.1 * g) for p, g in zip(params, gparams, strict=True)]
    batch = on_batches(index, data, x, y)
    return epochs(theano.function([index], cost, updates=updates, givens=batch))


# -- Theano's tutorial


def tutorial_logistic():
    rng = numpy.random.RandomState(2)
    N, feats = 40, 8
    D = rng.randn(N, feats), rng.randint(size=N, low=0, high=2).astype("float64")
    x, y = T.dmatrix("x"), T.dvector("y")
    w, b = theano.shared(rng.randn(feats), name="w"), theano.shared(0.0, name="b")
    p_1 = 1 / (1 + T.exp(-T.dot(x, w) - b))
    xent = -y * T.log(p_1) - (1 - y) * T.log(1 - p_1)
    cost = xent.mean() + 0.01 * (w**2).sum()
    gw, gb = T.grad(cost, [w, b])
    updates = ((w, w - 0.1 * gw), (b, b - 0.1 * gb))
    train = theano.function([x, y], outputs=[p_1 > 0.5, xent, cost], updates=updates)
    predict = theano.function(inputs=[x], outputs=p_1 > 0.5)
    costs = [float(train(*D)[2]) for _ in range(4)]
    return [*costs, float(predict(D[0]).sum()), *w.get_value()]


def tutorial_scan():
    X, W, b_sym = T.matrix("X"), T.matrix("W"), T.vector("b_sym")
    results, _ = theano.scan(lambda v: T.tanh(T.dot(v, W) + b_sym), sequences=X)
    elementwise = theano.function(inputs=[X, W, b_sym], outputs=results)
    coefficients, powers_of, k = T.vector("coefficients"), T.scalar("x"), T.iscalar("k")
    parts, _ = theano.scan(
        lambda c, power, free: c * free**power,
        outputs_info=None,
        sequences=[coefficients, T.arange(10000)],
        non_sequences=powers_of,
    )
    polynomial = theano.function([coefficients, powers_of], parts.sum())
    A = T.vector("A")
    result, updates = theano.scan(
        lambda prior, A: prior * A, T.ones_like(A), non_sequences=A, n_steps=k
    )
    power = theano.function([A, k], result[-1], updates=updates)
    rng = numpy.random.RandomState(3)
    made = elementwise(rng.randn(7, 3), rng.randn(3, 2), rng.randn(2))
    total = polynomial(numpy.array([1.0, 0, 2]), 3.0)
    return [*made.ravel(), float(total), *power(numpy.arange(6.0), 3)]


def tutorial_draws():
    srng = RandomStreams(seed=234)
    x = T.matrix("x")
    noisy = theano.function([x], (x + srng.normal(x.shape)).sum(axis=1))
    dropped = theano.function([x], x * srng.binomial(x.shape, p=0.5))
    ones = numpy.ones((7, 3))
    return [*noisy(ones), *noisy(ones), *dropped(ones).ravel()]


# -- the Deep Learning Tutorials, beyond the scripts of docs/moving


def deep_belief():
    rng, data = numpy.random.RandomState(9), images()
    index, x, y = T.lscalar("index"), T.matrix("x"), T.ivector("y")
    learning_rate = T.scalar("lr")
    layer = HiddenLayer(rng, x, SIDE * SIDE, 6, T.nnet.sigmoid)
    machine = RBM(x, SIDE * SIDE, 6, rng, RandomStreams(rng.randint(2**30)))
    machine.W, machine.hbias = layer.params
    machine.params = [machine.W, machine.hbias, machine.vbias]
    cost, updates = machine.get_cost_updates(learning_rate, k=1)
    pretrain = theano.function(
        inputs=[index, theano.In(learning_rate, value=0.1)],
        outputs=cost,
        updates=updates,
        givens=on_batches(index, data, x),
    )
    costs = [float(pretrain(index=i, lr=0.01)) for i in range(3)] + [float(pretrain(0))]
    return costs + fine_tuned(data, layer.output, 6, [layer], index, x, y)
