"""Train a model of the zoo that Theano-MPI had, exactly or by a training rule.

With your own images, a folder of them for each class, or without, on made-up ones::

    python demos/zoo.py vgg16 --rule easgd --every 10 --images DIR
    python demos/zoo.py cifar10 --epochs 3
    python demos/zoo.py resnet50 --image-size 32 --width 0.125 --blocks 1 1 --classes 10

The LSTM foretells letters of Python's reference, and the two GANs (``wgan``, ``lsgan``)
draw digits where no images are given; ``--samples FILE`` shows what they draw.

Defaults are the recipes of Theano-MPI, or of the papers; but ``--batch`` counts the
rows of all ranks together, and there it was those of one. ``--rule exact`` is plain
data-parallel training. By any other rule ranks train by themselves and exchange what
is trained each so many steps. Then each has its own optimiser state, dropout and batch
normalisation, whose running averages are averaged over the ranks before they are used.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import synk  # first: with it come Theano's names, which Lasagne imports

# isort: split
import images
import lasagne
import numpy as np
import theano
from PIL import Image
from zoo_models import data, graphs
from zoo_models.layers import scaled
from zoo_models.recipes import ZOO

from synk import rules
from synk.callbacks import LearningRate, step_decay

# -- how ranks go together -----------------------------------------------------------

RULES: dict[str, tuple[Callable, int]] = {
    "average": (lambda every, n, **order: rules.ParameterAveraging(**order), 1),
    "local": (lambda every, n, **order: rules.LocalSGD(every, **order), 8),
    "easgd": (lambda every, n, **order: rules.EASGD(every, **order), 10),
    "asgd": (lambda every, n, **order: rules.ASGD(every, **order), 5),
    # With 1 / n it is momentum SGD of all rows, if all meet in every step.
    "downpour": (
        lambda every, n, **order: rules.Downpour(
            every, "momentum", learning_rate=1 / n, **order
        ),
        1,
    ),
    "gem": (lambda every, n, **order: rules.GEM(every, 1.0, **order), 1),
    "gossip": (lambda every, n, **order: rules.Gossip(1 / every, **order), 10),
    "diloco": (lambda every, n, **order: rules.DiLoCo(every, **order), 50),
}
"""Each rule, made for n ranks, and how many steps there are between two exchanges."""

PLAIN = ("asgd", "downpour", "gem")
"""These take a worker's way for a gradient, so its own steps are without momentum."""


def rule_of(args: argparse.Namespace, ranks: int) -> rules.Rule | None:
    if args.rule == "exact":
        return None
    make, usual = RULES[args.rule]
    order = {} if args.order is None else {"order": args.order}
    return make(args.every or usual, ranks, **order)


# -- the command line ----------------------------------------------------------------


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("model", choices=list(ZOO))
    add("--rule", choices=["exact", *RULES], default="exact")
    add("--every", type=positive, help="steps between exchanges; default: the rule's")
    orders = ("together", "turns", "free")
    add("--order", choices=orders, help="of exchanges; default: the rule's")
    add("--images", metavar="DIR", help="with a folder for each class")
    add("--loaders", type=positive, default=4, help="processes that decode")
    add("--hold", type=positive, default=4096, help="images in memory at once")
    add("--rows", type=positive, help="made up or to use; default 2048 made up, or all")
    add("--classes", type=positive, help="of made-up images; default: the recipe's")
    add("--image-size", type=positive, help="pixels along a side")
    add("--width", type=float, default=1.0, help="by how much all layers are wider")
    add("--blocks", type=positive, nargs="+", help="of a ResNet's stages")
    add("--depth", type=positive, help="of the Wide ResNet; default: 28")
    add("--widen", type=positive, help="of the Wide ResNet; default: 10")
    add("--first", type=int, help="of a GAN: steps of the critic alone")
    add("--critic-steps", type=positive, help="of a GAN: for one of the generator")
    add("--length", type=positive, default=64, help="letters in a row of text")
    add("--sync-bn", action="store_true", help="normalise by all ranks' rows")
    add("--epochs", type=positive, help="default, as of what follows: the recipe's")
    add("--batch", type=positive, help="rows of a step, on all ranks together")
    add("--rate", type=float, help="learning rate")
    add("--falls", type=positive, nargs="*", metavar="EPOCH", help="of the rate")
    add("--momentum", type=float, help="0.9, or 0 by a rule that makes up for it")
    add("--decay", type=float, help="of weights")
    add("--seed", type=int, default=0, help="of initial values, shuffles and noise")
    add("--ranks", type=positive, help="default: all usable cores")
    jax = "JAX" if importlib.util.find_spec("jax") else None  # faster, if any
    add("--mode", default=jax, help="of PyTensor; default: JAX where it is installed")
    add("--floatX", choices=["float32", "float64"], default="float32")
    add("--checkpoint", metavar="FILE", help="to write after each epoch, .npz")
    add("--resume", action="store_true", help="go on from the checkpoint")
    add("--samples", metavar="FILE", help="of a GAN: a picture of images it makes")
    args = parser.parse_args(arguments)
    given = {k for k, v in vars(args).items() if v != parser.get_default(k)}
    for refusal in _refusals(args, given):
        parser.error(refusal)
    _complete(args)
    try:
        rule_of(args, ranks=1)
    except ValueError as refused:
        parser.error(f"--rule {args.rule}: {refused}")
    return args


