"""Loss scales: which steps are made, the scale after each; and nothing is rounded."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from children import in_a_child
from reference import PY
from world_sizes import one_and_three_ranks

import synk
from synk.train.loss_scaling import finite

FEATURES = np.random.default_rng(0).normal(size=(11, 3))


def problem(scale=None, dtype="float64", rule=synk.updates.momentum, **options):
    """Return a training step on rows of x, and what it moves."""
    x = pt.matrix("x", dtype=dtype)
    w = pytensor.shared(np.array([0.5, -1, 2], dtype), "w")
    b = pytensor.shared(np.array(0.25, dtype), "b")
    loss = pt.tanh((x @ w + b) ** 2).mean()
    params = [w, b]
    if scale is None:
        updates = rule(synk.grad(loss, params), params, 0.1)
    else:
        grads = scale.unscaled(synk.grad(scale.scaled(loss), params))
        updates = scale.guarded(rule(grads, params, 0.1), grads)
    options = {"mode": PY, **options}
    return synk.function([x], loss, updates=updates, **options)


def state(train) -> list[list[np.ndarray]]:
    """Return the values of all that a step changes, for each rank."""
    return [synk.get_value(rank, train.updated) for rank in range(synk.size())]


def of_scale(scale) -> tuple[float, int]:
    return float(scale.value.get_value()), int(scale.good_steps.get_value())


def assert_equal(first, second) -> None:
    for one, other in zip(first, second, strict=True):
        np.testing.assert_array_equal(one, other)


@one_and_three_ranks
def test_a_step_that_overflows_on_one_rank_is_made_on_none(ranks):
    for row in (0, 10):
        for bad in (np.inf, np.nan):
            check_overflow(ranks, bad, row)


def check_overflow(ranks, bad, row):
    scale = synk.LossScale(8.0, interval=3)
    train = problem(scale)
    train(FEATURES)
    before = state(train)
    assert of_scale(scale) == (8, 1)
    features = FEATURES.copy()
    features[row, 1] = bad
    train(features)
    after = state(train)
    for old, new in zip(before, after, strict=True):
        assert_equal(old[:-2], new[:-2])
        assert [float(value) for value in new[-2:]] == [4, 0]
    assert of_scale(scale) == (4, 0)
    train(FEATURES)
    for rank in range(ranks):
        assert_equal(state(train)[rank], state(train)[0])
    assert not np.array_equal(state(train)[0][0], after[0][0])


def test_it_doubles_after_so_many_good_steps_and_keeps_its_bounds(two_ranks):
    scale = synk.LossScale(2.0, interval=2, smallest=0.5, largest=4.0)
    train = problem(scale)
    found = []
    for rows in (*[FEATURES] * 5, *[FEATURES * np.inf] * 5, FEATURES):
        train(rows)
        found.append(of_scale(scale))
    doubled = [(2, 1), (4, 0), (4, 1), (4, 0), (4, 1)]
    halved = [(2, 0), (1, 0), (0.5, 0), (0.5, 0), (0.5, 0)]
    assert found == [*doubled, *halved, (0.5, 1)]


@one_and_three_ranks
def test_it_rounds_nothing(ranks):
    """Steps have the bits of those without, in slices as well."""
    for dtype in ("float32", "float64"):
        scaled = problem(synk.LossScale(2.0**11, interval=2), dtype)
        plain = problem(None, dtype)
        features = FEATURES.astype(dtype)
        for num_slices in (1, 3):
            for _ in range(4):
                losses = [f(features, num_slices=num_slices) for f in (scaled, plain)]
                assert losses[0] == losses[1]
            for mine, other in zip(state(scaled), state(plain), strict=True):
                assert_equal(mine[:-2], other)


def test_lasagnes_rules_and_streams_can_be_guarded(two_ranks):
    import lasagne

    scale = synk.LossScale(16.0)
    rng = pytensor.shared(np.random.default_rng(1), "rng")
    after, drawn = pt.random.uniform(size=(2,), rng=rng).owner.outputs
    x = pt.matrix("x")
    w = pytensor.shared(np.ones(3), "w")
    loss = (x @ w).mean()
    grads = scale.unscaled(synk.grad(scale.scaled(loss), [w]))
    updates = lasagne.updates.adam(grads, [w], 0.1)
    updates[rng] = after
    train = synk.function(
        [x], (drawn, None), updates=scale.guarded(updates, grads), mode=PY
    )
    first, second = train(FEATURES * np.nan), train(FEATURES)
    assert (first != second).all()
    assert of_scale(scale) == (8, 1)
    # The first step of Adam that is made: its counter has not moved before.
    moved = FEATURES.mean(axis=0)
    np.testing.assert_allclose(w.get_value(), 1 - 0.1 * np.sign(moved), rtol=1e-6)


def test_a_single_gradient_need_not_be_in_a_list():
    scale = synk.LossScale(4.0)
    w = pytensor.shared(1.0, "w")
    gradient = scale.unscaled(pytensor.grad(scale.scaled(w**2), w))
    updates = scale.guarded([(w, w - gradient)], gradient)
    pytensor.function([], updates=updates, mode=PY)()
    assert float(w.get_value()) == -1
    assert of_scale(scale) == (4, 1)


def test_numbas_compiled_code_sees_what_is_not_finite():
    x, y = pt.fvector("x"), pt.dscalar("y")
    f = pytensor.function([x, y], finite([x, y]), mode="NUMBA")
    zeros = np.zeros(3, "float32")
    assert f(zeros, 1e300)
    for bad in (np.inf, -np.inf, np.nan):
        assert not f(zeros, bad)
        assert not f(np.array([0, bad, 0], "float32"), 0.0)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"initial": 1000.0}, "initial must be a power of two, got 1000.0"),
        ({"initial": 0.0}, "initial must be a power of two"),
        ({"initial": -2.0}, "initial must be a power of two"),
        ({"largest": np.inf}, "largest must be a power of two"),
        ({"initial": 1.0, "smallest": 2.0}, "must be in this order"),
        ({"initial": 2.0**30}, "must be in this order"),
        ({"interval": 0}, "interval must be at least 1, got 0"),
    ],
)
def test_numbers_that_make_no_sense_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        synk.LossScale(**options)


def test_a_checkpoint_continues_it(two_ranks, checkpoint):
    scale = synk.LossScale(8.0, interval=3)
    train = problem(scale)
    for rows in (FEATURES * np.inf, FEATURES, FEATURES):
        train(rows)
    synk.save(checkpoint, train.updated)
    train(FEATURES)
    assert of_scale(scale) == (8, 0)
    right = state(train)
    synk.load(checkpoint, train.updated)
    assert of_scale(scale) == (4, 2)
    train(FEATURES)
    for mine, other in zip(state(train), right, strict=True):
        assert_equal(mine, other)


@in_a_child
def test_gradients_that_float16_cannot_hold_are_there_with_a_scale():
    """One that would be 0, and one that is infinite until the scale fits."""
    x = pt.fmatrix("x")
    small = np.float32(2.0**-30)

    def step(scale, rows, factor):
        w = pytensor.shared(np.ones((4, 2), "float32"), "w")
        loss = ((x @ w) * factor).sum(axis=1).mean()
        grads = scale.unscaled(synk.grad(scale.scaled(loss), [w]))
        updates = scale.guarded(synk.updates.sgd(grads, [w], 1.0), grads)
        f = synk.function(
            [x], (grads[0], None), updates=updates, mode="JAX", precision="float16"
        )
        return f, w

    rows = np.full((4, 4), 3, "float32")
    right = np.full((4, 2), 3 * small)
    with synk.session(2):
        f, _ = step(synk.LossScale(1.0), rows, small)
        assert (f(rows) == 0).all()
        f, _ = step(synk.LossScale(2.0**20), rows, small)
        np.testing.assert_array_equal(f(rows), right)
        scale = synk.LossScale(2.0**17)
        f, w = step(scale, rows, np.float32(1))
        expected = 2.0**17
        while not np.isfinite(f(rows)).all():
            expected /= 2
            assert of_scale(scale) == (expected, 0)
            assert (w.get_value() == 1).all()
            assert expected > 1
        assert expected == of_scale(scale)[0] < 2.0**17
        np.testing.assert_array_equal(w.get_value(), np.full((4, 2), -2.0))
        assert_equal(*(synk.get_value(rank, [w]) for rank in range(2)))
