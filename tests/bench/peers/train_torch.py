"""The training step in torch, in one process with all cores."""

from contextlib import contextmanager

import torch
from torch import nn

from bench import networks
from bench.work import questions

ACTIVATIONS = {"relu": nn.ReLU, "tanh": nn.Tanh}


def network(options, step):
    """Return the network; its weights are to be loaded."""
    layers = []
    for w, _ in networks.weights(options, step.kind):
        if w.ndim == 4:
            convolution = nn.Conv2d(w.shape[1], w.shape[0], 3, padding="same")
            layers += [convolution, nn.ReLU(), nn.MaxPool2d(2)]
        else:
            layers += [
                nn.Flatten(),
                nn.Linear(*w.shape),
                ACTIVATIONS[step.activation](),
            ]
    return nn.Sequential(*layers[:-1])


def load(net, options, kind):
    """Set the initial weights."""
    layers = [layer for layer in net if isinstance(layer, nn.Linear | nn.Conv2d)]
    with torch.no_grad():
        for layer, (w, b) in zip(layers, networks.weights(options, kind), strict=True):
            layer.weight.copy_(torch.from_numpy(w.T if w.ndim == 2 else w))
            layer.bias.copy_(torch.from_numpy(b))


def stepper(model):
    """Return a function that makes a step and returns the loss."""
    optimizer = torch.optim.SGD(model.parameters(), lr=networks.RATE)

    def step(x, y):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def prepared(options, column, wrap, share_of):
    """Return what builds the work of a column.

    Parameters
    ----------
    options : Options
    column : str
    wrap : callable
        Returns the model to call, of the network.
    share_of : callable
        Returns the rows of this process, of a slice.
    """
    of_column = networks.step_of(column)
    rows, labels = map(torch.from_numpy, networks.data(options, of_column.kind))

    def batch_of(chosen):
        mine = share_of(chosen)
        return rows[mine], labels[mine]

    def build():
        net = network(options, of_column)
        load(net, options, of_column.kind)
        return networks.work(
            options,
            of_column.batch,
            stepper(wrap(net)),
            batch_of,
            lambda: load(net, options, of_column.kind),
        )

    return build


@contextmanager
def opened(options, place):
    torch.set_num_threads(options.cores)

    def prepare(column):
        return prepared(options, column, lambda net: net, lambda chosen: chosen)

    yield questions(options.columns, prepare)
