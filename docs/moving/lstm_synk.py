"""An LSTM that tells friendly sequences of words from unfriendly ones."""

from collections import OrderedDict

import numpy
import synk
import theano
import theano.tensor as T
from theano.sandbox.rng_mrg import MRG_RandomStreams as RandomStreams


def load_data(n_samples=600, n_words=50, seed=7):
    """Make sequences whose words below 10 are kind, and those below 20 are not.

    Word 20 turns the meaning of all words that follow it.
    """
    rng = numpy.random.RandomState(seed)
    sequences, labels = [], []
    while len(sequences) < n_samples:
        words = rng.randint(1, n_words, size=rng.randint(4, 12))
        sign = numpy.where(numpy.cumsum(words == 20) % 2, -1, 1)
        score = (sign * ((words < 10) * 1 - ((words >= 10) & (words < 20)))).sum()
        if score:
            sequences.append(words)
            labels.append(int(score > 0))
    return sequences, labels


def prepare_data(sequences, labels):
    """Return words and mask as (samples, time), and the labels."""
    longest = max(len(words) for words in sequences)
    x = numpy.zeros((longest, len(sequences)), dtype="int64")
    mask = numpy.zeros((longest, len(sequences)), dtype=theano.config.floatX)
    for i, words in enumerate(sequences):
        x[: len(words), i] = words
        mask[: len(words), i] = 1.0
    return x.T, mask.T, numpy.asarray(labels, dtype="int64")


def init_params(n_words, dim, ydim=2):
    rng = numpy.random.RandomState(123)

    def weights(*shape):
        return (rng.randn(*shape) / numpy.sqrt(shape[0])).astype(theano.config.floatX)

    params = OrderedDict()
    params["Wemb"] = weights(n_words, dim)
    params["lstm_W"] = weights(dim, 4 * dim)
    params["lstm_U"] = weights(dim, 4 * dim)
    params["lstm_b"] = numpy.zeros(4 * dim, dtype=theano.config.floatX)
    params["U"] = weights(dim, ydim)
    params["b"] = numpy.zeros(ydim, dtype=theano.config.floatX)
    return params


def init_tparams(params):
    return OrderedDict((k, theano.shared(v, name=k)) for k, v in params.items())


def dropout_layer(state_before, use_noise, trng):
    return T.switch(
        use_noise,
        state_before
        * trng.binomial(state_before.shape, p=0.5, n=1, dtype=state_before.dtype),
        state_before * 0.5,
    )


def lstm_layer(tparams, state_below, mask, dim):
    n_samples = state_below.shape[1]

    def _slice(_x, n):
        return _x[:, n * dim : (n + 1) * dim]

    def _step(m_, x_, h_, c_):
        preact = T.dot(h_, tparams["lstm_U"]) + x_
        i = T.nnet.sigmoid(_slice(preact, 0))
        f = T.nnet.sigmoid(_slice(preact, 1))
        o = T.nnet.sigmoid(_slice(preact, 2))
        c = f * c_ + i * T.tanh(_slice(preact, 3))
        c = m_[:, None] * c + (1.0 - m_)[:, None] * c_
        h = o * T.tanh(c)
        h = m_[:, None] * h + (1.0 - m_)[:, None] * h_
        return h, c

    state_below = T.dot(state_below, tparams["lstm_W"]) + tparams["lstm_b"]
    zero = numpy.asarray(0.0, dtype=theano.config.floatX)
    (h, _), _ = theano.scan(
        _step,
        sequences=[mask, state_below],
        outputs_info=[T.alloc(zero, n_samples, dim), T.alloc(zero, n_samples, dim)],
        name="lstm_layers",
        n_steps=mask.shape[0],
    )
    return h


def build_model(tparams, dim, use_dropout):
    trng = RandomStreams(123)
    use_noise = theano.shared(numpy.asarray(0.0, dtype=theano.config.floatX))
    x = T.matrix("x", dtype="int64")
    mask = T.matrix("mask", dtype=theano.config.floatX)
    y = T.vector("y", dtype="int64")

    x_t, mask_t = x.T, mask.T
    n_timesteps, n_samples = x_t.shape[0], x_t.shape[1]
    emb = tparams["Wemb"][x_t.flatten()].reshape([n_timesteps, n_samples, dim])
    proj = lstm_layer(tparams, emb, mask_t, dim)
    proj = (proj * mask_t[:, :, None]).sum(axis=0) / mask_t.sum(axis=0)[:, None]
    if use_dropout:
        proj = dropout_layer(proj, use_noise, trng)
    pred = T.nnet.softmax(T.dot(proj, tparams["U"]) + tparams["b"])
    f_pred = synk.function([x, mask], pred.argmax(axis=1), name="f_pred")
    cost = -T.log(pred[T.arange(n_samples), y] + 1e-8).mean()
    return use_noise, x, mask, y, f_pred, cost


def rmsprop(lr, tparams, grads, x, mask, y, cost):
    gshared = [
        theano.shared(p.get_value() * 0.0, name="%s_grad" % k)
        for k, p in tparams.items()
    ]
    squares = [
        theano.shared(p.get_value() * 0.0, name="%s_rgrad2" % k)
        for k, p in tparams.items()
    ]
    gsup = [(gs, g) for gs, g in zip(gshared, grads)]
    rg2up = [(rg2, 0.9 * rg2 + 0.1 * g**2) for rg2, g in zip(squares, grads)]
    f_grad_shared = synk.function(
        [x, mask, y], cost, updates=gsup + rg2up, name="f_grad_shared"
    )
    pup = [
        (p, p - lr * gs / T.sqrt(rg2 + 1e-4))
        for p, gs, rg2 in zip(tparams.values(), gshared, squares)
    ]
    f_update = synk.function([], [], bcast_inputs=[lr], updates=pup, name="f_update")
    return f_grad_shared, f_update


def pred_error(f_pred, sequences, labels):
    x, mask, y = prepare_data(sequences, labels)
    return 1.0 - (f_pred(x, mask) == y).mean()


def train(
    dim=16, n_epochs=8, lrate=0.05, decay_c=1e-4, use_dropout=True, saveto="lstm.npz"
):
    sequences, labels = load_data()
    tparams = init_tparams(init_params(n_words=50, dim=dim))
    use_noise, x, mask, y, f_pred, cost = build_model(tparams, dim, use_dropout)
    cost += decay_c * (tparams["U"] ** 2).sum()
    grads = T.grad(cost, wrt=list(tparams.values()))
    lr = T.scalar(name="lr")
    f_grad_shared, f_update = rmsprop(lr, tparams, grads, x, mask, y, cost)

    history = []
    for epoch in range(n_epochs):
        use_noise.set_value(1.0)
        costs = []
        for start in range(0, 500, 50):
            batch = slice(start, start + 50)
            xs, ms, ys = prepare_data(sequences[batch], labels[batch])
            costs.append(f_grad_shared(xs, ms, ys))
            f_update(lrate)
        use_noise.set_value(0.0)
        error = pred_error(f_pred, sequences[500:], labels[500:])
        history.append((numpy.mean(costs), error))
        print("epoch %i: cost %f, validation error %f" % ((epoch + 1,) + history[-1]))
    synk.save(saveto, list(tparams.values()))
    return history


if __name__ == "__main__":
    synk.fork()
    train()
