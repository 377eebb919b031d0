"""The training step in torch, in one process with all cores."""

from contextlib import contextmanager

import torch
from torch import nn

from bench import mlp

ACTIVATIONS = {"relu": nn.ReLU, "tanh": nn.Tanh}


def network(options):
    """Return the network; its weights are to be loaded."""
    layers = []
    for w, _ in mlp.weights(options):
        layers += [nn.Linear(*w.shape), ACTIVATIONS[options.activation]()]
    return nn.Sequential(*layers[:-1])


def load(net, options):
    """Set the initial weights."""
    linears = [layer for layer in net if isinstance(layer, nn.Linear)]
    with torch.no_grad():
        for linear, (w, b) in zip(linears, mlp.weights(options), strict=True):
            linear.weight.copy_(torch.from_numpy(w.T))
            linear.bias.copy_(torch.from_numpy(b))


def stepper(model):
    """Return a function that makes a step and returns the loss."""
    optimizer = torch.optim.SGD(model.parameters(), lr=mlp.RATE)

    def step(x, y):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


@contextmanager
def opened(options, place):
    torch.set_num_threads(options.cores)
    rows, labels = map(torch.from_numpy, mlp.data(options))
    net = network(options)
    load(net, options)
    yield mlp.questions(
        options,
        stepper(net),
        lambda chosen: (rows[chosen], labels[chosen]),
        lambda: load(net, options),
    )
