"""Logistic regression on images of digits, by stochastic gradient descent."""

import numpy
import synk
import theano
import theano.tensor as T
from sklearn.datasets import load_digits


class LogisticRegression(object):
    """Class probabilities of rows of ``input``; the weights begin at zero."""

    def __init__(self, input, n_in, n_out):
        self.W = theano.shared(
            value=numpy.zeros((n_in, n_out), dtype=theano.config.floatX),
            name="W",
            borrow=True,
        )
        self.b = theano.shared(
            value=numpy.zeros((n_out,), dtype=theano.config.floatX),
            name="b",
            borrow=True,
        )
        self.p_y_given_x = T.nnet.softmax(T.dot(input, self.W) + self.b)
        self.y_pred = T.argmax(self.p_y_given_x, axis=1)
        self.params = [self.W, self.b]

    def negative_log_likelihood(self, y):
        return -T.mean(T.log(self.p_y_given_x)[T.arange(y.shape[0]), y])

    def errors(self, y):
        return T.mean(T.neq(self.y_pred, y))


def shared_dataset(data_x, data_y):
    shared_x = synk.data(numpy.asarray(data_x, dtype=theano.config.floatX))
    shared_y = synk.data(numpy.asarray(data_y, dtype="int32"))
    return shared_x, shared_y


def load_data():
    images, labels = load_digits(return_X_y=True)
    order = numpy.random.RandomState(0).permutation(len(images))
    images, labels = images[order] / 16.0, labels[order]
    train_set = shared_dataset(images[:1200], labels[:1200])
    valid_set = shared_dataset(images[1200:], labels[1200:])
    return train_set, valid_set


def rows(i, batch_size):
    return slice(i * batch_size, (i + 1) * batch_size)


def train(learning_rate=0.5, n_epochs=10, batch_size=50):
    (train_set_x, train_set_y), (valid_set_x, valid_set_y) = load_data()
    n_train_batches = len(train_set_x) // batch_size
    n_valid_batches = len(valid_set_x) // batch_size

    x = T.matrix("x")
    y = T.ivector("y")
    classifier = LogisticRegression(input=x, n_in=8 * 8, n_out=10)
    cost = classifier.negative_log_likelihood(y)

    validate_model = synk.function(
        inputs=[x, y],
        outputs=classifier.errors(y),
    )

    g_W = T.grad(cost=cost, wrt=classifier.W)
    g_b = T.grad(cost=cost, wrt=classifier.b)
    train_model = synk.function(
        inputs=[x, y],
        outputs=cost,
        updates=[
            (classifier.W, classifier.W - learning_rate * g_W),
            (classifier.b, classifier.b - learning_rate * g_b),
        ],
    )

    history = []
    for epoch in range(n_epochs):
        costs = [
            train_model(train_set_x, train_set_y, batch=rows(i, batch_size))
            for i in range(n_train_batches)
        ]
        errors = [
            validate_model(valid_set_x, valid_set_y, batch=rows(i, batch_size))
            for i in range(n_valid_batches)
        ]
        history.append((numpy.mean(costs), numpy.mean(errors)))
        print("epoch %i: cost %f, validation error %f" % ((epoch + 1,) + history[-1]))
    return history


if __name__ == "__main__":
    synk.fork()
    train()
