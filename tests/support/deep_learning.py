"""Small programs in the manner of Theano's tutorial and the Deep Learning Tutorials.

Each is a function that builds a model, trains it on data that lie in shared variables,
and returns its costs. They know nothing of synk, and use what those programs used: the
number of a batch and `givens`, inputs with a value, streams of draws, scans with
updates, persistent chains.
"""

import numpy
import theano
import theano.tensor as T
from theano.sandbox.rng_mrg import MRG_RandomStreams
from theano.tensor.shared_randomstreams import RandomStreams

ROWS, BATCH, SIDE, CLASSES = 42, 14, 6, 3


def images(seed=1):
    """Return shared variables of images between 0 and 1 and of their labels."""
    rng = numpy.random.RandomState(seed)
    x = rng.uniform(size=(ROWS, SIDE * SIDE)).astype(theano.config.floatX)
    labels = theano.shared(rng.randint(CLASSES, size=ROWS).astype("float64"))
    return theano.shared(x, borrow=True), T.cast(labels, "int32")


def weights(rng, shape, name):
    bound = numpy.sqrt(6.0 / sum(shape[:2]))
    values = rng.uniform(-bound, bound, size=shape).astype(theano.config.floatX)
    return theano.shared(values, name=name, borrow=True)


def zeros(n, name):
    return theano.shared(numpy.zeros(n, theano.config.floatX), name=name, borrow=True)


def descent(cost, params, rate=0.1):
    return [
        (p, p - rate * g) for p, g in zip(params, T.grad(cost, params), strict=True)
    ]


class LogisticRegression:
    def __init__(self, x, n_in, n_out):
        self.W = theano.shared(numpy.zeros((n_in, n_out)), name="W", borrow=True)
        self.b = zeros(n_out, "b")
        self.p_y_given_x = T.nnet.softmax(T.dot(x, self.W) + self.b)
        self.y_pred = T.argmax(self.p_y_given_x, axis=1)
        self.params = [self.W, self.b]

    def negative_log_likelihood(self, y):
        return -T.mean(T.log(self.p_y_given_x)[T.arange(y.shape[0]), y])

    def errors(self, y):
        return T.mean(T.neq(self.y_pred, y))


class HiddenLayer:
    def __init__(self, rng, x, n_in, n_out, activation=T.tanh):
        self.W, self.b = weights(rng, (n_in, n_out), "W"), zeros(n_out, "b")
        self.output = activation(T.dot(x, self.W) + self.b)
        self.params = [self.W, self.b]


def on_batches(index, data, x, y=None):
    """Return the givens of a function of a batch's number."""
    rows = slice(index * BATCH, (index + 1) * BATCH)
    found = {x: data[0][rows]}
    return found if y is None else found | {y: data[1][rows]}


