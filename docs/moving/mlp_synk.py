"""A network with one hidden layer, L1 and L2 regularisation, on images of digits."""

import numpy
import synk
import theano
import theano.tensor as T
from logistic_synk import LogisticRegression, load_data, rows


class HiddenLayer(object):
    def __init__(self, rng, input, n_in, n_out, activation=T.tanh):
        bound = numpy.sqrt(6.0 / (n_in + n_out))
        W_values = numpy.asarray(
            rng.uniform(low=-bound, high=bound, size=(n_in, n_out)),
            dtype=theano.config.floatX,
        )
        self.W = theano.shared(value=W_values, name="W_hidden", borrow=True)
        b_values = numpy.zeros((n_out,), dtype=theano.config.floatX)
        self.b = theano.shared(value=b_values, name="b_hidden", borrow=True)
        self.output = activation(T.dot(input, self.W) + self.b)
        self.params = [self.W, self.b]


class MLP(object):
    def __init__(self, rng, input, n_in, n_hidden, n_out):
        self.hidden = HiddenLayer(rng, input, n_in, n_hidden)
        self.classes = LogisticRegression(self.hidden.output, n_hidden, n_out)
        self.L1 = abs(self.hidden.W).sum() + abs(self.classes.W).sum()
        self.L2_sqr = (self.hidden.W**2).sum() + (self.classes.W**2).sum()
        self.params = self.hidden.params + self.classes.params


def train(learning_rate=0.2, L1_reg=1e-5, L2_reg=1e-4, n_epochs=10, batch_size=50):
    (train_set_x, train_set_y), (valid_set_x, valid_set_y) = load_data()
    n_train_batches = len(train_set_x) // batch_size

    x = T.matrix("x")
    y = T.ivector("y")
    classifier = MLP(numpy.random.RandomState(1234), x, 8 * 8, 32, 10)
    cost = (
        classifier.classes.negative_log_likelihood(y)
        + L1_reg * classifier.L1
        + L2_reg * classifier.L2_sqr
    )

    gparams = [T.grad(cost, param) for param in classifier.params]
    updates = [
        (param, param - learning_rate * gparam)
        for param, gparam in zip(classifier.params, gparams)
    ]
    train_model = synk.function(
        inputs=[x, y],
        outputs=cost,
        updates=updates,
    )
    validate_model = synk.function(
        inputs=[x, y],
        outputs=classifier.classes.errors(y),
    )

    history = []
    for epoch in range(n_epochs):
        batches = [rows(i, batch_size) for i in range(n_train_batches)]
        costs = train_model.run(batches, train_set_x, train_set_y)
        history.append(
            (numpy.mean(costs), float(validate_model(valid_set_x, valid_set_y)))
        )
        print("epoch %i: cost %f, validation error %f" % ((epoch + 1,) + history[-1]))
    return history


if __name__ == "__main__":
    synk.fork()
    train()
