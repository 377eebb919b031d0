"""Train ResNet-50 data-parallel, on images of a folder or made up.

Start with ``python demos/resnet50.py --image-size 32 --width 8 --classes 10``, a small
network that trains in minutes. For your own images, one folder for each class::

    python demos/resnet50.py --images DIR --batch 256 --epochs 90
    python demos/resnet50.py --images DIR --batch 256 --epochs 90 --resume

The network is in `resnet.py`, images come from `images.py`. The recipe is that of
P. Goyal et al. 2017, "Accurate, large minibatch SGD": Nesterov's momentum, a learning
rate that grows with the batch, rises from nothing in the first epochs and falls by ten
at some later ones, and weight decay for filters and weights, not for biases nor for the
scales and offsets of batch normalisation.

A rank normalises by the statistics of its own rows, as is usual; ``--sync-bn`` takes
those of all rows, which gives the numbers of ``--serial`` and costs time: ranks meet
twice in each layer, and not once in a step. JAX compiles for some minutes at the first
step, and again for each new number of rows: an epoch's last batch, say.

``--precision tensorfloat32`` or ``bfloat16`` is for GPUs, where it is several times
faster; with ``float16`` the loss is scaled. Parameters are float32 in any case.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import time
from pathlib import Path

import synk  # first: with it come Theano's names, which Lasagne imports

# isort: split
import images
import lasagne
import numpy as np
import resnet
import theano
import theano.tensor as T
from lasagne import layers as L
from matplotlib.figure import Figure
from tqdm import tqdm

MOMENTUM = 0.9
MEAN, DEVIATION = (123.7, 116.3, 103.5), (58.4, 57.1, 57.4)
"""Of the pixels of ImageNet, red, green and blue."""
COLUMNS = [
    *("training loss", "training top-1", "training top-5"),
    *("validation loss", "validation top-1", "validation top-5"),
    "images/s",
]


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--images", metavar="DIR", help="with a folder for each class")
    add("--classes", type=positive, default=1000, help="of made up images")
    add("--rows", type=positive, default=2048, help="made up, to train on")
    add("--image-size", type=positive, default=224, help="pixels along a side")
    add("--loaders", type=positive, default=4, help="processes that decode")
    add("--width", type=positive, default=64, help="channels of the first layer")
    add(
        "--blocks",
        type=positive,
        nargs="+",
        default=resnet.BLOCKS,
        help="of each stage",
    )
    add("--sync-bn", action="store_true", help="normalise by all ranks' rows")
    add("--epochs", type=positive, default=90)
    add("--batch", type=positive, default=64, help="rows of a step, on all ranks")
    add("--slices", type=positive, default=4, help="batches validated in one call")
    add("--rate", type=float, default=0.1, help="learning rate for batches of 256")
    add(
        "--warm-up", type=float, default=5, metavar="EPOCHS", help="to rise to the rate"
    )
    add("--falls", type=float, nargs="*", default=[30, 60, 80], help="by ten, after")
    add("--decay", type=float, default=1e-4, help="of weights")
    add("--seed", type=int, default=0, help="of initial values, shuffles and crops")
    add("--checkpoint", default="resnet50.npz", metavar="FILE", help="of each epoch")
    add("--resume", action="store_true", help="go on from the checkpoint")
    add("--plot", default="resnet50.png", metavar="FILE", help="of the curves")
    add("--ranks", type=positive, help="without, as many as usable cores")
    add("--serial", action="store_true", help="in this process, for comparison")
    jax = "JAX" if importlib.util.find_spec("jax") else None
    add("--mode", default=jax, help="of PyTensor, as JAX or NUMBA")
    add("--floatX", choices=["float32", "float64"], default="float32")
    precisions = ["float32", "tensorfloat32", "bfloat16", "float16"]
    add("--precision", choices=precisions, default="float32", help="of products")
    args = parser.parse_args(arguments)
    if args.precision != "float32" and (args.serial or args.mode != "JAX"):
        parser.error(f"--precision {args.precision}: with --mode JAX, without --serial")
    return args


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {number}")
    return number


# -- the graphs, the same for the serial run ------------------------------------------


class Graphs:
    """The network, what a step computes, and what is measured."""

    def __init__(self, args: argparse.Namespace, classes: int) -> None:
        lasagne.random.set_rng(np.random.RandomState(args.seed))
        self.x = T.tensor4("x", dtype="uint8")
        self.y = T.ivector("y")
        self.rate = T.scalar("rate")
        self.network = resnet.build(
            normalised(self.x),
            *(args.image_size, classes, args.width, args.blocks),
        )
        if tuple(args.blocks) == resnet.BLOCKS:
            resnet.check(self.network)
        evaluated = L.get_output(self.network, deterministic=True)
        self.scores = resnet.objectives(evaluated, self.y)
        self.logits = L.get_output(self.network)
        self.results = resnet.objectives(self.logits, self.y)
        l2 = lasagne.regularization.regularize_network_params(
            self.network, lasagne.regularization.l2
        )
        cost = self.results[0] + args.decay / 2 * l2
        scale = synk.LossScale() if args.precision == "float16" else None
        if scale is not None:
            cost = scale.scaled(cost)
        params = L.get_all_params(self.network, trainable=True)
        self.gradients = theano.grad(cost, params)
        if scale is not None:
            self.gradients = scale.unscaled(self.gradients)
        self.updates = lasagne.updates.nesterov_momentum(
            self.gradients, params, self.rate, MOMENTUM
        )
        self.updates.update(resnet.running_averages(self.network))
        if scale is not None:
            self.updates = scale.guarded(self.updates, self.gradients)


def normalised(x):
    """Return pixels with mean 0 and standard deviation 1."""
    mean, deviation = (
        np.array(values, theano.config.floatX).reshape(1, 3, 1, 1)
        for values in (MEAN, DEVIATION)
    )
    return (T.cast(x, theano.config.floatX) - mean) / deviation


def compile_graphs(graphs: Graphs, args: argparse.Namespace) -> tuple:
    """Return the functions that train on a batch and that measure one.

    ``train(images, labels, rate)`` and ``measure(images, labels)`` return loss, top-1
    and top-5.
    """
    inputs = [graphs.x, graphs.y]
    if args.serial:
        train = theano.function(
            [*inputs, graphs.rate],
            graphs.results,
            updates=graphs.updates,
            mode=args.mode,
        )
        return train, theano.function(inputs, graphs.scores, mode=args.mode)
    train = synk.function(
        inputs,
        graphs.results,
        bcast_inputs=[graphs.rate],
        updates=graphs.updates,
        statistics="exact" if args.sync_bn else "local",
        mode=args.mode,
        name="train",
        precision=args.precision,
    )
    measure = synk.function(
        inputs,
        graphs.scores,
        mode=args.mode,
        name="measure",
        precision=args.precision,
    )
    return train, lambda *batch: measure(*batch, num_slices=args.slices)


# -- training ------------------------------------------------------------------------


def rate_at(epoch: float, args: argparse.Namespace) -> float:
    """Return the learning rate after so many epochs."""
    peak = args.rate * args.batch / 256
    if epoch < args.warm_up:
        return peak * epoch / args.warm_up
    return peak * 0.1 ** sum(epoch >= fall for fall in args.falls)


class Mean:
    """The mean of results, each weighted by its rows."""

    def __init__(self) -> None:
        self.total, self.rows = np.zeros(3), 0

    def add(self, results, rows: int) -> np.ndarray:
        """Take one more in, and return the mean so far."""
        self.total += np.array([float(result) for result in results]) * rows
        self.rows += rows
        return self.total / self.rows


def train_epoch(epoch: int, data, train, args: argparse.Namespace) -> list[float]:
    """Make the steps of an epoch; return loss, top-1, top-5 and images per second."""
    mean, start = Mean(), time.perf_counter()
    floatX = np.dtype(theano.config.floatX).type
    with tqdm(
        desc=f"epoch {epoch + 1}", total=data.n_training, unit=" images", disable=None
    ) as bar:
        for x, y in data.training(epoch, args.batch):
            # After the step, so that the first one has a rate above 0.
            after = epoch + (mean.rows + len(y)) / data.n_training
            loss, *_ = mean.add(train(x, y, floatX(rate_at(after, args))), len(y))
            bar.update(len(y))
            bar.set_postfix(loss=f"{loss:.3f}", refresh=False)
    return [*mean.total / mean.rows, mean.rows / (time.perf_counter() - start)]


def validate(data, measure, args: argparse.Namespace) -> list[float]:
    """Return loss, top-1 and top-5 of the images that are not trained on."""
    mean = Mean()
    for x, y in data.validation(args.batch * args.slices):
        mean.add(measure(x, y), len(y))
    return list(mean.total / mean.rows)


def fit(args: argparse.Namespace, data, graphs: Graphs) -> np.ndarray:
    """Train for the epochs that are left; return a row of numbers for each epoch."""
    train, measure = compile_graphs(graphs, args)
    history = theano.shared(np.zeros((0, len(COLUMNS))), name="history")
    # Lasagne's momenta have no names: in the file they go by their place.
    state = [*graphs.updates, history]
    if args.resume:
        parameters = resnet.count(graphs.network)
        synk.load(args.checkpoint, state)
        if resnet.count(graphs.network) != parameters:
            raise synk.CheckpointError(f"{args.checkpoint} is of another network")
    for epoch in range(len(history.get_value()), args.epochs):
        *training, speed = train_epoch(epoch, data, train, args)
        now = [*training, *validate(data, measure, args), speed]
        past = np.vstack([history.get_value(), now])
        history.set_value(past)
        synk.save(args.checkpoint, state)
        shown = zip(COLUMNS, now, strict=True)
        print(
            f"epoch {epoch + 1:3}:", ", ".join(f"{name} {n:.4g}" for name, n in shown)
        )
        plot(past, args.plot)
    return history.get_value()


def plot(history: np.ndarray, path: str) -> None:
    """Save curves of loss and accuracy over the epochs as a PNG."""
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    panels = figure.subplots(1, 2)
    epochs = range(1, len(history) + 1)
    for name, values in zip(COLUMNS[:-1], history.T, strict=False):
        panel = panels[0] if "loss" in name else panels[1]
        panel.plot(epochs, values, "--" if "training" in name else "-", label=name)
    for panel, what in zip(panels, ("loss", "accuracy"), strict=True):
        panel.set(xlabel="epoch", ylabel=what)
        panel.grid(alpha=0.3)
        panel.legend()
    figure.savefig(path, format="png", dpi=120)


def open_images(args: argparse.Namespace):
    if args.images is None:
        made = args.classes, args.image_size, args.rows, max(1, args.rows // 8)
        return images.MadeUp(*made, args.seed)
    return images.Folder(args.images, args.image_size, args.seed, args.loaders)


def main() -> None:
    args = parse_arguments()
    theano.config.floatX = args.floatX
    if args.resume and not Path(args.checkpoint).exists():
        sys.exit(f"--resume: there is no {args.checkpoint}")
    n = 1 if args.serial else synk.fork(args.ranks)
    try:
        data = open_images(args)
        try:
            graphs = Graphs(args, data.classes)
            how = "serial" if args.serial else f"{n} rank{'s' * (n > 1)}"
            print(
                f"{how}: {resnet.count(graphs.network):,} parameters, {data.classes}"
                f" classes, {data.n_training:,} images and {data.n_validation:,} to"
                " validate"
            )
            history = fit(args, data, graphs)
        finally:
            data.close()
    except KeyboardInterrupt:
        sys.exit("interrupted; --resume goes on from the last checkpoint")
    except (images.ImageError, synk.CheckpointError) as error:
        sys.exit(f"{type(error).__name__}: {error}")
    finally:
        synk.close()
    if len(history):
        print(f"final: training loss {history[-1, 0]:.6f}, plot: {args.plot}")


if __name__ == "__main__":
    main()
