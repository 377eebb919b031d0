"""Keras models by synk's own words, on ranks: `synk.Trainer`, rules, files of JSON."""

import json
import os
import sys

os.environ["KERAS_BACKEND"] = "theano"
os.environ.setdefault("THEANO_FLAGS", "floatX=float64,mode=FAST_COMPILE")

import keras_today  # noqa: F401
import synk  # before Keras, which finds theano then
from synk.compat import load_keras_json

import keras
import numpy as np
from keras import layers as L

keras.backend.set_floatx("float64")
rng = np.random.RandomState(0)
x = rng.normal(size=(46, 5))
y = np.eye(3)[(x[:, 0] > 0).astype(int) + (x[:, 1] > 0)]


def model_of(*more):
    model = keras.Sequential([L.Dense(8, activation="tanh", input_shape=(5,)), *more])
    model.add(L.Dense(3, activation="softmax"))
    draw = np.random.RandomState(1)
    model.set_weights([draw.uniform(0.1, 0.5, w.shape) for w in model.get_weights()])
    model.compile(keras.optimizers.Adam(0.01), "categorical_crossentropy")
    return model


def exact():
    """Return losses and weights of the serial model, and of one by ranks."""
    found = []
    for by_ranks in False, True:
        model = model_of(L.BatchNormalization())
        if by_ranks:
            trainer = synk.Trainer(model, shuffle=False)
            how = {"batch_size": 16, "epochs": 3, "progress": False}
            losses = trainer.fit(x, y, **how).losses
        else:
            parts = [slice(i, i + 16) for i in (0, 16, 32)] * 3
            losses = [model.train_on_batch(x[rows], y[rows]) for rows in parts]
        weights = np.concatenate([w.ravel() for w in model.get_weights()])
        found.append([*map(float, losses), *map(float, weights)])
    return found


def by_rules():
    """Return the loss before and after training by rules, with Keras's dropout."""
    found = []
    for rule in synk.rules.EASGD(2), synk.rules.Downpour(1, learning_rate=0.5):
        model = model_of(L.Dropout(0.1))
        before = model.evaluate(x, y, verbose=0)
        trainer = synk.Trainer(model, rule=rule)
        trainer.fit(x, y, batch_size=8, epochs=20, progress=False)
        found.append([float(before), float(model.evaluate(x, y, verbose=0))])
    return found


def of_json(folder):
    """Return what two models predict, of which one was read from files."""
    model = model_of()
    with open(f"{folder}/model.json", "w") as file:
        file.write(model.to_json())
    model.save_weights(f"{folder}/weights.h5")
    read = load_keras_json(f"{folder}/model.json", f"{folder}/weights.h5")
    return [model.predict(x).tolist(), read.predict(x).tolist()]


if __name__ == "__main__":
    synk.fork(3)
    print(json.dumps([exact(), by_rules(), of_json(sys.argv[1])]))
