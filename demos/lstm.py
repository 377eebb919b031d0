"""Train an LSTM to write, letter by letter, data-parallel, with Lasagne.

Run it with ``python demos/lstm.py``. The text is the reference of the Python language
that comes with Python: what ``help("while")`` and the like print. It lies in shared
memory as a table with a row for each piece of text; a step of training is one call,
``step(X, batch=rows)``, and an epoch ``step.run(batches, X)``.

A recurrent network's gradients explode now and then, and are clipped in two places:

* ``--clip`` limits what flows back through a layer, at each letter of each row. In the
  gradient of a mean a row counts for less where it is one of many: on one rank less
  would be clipped than on several. So the cost is the sum over the rows, and its
  gradient is divided by their number once the ranks' sums have been added up.
* ``--norm`` limits the length of the gradient of all rows, which all ranks know.

With ``--serial`` the same graphs are compiled by `theano.function` and run in this
process alone; both end at the same numbers.
"""

from __future__ import annotations

import argparse
import importlib.util
import time
from collections import defaultdict
from pydoc_data import topics
from typing import Any, NamedTuple

import synk  # first: with it come Theano's names, which Lasagne imports

# isort: split
import curves
import lasagne
import numpy as np
import theano
import theano.tensor as T
from lasagne import layers as L
from tqdm import tqdm

PARTS = ("train", "validation")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--units", type=positive, nargs="+", default=[128], help="of each LSTM layer")
    add("--clip", type=float, default=1.0, help="gradients at a letter")
    add("--norm", type=float, default=5.0, help="largest norm of a step's gradient")
    add("--epochs", type=positive, default=10)
    add("--batch-size", type=positive, default=32, help="rows on all ranks together")
    add("--length", type=positive, default=64, help="letters in a row")
    add("--letters", type=positive, help="use so many of the text; default: all")
    add("--rate", type=float, default=0.003, help="learning rate, Adam's")
    add("--sample", type=int, default=300, help="letters to write at the end")
    add(
        "--seed", type=int, default=0, help="of initial values, shuffles and the sample"
    )
    add("--ranks", type=positive, help="default: all usable cores")
    add("--serial", action="store_true", help="plain PyTensor, for comparison")
    jax = "JAX" if importlib.util.find_spec("jax") else None  # compiles far sooner
    add("--mode", default=jax, help="of PyTensor; default: JAX where it is installed")
    add("--plot", default="lstm.png", metavar="FILE", help="default: lstm.png")
    return parser.parse_args()


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {number}")
    return number


# -- the text ------------------------------------------------------------------------


class Text(NamedTuple):
    """Letters by their numbers in an alphabet, a piece of the text in each row."""

    alphabet: np.ndarray  # of one-letter strings
    table: np.ndarray  # (rows, length + 1), uint8
    n_train: int

    @property
    def rows(self) -> dict[str, slice]:
        """Where each part of the rows is."""
        return {
            "train": slice(self.n_train),
            "validation": slice(self.n_train, len(self.table)),
        }


