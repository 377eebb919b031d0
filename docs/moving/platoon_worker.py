"""A network on images of digits, trained by the workers of Platoon.

``platoon-launcher platoon -D cuda0 cuda1`` starts it on each device, and the
controller.
"""

import os

import numpy
import theano
import theano.tensor as T
from logistic import load_data
from mlp import MLP
from platoon.channel import Worker
from platoon.param_sync import EASGD


def batches(n_train_batches):
    random = numpy.random.RandomState(os.getpid())
    while True:
        yield random.randint(n_train_batches)


def train(learning_rate=0.2, batch_size=50, train_len=10, alpha=0.45):
    args = Worker.default_parser().parse_args()
    worker = Worker(**Worker.default_arguments(args))
    (train_set_x, train_set_y), (valid_set_x, valid_set_y) = load_data()
    n_train_batches = train_set_x.get_value(borrow=True).shape[0] // batch_size

    index = T.lscalar("index")
    x = T.matrix("x")
    y = T.ivector("y")
    network = MLP(numpy.random.RandomState(1234), x, 8 * 8, 32, 10)
    cost = network.classes.negative_log_likelihood(y)
    gparams = T.grad(cost, network.params)
    train_model = theano.function(
        [index],
        cost,
        updates=[(p, p - learning_rate * g) for p, g in zip(network.params, gparams)],
        givens={
            x: train_set_x[index * batch_size : (index + 1) * batch_size],
            y: train_set_y[index * batch_size : (index + 1) * batch_size],
        },
    )
    errors = theano.function(
        [], network.classes.errors(y), givens={x: valid_set_x, y: valid_set_y}
    )

    worker.init_shared_params(network.params, param_sync_rule=EASGD(alpha))
    worker.copy_to_local()
    indices = batches(n_train_batches)
    while True:
        request = worker.send_req("next")
        if request == "train":
            for _ in range(train_len):
                train_model(next(indices))
            worker.sync_params(synchronous=True)
            worker.send_req("done", {"train_len": train_len})
        elif request == "valid":
            worker.copy_to_local()
            answer = worker.send_req("pred_errors", {"valid_err": float(errors())})
            if answer == "best":
                values = [p.get_value() for p in network.params]
                numpy.savez("best.npz", *values)
        elif request == "stop":
            break
    worker.close()


if __name__ == "__main__":
    train()
