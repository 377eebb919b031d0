"""Training steps: train_function beside plain PyTensor, and scaled losses."""

import functools
import importlib

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from children import in_a_child
from pytensor.compile.mode import Mode

import synk

PY = Mode("py", None)  # the graph as it is, run by Python
ROWS = [7, 1, 2, 5]
"""Uneven on two and three ranks, and fewer than these."""


def problem(dtype="float64"):
    """Return inputs, the losses of rows, and parameters of a small network."""
    x, y = pt.matrix("x", dtype=dtype), pt.vector("y", dtype=dtype)
    start = np.random.default_rng(2)
    w = pytensor.shared(start.normal(size=(3, 2)).astype(dtype), "w")
    b = pytensor.shared(np.array([0.1, -0.2], dtype), "b")
    return [x, y], (pt.tanh(x @ w + b).sum(axis=1) - y) ** 2, [w, b]


def batches():
    random = np.random.default_rng(5)
    return [(random.normal(size=(n, 3)), random.normal(size=n)) for n in ROWS]


def lasagne_momentum(*args, **options):
    return importlib.import_module("lasagne").updates.momentum(*args, **options)


def descent(grads, params, rate=0.1):
    return [(p, p - rate * g) for p, g in zip(params, grads, strict=True)]


ADAM = {"learning_rate": 0.1, "beta1": 0.8}
MOMENTUM = {"learning_rate": 0.05, "momentum": 0.8}
# the rule, its options, and the plain rule for the serial run
RULES = {
    "callable": (synk.updates.adam, ADAM, synk.updates.adam),
    "name": ("adam", ADAM, synk.updates.adam),
    "Lasagne's": (lasagne_momentum, MOMENTUM, synk.updates.momentum),
    "pairs": (descent, {"rate": 0.2}, descent),
}


@pytest.mark.parametrize("ranks", [3], indirect=True)
@pytest.mark.parametrize(
    ("rule", "op"),
    [*((rule, "avg") for rule in RULES), ("pairs", "sum"), ("pairs", "not named")],
)
def test_a_step_is_that_of_plain_pytensor(ranks, op, rule):
    given, options, plain_rule = RULES[rule]

    def built():
        inputs, losses, params = problem()
        return inputs, losses.mean() if op == "avg" else losses.sum(), params

    inputs, loss, params = built()
    updates = plain_rule(pytensor.grad(loss, params), params, **options)
    plain = pytensor.function(inputs, loss, updates=updates, mode=PY)
    inputs, loss, ours = built()
    loss = (loss, op) if op == "sum" else loss
    train = synk.train_function(inputs, loss, ours, given, mode=PY, **options)
    for slices, batch in enumerate(batches(), 1):
        got = train(*batch, num_slices=slices)
        np.testing.assert_allclose(got, plain(*batch), rtol=1e-10)
    for param, expected in zip(ours, params, strict=True):
        for rank in range(ranks):
            got = synk.get_value(rank, param)
            np.testing.assert_allclose(got, expected.get_value(), rtol=1e-9)


def test_options_go_to_the_function_or_to_the_rule(two_ranks):
    inputs, losses, params = problem("float32")
    scale, shift = pt.fscalar("scale"), pt.fscalar("shift")
    calls = pytensor.shared(0, "calls")
    train = synk.train_function(
        inputs,
        (losses * scale + shift).mean(),
        params,
        "adam",
        learning_rate=0.1,
        bcast_inputs=[scale],
        updates=[(calls, calls + 1)],
        givens={shift: pt.constant(2.0, dtype="float32")},
        name="train",
        mode=PY,
        allow_input_downcast=True,
    )
    assert train.name == "train"
    assert {*params, calls} < {*train.updated}
    x, y = batches()[0]
    plain = pytensor.function(inputs, losses.mean(), mode=PY, allow_input_downcast=True)
    expected = 3 * plain(x, y) + 2
    loss = train(x, y, 3.0)
    assert loss.dtype == np.float32
    np.testing.assert_allclose(loss, expected, rtol=1e-6)
    assert synk.get_value(1, calls) == 1
    assert {synk.get_value(1, param).dtype for param in params} == {np.dtype("f4")}
    assert plain(x, y) < (expected - 2) / 3  # the step has been made


