"""Two classes of points, one within the other, told apart by a Keras model."""

import os

os.environ["KERAS_BACKEND"] = "theano"

import keras_today
import synk

import numpy as np
from keras.layers import Dense, Input
from keras.models import Model, load_model
from keras.optimizers import Adam

np.random.seed(1)
points = np.random.normal(size=(400, 2))
inner = (points**2).sum(axis=1) < 1

x = Input((2,))
hidden = Dense(16, activation="tanh")(x)
model = Model(x, Dense(1, activation="sigmoid")(hidden))
model.compile(Adam(0.05), "binary_crossentropy", metrics=["accuracy"])
model.fit(points, inner, batch_size=40, epochs=20, verbose=0)

model.save("circles.h5")
loss, accuracy = load_model("circles.h5").evaluate(points, inner, verbose=0)
print("more than 9 of 10 points are told apart:", accuracy > 0.9)
