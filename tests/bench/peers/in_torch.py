"""Likelihoods and training steps in torch."""

from contextlib import contextmanager
from functools import partial

import torch
import torch.distributed as dist
from bench import likelihoods, networks
from bench.work import questions
from torch import nn
from torch.nn.functional import softplus
from torch.nn.parallel import DistributedDataParallel


class _Functions:
    exp, log, log1p, gammaln = torch.exp, torch.log, torch.log1p, torch.lgamma
    softplus = softplus


TERMS = likelihoods.terms_by(_Functions)


@contextmanager
def likelihood(options, place):
    """Gradients by autograd, in one process with all cores."""
    torch.set_num_threads(options.cores)
    rows = likelihoods.rows(options)
    x = torch.from_numpy(rows)
    beta = torch.from_numpy(likelihoods.beta()).requires_grad_()

    def prepare(column):
        y = torch.from_numpy(likelihoods.outcomes(column, rows))

        def call():
            value = TERMS[column](y, x @ beta).sum()
            (gradient,) = torch.autograd.grad(value, beta)
            return value, gradient

        yield
        yield likelihoods.work(call)

    yield questions(likelihoods.COLUMNS, prepare)


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


def prepared(options, column, wrap=lambda net: net, share_of=lambda chosen: chosen):
    """Prepare and build the work of a column.

    `wrap` makes the model to call of the network, and `share_of` is what this process
    has of a slice.
    """
    of_column = networks.step_of(column)
    rows, labels = map(torch.from_numpy, networks.data(options, of_column.kind))

    def batch_of(chosen):
        mine = share_of(chosen)
        return rows[mine], labels[mine]

    yield
    net = network(options, of_column)
    restart = partial(load, net, options, of_column.kind)
    restart()
    step = stepper(wrap(net))
    yield networks.work(options, of_column.batch, step, batch_of, restart)


@contextmanager
def training(options, place):
    """In one process with all cores."""
    torch.set_num_threads(options.cores)
    yield questions(options.columns, partial(prepared, options))


@contextmanager
def training_by_synk(options, place):
    """By synk's ranks: `synk.torch`."""
    import synk
    import synk.torch

    with synk.session(options.ranks):

        def prepare(column):
            of_column = networks.step_of(column)
            data = networks.data(options, of_column.kind)
            yield
            net = network(options, of_column)
            load(net, options, of_column.kind)
            optimizer = torch.optim.SGD(net.parameters(), lr=networks.RATE)
            step = synk.torch.step(net, nn.CrossEntropyLoss(), optimizer, data)
            rows, labels = map(synk.data, data)

            def restart():
                load(net, options, of_column.kind)
                step.push()

            yield networks.work(
                options,
                of_column.batch,
                lambda chosen: float(step(rows, labels, batch=chosen)),
                lambda chosen: (chosen,),
                restart,
            )

        yield questions(options.columns, prepare)


@contextmanager
def training_by_ddp(options, place):
    """In DistributedDataParallel on Gloo, a process for each rank.

    A process has its share of each batch. Its loss is the one over that share:
    averaging the losses, which synk does, is not asked of it.
    """
    begin_gloo(options, place)
    wrap = partial(DistributedDataParallel, gradient_as_bucket_view=True)

    def share_of(chosen):
        count = (chosen.stop - chosen.start) // place.size
        start = chosen.start + count * place.rank
        return slice(start, start + count)

    prepare = partial(prepared, options, wrap=wrap, share_of=share_of)
    yield questions(options.columns, prepare, dist.barrier)
    dist.destroy_process_group()


def begin_gloo(options, place):
    """Have this process's share of the cores, and meet the others."""
    torch.set_num_threads(max(1, options.cores // place.size))
    dist.init_process_group(
        "gloo",
        init_method=f"file://{place.folder}/rendezvous",
        rank=place.rank,
        world_size=place.size,
    )