OF_IMAGES = ("images", "loaders", "hold", "image_size", "sync_bn")
MEANT_FOR = {
    "classes": (*OF_IMAGES, "classes", "momentum", "decay"),
    "gan": (*OF_IMAGES, "samples"),
    "letters": ("length",),
}
"""Options that only some kinds of models have, besides those of their recipes."""


def _refusals(args: argparse.Namespace, given: set[str]) -> Iterator[str]:
    """Yield what is wrong with the arguments: none is to be without effect."""
    recipe, model = ZOO[args.model], args.model
    special = {option for options in MEANT_FOR.values() for option in options}
    special |= {option for other in ZOO.values() for option in other.options}
    meant = {*MEANT_FOR[recipe.kind], *recipe.options}
    for option in sorted(given & special - meant):
        yield f"--{option.replace('_', '-')} is not for {model}"
    size = args.image_size or recipe.image_size
    if size < recipe.least:
        yield f"{model} takes images of {recipe.least} pixels at least"
    if recipe.kind == "gan" and size % 4:
        yield f"{model} takes images of a size in fours, got {size}"
    if recipe.kind == "gan" and not args.images and size not in (8, 28):
        yield "--image-size: digits are of 28 pixels, or of 8"
    if args.images and {"rows", "classes"} & given:
        yield "--rows and --classes are for data that are not from --images"
    if not args.images and "loaders" in given:
        yield "--loaders is for --images"
    if args.rule == "exact" and {"every", "order"} & given:
        yield "--every and --order are for rules, and --rule is exact"
    if args.rule != "exact" and args.sync_bn:
        yield "--sync-bn is for exact training: by a rule ranks normalise their own"
    if args.resume and not (args.checkpoint and Path(args.checkpoint).exists()):
        yield "--resume needs the --checkpoint of an earlier run"


def _complete(args: argparse.Namespace) -> None:
    """Take from the recipe what was not given."""
    recipe = ZOO[args.model]
    for name in ("batch", "epochs", "decay", "falls", "classes", "image_size"):
        if getattr(args, name) is None:
            setattr(args, name, getattr(recipe, name))
    if args.rate is None:
        args.rate = recipe.rate
        if recipe.is_linear:
            args.rate *= args.batch / recipe.batch
    if args.momentum is None:
        args.momentum = 0.0 if args.rule in PLAIN else 0.9
    chosen = {name: getattr(args, name) for name in recipe.options}
    args.options = {k: v for k, v in chosen.items() if v is not None}


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {number}")
    return number


# -- training ------------------------------------------------------------------------


