"""train_function: the training step of plain PyTensor, from loss and rule."""

from __future__ import annotations

import functools
import re
from collections import OrderedDict

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from reference import PY

import synk

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


def lasagne_momentum(loss_or_grads, params, learning_rate, momentum=0.9):
    """A rule as Lasagne writes them."""
    assert len(loss_or_grads) == len(params)
    updates = OrderedDict()
    for param, grad in zip(params, loss_or_grads, strict=True):
        velocity = pytensor.shared(np.zeros_like(param.get_value()))
        step = momentum * velocity - learning_rate * grad
        updates[velocity] = step
        updates[param] = param + step
    return updates


def pairs_of_descent(grads, params, rate):
    return [(p, p - rate * g) for p, g in zip(params, grads, strict=True)]


ADAM = {"learning_rate": 0.1, "beta1": 0.8}
MOMENTUM = {"learning_rate": 0.05, "momentum": 0.8}
# the rule, its options, and the plain rule for the serial run
RULES = {
    "callable": (synk.updates.adam, ADAM, synk.updates.adam),
    "name": ("adam", ADAM, synk.updates.adam),
    "Lasagne's": (lasagne_momentum, MOMENTUM, synk.updates.momentum),
    "pairs": (pairs_of_descent, {"rate": 0.1}, pairs_of_descent),
    "lambda": (
        lambda grads, params: pairs_of_descent(grads, params, 0.1),
        {},
        lambda grads, params: pairs_of_descent(grads, params, 0.1),
    ),
}


@pytest.mark.parametrize(
    ("rule", "op"),
    [*((rule, "avg") for rule in RULES), ("pairs", "sum"), ("pairs", "not named")],
)
@pytest.mark.parametrize("n", [1, 2, 3])
def test_a_step_is_that_of_plain_pytensor(n, op, rule):
    given, options, plain_rule = RULES[rule]
    inputs, losses, params = problem()
    loss = losses.mean() if op == "avg" else losses.sum()
    updates = plain_rule(pytensor.grad(loss, params), params, **options)
    plain = pytensor.function(inputs, loss, updates=updates, mode=PY)
    right = [plain(*batch) for batch in batches()]

    inputs, losses, ours = problem()
    loss = losses.mean() if op == "avg" else losses.sum()
    loss = (loss, op) if op == "sum" else loss
    with synk.session(n):
        train = synk.train_function(inputs, loss, ours, given, mode=PY, **options)
        for slices, (batch, expected) in enumerate(zip(batches(), right, strict=True)):
            got = train(*batch, num_slices=slices + 1)
            np.testing.assert_allclose(got, expected, rtol=1e-10)
        for param, expected in zip(ours, params, strict=True):
            for rank in range(n):
                np.testing.assert_allclose(
                    synk.get_value(rank, param), expected.get_value(), rtol=1e-9
                )


def test_options_go_to_the_function_or_to_the_rule(two_ranks):
    inputs, losses, params = problem("float32")
    scale, shift = pt.scalar("scale"), pt.scalar("shift")
    calls = pytensor.shared(0, "calls")
    train = synk.train_function(
        inputs,
        (losses * scale + shift).mean(),
        params,
        synk.updates.sgd,
        learning_rate=0.1,
        bcast_inputs=[scale],
        updates=[(calls, calls + 1)],
        givens={shift: pt.constant(2.0, dtype="float64")},
        name="train",
        mode=PY,
        allow_input_downcast=True,
    )
    assert train.name == "train"
    assert train.updated == [*params, calls]
    x, y = batches()[0]
    plain = pytensor.function(inputs, losses.mean(), mode=PY, allow_input_downcast=True)
    expected = 3 * plain(x, y) + 2
    np.testing.assert_allclose(train(x, y, 3.0), expected, rtol=1e-6)
    assert synk.get_value(1, calls) == 1
    assert plain(x, y) < (expected - 2) / 3  # the step has been made


def test_further_outputs_follow_the_loss(two_ranks):
    inputs, losses, params = problem()
    outputs = [losses.mean(), (losses, "gather"), (losses.max(), "max")]
    train = synk.train_function(
        inputs, outputs, params, "sgd", learning_rate=0.1, mode=PY
    )
    x, y = batches()[0]
    plain = pytensor.function(inputs, losses, mode=PY)
    right = plain(x, y)
    loss, rows, largest = train(x, y)
    np.testing.assert_allclose(loss, right.mean(), rtol=1e-12)
    np.testing.assert_allclose(rows, right, rtol=1e-12)
    np.testing.assert_allclose(largest, right.max(), rtol=1e-12)
    assert train.output_modes == ["avg", "gather", "max"]
    alone = synk.train_function(
        inputs, outputs[:1], params[0], "sgd", learning_rate=0.1, mode=PY
    )
    assert isinstance(alone(x, y), list)
    assert alone.updated == params[:1]


