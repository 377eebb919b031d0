"""Models that are no graphs, in NumPy: steps on ranks beside the same loop."""

import copy

import numpy as np
import pytest

import synk

RNG = np.random.default_rng(5)
X = RNG.normal(size=(23, 3))
Y = X @ [1.0, -2.0, 0.5] + 3
BATCHES = [slice(0, 8), slice(8, 16), slice(16, 23), slice(3, 4)]
"""The last ones are no multiples of ranks, and fewer than some."""


class Linear(synk.train.Model):
    """Least squares by momentum; its buffers are a running mean, and a count."""

    def __init__(self, dtype="float64"):
        self.parameters = [np.zeros(3, dtype), np.zeros((), dtype)]
        self.kept = [np.zeros(3, dtype), np.zeros((), dtype), np.zeros((), "int64")]
        self.buffers = [np.zeros(3), np.zeros((), "int64")]
        self.settings = [0.1, 0.9]

    def gradient(self, x, y):
        w, b = self.parameters
        mean, calls = self.buffers
        mean += 0.1 * (x.mean(axis=0) - mean)
        calls += 1
        wrong = x @ w + b - y
        return wrong @ wrong, [2 * wrong @ x, 2 * wrong.sum()], len(y)

    def update(self, gradient):
        rate, momentum = self.settings
        *velocities, steps = self.kept
        steps += 1
        for of in zip(self.parameters, velocities, gradient, strict=True):
            parameter, velocity, slope = of
            velocity *= momentum
            velocity -= rate * slope
            parameter += velocity


def by_itself(model, batches, rates=()):
    """Train by the model's own methods; return the losses."""
    losses = []
    for batch, rate in zip(batches, rates or [0.1] * len(batches), strict=True):
        model.settings = [rate, 0.9]
        loss, gradient, n = model.gradient(X[batch], Y[batch])
        model.update([np.asarray(each) / n for each in gradient])
        losses.append(loss / n)
    return losses


def assert_alike(found, expected):
    for name in ("parameters", "kept", "buffers"):
        pairs = zip(getattr(found, name), getattr(expected, name), strict=True)
        for ours, theirs in pairs:
            assert ours.dtype == theirs.dtype
            np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-12)


def test_steps_of_any_batches_are_those_of_the_model_by_itself(ranks):
    expected, rates = Linear(), [0.1, 0.05, 0.02, 0.01]
    losses = by_itself(expected, BATCHES, rates)
    step = synk.train.step(Linear(), [X, Y])
    found = []
    for batch, rate in zip(BATCHES, rates, strict=True):
        step.model.settings = [rate, 0.9]
        found.append(float(step(X, Y, batch=batch, check="serial")))
    np.testing.assert_allclose(found, losses, rtol=1e-12)
    assert_alike(step.pull(), expected)
    w, b = expected.parameters
    for _ in range(2):  # it makes no step
        assert step.loss(X, Y) == pytest.approx(np.mean((X @ w + b - Y) ** 2), 1e-12)


def test_a_run_and_slices_make_the_same_steps(ranks):
    expected = Linear()
    losses = by_itself(expected, BATCHES)
    step = synk.train.step(Linear(), [X, Y], name="linear")
    np.testing.assert_allclose(step.run(BATCHES, X, Y), losses, rtol=1e-12)
    assert_alike(step.pull(), expected)
    sliced = synk.train.step(Linear(), [X, Y])
    found = [float(sliced(X, Y, batch=batch, num_slices=3)) for batch in BATCHES]
    np.testing.assert_allclose(found, losses, rtol=1e-12)
    for ours, theirs in zip(sliced.pull().parameters, expected.parameters, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-12)


def test_the_script_sets_values_and_files_hold_them(two_ranks, tmp_path):
    step = synk.train.step(Linear("float32"), [X, Y])
    first = float(step(X, Y))
    saved = step.pull().parameters[1].copy()
    synk.save(tmp_path / "a.npz", step.updated)
    step(X, Y)
    synk.load(tmp_path / "a.npz", step.updated)
    assert step.pull().parameters[1] == saved
    step.model.parameters = [np.zeros(3, "float32"), np.zeros((), "float32")]
    step.push()
    assert float(step(X, Y)) == pytest.approx(first)


