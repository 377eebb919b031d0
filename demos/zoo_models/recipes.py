"""The models of the zoo, and how each is trained if not told otherwise.

Batches, rates, their falls and decays are those of Theano-MPI, or of the papers for the
Wide ResNet and where Theano-MPI's are not known: VGG's decay, GoogLeNet's falls. Its
batches are of one rank, though, and here they are of all.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import resnet

from . import alexnet, cifar10, googlenet, graphs, vgg, wide_resnet
from .layers import Head, scaled


class Recipe(NamedTuple):
    """How a model is trained if not told otherwise."""

    kind: str  # "classes", "letters" or "gan"
    build: Callable
    batch: int
    epochs: int
    rate: float
    image_size: int = 0
    least: int = 0
    """The smallest ones that it takes."""
    classes: int = 1000
    falls: Sequence[int] = ()
    """After how many epochs the rate is multiplied by `factor`."""
    factor: float = 0.1
    decay: float = 0.0
    nesterov: bool = False
    is_linear: bool = False
    """Whether the rate goes with the batch."""
    options: Sequence[str] = ()
    """Arguments that `build` takes besides those of all."""


def build_resnet(blocks_by_default, x, image_size, classes, width, blocks=None):
    """Return the head of a ResNet; see `alexnet.build`."""
    shape = image_size, classes, scaled(64, width), blocks or blocks_by_default
    return [Head(resnet.build(x, *shape))]


build_resnet50 = functools.partial(build_resnet, resnet.BLOCKS)
build_resnet152 = functools.partial(build_resnet, resnet.BLOCKS_152)

_OF_RESNETS: dict[str, Any] = {
    "image_size": 224,
    "least": 32,
    "falls": (30, 60, 80),
    "decay": 1e-4,
    "is_linear": True,
    "options": ("blocks",),
}
_OF_GANS: dict[str, Any] = {
    "image_size": 28,
    "least": 8,
    "options": ("first", "critic_steps"),
}

ZOO = {
    "alexnet": Recipe(
        *("classes", alexnet.build, 128, 70, 0.01, 227, 67),
        falls=(20, 40, 60),
        decay=5e-4,
    ),
    "vgg16": Recipe(
        *("classes", vgg.build, 64, 40, 0.002, 224, 32),
        falls=(15, 30, 35),
        decay=5e-4,
    ),
    "googlenet": Recipe(
        *("classes", googlenet.build, 32, 90, 0.005, 224, 80),
        falls=range(8, 1000, 8),
        factor=0.96,
        decay=2e-4,
    ),
    "resnet50": Recipe("classes", build_resnet50, 32, 90, 0.0125, **_OF_RESNETS),
    "resnet152": Recipe("classes", build_resnet152, 32, 90, 0.0125, **_OF_RESNETS),
    "wide_resnet": Recipe(
        *("classes", wide_resnet.build, 128, 200, 0.1, 32, 8, 10),
        falls=(60, 120, 160),
        factor=0.2,
        decay=5e-4,
        nesterov=True,
        options=("depth", "widen"),
    ),
    "cifar10": Recipe(
        *("classes", cifar10.build, 256, 70, 0.01, 28, 24, 10),
        falls=(50, 60, 65),
        decay=1e-4,
    ),
    "lstm": Recipe("letters", graphs.letters, 32, 10, 0.003),
    "wgan": Recipe("gan", graphs.wgan, 64, 100, 5e-5, **_OF_GANS),
    "lsgan": Recipe("gan", graphs.lsgan, 64, 100, 1e-4, **_OF_GANS),
}
