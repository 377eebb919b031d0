"""Models of Keras 3 as steps on ranks, beside ``model.fit``.

Where Keras is 2, of the Theano backend, tests/whole/test_theano_programs has them.
"""

import os
import sys
from importlib.metadata import PackageNotFoundError, version

import numpy as np
import pytest
from children import run_python

import synk

try:
    MAJOR = version("keras").partition(".")[0]
except PackageNotFoundError:
    MAJOR = ""
if MAJOR != "3":
    pytest.skip("Keras 3 is missing", allow_module_level=True)
os.environ.setdefault("KERAS_BACKEND", "torch")
pytest.importorskip(os.environ["KERAS_BACKEND"])

import keras

import synk.keras

L = keras.layers
RNG = np.random.default_rng(0)
X = RNG.normal(size=(70, 8, 8, 1)).astype("float32")
Y = RNG.integers(0, 5, 70)


def model(*more, optimizer="adamw", rate=0.01):
    keras.utils.set_random_seed(1)
    found = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            L.Conv2D(3, 3, activation="relu"),
            L.Flatten(),
            L.Dense(12, activation="tanh", kernel_regularizer="l2"),
            *(made() for made in more),
            L.Dense(5, activation="softmax", activity_regularizer="l1"),
        ]
    )
    found.compile(optimizer, "sparse_categorical_crossentropy")
    found.optimizer.learning_rate = rate
    return found


def fitted(found, epochs=1, **options):
    """Return the losses of the steps of ``model.fit``, of the last batch each."""
    losses = []

    class Steps(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs):
            losses.append(logs["loss"] * (batch + 1) - sum(self.epoch))
            self.epoch.append(losses[-1])

        def on_epoch_begin(self, epoch, logs):
            self.epoch = []

    given = {"batch_size": 32, "epochs": epochs, "shuffle": False, "verbose": 0}
    found.fit(X[:64], Y[:64], callbacks=[Steps()], **given, **options)
    return losses


BATCHES = [slice(0, 32), slice(32, 64)]


def assert_trained_alike(found, expected, ours, losses):
    np.testing.assert_allclose(ours, losses, rtol=1e-5)
    for a, b in zip(found.get_weights(), expected.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


def assert_steps_are_those_of_fit(ranks, optimizer):
    expected = model(optimizer=optimizer)
    losses = fitted(expected, epochs=4)
    found = model(optimizer=optimizer)
    step = synk.keras.step(found, [X, Y])
    with synk.session(ranks):
        ours = [float(step(X, Y, batch=batch)) for batch in BATCHES * 2]
        ours += [*step.run(BATCHES * 2, X, Y)]
        evaluated = step.loss(X, Y)
        step.pull()
    assert_trained_alike(found, expected, ours, losses)
    kept = found.optimizer.variables, expected.optimizer.variables
    for a, b in zip(*kept, strict=True):
        pair = map(keras.ops.convert_to_numpy, (a, b))
        np.testing.assert_allclose(*pair, atol=1e-5)
    theirs = found.evaluate(X, Y, verbose=0, batch_size=70)
    assert theirs == pytest.approx(evaluated, 1e-5)


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_steps_are_those_of_fit(ranks, optimizer):
    assert_steps_are_those_of_fit(ranks, optimizer)


def test_steps_on_jax_are_those_of_fit():
    pytest.importorskip("jax")
    code = "import synk; synk.keras.KerasModel"  # found without an import of its own
    code += "; import test_keras as t; [t.assert_steps_are_those_of_fit(n, 'adamw')"
    code += " for n in (1, 3)]; print(t.keras.backend.backend())"
    paths = os.pathsep.join(filter(None, map(str, sys.path)))
    done = run_python("-c", code, KERAS_BACKEND="jax", PYTHONPATH=paths)
    assert done.stdout == "jax\n"


def test_uneven_batches_are_exact_and_slices_too():
    given = [slice(0, 70), slice(1, 12), slice(5, 6)]
    losses = []
    for ranks in (1, 2, 3):
        step = synk.keras.step(model(), [X, Y])
        with synk.session(ranks):
            losses.append([float(step(X, Y, batch=b, num_slices=ranks)) for b in given])
    np.testing.assert_allclose(losses[1:], [losses[0]] * 2, rtol=1e-5)


def test_one_rank_draws_and_normalises_as_fit_does_and_others_by_their_rows():
    layers = L.BatchNormalization, lambda: L.Dropout(0.4, seed=3)
    expected = model(*layers)
    losses = fitted(expected)
    for ranks in (1, 2):
        found = model(*layers)
        step = synk.keras.step(found, [X, Y])
        with synk.session(ranks):
            ours = [float(step(X, Y, batch=batch)) for batch in BATCHES]
            step.pull()
        ends = found.non_trainable_variables[-1], expected.non_trainable_variables[-1]
        np.testing.assert_array_equal(*map(keras.ops.convert_to_numpy, ends))
        if ranks == 1:
            assert_trained_alike(found, expected, ours, losses)
        else:
            assert np.isfinite(ours).all()


def test_dropout_on_torch_is_the_same_on_any_number_of_ranks():
    losses = []
    for ranks in (1, 2, 3):
        step = synk.keras.step(model(lambda: L.Dropout(0.4)), [X, Y], seed=2)
        with synk.session(ranks):
            losses.append([float(step(X, Y)) for _ in range(2)])
    np.testing.assert_allclose(losses[1:], [losses[0]] * 2, rtol=1e-5)
    assert losses[0][0] != pytest.approx(float(step.loss.as_theano(X, Y)))


def test_files_rates_callbacks_and_rules(tmp_path):
    model().save(tmp_path / "model.keras")
    step = synk.keras.step(tmp_path / "model.keras", [X, Y], local=True)
    found = step.model.model
    plateau = keras.callbacks.ReduceLROnPlateau("loss", 0.5, 1, min_delta=100)
    stops = keras.callbacks.EarlyStopping("val_loss", patience=2, min_delta=100)
    with synk.session(2):
        trainer = synk.Trainer(step, rule=synk.rules.EASGD(every=2))
        history = trainer.fit(
            *(X, Y),
            batch_size=16,
            epochs=20,
            progress=False,
            validation=(step.loss, X, Y),
            callbacks=[synk.keras.Callbacks(step, [plateau, stops])],
        )
    assert len(history) == 3
    assert history["loss"][-1] < history["loss"][0]
    assert float(found.optimizer.learning_rate) == pytest.approx(0.01 * 0.5**2)


def test_what_cannot_be_trained_is_refused():
    found = keras.Sequential([L.Dense(2)])
    with pytest.raises(ValueError, match="compile"):
        synk.keras.step(found, [X, Y])
    found.compile("sgd", "mse")
    with pytest.raises(ValueError, match="build"):
        synk.keras.step(found, [X, Y])
