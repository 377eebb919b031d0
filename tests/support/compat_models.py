"""Model classes as Theano-MPI's rules took them, small, and their training in numpy.

What happens to a model on each rank it writes to a file at its `cleanup`.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pytensor
import pytensor.tensor as pt

ROWS = 6  # of a sub-batch
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(144, 3))
Y = X @ [1.0, -2.0, 0.5] + 0.3
RATE, MU = 0.05, 0.9


def rows_of(number):
    return slice(ROWS * number, ROWS * (number + 1))


def platform():
    """Return where functions compute that are made without a mode."""
    if pytensor.config.mode != "JAX":
        return "cpu"
    return sys.modules["jax"].default_backend()


class Data:
    """Batches, which the workers of a rule divide."""

    def __init__(self, rank, size, n_batches):
        self.mine = range(rank, n_batches, size)
        self.n_batch_train, self.n_batch_val = len(self.mine), 2


class Regression:
    """Linear regression by momentum; its parameters have the names of batch norm's."""

    n_epochs, n_subb, n_batches, rate = 2, 1, 6, RATE
    name = "regression"

    def __init__(self, config):
        self.config, self.epoch, self.log = config, 0, []
        self.data = Data(config["rank"], config["size"], self.n_batches)
        self.params = [
            pytensor.shared(np.zeros(3), "gamma"),
            pytensor.shared(np.float64(0.0), "beta"),
        ]
        self.shared_lr = pytensor.shared(np.float32(self.rate))
        self._at = 0

    def compile_iter_fns(self, sync_type="cdd"):
        x, y = pt.matrix("x"), pt.vector("y")
        w, b = self.params
        cost = ((x @ w + b - y) ** 2).mean()
        rate, updates = pt.cast(self.shared_lr, "float64"), []
        grads = pytensor.grad(cost, self.params)
        for param, grad in zip(self.params, grads, strict=True):
            v = pytensor.shared(np.zeros(param.get_value().shape))
            new = MU * v + grad
            updates += [(v, new), (param, param - rate * new)]
        self.train_fn = pytensor.function([x, y], cost, updates=updates)
        self.val_fn = pytensor.function([x, y], cost)
        self.of_step = [x, y], cost, updates
        self.log.append(["compile", sync_type])

    def train_iter(self, count, recorder):
        recorder.start()
        batch, part = divmod(self._at, self.n_subb)
        self._at += 1
        number = self.data.mine[batch] * self.n_subb + part
        recorder.end("wait")
        recorder.start()
        cost = self.train_fn(X[rows_of(number)], Y[rows_of(number)])
        recorder.train_error(count, cost, cost / 2)
        recorder.end("calc")
        self.log.append(["train", self.epoch, number, count])

    def val_iter(self, count, recorder):
        cost = self.val_fn(X, Y)
        recorder.val_error(count, cost, cost / 2, cost / 4)
        self.log.append(["val", self.epoch])

    def reset_iter(self, mode):
        if mode == "train":
            self._at = 0
        self.log.append(["reset", mode])

    def adjust_hyperp(self, epoch):
        self.log.append(["adjust", epoch])

    def cleanup(self):
        self.log.append(["cleanup"])
        told = {"log": self.log, "lr": float(self.shared_lr.get_value())}
        told |= {"config": self.config, "platform": platform()}
        Path(f"worker{self.config['worker']}.json").write_text(json.dumps(told))


InParts = type("InParts", (Regression,), {"n_subb": 2})
Long = type("Long", (Regression,), {"n_epochs": 30, "n_batches": 12})


# -- what a class may have besides


class WithAll(Regression):
    def print_info(self, recorder, verbose):
        self.log.append(["print_info", len(recorder.val_info), verbose])

    def save(self, path):
        Path(path).write_text("mine")

    def adjust_hyperp(self, epoch):
        super().adjust_hyperp(epoch)
        self.log.append(["current_info", self.current_info])
        self.shared_lr.set_value(np.float32(self.rate / 10))


class NoArgument(Regression):
    def compile_iter_fns(self):
        super().compile_iter_fns("nothing")


class AnyName(Regression):
    def compile_iter_fns(self, how, /):
        super().compile_iter_fns(how)


class AnyKeywords(Regression):
    def compile_iter_fns(self, *args, **kwargs):
        super().compile_iter_fns(*args, **kwargs)


