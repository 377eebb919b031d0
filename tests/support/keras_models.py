"""Keras models that train and predict; prints their losses and predictions as JSON.

It runs on Keras 2.3.1 or 2.2.5 with the Theano backend, which is synk's, or Theano
1.0.5 itself::

    python -m synk tests/support/keras_models.py mlp cnn lstm stateful functional
    python3.8 tests/support/keras_models.py mlp cnn lstm stateful functional

Weights and data are drawn from NumPy's RandomState, whose numbers are the same in all
versions, and stay out of Keras's own draws. Defaults that 2.2.5 and 2.3.1 do not share
are written out.
"""

import contextlib
import json
import os
import sys
import time

os.environ.setdefault("KERAS_BACKEND", "theano")
os.environ.setdefault("THEANO_FLAGS", "floatX=float64,mode=FAST_COMPILE")

with contextlib.suppress(ImportError):  # on the path where Python is of today
    import keras_today  # noqa: F401

import keras
import numpy as np
from keras import backend as K
from keras import layers as L
from keras.models import Model, Sequential

K.set_floatx("float64")


def weigh(model, seed):
    """Give a model weights that do not depend on how Keras draws them."""
    random = np.random.RandomState(seed)
    for layer in model.layers:
        values = [0.5 * random.normal(size=w.shape) for w in layer.get_weights()]
        for place, variable in enumerate(layer.weights):
            if "moving_variance" in variable.name:
                values[place] = 0.5 + abs(values[place])
        layer.set_weights(values)
    return model


def labelled(seed, *shape, classes=3):
    """Return random inputs, and labels as rows of zeros and a one."""
    random = np.random.RandomState(seed)
    labels = random.randint(0, classes, shape[0])
    return random.normal(size=shape), np.eye(classes)[labels]


def train(model, x, y, **options):
    """Return the losses of two epochs, and what is predicted and evaluated then."""
    done = model.fit(x, y, epochs=2, batch_size=8, shuffle=False, verbose=0, **options)
    found = [float(v) for name in sorted(done.history) for v in done.history[name]]
    found += [float(v) for v in np.ravel(model.evaluate(x, y, verbose=0))]
    predicted = model.predict(x)
    for one in predicted if isinstance(predicted, list) else [predicted]:
        found += [float(v) for v in one.ravel()[:6]]
    return found


def mlp():
    """Two dense layers, with momentum."""
    model = Sequential(
        [
            L.Dense(5, activation="relu", input_shape=(4,)),
            L.Dense(3, activation="softmax"),
        ]
    )
    rule = keras.optimizers.SGD(0.1, momentum=0.9)
    model.compile(rule, "categorical_crossentropy", metrics=["accuracy"])
    return train(weigh(model, 1), *labelled(1, 20, 4))


def cnn():
    """Convolutions, batch normalisation, pooling; Adam."""
    model = Sequential(
        [
            L.Conv2D(4, 3, padding="same", use_bias=False, input_shape=(6, 5, 2)),
            L.BatchNormalization(),
            L.Activation("relu"),
            L.MaxPooling2D(),
            L.Conv2D(3, 2, strides=2, kernel_regularizer=keras.regularizers.l2(0.01)),
            L.GlobalAveragePooling2D(),
            L.Dense(3, activation="softmax"),
        ]
    )
    model.compile(keras.optimizers.Adam(0.01), "categorical_crossentropy")
    x, y = labelled(2, 20, 6, 5, 2)
    return train(weigh(model, 2), x, y, validation_split=0.25)


def lstm():
    """A masked LSTM of sequences of different lengths."""
    model = Sequential(
        [
            L.Masking(input_shape=(6, 2)),
            L.LSTM(3, recurrent_activation="sigmoid"),
            L.Dense(3, activation="softmax"),
        ]
    )
    model.compile(keras.optimizers.RMSprop(0.01), "categorical_crossentropy")
    x, y = labelled(3, 10, 6, 2)
    for row, length in enumerate(np.random.RandomState(0).randint(2, 7, len(x))):
        x[row, length:] = 0
    return train(weigh(model, 3), x, y)


def stateful():
    """An LSTM that goes on where the last batch has ended."""
    model = Sequential(
        [
            L.LSTM(
                3,
                recurrent_activation="sigmoid",
                stateful=True,
                batch_input_shape=(4, 2, 2),
            ),
            L.Dense(1),
        ]
    )
    model.compile(keras.optimizers.SGD(0.05), "mse")
    weigh(model, 4)
    random = np.random.RandomState(4)
    x, y = random.normal(size=(4, 6, 2)), random.normal(size=(4, 1))
    found = []
    for _ in range(2):
        for start in 0, 2, 4:
            found.append(model.train_on_batch(x[:, start : start + 2], y))
        model.reset_states()
    for start in 0, 2:
        found += list(model.predict_on_batch(x[:, start : start + 2]).ravel())
    return [float(v) for v in found]


