"""Steps of training: what they compute of rows, and what they update.

The same graph serves exact training and every rule. Where ranks train by themselves its
gradients are of a rank's own rows, and so are what optimisers keep, the statistics of
batch normalisation and its running averages.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import synk  # noqa: F401  first: with it come Theano's names, which Lasagne imports

# isort: split
import lasagne
import lstm
import numpy as np
import resnet
import theano
import theano.tensor as T
from lasagne import layers as L
from resnet50 import normalised

from . import gans
from .layers import Head


class Graphs(NamedTuple):
    """A model, ready to be compiled."""

    inputs: list
    loss: Any
    """The mean over the rows, as training is told of it."""
    params: list
    """What training moves, and ranks exchange by a rule."""
    updates: dict
    averages: list
    """Running averages, of which by a rule each rank has its own."""
    measured: dict[str, Any]
    """Of rows that are not trained on, means by name."""
    made: tuple | None = None
    """Noise, and images made of it."""

    @property
    def count(self) -> int:
        """How many numbers training moves."""
        return sum(p.get_value(borrow=True).size for p in self.params)


def classifier(
    heads_of,
    rate,
    momentum: float = 0.9,
    nesterov: bool = False,
    decay: float = 0.0,
) -> Graphs:
    """Return the graphs of a network that tells classes of images.

    Parameters
    ----------
    heads_of : callable
        Returns the heads for images; what the first says is the network's answer, the
        others have a part in training.
    rate : shared variable
        The learning rate.
    momentum, nesterov, decay
        Of the steps; weights decay, biases and batch normalisation's numbers do not.
    """
    x, y = T.tensor4("x", dtype="uint8"), T.ivector("y")
    heads: list[Head] = heads_of(normalised(x))
    layers = [head.logits for head in heads]
    # Before those for training, which leave the updates of running averages.
    answer = L.get_output(layers[0], deterministic=True)
    loss = sum(
        head.weight * resnet.objectives(logits, y)[0]
        for head, logits in zip(heads, L.get_output(layers), strict=True)
    )
    l2 = lasagne.regularization.regularize_network_params(
        layers, lasagne.regularization.l2
    )
    params = L.get_all_params(layers, trainable=True)
    grads = theano.grad(loss + decay / 2 * l2, params)
    move = lasagne.updates.momentum
    if nesterov:
        move = lasagne.updates.nesterov_momentum
    updates = move(grads, params, rate, momentum)
    averages = resnet.running_averages(layers)
    names = ("loss", "top-1", "top-5")
    measured = dict(zip(names, resnet.objectives(answer, y), strict=True))
    updates |= averages
    return Graphs([x, y], loss, params, updates, list(averages), measured)


def letters(n_letters: int, units: list[int], rate, norm: float = 5.0) -> Graphs:
    """Return the graphs of the LSTM of ``lstm.py``, which foretells the next letter.

    Its gradients are clipped once, by the length of the step's whole gradient. The loss
    is in bits for each letter.
    """
    table = T.matrix("table", dtype="uint8")
    before, after = table[:, :-1], table[:, 1:]
    network = lstm.build_network(units, n_letters)
    p = L.get_output(network, before)
    one_hot = T.eq(after.flatten().dimshuffle(0, "x"), np.arange(n_letters))
    nats = lasagne.objectives.categorical_crossentropy(p, one_hot).mean()
    bits = nats / np.log(2)
    params = L.get_all_params(network, trainable=True)
    grads = lasagne.updates.total_norm_constraint(theano.grad(nats, params), norm)
    updates = lasagne.updates.adam(grads, params, rate)
    return Graphs([table], bits, params, updates, [], {"bits": bits})


def wgan(
    rate, clip: float = 0.01, first: int = 50, critic_steps: int = 2, **size
) -> Graphs:
    """Return the graphs of a Wasserstein GAN (M. Arjovsky et al. 2017).

    The critic tells by how much images differ from those of the generator, as far as
    weights can that are within `clip` of 0. The loss is that distance, negative.

    Parameters
    ----------
    rate : shared variable
    clip : float
    first, critic_steps : int
        The critic is alone for so many steps, and then the generator moves in one of
        so many.
    **size
        ``shape`` and ``width``, see `gans.generator`.
    """

    def losses(of_real, of_made):
        distance = of_real.mean() - of_made.mean()
        return -distance, -of_made.mean()

    graphs, network = _gan(losses, rate, first, critic_steps, **size)
    for var in L.get_all_params(network, trainable=True, regularizable=True):
        graphs.updates[var] = T.clip(graphs.updates[var], -clip, clip)
    return graphs


def lsgan(rate, first: int = 0, critic_steps: int = 1, **size) -> Graphs:
    """Return the graphs of a least squares GAN (X. Mao et al. 2016, equation 9).

    The critic is to score 1 for images and 0 for those of the generator, and that is to
    have it score 1. For the arguments see `wgan`.
    """

    def losses(of_real, of_made):
        critics = T.sqr(of_real - 1).mean() + T.sqr(of_made).mean()
        return critics, T.sqr(of_made - 1).mean()

    return _gan(losses, rate, first, critic_steps, **size)[0]


def _gan(losses, rate, first, critic_steps, shape, width=1.0) -> tuple[Graphs, L.Layer]:
    """Return the graphs of a GAN, and its critic.

    One step is one of the critic's and, when it is the generator's turn, one of the
    generator's against the critic as it was. The noise comes with the rows, so that the
    numbers do not depend on how many ranks there are. By a rule ranks exchange both
    networks. Those of Theano-MPI exchanged critics alone: each rank kept a generator of
    its own, which met a critic of the images of all.
    """
    x, z = T.tensor4("x", dtype="uint8"), T.matrix("z")
    generator, critic = gans.generator(z, shape, width), gans.critic(shape, width)
    made = L.get_output(generator, deterministic=True)
    images = L.get_output(generator)
    real = T.cast(x, theano.config.floatX) / np.array(255, theano.config.floatX)
    of_made = L.get_output(critic, images)
    of_real = L.get_output(critic, real)  # the last leaves the running averages
    of_critic, of_generator = losses(of_real, of_made)
    theirs = L.get_all_params(critic, trainable=True)
    ours = L.get_all_params(generator, trainable=True)
    updates = lasagne.updates.rmsprop(theano.grad(of_critic, theirs), theirs, rate)
    moves = lasagne.updates.rmsprop(theano.grad(of_generator, ours), ours, rate)
    averages = resnet.running_averages([generator, critic])
    made_steps = theano.shared(np.int64(0), "made_steps")
    turn = T.and_(T.ge(made_steps, first), T.eq((made_steps + 1) % critic_steps, 0))
    updates |= {var: T.switch(turn, new, var) for var, new in moves.items()}
    updates |= averages
    updates[made_steps] = made_steps + 1
    measured = {"critic": of_critic, "generator": of_generator}
    params = [*theirs, *ours]
    found = Graphs(
        [x, z], of_critic, params, updates, list(averages), measured, (z, made)
    )
    return found, critic
