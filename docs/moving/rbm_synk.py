"""A restricted Boltzmann machine, trained by contrastive divergence."""

import numpy
import synk
import theano
import theano.tensor as T
from logistic_synk import load_data, rows
from theano.tensor.shared_randomstreams import RandomStreams


class RBM(object):
    def __init__(self, input, n_visible, n_hidden, numpy_rng, theano_rng):
        bound = 4 * numpy.sqrt(6.0 / (n_hidden + n_visible))
        initial_W = numpy.asarray(
            numpy_rng.uniform(low=-bound, high=bound, size=(n_visible, n_hidden)),
            dtype=theano.config.floatX,
        )
        self.W = theano.shared(value=initial_W, name="W", borrow=True)
        self.hbias = theano.shared(
            value=numpy.zeros(n_hidden, dtype=theano.config.floatX),
            name="hbias",
            borrow=True,
        )
        self.vbias = theano.shared(
            value=numpy.zeros(n_visible, dtype=theano.config.floatX),
            name="vbias",
            borrow=True,
        )
        self.input = input
        self.n_visible = n_visible
        self.theano_rng = theano_rng
        self.params = [self.W, self.hbias, self.vbias]

    def free_energy(self, v_sample):
        wx_b = T.dot(v_sample, self.W) + self.hbias
        hidden_term = T.sum(T.log(1 + T.exp(wx_b)), axis=1)
        return -hidden_term - T.dot(v_sample, self.vbias)

    def sample_h_given_v(self, v0_sample):
        h1_mean = T.nnet.sigmoid(T.dot(v0_sample, self.W) + self.hbias)
        h1_sample = self.theano_rng.binomial(
            size=h1_mean.shape, n=1, p=h1_mean, dtype=theano.config.floatX
        )
        return h1_mean, h1_sample

    def sample_v_given_h(self, h0_sample):
        v1_mean = T.nnet.sigmoid(T.dot(h0_sample, self.W.T) + self.vbias)
        v1_sample = self.theano_rng.binomial(
            size=v1_mean.shape, n=1, p=v1_mean, dtype=theano.config.floatX
        )
        return v1_mean, v1_sample

    def gibbs_hvh(self, h0_sample):
        v1_mean, v1_sample = self.sample_v_given_h(h0_sample)
        h1_mean, h1_sample = self.sample_h_given_v(v1_sample)
        return [v1_mean, v1_sample, h1_mean, h1_sample]

    def get_cost_updates(self, lr, k, persistent=None):
        _, ph_sample = self.sample_h_given_v(self.input)
        chain_start = ph_sample if persistent is None else persistent
        (_, nv_samples, _, nh_samples), updates = theano.scan(
            self.gibbs_hvh,
            outputs_info=[None, None, None, chain_start],
            n_steps=k,
            name="gibbs_hvh",
        )
        chain_end = nv_samples[-1]
        cost = T.mean(self.free_energy(self.input)) - T.mean(
            self.free_energy(chain_end)
        )
        gparams = T.grad(cost, self.params, consider_constant=[chain_end])
        for gparam, param in zip(gparams, self.params):
            updates[param] = param - gparam * T.cast(lr, dtype=theano.config.floatX)
        if persistent is not None:
            updates[persistent] = nh_samples[-1]
        return self.get_pseudo_likelihood_cost(updates), updates

    def get_pseudo_likelihood_cost(self, updates):
        """Return the log-probability of one pixel given the others, times pixels."""
        bit_i_idx = theano.shared(value=0, name="bit_i_idx")
        xi = T.round(self.input)
        xi_flip = T.set_subtensor(xi[:, bit_i_idx], 1 - xi[:, bit_i_idx])
        gap = self.free_energy(xi_flip) - self.free_energy(xi)
        updates[bit_i_idx] = (bit_i_idx + 1) % self.n_visible
        return T.mean(self.n_visible * T.log(T.nnet.sigmoid(gap)))


def train(
    learning_rate=0.1, n_epochs=8, batch_size=20, n_hidden=32, k=3, persistent=False
):
    (train_set_x, _), _ = load_data()
    n_train_batches = len(train_set_x) // batch_size

    x = T.matrix("x")
    rng = numpy.random.RandomState(123)
    theano_rng = RandomStreams(rng.randint(2**30))
    rbm = RBM(x, 8 * 8, n_hidden, rng, theano_rng)
    chain = None
    if persistent:
        chain = theano.shared(
            numpy.zeros((batch_size, n_hidden), dtype=theano.config.floatX)
        )
    cost, updates = rbm.get_cost_updates(learning_rate, k, chain)
    train_rbm = synk.function(
        [x],
        cost,
        updates=updates,
        name="train_rbm",
    )

    history = []
    for epoch in range(n_epochs):
        mean_cost = [
            train_rbm(train_set_x, batch=rows(batch_index, batch_size))
            for batch_index in range(n_train_batches)
        ]
        history.append(numpy.mean(mean_cost))
        print("epoch %i: pseudo-likelihood %f" % (epoch + 1, history[-1]))
    return history


if __name__ == "__main__":
    synk.fork()
    train()
