"""Update rules: the numbers of torch.optim, in Lasagne's convention."""

from __future__ import annotations

import re

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import Mode
from reference import PY

import synk
from synk import updates

IN_PLACE = Mode("py", "fast_run")
STEPS = 50
START = {"w": np.linspace(-1, 1, 6).reshape(3, 2), "b": np.array([0.1, -0.2])}

# rule, its arguments, torch's optimiser and arguments
PAIRS = {
    "sgd": ({"learning_rate": 0.1}, "SGD", {"lr": 0.1}),
    "momentum": (
        {"learning_rate": 0.05, "momentum": 0.8},
        "SGD",
        {"lr": 0.05, "momentum": 0.8},
    ),
    "nesterov_momentum": (
        {"learning_rate": 0.05, "momentum": 0.8},
        "SGD",
        {"lr": 0.05, "momentum": 0.8, "nesterov": True},
    ),
    "adagrad": ({"learning_rate": 0.1}, "Adagrad", {"lr": 0.1}),
    "rmsprop": (
        {"learning_rate": 0.02, "rho": 0.95},
        "RMSprop",
        {"lr": 0.02, "alpha": 0.95},
    ),
    "adadelta": ({"learning_rate": 0.9}, "Adadelta", {"lr": 0.9}),
    "adam": (
        {"learning_rate": 0.05, "beta1": 0.8, "beta2": 0.99},
        "Adam",
        {"lr": 0.05, "betas": (0.8, 0.99)},
    ),
    "adamax": ({"learning_rate": 0.05}, "Adamax", {"lr": 0.05}),
    "adamw": (
        {"learning_rate": 0.05, "weight_decay": 0.1},
        "AdamW",
        {"lr": 0.05, "weight_decay": 0.1},
    ),
}


def _problem(dtype="float64"):
    """Return inputs, loss and parameters of a small network."""
    x, y = pt.matrix("x", dtype=dtype), pt.vector("y", dtype=dtype)
    w = pytensor.shared(START["w"].astype(dtype), "w")
    b = pytensor.shared(START["b"].astype(dtype), "b")
    loss = ((pt.tanh(x @ w + b).sum(axis=1) - y) ** 2).mean()
    return [x, y], loss, [w, b]


def _rows():
    random = np.random.default_rng(5)
    return random.normal(size=(STEPS, 7, 3)), random.normal(size=(STEPS, 7))


def _in_numpy(name):
    """Return the parameters after `STEPS`, by the formulas of the papers."""
    options = PAIRS[name][0]
    rate = options["learning_rate"]
    inputs, loss, params = _problem()
    w, b = pt.matrix(), pt.vector()
    replaced = pytensor.graph.clone_replace(
        pytensor.grad(loss, params), dict(zip(params, [w, b], strict=True))
    )
    slopes = pytensor.function([*inputs, w, b], replaced, mode=PY)
    values = [START["w"].copy(), START["b"].copy()]
    first = [np.zeros_like(value) for value in values]
    second = [np.zeros_like(value) for value in values]
    for t, (x, y) in enumerate(zip(*_rows(), strict=True), 1):
        for i, g in enumerate(slopes(x, y, *values)):
            values[i], first[i], second[i] = _RULES[name](
                values[i], g, first[i], second[i], t, rate, options
            )
    return values


def _adam(p, g, m, v, t, rate, o):
    beta1, beta2 = o.get("beta1", 0.9), o.get("beta2", 0.999)
    m = beta1 * m + (1 - beta1) * g
    v = beta2 * v + (1 - beta2) * g * g
    p = p * (1 - rate * o.get("weight_decay", 0))
    step = m / (1 - beta1**t) / (np.sqrt(v / (1 - beta2**t)) + 1e-8)
    return p - rate * step, m, v


def _nesterov(p, g, v, unused, t, rate, o):
    v = o["momentum"] * v - rate * g
    return p + o["momentum"] * v - rate * g, v, unused


def _momentum(p, g, v, unused, t, rate, o):
    v = o["momentum"] * v - rate * g
    return p + v, v, unused


def _adagrad(p, g, a, unused, t, rate, o):
    a = a + g * g
    return p - rate * g / (np.sqrt(a) + 1e-10), a, unused


def _rmsprop(p, g, a, unused, t, rate, o):
    a = o["rho"] * a + (1 - o["rho"]) * g * g
    return p - rate * g / (np.sqrt(a) + 1e-8), a, unused


def _adadelta(p, g, a, d, t, rate, o):
    a = 0.9 * a + 0.1 * g * g
    step = g * np.sqrt(d + 1e-6) / np.sqrt(a + 1e-6)
    return p - rate * step, a, 0.9 * d + 0.1 * step * step


def _adamax(p, g, m, u, t, rate, o):
    m, u = 0.9 * m + 0.1 * g, np.maximum(0.999 * u, np.abs(g) + 1e-8)
    return p - rate / (1 - 0.9**t) * m / u, m, u


