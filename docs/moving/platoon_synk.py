"""A network on images of digits, trained by EASGD until that brings no more."""

import numpy
import synk
import theano.tensor as T
from logistic_synk import load_data
from mlp_synk import MLP


def train(learning_rate=0.2, batch_size=100, n_epochs=10, train_len=10, beta=0.9):
    (train_set_x, train_set_y), (valid_set_x, valid_set_y) = load_data()

    x = T.matrix("x")
    y = T.ivector("y")
    network = MLP(numpy.random.RandomState(1234), x, 8 * 8, 32, 10)
    cost = network.classes.negative_log_likelihood(y)
    gparams = T.grad(cost, network.params)
    step = synk.function(
        [x, y],
        cost,
        updates=[(p, p - learning_rate * g) for p, g in zip(network.params, gparams)],
        local=True,
    )
    errors = synk.function([x, y], network.classes.errors(y))

    rule = synk.rules.EASGD(every=train_len, beta=beta, order="free")
    trainer = synk.Trainer(step, network.params, rule)
    history = trainer.fit(
        train_set_x,
        train_set_y,
        batch_size=batch_size,
        epochs=n_epochs,
        validation=lambda: {"error": errors(valid_set_x, valid_set_y)},
        callbacks=[
            synk.callbacks.Checkpoint("best.npz", best="val_error"),
            synk.callbacks.Patience("val_error", epochs=4),
        ],
    )
    return numpy.array([history["loss"], history["val_error"]]).T


if __name__ == "__main__":
    synk.fork()
    train()
