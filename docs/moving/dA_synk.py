"""A denoising auto-encoder: restores images of which a part was set to zero."""

import numpy
import synk
import theano
import theano.tensor as T
from logistic import load_data
from logistic_synk import rows
from theano.tensor.shared_randomstreams import RandomStreams


class dA(object):
    """An auto-encoder with tied weights."""

    def __init__(self, numpy_rng, theano_rng, input, n_visible, n_hidden):
        self.theano_rng = theano_rng
        bound = 4 * numpy.sqrt(6.0 / (n_hidden + n_visible))
        initial_W = numpy.asarray(
            numpy_rng.uniform(low=-bound, high=bound, size=(n_visible, n_hidden)),
            dtype=theano.config.floatX,
        )
        self.W = theano.shared(value=initial_W, name="W", borrow=True)
        self.b_prime = theano.shared(
            value=numpy.zeros(n_visible, dtype=theano.config.floatX),
            name="bvis",
            borrow=True,
        )
        self.b = theano.shared(
            value=numpy.zeros(n_hidden, dtype=theano.config.floatX),
            name="bhid",
            borrow=True,
        )
        self.x = input
        self.params = [self.W, self.b, self.b_prime]

    def get_corrupted_input(self, input, corruption_level):
        kept = self.theano_rng.binomial(
            size=input.shape, n=1, p=1 - corruption_level, dtype=theano.config.floatX
        )
        return kept * input

    def get_hidden_values(self, input):
        return T.nnet.sigmoid(T.dot(input, self.W) + self.b)

    def get_reconstructed_input(self, hidden):
        return T.nnet.sigmoid(T.dot(hidden, self.W.T) + self.b_prime)

    def get_cost_updates(self, corruption_level, learning_rate):
        tilde_x = self.get_corrupted_input(self.x, corruption_level)
        y = self.get_hidden_values(tilde_x)
        z = self.get_reconstructed_input(y)
        L = -T.sum(self.x * T.log(z) + (1 - self.x) * T.log(1 - z), axis=1)
        cost = T.mean(L)
        gparams = T.grad(cost, self.params)
        updates = [
            (param, param - learning_rate * gparam)
            for param, gparam in zip(self.params, gparams)
        ]
        return cost, updates


def train(learning_rate=0.2, n_epochs=8, batch_size=60, corruption_level=0.3):
    (train_set_x, _), _ = load_data()
    n_train_batches = train_set_x.get_value(borrow=True).shape[0] // batch_size
    synk.scatter(train_set_x, train_set_x.get_value())
    rank_size = batch_size // synk.size()

    x = T.matrix("x")
    rng = numpy.random.RandomState(123)
    theano_rng = RandomStreams(rng.randint(2**30))
    da = dA(rng, theano_rng, input=x, n_visible=8 * 8, n_hidden=32)
    cost, updates = da.get_cost_updates(corruption_level, learning_rate)
    train_da = synk.function(
        [],
        cost,
        updates=updates,
        givens={x: train_set_x},
        sliceable_shareds=[train_set_x],
    )

    history = []
    for epoch in range(n_epochs):
        c = [
            train_da(batch_s=rows(batch_index, rank_size))
            for batch_index in range(n_train_batches)
        ]
        history.append(numpy.mean(c, dtype="float64"))
        print("epoch %i: cost %f" % (epoch + 1, history[-1]))
    return history


if __name__ == "__main__":
    synk.fork()
    train()
