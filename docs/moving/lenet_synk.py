"""LeNet: two layers of convolution and pooling, on images of digits."""

import numpy
import synk
import theano
import theano.tensor as T
from logistic_synk import LogisticRegression, load_data, rows
from mlp_synk import HiddenLayer
from theano.tensor.nnet import conv2d
from theano.tensor.signal import pool


class LeNetConvPoolLayer(object):
    def __init__(self, rng, input, filter_shape, image_shape, poolsize=(2, 2)):
        assert image_shape[1] == filter_shape[1]
        fan_in = numpy.prod(filter_shape[1:])
        fan_out = filter_shape[0] * numpy.prod(filter_shape[2:]) // numpy.prod(poolsize)
        bound = numpy.sqrt(6.0 / (fan_in + fan_out))
        self.W = theano.shared(
            numpy.asarray(
                rng.uniform(low=-bound, high=bound, size=filter_shape),
                dtype=theano.config.floatX,
            ),
            borrow=True,
        )
        b_values = numpy.zeros((filter_shape[0],), dtype=theano.config.floatX)
        self.b = theano.shared(value=b_values, borrow=True)
        conv_out = conv2d(
            input=input,
            filters=self.W,
            filter_shape=filter_shape,
            input_shape=image_shape,
        )
        pooled_out = pool.pool_2d(input=conv_out, ds=poolsize, ignore_border=True)
        self.output = T.tanh(pooled_out + self.b.dimshuffle("x", 0, "x", "x"))
        self.params = [self.W, self.b]


def train(learning_rate=0.3, n_epochs=6, nkerns=(8, 16), batch_size=50):
    rng = numpy.random.RandomState(23455)
    (train_set_x, train_set_y), (valid_set_x, valid_set_y) = load_data()
    n_train_batches = len(train_set_x) // batch_size
    n_valid_batches = len(valid_set_x) // batch_size

    x = T.matrix("x")
    y = T.ivector("y")
    layer0_input = x.reshape((x.shape[0], 1, 8, 8))
    layer0 = LeNetConvPoolLayer(
        rng,
        input=layer0_input,
        image_shape=(None, 1, 8, 8),
        filter_shape=(nkerns[0], 1, 3, 3),
    )
    layer1 = LeNetConvPoolLayer(
        rng,
        input=layer0.output,
        image_shape=(None, nkerns[0], 3, 3),
        filter_shape=(nkerns[1], nkerns[0], 2, 2),
        poolsize=(1, 1),
    )
    layer2 = HiddenLayer(rng, layer1.output.flatten(2), nkerns[1] * 2 * 2, 32)
    layer3 = LogisticRegression(input=layer2.output, n_in=32, n_out=10)
    cost = layer3.negative_log_likelihood(y)

    validate_model = synk.function(
        [x, y],
        layer3.errors(y),
    )
    params = layer3.params + layer2.params + layer1.params + layer0.params
    grads = T.grad(cost, params)
    updates = [
        (param_i, param_i - learning_rate * grad_i)
        for param_i, grad_i in zip(params, grads)
    ]
    train_model = synk.function(
        [x, y],
        cost,
        updates=updates,
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