def test_further_outputs_follow_the_loss(two_ranks):
    inputs, losses, params = problem()
    outputs = [losses.mean(), (losses, "gather"), (losses.max(), "max")]
    how = {"learning_rate": 0.1, "mode": PY}
    train = synk.train_function(inputs, outputs, params, "sgd", **how)
    batch = batches()[0]
    right = pytensor.function(inputs, losses, mode=PY)(*batch)
    loss, rows, largest = train(*batch)
    np.testing.assert_allclose(loss, right.mean(), rtol=1e-12)
    np.testing.assert_allclose(rows, right, rtol=1e-12)
    np.testing.assert_allclose(largest, right.max(), rtol=1e-12)
    assert train.output_modes == ["avg", "gather", "max"]
    alone = synk.train_function(inputs, outputs[:1], params[0], "sgd", **how)
    assert isinstance(alone(*batch), list)
    assert alone.updated == params[:1]


def rule_with_a_name(grads, params, name):
    return {}


def test_what_makes_no_sense_is_refused():
    inputs, losses, params = problem()
    mean, named = losses.mean(), {"rule": rule_with_a_name, "name": "f"}

    def make(loss=mean, params=params, rule="sgd", **options):
        if rule != rule_with_a_name:
            options["learning_rate"] = 0.1
        return synk.train_function(inputs, loss, params, rule, **options)

    for given, error, match in (
        ({"loss": losses}, ValueError, r"must be a scalar, got .*Vector"),
        ({"loss": [losses]}, ValueError, "must be a scalar"),
        ({"loss": []}, ValueError, "must begin with the loss"),
        ({"loss": 3.0}, TypeError, "must be a variable .*got 3.0"),
        ({"loss": (mean, "max")}, ValueError, "combined by 'max': only"),
        ({"loss": (mean, None)}, ValueError, "combined by None: only"),
        ({"loss": (mean, "median")}, ValueError, "'median'"),
        ({"rule": "adma"}, ValueError, r"no rule 'adma': synk\.updates has .*adam"),
        ({"rule": "grad"}, ValueError, "no rule 'grad'"),
        ({"rule": 3}, TypeError, "a function or its name, got 3"),
        ({"rate": 0.1}, TypeError, "unexpected keyword argument 'rate'"),
        ({"outputs": []}, TypeError, "outputs: pass a list that begins"),
        ({"params": [pt.vector("v")]}, TypeError, "shared variables, got v"),
        ({"params": params[:1] * 2}, ValueError, "listed twice"),
        ({"updates": {params[0]: params[0] + 1}}, ValueError, "w has two updates"),
        (named, TypeError, "name could be meant"),
        ({"mode": "no such mode"}, ValueError, "no such mode"),
    ):
        with pytest.raises(error, match=match):
            make(**given)
    # `partial` settles what rule and function both have.
    rule = functools.partial(rule_with_a_name, name="the rule's")
    train = synk.train_function(inputs, mean, params, rule, name="f")
    assert (train.name, train.updated) == ("f", [])


def test_a_loss_that_cannot_be_split_says_so_once(two_ranks):
    inputs, losses, params = problem()
    odd = losses.mean() ** 2
    make = functools.partial(synk.train_function, inputs, odd, params, "sgd")
    with pytest.warns(synk.SplitWarning) as caught:
        train = make(learning_rate=0.1, mode=PY, local=True)
    said = sorted(str(w.message).partition(" is combined")[0] for w in caught)
    of = ["output 0", "the gradient of b", "the gradient of w"]
    assert [text.partition(" (")[0] for text in said] == of
    assert {w.filename for w in caught} == {__file__}
    assert train.output_modes == ["avg"]
    with pytest.raises(synk.SplitError):
        make(learning_rate=0.1, strict=True, local=True)


# -- scaled losses

FEATURES = np.random.default_rng(0).normal(size=(11, 3))


def guarded(scale=None, dtype="float64", rule=synk.updates.momentum):
    """Return a training step on rows of x, whose loss is scaled if there is a scale."""
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
    return synk.function([x], loss, updates=updates, mode=PY)


def state(train) -> list[list[np.ndarray]]:
    """Return the values of all that a step changes, for each rank."""
    return [synk.get_value(rank, train.updated) for rank in range(synk.size())]