_RULES = {
    "sgd": lambda p, g, a, b, t, rate, o: (p - rate * g, a, b),
    "momentum": _momentum,
    "nesterov_momentum": _nesterov,
    "adagrad": _adagrad,
    "rmsprop": _rmsprop,
    "adadelta": _adadelta,
    "adam": _adam,
    "adamax": _adamax,
    "adamw": _adam,
}


def _train(name, make, mode=PY):
    """Return the parameters after `STEPS` of a rule."""
    inputs, loss, params = _problem()
    rule = getattr(updates, name)(loss, params, **PAIRS[name][0])
    step = make(inputs, loss, updates=rule, mode=mode)
    for x, y in zip(*_rows(), strict=True):
        step(x, y)
    return [param.get_value() for param in params]


def test_every_public_rule_is_tested():
    assert sorted(updates.__all__) == sorted(PAIRS)


@pytest.mark.parametrize("name", PAIRS)
def test_a_rule_follows_its_formula(name):
    for got, expected in zip(
        _train(name, pytensor.function), _in_numpy(name), strict=True
    ):
        np.testing.assert_allclose(got, expected, rtol=1e-10)


@pytest.mark.parametrize("name", PAIRS)
def test_a_rule_gives_the_numbers_of_torch(name):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    _, optimiser, options = PAIRS[name]
    params = [torch.tensor(value, requires_grad=True) for value in START.values()]
    rule = getattr(torch.optim, optimiser)(params, **options)
    for x, y in zip(*map(torch.tensor, _rows()), strict=True):
        rule.zero_grad()
        w, b = params
        ((torch.tanh(x @ w + b).sum(1) - y) ** 2).mean().backward()
        rule.step()
    for got, expected in zip(_train(name, pytensor.function), params, strict=True):
        np.testing.assert_allclose(got, expected.detach().numpy(), rtol=1e-9)


def test_a_rule_gives_the_serial_numbers_on_three_ranks():
    with synk.session(3):
        for name in PAIRS:
            serial = _train(name, pytensor.function, IN_PLACE)
            parallel = _train(name, synk.function, IN_PLACE)
            for got, expected in zip(parallel, serial, strict=True):
                np.testing.assert_allclose(got, expected, rtol=1e-8, err_msg=name)


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("adam", 0.1),
        ("adamw", 0.1),
        ("adamax", 0.1),
        ("rmsprop", 0.1 / np.sqrt(0.001)),
    ],
)
def test_the_first_step_in_float32_is_right_to_the_last_digits(name, step):
    """What a running mean takes of the new is 1 - 0.999, and that of float32 is not."""
    w, g = pytensor.shared(np.float32([0.0]), "w"), pt.fvector("g")
    options = {"rho": 0.999} if name == "rmsprop" else {}
    updates = getattr(synk.updates, name)([g], [w], learning_rate=0.1, **options)
    pytensor.function([g], updates=updates, mode=IN_PLACE)(np.float32([1.0]))
    np.testing.assert_allclose(w.get_value(), -step, rtol=4e-7)


@pytest.mark.parametrize("name", PAIRS)
def test_float32_parameters_and_their_state_stay_float32(name):
    inputs, loss, params = _problem("float32")
    rate = pytensor.shared(np.float64(0.1))
    rule = getattr(updates, name)(loss, params, learning_rate=rate)
    for var, new in rule.items():
        assert new.type.dtype == var.type.dtype
        assert var.type.dtype in ("float32", "int64")
    step = pytensor.function(inputs, loss, updates=rule, mode=PY)
    step(np.ones((2, 3), "float32"), np.ones(2, "float32"))
    assert {param.get_value().dtype for param in params} == {np.dtype("float32")}


def test_gradients_are_taken_as_they_are():
    _, loss, params = _problem()
    rule = updates.sgd([pt.ones((3, 2)), pt.ones(2)], params, 0.5)
    pytensor.function([], [], updates=rule, mode=PY)()
    np.testing.assert_allclose(params[0].get_value(), START["w"] - 0.5)
    with pytest.raises(ValueError, match="1 gradients for 2 parameters"):
        updates.sgd([pt.ones(2)], params, 0.5)
    with pytest.raises(TypeError, match="shared variables"):
        updates.sgd(loss, [pt.vector("v")], 0.5)


@pytest.mark.parametrize("name", PAIRS)
def test_the_names_of_a_rules_state_are_unique_and_stable(name):
    names = []
    for _ in range(2):
        _, loss, params = _problem()
        names.append([var.name for var in getattr(updates, name)(loss, params, 0.1)])
        other = getattr(updates, name)(loss, [params[1]], 0.1)
    first, again = names
    assert first == again
    assert len(set(first)) == len(first)
    state = [var for var in first if var not in ("w", "b")]
    assert all(re.match(rf"[wb]:{name}_[a-z]+$", var) for var in state)
    # Of a second rule of the same kind, for other parameters.
    assert {var.name for var in other} <= {"b", f"b:{name}_step", *first}


def test_state_of_parameters_without_names_has_none():
    w = pytensor.shared(np.zeros(2))
    names = [var.name for var in updates.adam([pt.ones(2)], [w])]
    assert names == [None] * 4
    assert len(updates.adam([], [])) == 1