def functional():
    """Words and numbers as inputs, a layer used twice, two losses."""
    words, numbers = L.Input((5,), dtype="int32"), L.Input((3,))
    embedded = L.Embedding(7, 3, mask_zero=True)(words)
    read = L.SimpleRNN(3)(embedded)
    shared = L.Dense(3, activation="tanh")
    both = L.concatenate([shared(read), shared(numbers)])
    summed = L.add([shared(numbers), L.Lambda(lambda v: v**2)(read)])
    first = L.Dense(3, activation="softmax", name="kind")(both)
    second = L.Dense(1, name="amount")(L.multiply([summed, numbers]))
    model = Model([words, numbers], [first, second])
    model.compile(
        keras.optimizers.Adagrad(0.05),
        {"kind": "categorical_crossentropy", "amount": "mae"},
        loss_weights={"kind": 1.0, "amount": 0.5},
    )
    random = np.random.RandomState(5)
    texts = random.randint(0, 7, (16, 5))
    texts[:, 0] = 1 + texts[:, 0] % 6  # no text is masked whole
    x, y = labelled(5, 16, 3)
    return train(
        weigh(model, 5), [texts, x], {"kind": y, "amount": x.sum(1, keepdims=True)}
    )


# -- by synk's own words, on ranks


def small(*more):
    """Return a model with weights of its own, and rows for it."""
    model = Sequential([L.Dense(8, activation="tanh", input_shape=(5,)), *more])
    model.add(L.Dense(3, activation="softmax"))
    draw = np.random.RandomState(1)
    model.set_weights([draw.uniform(0.1, 0.5, w.shape) for w in model.get_weights()])
    model.compile(keras.optimizers.Adam(0.01), "categorical_crossentropy")
    return model, *labelled(0, 46, 5)


def exact():
    """Return losses and weights of the serial model, and of one by ranks."""
    import synk

    found = []
    for by_ranks in False, True:
        model, x, y = small(L.BatchNormalization())
        if by_ranks:
            trainer = synk.Trainer(model, shuffle=False)
            with synk.session(2):
                how = {"batch_size": 23, "epochs": 3, "progress": False}
                losses = trainer.fit(x, y, **how).losses
        else:
            parts = [slice(0, 23), slice(23, 46)] * 3
            losses = [model.train_on_batch(x[rows], y[rows]) for rows in parts]
        weights = np.concatenate([w.ravel() for w in model.get_weights()])
        found.append([*map(float, losses), *map(float, weights)])
    return found


def by_a_rule():
    """Return losses before and after training by a rule, with Keras's dropout."""
    import synk

    model, x, _ = small(L.Dropout(0.1))
    y = np.eye(3)[(x[:, 0] > 0).astype(int) + (x[:, 1] > 0)]
    before = model.evaluate(x, y, verbose=0)
    with synk.session(2):
        trainer = synk.Trainer(model, rule=synk.rules.EASGD(2))
        trainer.fit(x, y, batch_size=8, epochs=20, progress=False)
    return [float(before), float(model.evaluate(x, y, verbose=0))]


def of_json():
    """Return what two models predict, of which one was read from files."""
    from synk.compat import load_keras_json

    model, x, _ = small()
    with open("model.json", "w") as file:
        file.write(model.to_json())
    model.save_weights("weights.h5")
    read = load_keras_json("model.json", "weights.h5")
    return [model.predict(x).tolist(), read.predict(x).tolist()]


# -- the time of an epoch, in single precision, in batches of 256


def epochs(model, *shape):
    """Return the median of four epochs' seconds, after one that compiles, and losses.

    Beside it, on ranks: ``python -m synk --parallel --every --ranks=2 FILE fit_cnn``,
    both with ``THEANO_FLAGS=floatX=float32``, in the default mode.
    """
    x, y = labelled(0, *shape, classes=10)
    model.compile("sgd", "categorical_crossentropy")
    seconds, losses = [], []
    for _ in range(5):
        start = time.perf_counter()
        told = model.fit(x, y, batch_size=256, shuffle=False, verbose=0)
        seconds.append(time.perf_counter() - start)
        losses += map(float, told.history["loss"])
    return [float(np.median(seconds[1:])), *losses]


def in_single_precision():
    """Have models and draws be those of single precision, with dropout's seeds."""
    K.set_floatx("float32")
    sys.modules["theano"].config.floatX = "float32"
    np.random.seed(0)


def fit_mlp():
    """5,120 rows by 784-512-512-10, with dropout."""
    in_single_precision()
    hidden = [[L.Dense(512, activation="relu"), L.Dropout(0.2)] for _ in range(2)]
    layers = [L.InputLayer((784,)), *hidden[0], *hidden[1]]
    return epochs(Sequential([*layers, L.Dense(10, activation="softmax")]), 5120, 784)


def fit_cnn():
    """2,560 images of 28 by 28 pixels, with batch normalisation and dropout."""
    in_single_precision()
    layers = [L.InputLayer((28, 28, 1))]
    for _ in range(2):
        layers += [L.Conv2D(32, 3, activation="relu"), L.MaxPooling2D()]
    layers += [L.Flatten(), L.BatchNormalization(), L.Dense(64, activation="relu")]
    layers += [L.Dropout(0.25), L.Dense(10, activation="softmax")]
    return epochs(Sequential(layers), 2560, 28, 28, 1)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        print(json.dumps([name, globals()[name]()]), flush=True)