def of_scale(scale) -> tuple[float, int]:
    return float(scale.value.get_value()), int(scale.good_steps.get_value())


def assert_equal(first, second) -> None:
    for one, other in zip(first, second, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("ranks", [3], indirect=True)
@pytest.mark.parametrize(("row", "bad"), [(0, np.inf), (10, np.nan)])
def test_a_step_that_overflows_on_one_rank_is_made_on_none(ranks, row, bad):
    scale, features = synk.LossScale(8.0, interval=3), FEATURES.copy()
    train = guarded(scale)
    train(FEATURES)
    before = state(train)
    assert of_scale(scale) == (8, 1)
    features[row, 1] = bad
    train(features)
    for old, new in zip(before, state(train), strict=True):
        assert_equal(old[:-2], new[:-2])
        assert [float(value) for value in new[-2:]] == [4, 0]
    train(FEATURES)
    last = state(train)
    for of_rank in last:
        assert_equal(of_rank, last[0])
    assert not np.array_equal(last[0][0], before[0][0])


def test_it_doubles_after_so_many_good_steps_and_keeps_its_bounds(two_ranks):
    scale = synk.LossScale(2.0, interval=2, smallest=0.5, largest=4.0)
    train = guarded(scale)
    found = []
    for rows in (*[FEATURES] * 5, *[FEATURES * np.inf] * 5, FEATURES):
        train(rows)
        found.append(of_scale(scale))
    doubled = [(2, 1), (4, 0), (4, 1), (4, 0), (4, 1)]
    halved = [(2, 0), (1, 0), (0.5, 0), (0.5, 0), (0.5, 0)]
    assert found == [*doubled, *halved, (0.5, 1)]


@pytest.mark.parametrize("ranks", [3], indirect=True)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_it_rounds_nothing(ranks, dtype):
    """Steps have the bits of those without, in slices as well."""
    scaled = guarded(synk.LossScale(2.0**11, interval=2), dtype)
    plain = guarded(None, dtype)
    features = FEATURES.astype(dtype)
    for num_slices in (1, 1, 1, 3, 3, 3):
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


@pytest.mark.parametrize("mode", ["NUMBA", Mode("py", "fast_run")], ids=["numba", "py"])
def test_what_is_not_finite_in_any_of_the_gradients_is_seen(mode):
    """By numba's code, and without C code, where PyTensor inverts a truth to -2."""
    grads = [pt.fvector("x"), pt.dscalar("y")]
    scale = synk.LossScale(2.0**10)
    f = pytensor.function(grads, updates=scale.guarded([], grads), mode=mode)
    zeros = np.zeros(3, "float32")
    f(zeros, 1e300)
    assert of_scale(scale) == (2**10, 1)
    halved = 2.0**10
    for bad in (np.inf, -np.inf, np.nan):
        for values in ((zeros, bad), (np.array([0, bad, 0], "float32"), 0.0)):
            f(*values)
            halved /= 2
            assert of_scale(scale) == (halved, 0)


def test_numbers_that_make_no_sense_are_refused():
    for options, words in (
        ({"initial": 1000.0}, "initial must be a power of two, got 1000.0"),
        ({"initial": 0.0}, "initial must be a power of two"),
        ({"initial": -2.0}, "initial must be a power of two"),
        ({"largest": np.inf}, "largest must be a power of two"),
        ({"initial": 1.0, "smallest": 2.0}, "must be in this order"),
        ({"interval": 0}, "interval must be at least 1, got 0"),
    ):
        with pytest.raises(ValueError, match=words):
            synk.LossScale(**options)


def test_a_checkpoint_continues_it(two_ranks, tmp_path):
    scale, path = synk.LossScale(8.0, interval=3), tmp_path / "saved.npz"
    train = guarded(scale)
    for rows in (FEATURES * np.inf, FEATURES, FEATURES):
        train(rows)
    synk.save(path, train.updated)
    ends = []
    for _ in range(2):
        assert of_scale(scale) == (4, 2)
        train(FEATURES)
        assert of_scale(scale) == (8, 0)
        ends.append(state(train))
        synk.load(path, train.updated)
    for mine, other in zip(*ends, strict=True):
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
