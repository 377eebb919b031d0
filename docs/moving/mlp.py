"""A network with one hidden layer, L1 and L2 regularisation, on images of digits."""

import numpy
import theano
import theano.tensor as T
from logistic import LogisticRegression, load_data


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
    n_train_batches = train_set_x.get_value(borrow=True).shape[0] // batch_size

    index = T.lscalar("index")
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
    train_model = theano.function(
        inputs=[index],
        outputs=cost,
        updates=updates,
        givens={
            x: train_set_x[index * batch_size : (index + 1) * batch_size],
            y: train_set_y[index * batch_size : (index + 1) * batch_size],
        },
    )
    validate_model = theano.function(
        inputs=[],
        outputs=classifier.classes.errors(y),
        givens={x: valid_set_x, y: valid_set_y},
    )

    history = []
    for epoch in range(n_epochs):
        costs = [train_model(i) for i in range(n_train_batches)]
        history.append((numpy.mean(costs), float(validate_model())))
        print("epoch %i: cost %f, validation error %f" % ((epoch + 1,) + history[-1]))
    return history


if __name__ == "__main__":
    train()
