"""A network on images of digits, trained by Downpour with Adam at the centre."""

import numpy
import synk
import theano.tensor as T
from logistic_synk import load_data
from mlp_synk import MLP


def train(batch_size=100, n_epochs=10, order="free"):
    (train_set_x, train_set_y), (valid_set_x, valid_set_y) = load_data()

    x = T.matrix("x")
    y = T.ivector("y")
    network = MLP(numpy.random.RandomState(1234), x, 8 * 8, 32, 10)
    cost = network.classes.negative_log_likelihood(y)
    gparams = T.grad(cost, network.params)
    step = synk.function(
        [x, y],
        cost,
        updates=[(p, p - g) for p, g in zip(network.params, gparams)],
        local=True,
    )
    validate = synk.function([x, y], [cost, network.classes.errors(y)])

    rule = synk.rules.Downpour(1, "adam", learning_rate=0.005, order=order)
    trainer = synk.Trainer(step, network.params, rule)
    history = trainer.fit(
        train_set_x,
        train_set_y,
        batch_size=batch_size,
        epochs=n_epochs,
        validation=lambda: dict(
            zip(["loss", "error"], validate(valid_set_x, valid_set_y))
        ),
        callbacks=[synk.callbacks.Patience("val_loss", epochs=4)],
    )
    return numpy.array([history["loss"], history["val_error"]]).T


if __name__ == "__main__":
    synk.fork()
    train()