def open_data(args: argparse.Namespace):
    """Return the rows to train on and to validate."""
    recipe = ZOO[args.model]
    if recipe.kind == "letters":
        return data.Text(args.length, args.rows)
    if args.images is not None:
        files = args.images, args.image_size, args.seed, args.loaders
        rows = data.Images(images.Folder(*files), args.batch, args.hold)
    elif recipe.kind == "gan":
        rows = data.Digits(args.image_size, args.rows)
    else:
        n = args.rows or 2048
        made = args.classes, args.image_size, n, max(1, n // 8), args.seed
        rows = data.Images(images.MadeUp(*made), args.batch, args.hold)
    if recipe.kind == "gan":
        return data.WithNoise(rows, args.seed, args.floatX)
    return rows


def build(args: argparse.Namespace, rows, rate) -> graphs.Graphs:
    """Return the model's graphs, for the shapes that the data have."""
    lasagne.random.set_rng(np.random.RandomState(args.seed))
    recipe = ZOO[args.model]
    if recipe.kind == "letters":
        return recipe.build(rows.letters, [scaled(128, args.width)], rate)
    if recipe.kind == "gan":
        return recipe.build(rate, shape=rows.shape, width=args.width, **args.options)
    shape = rows.shape[1], rows.classes, args.width
    return graphs.classifier(
        lambda x: recipe.build(x, *shape, **args.options),
        rate,
        momentum=args.momentum,
        nesterov=recipe.nesterov and args.rule not in PLAIN,
        decay=args.decay,
    )


def schedule_of(args: argparse.Namespace) -> Callable[[int], float]:
    """Return the learning rate's way over the epochs."""
    recipe = ZOO[args.model]
    if recipe.kind == "gan" and not args.falls:  # to 0 in the second half
        return lambda epoch: args.rate * min(1, 2 * (1 - epoch / args.epochs))
    return step_decay(args.rate, args.falls, recipe.factor)


class Training:
    """A model that is trained and measured.

    Parameters
    ----------
    args : argparse.Namespace
    rows
        Of one of the kinds in `zoo_models.data`.
    """

    def __init__(self, args: argparse.Namespace, rows) -> None:
        self.args, self.rows = args, rows
        rate = theano.shared(np.array(args.rate, args.floatX), "rate")
        self.model = model = build(args, rows, rate)
        self.rule = rule_of(args, synk.size())
        # By a rule the loss is the mean of what ranks find by themselves.
        loss = model.loss if self.rule is None else (model.loss, "avg")
        self.step = synk.function(
            model.inputs,
            loss,
            updates=model.updates,
            local=self.rule is not None,
            statistics="exact" if args.sync_bn else "local",
            mode=args.mode,
            name="train",
        )
        self._measure = synk.function(
            model.inputs, list(model.measured.values()), mode=args.mode, name="measure"
        )
        self.trainer = synk.Trainer(self.step, model.params, self.rule, seed=args.seed)
        # To the trainer, an epoch is what it is given at once.
        schedule = schedule_of(args)
        self._callbacks = [
            LearningRate(rate, lambda part: schedule(part // rows.parts))
        ]

    @property
    def epochs(self) -> int:
        """How many were made."""
        return len(self.trainer.history) // self.rows.parts

    def epoch(self) -> dict[str, float]:
        """Train for an epoch, and return its numbers by name."""
        start, sizes = time.perf_counter(), []
        for arrays in self.rows.training(self.epochs):
            self.trainer.fit(
                *arrays,
                batch_size=self.args.batch,
                callbacks=self._callbacks,
                progress=False,
            )
            sizes.append(len(arrays[0]))
        seconds = time.perf_counter() - start
        made = self.trainer.history.epochs[-len(sizes) :]
        losses = [part["loss"] for part in made]
        numbers = {"training loss": float(np.average(losses, weights=sizes))}
        numbers |= {f"validation {k}": v for k, v in self.measure().items()}
        numbers["rows/s"] = sum(sizes) / seconds
        if self.rule is not None:
            waits = sum(part["wait"] for part in made)
            numbers["waiting %"] = 100 * waits / seconds
        return numbers

    def measure(self) -> dict[str, float]:
        """Measure rows that are not trained on, with what all ranks have come to."""
        if self.rule is not None and self.model.averages:
            synk.all_reduce(self.model.averages, "avg")
        means, weights = [], []
        for arrays in self.rows.validation():
            means.append([float(found) for found in self._measure(*arrays)])
            weights.append(len(arrays[0]))
        found = np.average(means, axis=0, weights=weights)
        return dict(zip(self.model.measured, map(float, found), strict=True))

    def draw(self, path: str) -> None:
        """Save a picture of images that the generator makes, 6 rows of 7."""
        assert self.model.made is not None
        make = synk.function([self.model.made[0]], self.model.made[1])
        z = self.rows.noise(np.random.default_rng(self.args.seed), 42)
        found = make(z).transpose(0, 2, 3, 1)  # the channels come last
        high, wide = found.shape[1:3]
        found = found.reshape(6, 7, high, wide, -1).transpose(0, 2, 1, 3, 4)
        pixels = (255 * found.reshape(6 * high, 7 * wide, -1)).astype("uint8")
        Image.fromarray(pixels.squeeze()).save(path)


def fit(training: Training, args: argparse.Namespace) -> None:
    """Train for the epochs that are left, and print their numbers."""
    if args.resume:
        training.trainer.load(args.checkpoint)
    numbers: dict[str, float] = {}
    while training.epochs < args.epochs:
        numbers = training.epoch()
        shown = ", ".join(f"{name} {number:.4g}" for name, number in numbers.items())
        print(f"epoch {training.epochs:3}: {shown}", flush=True)
        if args.checkpoint:
            training.trainer.save(args.checkpoint)
    if args.samples:
        training.draw(args.samples)
        print(f"samples: {args.samples}")
    if numbers:
        print(f"final: training loss {numbers['training loss']:.6f}")


def main(arguments: Sequence[str] | None = None) -> None:
    args = parse_arguments(arguments)
    theano.config.floatX = args.floatX
    n = synk.fork(args.ranks)
    try:
        rows = open_data(args)
        try:
            training = Training(args, rows)
            how = training.rule or "exact training"
            print(
                f"{args.model} by {how}, {n} rank{'s' * (n > 1)}:"
                f" {training.model.count:,} parameters, {rows.rows:,} rows to train on"
                f" and {rows.held_out:,} to validate",
                flush=True,
            )
            fit(training, args)
        finally:
            rows.close()
    except KeyboardInterrupt:
        sys.exit("interrupted")
    except (images.ImageError, synk.CheckpointError) as error:
        sys.exit(f"{type(error).__name__}: {error}")
    finally:
        synk.close()


if __name__ == "__main__":
    main()
