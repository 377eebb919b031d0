"""LeNet: two layers of convolution and pooling, on images of digits."""

import numpy
import theano
import theano.tensor as T
from logistic import LogisticRegression, load_data
from mlp import HiddenLayer
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
    n_train_batches = train_set_x.get_value(borrow=True).shape[0] // batch_size
    n_valid_batches = valid_set_x.get_value(borrow=True).shape[0] // batch_size

    index = T.lscalar()
    x = T.matrix("x")
    y = T.ivector("y")
    layer0_input = x.reshape((batch_size, 1, 8, 8))
    layer0 = LeNetConvPoolLayer(
        rng,
        input=layer0_input,
        image_shape=(batch_size, 1, 8, 8),
        filter_shape=(nkerns[0], 1, 3, 3),
    )
    layer1 = LeNetConvPoolLayer(
        rng,
        input=layer0.output,
        image_shape=(batch_size, nkerns[0], 3, 3),
        filter_shape=(nkerns[1], nkerns[0], 2, 2),
        poolsize=(1, 1),
    )
    layer2 = HiddenLayer(rng, layer1.output.flatten(2), nkerns[1] * 2 * 2, 32)
    layer3 = LogisticRegression(input=layer2.output, n_in=32, n_out=10)
    cost = layer3.negative_log_likelihood(y)

    validate_model = theano.function(
        [index],
        layer3.errors(y),
        givens={
            x: valid_set_x[index * batch_size : (index + 1) * batch_size],
            y: valid_set_y[index * batch_size : (index + 1) * batch_size],
        },
    )
    params = layer3.params + layer2.params + layer1.params + layer0.params
    grads = T.grad(cost, params)
    updates = [
        (param_i, param_i - learning_rate * grad_i)
        for param_i, grad_i in zip(params, grads)
    ]
    train_model = theano.function(
        [index],
        cost,
        updates=updates,
        givens={
            x: train_set_x[index * batch_size : (index + 1) * batch_size],
            y: train_set_y[index * batch_size : (index + 1) * batch_size],
        },
    )

    history = []
    for epoch in range(n_epochs):
        costs = [train_model(i) for i in range(n_train_batches)]
        errors = [validate_model(i) for i in range(n_valid_batches)]
        history.append((numpy.mean(costs), numpy.mean(errors)))
        print("epoch %i: cost %f, validation error %f" % ((epoch + 1,) + history[-1]))
    return history


if __name__ == "__main__":
    train()
