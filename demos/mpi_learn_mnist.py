"""mpi_learn's example, by its own words: a Keras model of a file, trained by a rule.

mpi_learn trains the model of a JSON file on HDF5 files that two lists name::

    mpirun -np 3 ./MPIDriver.py mnist_arch.json train_mnist.list test_mnist.list \
        --loss categorical_crossentropy --epochs 3

This program takes the same arguments, and the flags that say how a model is trained::

    python demos/mpi_learn_mnist.py mnist_arch.json train_mnist.list test_mnist.list \
        --loss categorical_crossentropy --epochs 3

Without files it makes them first, of images of digits, in a folder of their own. Keras
2.3.1 or 2.2.5 is needed (``pip install keras==2.3.1``), and `docs/keras/keras_today.py`
for what it misses in today's Python. Ranks need no ``mpirun``, and all of them train:
there is no master process.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

os.environ["KERAS_BACKEND"] = "theano"
sys.path.append(str(Path(__file__).parent.parent / "docs" / "keras"))

import keras_today  # noqa: F401
import synk  # before Keras, which finds theano then
from synk.compat import load_keras_json

import digits
import h5py
import keras
import numpy as np


def arguments() -> argparse.Namespace:
    """Return mpi_learn's arguments."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", nargs="?", help="a JSON file, of model.to_json()")
    parser.add_argument("train_data", nargs="?", help="a file with the names of others")
    parser.add_argument("val_data", nargs="?", help="the same, for validation")
    parser.add_argument("--features-name", default="features")
    parser.add_argument("--labels-name", default="labels")
    parser.add_argument("--batch", type=int, default=100, help="rows of each rank")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--loss", default="categorical_crossentropy")
    parser.add_argument("--mode", choices=["sgd", "easgd", "gem"], default="sgd")
    parser.add_argument("--optimizer", default="adam", help="of the centre: sgd, adam")
    parser.add_argument("--learning-rate", type=float, default=0.001, help="its rate")
    parser.add_argument("--worker-optimizer", default="sgd")
    parser.add_argument(
        "--worker-rate", type=float, help="by default 1 and, easgd, 0.1"
    )
    parser.add_argument("--sync-every", type=int, default=1)
    parser.add_argument("--synchronous", action="store_true")
    parser.add_argument("--elastic-force", type=float, default=0.9)
    parser.add_argument("--gem-lr", type=float, default=0.01)
    parser.add_argument("--gem-momentum", type=float, default=0.9)
    parser.add_argument("--gem-kappa", type=float, default=2.0)
    parser.add_argument(
        "--early-stopping", type=int, help="epochs without a better loss"
    )
    parser.add_argument("--ranks", type=int, help="by default one for each core")
    parser.add_argument("--seed", type=int, default=0, help="of Keras's random numbers")
    return parser.parse_args()


def write_example(folder: Path) -> tuple[Path, Path, Path]:
    """Write a model and files of digits, as mpi_learn's ``mnist_mpi.py`` does."""
    found = digits.load(bundled=True)
    images = (found.images / found.white).reshape(len(found.images), -1)
    labels = np.eye(10)[found.labels]
    lists = []
    for part, rows in found.rows.items():
        names = []
        for i, chosen in enumerate(np.array_split(np.arange(len(images))[rows], 4)):
            names.append(str(folder / f"{part}_{i}.h5"))
            with h5py.File(names[-1], "w") as file:
                file["features"], file["labels"] = images[chosen], labels[chosen]
        lists.append(folder / f"{part}_mnist.list")
        lists[-1].write_text("\n".join(names))
    model = keras.Sequential(
        [
            keras.layers.Dense(64, activation="relu", input_shape=images.shape[1:]),
            keras.layers.Dropout(0.2),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )
    (folder / "mnist_arch.json").write_text(model.to_json())
    return folder / "mnist_arch.json", *lists


def rule_of(given: argparse.Namespace) -> synk.rules.Rule:
    """Return the training rule that the flags name."""
    order = "together" if given.synchronous else "free"
    if given.mode == "easgd":
        return synk.rules.EASGD(given.sync_every, given.elastic_force, order)
    if given.mode == "gem":
        how = given.gem_lr, given.gem_momentum, given.gem_kappa
        return synk.rules.GEM(given.sync_every, *how, order)
    how = {"learning_rate": given.learning_rate, "order": order}
    return synk.rules.Downpour(given.sync_every, given.optimizer, **how)


def main() -> None:
    """Train, and print losses and accuracies."""
    given = arguments()
    np.random.seed(given.seed)  # Keras draws initial weights and dropout by it
    ranks = synk.fork(given.ranks)
    with tempfile.TemporaryDirectory() as folder:
        if given.model is None:
            files = write_example(Path(folder))
        else:
            files = given.model, given.train_data, given.val_data
        train(given, ranks, *files)


def train(
    given: argparse.Namespace, ranks: int, model_file: Path, train_list: Path, val: Path
) -> None:
    """Train the model of a file on the files of a list."""
    names = given.features_name, given.labels_name
    dtypes = [keras.backend.floatx()] * 2
    rows, held_out = (
        synk.files.arrays(Path(each).read_text().split(), names, dtypes=dtypes)
        for each in (train_list, val)
    )
    model = load_keras_json(model_file)
    rate = given.worker_rate or (0.1 if given.mode == "easgd" else 1.0)
    optimizer = keras.optimizers.get(given.worker_optimizer)
    keras.backend.set_value(optimizer.lr, rate)
    model.compile(optimizer, given.loss, metrics=["accuracy"])
    trainer = synk.Trainer(model, rule=rule_of(given))
    features, labels = held_out.take(range(len(held_out)))

    def validate() -> dict[str, float]:
        loss, accuracy = model.evaluate(features, labels, verbose=0)
        return {"loss": float(loss), "acc": float(accuracy)}

    callbacks = []
    if given.early_stopping:
        callbacks.append(
            synk.callbacks.Patience("val_loss", epochs=given.early_stopping)
        )
    history = trainer.fit(
        rows,
        batch_size=given.batch * ranks,
        epochs=given.epochs,
        validation=validate,
        callbacks=callbacks,
        progress=False,
    )
    for epoch, numbers in enumerate(history.epochs, 1):
        print(
            f"epoch {epoch}: loss {numbers['loss']:.4f},"
            f" validation {numbers['val_loss']:.4f}, accuracy {numbers['val_acc']:.4f}"
        )


if __name__ == "__main__":
    main()