def read(length: int, letters: int | None) -> Text:
    """Return Python's reference, in rows that overlap by the letter to foretell."""
    text = "\n".join(topics.topics[name] for name in sorted(topics.topics))[:letters]
    alphabet, numbers = np.unique(list(text), return_inverse=True)
    starts = np.arange(0, len(numbers) - length, length)
    if len(starts) < 10:
        raise SystemExit(f"{len(text)} letters are too few for 10 rows of {length}")
    table = numbers[starts[:, None] + np.arange(length + 1)].astype("uint8")
    return Text(alphabet, table, n_train=len(table) * 9 // 10)


# -- the network: ranks matter to the gradient alone ---------------------------------


class Graphs(NamedTuple):
    """What is computed of the rows of a table."""

    table: Any
    updates: dict
    bits: Any  # per letter, the mean over the rows
    next_letter: Any  # probabilities of what follows a row


def build(args: argparse.Namespace, n_letters: int) -> Graphs:
    lasagne.random.set_rng(np.random.RandomState(args.seed))
    table = T.matrix("table", dtype="uint8")
    before, after = table[:, :-1], table[:, 1:]
    network = build_network(args.units, n_letters, args.clip)
    p = L.get_output(network, before)
    params = L.get_all_params(network, trainable=True)

    one_hot = T.eq(after.flatten().dimshuffle(0, "x"), np.arange(n_letters))
    nats = lasagne.objectives.categorical_crossentropy(p, one_hot)
    grads = synk.grad(nats.sum(), params, op="sum")  # over the rows of all ranks
    count = synk.ops.all_reduce(after.size, op="sum")
    grads = [grad / T.cast(count, grad.dtype) for grad in grads]
    grads = lasagne.updates.total_norm_constraint(grads, args.norm)
    updates = lasagne.updates.adam(grads, params, args.rate)

    following = L.get_output(network, table).reshape((*table.shape, n_letters))[:, -1]
    return Graphs(table, updates, nats.mean() / np.log(2), following)


def build_network(
    units: list[int], n_letters: int, clip: float | bool = False
) -> L.Layer:
    layer = L.InputLayer((None, None))  # rows, letters
    layer = L.EmbeddingLayer(layer, n_letters, units[0])
    for number in units:
        layer = L.LSTMLayer(layer, number, grad_clipping=clip)
    layer = L.ReshapeLayer(layer, (-1, units[-1]))
    return L.DenseLayer(layer, n_letters, nonlinearity=lasagne.nonlinearities.softmax)


# -- training ------------------------------------------------------------------------


def compile_serial(args: argparse.Namespace, graphs: Graphs, text: Text):
    """Return functions that train on a list of batches, and that measure some rows."""
    step = theano.function([graphs.table], updates=graphs.updates, mode=args.mode)
    bits = theano.function([graphs.table], graphs.bits, mode=args.mode)

    def train(batches, progress):
        for k, rows in enumerate(batches, 1):
            step(text.table[rows])
            progress(k)

    return train, lambda rows: bits(text.table[rows])


def compile_parallel(args: argparse.Namespace, graphs: Graphs, text: Text):
    """Return the same functions, for all ranks."""
    step = synk.function([graphs.table], updates=graphs.updates, mode=args.mode)
    bits = synk.function([graphs.table], graphs.bits, mode=args.mode)
    X = synk.data(text.table)

    def train(batches, progress):
        step.run(batches, X, progress=progress)

    return train, lambda rows: bits(X, batch=rows)


def fit(args: argparse.Namespace, text: Text, train, measure) -> dict:
    """Train for some epochs, and return the history of bits per letter."""
    rng = np.random.default_rng(args.seed)
    history = defaultdict(list)
    steps = -(-text.n_train // args.batch_size)
    with tqdm(total=args.epochs * steps, unit=" steps", disable=None) as bar:
        for number in range(1, args.epochs + 1):
            batches = np.array_split(rng.permutation(text.n_train), steps)
            start = time.perf_counter()
            train(batches, progress=lambda k: bar.update())
            speed = text.n_train * args.length / (time.perf_counter() - start)
            for part in PARTS:
                bits = float(measure(text.rows[part]))
                history[f"{part} bits per letter"].append(bits)
            bar.write(f"epoch {number:3}: {report(history)}, {speed:,.0f} letters/s")
    return history


def report(history: dict) -> str:
    """Describe the last epoch: the perplexity is 2 to the power of the bits."""
    now = {part: history[f"{part} bits per letter"][-1] for part in PARTS}
    return ", ".join(
        f"{part} bits per letter {bits:.4f} perplexity {2**bits:.2f}"
        for part, bits in now.items()
    )


def write(args: argparse.Namespace, graphs: Graphs, text: Text) -> str:
    """Go on with the text after a row of the validation, letter by letter."""
    following = theano.function([graphs.table], graphs.next_letter, mode=args.mode)
    rng = np.random.default_rng(args.seed)
    written = list(text.table[text.n_train])
    for _ in range(args.sample):
        (p,) = np.asarray(following([written[-args.length :]]), "float64")
        written.append(rng.choice(len(p), p=p / p.sum()))
    return "".join(text.alphabet[written[args.length + 1 :]])


def main() -> None:
    args = parse_arguments()
    n = 1 if args.serial else synk.fork(args.ranks)
    how = "serial, plain PyTensor" if args.serial else f"{n} rank{'s' * (n > 1)}"
    text = read(args.length, args.letters)
    print(
        f"{how}: {text.table.size:,} letters of Python's reference, in"
        f" {len(text.table):,} rows; {len(text.alphabet)} different ones"
    )
    graphs = build(args, len(text.alphabet))
    compile_all = compile_serial if args.serial else compile_parallel
    history = fit(args, text, *compile_all(args, graphs, text))
    synk.close()
    curves.plot(history, f"Python's reference: {how}", args.plot)
    print(f"plot: {args.plot}")
    if args.sample:
        print("sample:", write(args, graphs, text), sep="\n")
    print(f"final: {history['validation bits per letter'][-1]:.6f} bits per letter")


if __name__ == "__main__":
    main()