class Stops(Long):
    """Wants to stop after the third epoch: whoever validates last, as it happens."""

    def val_iter(self, count, recorder):
        super().val_iter(count, recorder)
        last = self.config["worker"] == self.config["size"] - 1
        return "stop" if last and self.epoch == 2 else None


class Skips(Regression):
    """Goes from the first batch of validation to behind the last."""

    def val_iter(self, count, recorder):
        super().val_iter(count, recorder)
        return self.data.n_batch_val


class Draws(Regression):
    n_epochs = 20

    def train_iter(self, count, recorder):
        super().train_iter(count, recorder)
        self.log.append(["draw", float(np.random.random())])


# -- what is wrong


NoReset = type("NoReset", (Regression,), {"reset_iter": None})
NoEpochs = type("NoEpochs", (Regression,), {"n_subb": 0})
NoData = type("NoData", (Regression,), {"n_batches": 0})


class NoRate(Regression):
    def __init__(self, config):
        super().__init__(config)
        del self.shared_lr, self.data.n_batch_val


class NoParams(Regression):
    def __init__(self, config):
        super().__init__(config)
        self.params = [self.params[0].get_value()]


class OtherSize(Regression):
    def __init__(self, config):
        super().__init__(config)
        self.n_epochs += config["worker"]


class GivesCosts(Regression):
    """Would validate its first batch for ever, if that were an index."""

    def val_iter(self, count, recorder):
        return self.val_fn(X, Y) / 100


class TwoSteps(Regression):
    """As the helper of Theano-MPI made it: a step leaves its sum to the exchanger."""

    def compile_iter_fns(self, sync_type="cdd"):
        super().compile_iter_fns(sync_type)
        inputs, cost, updates = self.of_step
        self.vels = [v for v, _ in updates[::2]]
        self.train_fn = pytensor.function(inputs, cost, updates=updates[::2])


class Fails(Long):
    def train_iter(self, count, recorder):
        super().train_iter(count, recorder)
        if self.config["worker"] == 1 and self.epoch >= 1:
            self.end()

    def end(self):
        raise ArithmeticError("of one worker")


class Dies(Fails):
    def end(self):
        os.kill(os.getpid(), signal.SIGKILL)


class Endless(Regression):
    n_epochs = 1_000_000

    def train_iter(self, count, recorder):
        super().train_iter(count, recorder)
        if self.epoch == 1 and self.config["worker"] == 0:
            print("it trains", flush=True)
        time.sleep(0.001)


# -- training, and what it comes to

START = np.zeros(4)


def train(rule, model, n=2, **settings):
    rule = rule()
    rule.verbose = False
    for name, value in settings.items():
        setattr(rule, name, value)
    rule.init(["cpu"] * n, __name__, model.__name__)
    rule.wait()
    return rule


def vector(rule):
    return np.concatenate([np.ravel(var.get_value()) for var in rule.model.params])


def told(worker):
    """Return what a model has written on a rank."""
    return json.loads(Path(f"worker{worker}.json").read_text())


def logged(worker, what):
    return [entry[1:] for entry in told(worker)["log"] if entry[0] == what]


def cost_of(theta, rows=slice(None)):
    return np.mean((X[rows] @ theta[:3] + theta[3] - Y[rows]) ** 2)


def gradient(theta, rows):
    x = X[rows]
    inside = 2 * (x @ theta[:3] + theta[3] - Y[rows]) / len(x)
    return np.append(x.T @ inside, inside.sum())


class Momentum:
    """The model's own step."""

    def __init__(self):
        self.v = np.zeros(4)

    def __call__(self, theta, grad):
        self.v = MU * self.v + grad
        return theta - np.float64(np.float32(RATE)) * self.v


def serial(n, parts=1, epochs=2, batches=6):
    """Return parameters after each epoch: a step has the mean gradient of n batches."""
    step, theta, found = Momentum(), START, []
    for _ in range(epochs):
        for first in range(0, batches, n):
            together = range(first, min(first + n, batches))
            for part in range(parts):
                numbers = [batch * parts + part for batch in together]
                grads = [gradient(theta, rows_of(k)) for k in numbers]
                theta = step(theta, np.mean(grads, axis=0))
        found.append(theta)
    return found
