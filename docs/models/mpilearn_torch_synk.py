"""A network of torch on images of digits, trained by a rule of mpi_learn's."""

import numpy as np
import torch
from sklearn.datasets import load_digits

import synk
import synk.torch


def load_data():
    images, labels = load_digits(return_X_y=True)
    order = np.random.RandomState(0).permutation(len(images))
    images, labels = (images[order] / 16).astype("float32"), labels[order]
    return (images[:1200], labels[:1200]), (images[1200:], labels[1200:])


def train(rule=None, lr=1.0, batch_size=50, epochs=10, seed=0):
    train_data, (images, labels) = load_data()
    torch.manual_seed(seed)
    network = torch.nn.Sequential(
        torch.nn.Linear(64, 32), torch.nn.Tanh(), torch.nn.Linear(32, 10)
    )
    optimizer = torch.optim.SGD(network.parameters(), lr=lr)
    loss = torch.nn.CrossEntropyLoss()
    is_local = rule is not None
    step = synk.torch.step(network, loss, optimizer, train_data, local=is_local)

    def validate():
        with torch.no_grad():
            found = network(torch.from_numpy(images)).argmax(dim=1).numpy()
        return {
            "loss": float(step.loss(images, labels)),
            "accuracy": float((found == labels).mean()),
        }

    trainer = synk.Trainer(step, rule=rule, seed=seed)
    return trainer.fit(
        *train_data,
        batch_size=batch_size,
        epochs=epochs,
        validation=validate,
        callbacks=[synk.callbacks.Patience("val_loss", epochs=4)],
        progress=False,
    )


if __name__ == "__main__":
    synk.fork()
    train(synk.rules.Downpour(1, "adam", learning_rate=0.005, order="free"))