def test_a_schedule_may_change_the_rate(two_ranks):
    inputs, losses, params = problem()
    rate = pytensor.shared(0.0, "rate")
    train = synk.train_function(
        inputs, losses.mean(), params, "sgd", learning_rate=rate, mode=PY
    )
    batch = batches()[0]
    first = train(*batch)
    assert train(*batch) == first
    synk.broadcast(rate, 0.1)
    train(*batch)
    assert train(*batch) < first


def rule_with_a_name(grads, params, name):
    return {}


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        ({"loss": "rows"}, ValueError, r"must be a scalar, got .*Vector"),
        ({"loss": ["rows"]}, ValueError, "must be a scalar"),
        ({"loss": []}, ValueError, "must begin with the loss"),
        ({"loss": 3.0}, TypeError, "must be a variable .*got 3.0"),
        ({"loss": ("mean", "max")}, ValueError, "combined by 'max': only"),
        ({"loss": ("mean", None)}, ValueError, "combined by None: only"),
        ({"loss": ("mean", "median")}, ValueError, "'median'"),
        ({"rule": "adma"}, ValueError, r"no rule 'adma': synk\.updates has .*adam"),
        ({"rule": "grad"}, ValueError, "no rule 'grad'"),
        ({"rule": 3}, TypeError, "a function or its name, got 3"),
        ({"rate": 0.1}, TypeError, "unexpected keyword argument 'rate'"),
        ({"outputs": []}, TypeError, "outputs: pass a list that begins"),
        ({"params": [pt.vector("v")]}, TypeError, "shared variables, got v"),
        ({"params": "twice"}, ValueError, "listed twice"),
        ({"updates": "a parameter's"}, ValueError, "w has two updates"),
        ({"rule": rule_with_a_name, "name": "f"}, TypeError, "name could be meant"),
        ({"mode": "no such mode"}, ValueError, "no such mode"),
    ],
    ids=lambda value: re.sub(" at 0x.*?>", ">", str(value)),
)
def test_what_makes_no_sense_is_refused(change, error, match):
    inputs, losses, params = problem()
    stands_for = {"rows": losses, "mean": losses.mean()}

    def replaced(value):
        if isinstance(value, (list, tuple)):
            return type(value)(map(replaced, value))
        return stands_for.get(value, value) if isinstance(value, str) else value

    arguments = {"loss": losses.mean(), "params": params, "rule": "sgd"}
    if change.get("rule") != rule_with_a_name:
        arguments["learning_rate"] = 0.1
    arguments |= {key: replaced(value) for key, value in change.items()}
    if arguments["params"] == "twice":
        arguments["params"] = [params[0], params[0]]
    if "updates" in arguments:
        arguments["updates"] = {params[0]: params[0] + 1}
    with pytest.raises(error, match=match):
        synk.train_function(inputs, **arguments)


def test_partial_settles_what_rule_and_function_both_have():
    inputs, losses, params = problem()
    rule = functools.partial(rule_with_a_name, name="the rule's")
    train = synk.train_function(inputs, losses.mean(), params, rule, name="f")
    assert train.name == "f"
    assert train.updated == []


def test_float32_parameters_stay_float32(two_ranks):
    inputs, losses, params = problem("float32")
    train = synk.train_function(
        inputs, losses.mean(), params, "adam", learning_rate=0.1, mode=PY
    )
    x, y = batches()[0]
    assert train(x.astype("float32"), y.astype("float32")).dtype == np.float32
    assert {synk.get_value(1, param).dtype for param in params} == {np.dtype("f4")}


def test_a_loss_that_cannot_be_split_says_so_once(two_ranks):
    inputs, losses, params = problem()
    odd = losses.mean() ** 2
    make = functools.partial(synk.train_function, inputs, odd, params, "sgd")
    with pytest.warns(synk.SplitWarning) as caught:
        train = make(learning_rate=0.1, mode=PY, local=True)
    said = sorted(str(w.message).partition(" is combined")[0] for w in caught)
    assert [text.partition(" (")[0] for text in said] == [
        "output 0",
        "the gradient of b",
        "the gradient of w",
    ]
    assert {w.filename for w in caught} == {__file__}
    assert train.output_modes == ["avg"]
    with pytest.raises(synk.SplitError):
        make(learning_rate=0.1, strict=True, local=True)