class Fails(Linear):
    def gradient(self, x, y):
        if synk.rank() == 1 and self.settings[0] < 0:
            raise ArithmeticError("of the model")
        return super().gradient(x, y)


def test_a_class_of_the_script_stays_as_the_script_has_it(two_ranks):
    class Mine(Linear):
        rate = 0.1

        def update(self, gradient):
            self.settings = [self.rate, 0.9]
            super().update(gradient)

    expected = Mine()
    (loss,) = by_itself(expected, BATCHES[:1])
    step = synk.train.step(Mine(), [X, Y])
    Mine.rate = 0.5
    before = dict(vars(Mine))
    np.testing.assert_allclose(step(X, Y, batch=BATCHES[0]), loss)
    assert_alike(step.pull(), expected)  # copies are as they were when it was made
    assert dict(vars(Mine)) == before


def test_an_error_of_a_model_is_the_scripts_and_nothing_has_changed(two_ranks):
    step = synk.train.step(Fails(), [X, Y])
    step(X, Y)
    before = copy.deepcopy(step.pull())
    step.model.settings = [-1.0, 0.9]
    with pytest.raises(ArithmeticError, match="of the model"):
        step(X, Y)
    assert_alike(step.pull(), before)
    step.model.settings = [0.1, 0.9]
    expected = Linear()
    losses = by_itself(expected, [slice(None)] * 2)
    assert float(step(X, Y)) == pytest.approx(losses[1])
    assert_alike(step.pull(), expected)


class Noisy(Linear):
    """Its loss is that of random numbers, one or two for each row."""

    def gradient(self, x, y):
        noise = self.draw.uniform((len(x), 3)) + self.draw.uniform((2 * len(x), 1))[::2]
        other = self.draw.uniform((len(x), 17))[:, 16]
        assert noise.dtype == np.float32
        zeros = [np.zeros(3), np.zeros(())]
        return float((noise @ [1.0, 2.0, 4.0] + other) @ x[:, 0]), zeros, len(x)


def test_random_numbers_belong_to_rows_and_to_steps():
    losses = []
    for ranks in (1, 2, 3):
        with synk.session(ranks):
            step = synk.train.step(Noisy(), [X, Y], seed=3)
            runs = [slice(0, 23), slice(0, 23), slice(3, 20)]
            losses.append([float(step(X, Y, batch=b, num_slices=2)) for b in runs])
    np.testing.assert_allclose(losses[1:], [losses[0]] * 2, rtol=1e-6)
    assert len(set(losses[0])) == 3
    numbers = np.arange(4000)
    drawn = synk.train.Draw(0, 0, numbers).uniform((4000, 5))
    assert 0 <= drawn.min() < 0.01 < 0.99 < drawn.max() < 1
    np.testing.assert_allclose(drawn.mean(axis=0), 0.5, atol=0.03)
    np.testing.assert_allclose(np.corrcoef(drawn.T), np.eye(5), atol=0.08)
    some = synk.train.Draw(0, 0, numbers[7:10]).uniform((3, 5))
    np.testing.assert_array_equal(some, drawn[7:10])
    for other in (synk.train.Draw(1, 0, numbers), synk.train.Draw(0, 1, numbers)):
        assert abs(np.corrcoef(other.uniform((4000, 5))[:, 0], drawn[:, 0])[0, 1]) < 0.1


def test_rules_train_a_model_whose_ranks_make_steps_by_themselves(two_ranks):
    step = synk.train.step(Linear(), [X, Y], local=True)
    step.model.settings = [0.02, 0.5]
    trainer = synk.Trainer(step, rule=synk.rules.LocalSGD(every=2))
    trainer.fit(X, Y, batch_size=8, epochs=60, progress=False)
    assert step.loss(X, Y) < 1e-3
    w, b = step.pull().parameters
    np.testing.assert_allclose([*w, b], [1, -2, 0.5, 3], atol=0.05)


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ([], "got none"),
        ([np.zeros(2, "int64")], "got int64"),
        ([np.zeros(2), np.zeros(2, "float32")], "got float32 and float64"),
    ],
)
def test_parameters_are_of_one_float_dtype(parameters, words):
    model = Linear()
    model.parameters = parameters
    with pytest.raises(TypeError, match=words):
        synk.train.step(model, [X, Y])
    with pytest.raises(ValueError, match="inputs"):
        synk.train.step(Linear(), [])