def epochs(train, times=2):
    return [float(train(i)) for _ in range(times) for i in range(ROWS // BATCH)]


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


# -- the Deep Learning Tutorials


def logistic_sgd():
    data = images()
    index, x, y = T.lscalar(), T.matrix("x"), T.ivector("y")
    model = LogisticRegression(x, SIDE * SIDE, CLASSES)
    cost, batch = model.negative_log_likelihood(y), on_batches(index, data, x, y)
    updates = descent(cost, model.params, 0.13)
    train = theano.function([index], cost, updates=updates, givens=batch)
    test = theano.function([index], model.errors(y), givens=batch)
    return epochs(train) + epochs(test, 1)


def mlp():
    rng, data = numpy.random.RandomState(4), images()
    index, x, y = T.lscalar(), T.matrix("x"), T.ivector("y")
    hidden = HiddenLayer(rng, x, SIDE * SIDE, 8)
    top = LogisticRegression(hidden.output, 8, CLASSES)
    params = hidden.params + top.params
    L1 = abs(hidden.W).sum() + abs(top.W).sum()
    L2 = (hidden.W**2).sum() + (top.W**2).sum()
    cost = top.negative_log_likelihood(y) + 0.001 * L1 + 0.0001 * L2
    gparams = [T.grad(cost, param) for param in params]
    updates = [(p, p - 0.1 * g) for p, g in zip(params, gparams, strict=True)]
    batch = on_batches(index, data, x, y)
    return epochs(
        theano.function(inputs=[index], outputs=cost, updates=updates, givens=batch)
    )


def convolutional_mlp():
    rng, data = numpy.random.RandomState(5), images()
    index, x, y = T.lscalar(), T.matrix("x"), T.ivector("y")
    W, b = weights(rng, (2, 1, 3, 3), "W"), zeros(2, "b")
    shape = BATCH, 1, SIDE, SIDE
    convolved = T.nnet.conv2d(x.reshape(shape), W, input_shape=shape)
    pooled = T.signal.pool.pool_2d(convolved, ws=(2, 2), ignore_border=True)
    layer0 = T.tanh(pooled + b.dimshuffle("x", 0, "x", "x"))
    layer1 = HiddenLayer(rng, layer0.flatten(2), 8, 5)
    layer2 = LogisticRegression(layer1.output, 5, CLASSES)
    cost = layer2.negative_log_likelihood(y)
    updates = descent(cost, [W, b, *layer1.params, *layer2.params])
    batch = on_batches(index, data, x, y)
    return epochs(theano.function([index], cost, updates=updates, givens=batch))


class dA:
    """A denoising autoencoder, which shares its weights with a hidden layer."""

    def __init__(self, rng, theano_rng, x, n_visible, n_hidden, W=None, bhid=None):
        self.W = weights(rng, (n_visible, n_hidden), "W") if W is None else W
        self.b = zeros(n_hidden, "b") if bhid is None else bhid
        self.b_prime, self.theano_rng, self.x = zeros(n_visible, "b'"), theano_rng, x
        self.params = [self.W, self.b, self.b_prime]

    def get_cost_updates(self, corruption_level, learning_rate):
        kept = self.theano_rng.binomial(
            size=self.x.shape, n=1, p=1 - corruption_level, dtype=theano.config.floatX
        )
        y = T.nnet.sigmoid(T.dot(kept * self.x, self.W) + self.b)
        z = T.nnet.sigmoid(T.dot(y, self.W.T) + self.b_prime)
        L = -T.sum(self.x * T.log(z) + (1 - self.x) * T.log(1 - z), axis=1)
        cost = T.mean(L)
        gparams = T.grad(cost, self.params)
        return cost, [
            (p, p - learning_rate * g)
            for p, g in zip(self.params, gparams, strict=True)
        ]


def denoising():
    data, index, x = images(), T.lscalar(), T.matrix("x")
    theano_rng = RandomStreams(numpy.random.RandomState(6).randint(2**30))
    da = dA(numpy.random.RandomState(6), theano_rng, x, SIDE * SIDE, 10)
    cost, updates = da.get_cost_updates(corruption_level=0.3, learning_rate=0.1)
    batch = on_batches(index, data, x)
    return epochs(theano.function([index], cost, updates=updates, givens=batch))


def stacked_denoising():
    rng, data = numpy.random.RandomState(7), images()
    theano_rng = RandomStreams(rng.randint(2**30))
    index, x, y = T.lscalar("index"), T.matrix("x"), T.ivector("y")
    corruption_level, learning_rate = T.scalar("corruption"), T.scalar("lr")
    layers, autoencoders, given = [], [], x
    for n_in, n_out in (SIDE * SIDE, 9), (9, 7):
        layer = HiddenLayer(rng, given, n_in, n_out, T.nnet.sigmoid)
        da = dA(rng, theano_rng, given, n_in, n_out, layer.W, layer.b)
        layers, autoencoders, given = (
            [*layers, layer],
            [*autoencoders, da],
            layer.output,
        )
    costs = []
    for da, level in zip(autoencoders, (0.1, 0.2), strict=True):
        cost, updates = da.get_cost_updates(corruption_level, learning_rate)
        pretrain = theano.function(
            inputs=[
                index,
                theano.In(corruption_level, value=0.2),
                theano.In(learning_rate, value=0.1),
            ],
            outputs=cost,
            updates=updates,
            givens=on_batches(index, data, x),
        )
        costs += [float(pretrain(index=i, corruption=level, lr=0.05)) for i in range(3)]
        costs.append(float(pretrain(0)))
    top = LogisticRegression(given, 7, CLASSES)
    finetune_cost = top.negative_log_likelihood(y)
    params = [p for layer in [*layers, top] for p in layer.params]
    updates = descent(finetune_cost, params)
    batch = on_batches(index, data, x, y)
    return costs + epochs(
        theano.function([index], finetune_cost, updates=updates, givens=batch)
    )


class RBM:
    """A restricted Boltzmann machine, trained by persistent contrastive divergence."""

    def __init__(self, rng, x, n_visible, n_hidden, W=None, hbias=None):
        self.W = weights(rng, (n_visible, n_hidden), "W") if W is None else W
        self.hbias = zeros(n_hidden, "hbias") if hbias is None else hbias
        self.vbias, self.input, self.n_visible = zeros(n_visible, "vbias"), x, n_visible
        self.theano_rng = RandomStreams(rng.randint(2**30))
        self.params = [self.W, self.hbias, self.vbias]

    def free_energy(self, v):
        hidden = T.sum(T.log(1 + T.exp(T.dot(v, self.W) + self.hbias)), axis=1)
        return -hidden - T.dot(v, self.vbias)

    def sample(self, mean):
        draw = self.theano_rng.binomial
        return draw(size=mean.shape, n=1, p=mean, dtype=theano.config.floatX)

    def gibbs_hvh(self, h0_sample):
        pre_sigmoid_v1 = T.dot(h0_sample, self.W.T) + self.vbias
        v1_sample = self.sample(T.nnet.sigmoid(pre_sigmoid_v1))
        h1_mean = T.nnet.sigmoid(T.dot(v1_sample, self.W) + self.hbias)
        return [pre_sigmoid_v1, v1_sample, self.sample(h1_mean)]

    def get_cost_updates(self, lr, persistent=None, k=2):
        ph_sample = self.sample(T.nnet.sigmoid(T.dot(self.input, self.W) + self.hbias))
        chain_start = ph_sample if persistent is None else persistent
        (pre_sigmoid_nvs, nv_samples, nh_samples), updates = theano.scan(
            self.gibbs_hvh, outputs_info=[None, None, chain_start], n_steps=k
        )
        chain_end = nv_samples[-1]
        cost = T.mean(self.free_energy(self.input)) - T.mean(
            self.free_energy(chain_end)
        )
        gparams = T.grad(cost, self.params, consider_constant=[chain_end])
        for gparam, param in zip(gparams, self.params, strict=True):
            updates[param] = param - gparam * T.cast(lr, dtype=theano.config.floatX)
        if persistent is None:
            p = T.nnet.sigmoid(pre_sigmoid_nvs[-1])
            each = self.input * T.log(p) + (1 - self.input) * T.log(1 - p)
            return T.mean(T.sum(each, axis=1)), updates
        updates[persistent] = nh_samples[-1]
        bit_i_idx = theano.shared(value=0, name="bit_i_idx")
        xi = T.round(self.input)
        xi_flip = T.set_subtensor(xi[:, bit_i_idx], 1 - xi[:, bit_i_idx])
        log_odds = T.nnet.sigmoid(self.free_energy(xi_flip) - self.free_energy(xi))
        updates[bit_i_idx] = (bit_i_idx + 1) % self.n_visible
        return T.mean(self.n_visible * T.log(log_odds)), updates


def rbm(is_persistent=True):
    data, index, x = images(), T.lscalar(), T.matrix("x")
    chain = None
    if is_persistent:
        start = numpy.zeros((BATCH, 5), dtype=theano.config.floatX)
        chain = theano.shared(start, borrow=True)
    machine = RBM(numpy.random.RandomState(8), x, SIDE * SIDE, 5)
    cost, updates = machine.get_cost_updates(0.1, chain)
    batch = on_batches(index, data, x)
    train = theano.function([index], cost, updates=updates, givens=batch)
    return epochs(train) + list(machine.hbias.get_value())


def contrastive_divergence():
    return rbm(is_persistent=False)


def deep_belief():
    rng, data = numpy.random.RandomState(9), images()
    index, x, y = T.lscalar("index"), T.matrix("x"), T.ivector("y")
    learning_rate = T.scalar("lr")
    layer = HiddenLayer(rng, x, SIDE * SIDE, 6, T.nnet.sigmoid)
    machine = RBM(rng, x, SIDE * SIDE, 6, layer.W, layer.b)
    cost, updates = machine.get_cost_updates(learning_rate)
    pretrain = theano.function(
        inputs=[index, theano.In(learning_rate, value=0.1)],
        outputs=cost,
        updates=updates,
        givens=on_batches(index, data, x),
    )
    costs = [float(pretrain(index=i, lr=0.01)) for i in range(3)]
    top = LogisticRegression(layer.output, 6, CLASSES)
    cost, params = top.negative_log_likelihood(y), layer.params + top.params
    batch, updates = on_batches(index, data, x, y), descent(cost, params)
    return costs + epochs(theano.function([index], cost, updates=updates, givens=batch))


def lstm():
    """The tutorial's on sentiment: masks, a scan over time, and dropout."""
    rng, dim, words = numpy.random.RandomState(10), 5, 11
    x, mask, y = T.matrix("x", dtype="int64"), T.matrix("mask"), T.vector("y", "int64")
    emb, W = weights(rng, (words, dim), "Wemb"), weights(rng, (dim, 4 * dim), "W")
    U, b = weights(rng, (dim, 4 * dim), "U"), zeros(4 * dim, "b")
    out, out_b = weights(rng, (dim, 2), "out"), zeros(2, "out_b")
    n_timesteps, n_samples = x.shape[0], x.shape[1]
    state_below = T.dot(emb[x.flatten()].reshape((n_timesteps, n_samples, dim)), W) + b

    def step(m_, x_, h_, c_):
        preact = T.dot(h_, U) + x_
        i, f, o = (T.nnet.sigmoid(preact[:, n * dim : (n + 1) * dim]) for n in range(3))
        c = f * c_ + i * T.tanh(preact[:, 3 * dim :])
        c = m_[:, None] * c + (1 - m_)[:, None] * c_
        h = o * T.tanh(c)
        return m_[:, None] * h + (1 - m_)[:, None] * h_, c

    start = T.alloc(numpy.asarray(0.0, theano.config.floatX), n_samples, dim)
    (h, _), _ = theano.scan(
        step, sequences=[mask, state_below], outputs_info=[start, start]
    )
    proj = (h * mask[:, :, None]).sum(axis=0) / mask.sum(axis=0)[:, None]
    use_noise = theano.shared(numpy.asarray(1.0))
    draws = MRG_RandomStreams(11).binomial(proj.shape, p=0.5, n=1, dtype=proj.dtype)
    proj = T.switch(use_noise, proj * draws, proj * 0.5)
    pred = T.nnet.softmax(T.dot(proj, out) + out_b)
    cost = -T.log(pred[T.arange(n_samples), y] + 1e-8).mean()
    params = [emb, W, U, b, out, out_b]
    grads = T.grad(cost, wrt=params)
    gshared = [theano.shared(p.get_value() * 0.0, name="grad") for p in params]
    f_grad_shared = theano.function(
        [x, mask, y], cost, updates=list(zip(gshared, grads, strict=True))
    )
    lr = T.scalar(name="lr")
    f_update = theano.function(
        [lr],
        [],
        updates=[(p, p - lr * g) for p, g in zip(params, gshared, strict=True)],
    )
    costs = []
    for n in 8, 8, 5:  # the last batch has fewer
        lengths = rng.randint(2, 7, size=n)
        given = (numpy.arange(6)[:, None] < lengths).astype(theano.config.floatX)
        costs.append(
            float(
                f_grad_shared(
                    rng.randint(words, size=(6, n)), given, rng.randint(2, size=n)
                )
            )
        )
        f_update(0.1)
    return [*costs, *out.get_value().ravel()]


PROGRAMS = [
    *(tutorial_logistic, tutorial_scan, tutorial_draws, logistic_sgd, mlp),
    *(convolutional_mlp, denoising, stacked_denoising, rbm, contrastive_divergence),
    *(deep_belief, lstm),
]
