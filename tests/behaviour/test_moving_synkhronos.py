"""`import synkhronos`: scripts of synk's ancestor, and what became of its synkhronos.

The scripts in ``ancestors`` keep the contracts of Synkhronos's own demos, in our words.
"""

import importlib
import os
import runpy
import subprocess
import sys

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
import synkhronos
from places import SUPPORT
from synkhronos.extensions import train, updates

import synk

ANCESTORS = SUPPORT / "ancestors"


def test_a_script_with_the_contracts_of_synkhronos_runs_unmodified():
    two = sorted(os.sched_getaffinity(0))[:2]
    done = subprocess.run(
        [sys.executable, "-m", "synk", ANCESTORS / "functions.py"],
        env=os.environ | {"PYTENSOR_FLAGS": "mode=FAST_COMPILE"},
        preexec_fn=lambda: os.sched_setaffinity(0, two),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert (done.stdout, done.stderr) == ("functions: passed\n", "")


@pytest.mark.usefixtures("scans_in_python")
@pytest.mark.parametrize("name", ["shared", "training"])
def test_scripts_hold_the_contracts_of_synkhronos(name, capfd):
    try:
        runpy.run_path(str(ANCESTORS / f"{name}.py"), run_name="__main__")
    finally:
        synk.close()
    assert tuple(capfd.readouterr()) == (f"{name}: passed\n", "")


# -- names


def test_the_name_is_that_of_the_package_of_ours():
    from synk.synkhronos.extensions import updates as ours

    assert synkhronos is synk.synkhronos
    assert updates is ours
    assert set(synkhronos.__all__) <= set(dir(synkhronos))
    assert synkhronos.data is synk.data
    with pytest.raises(ModuleNotFoundError, match=r"synkhronos\.nonsense"):
        importlib.import_module("synkhronos.nonsense")


def test_fork_takes_the_arguments_of_then():
    with pytest.raises(ValueError, match="master_rank=1"):
        synkhronos.fork(2, master_rank=1)
    assert synkhronos.fork(n_parallel=2, use_gpu=False, max_n_var=1000, max_dim=16) == 2
    assert synk.size() == 2
    synk.close()


def test_slices_of_what_is_concatenated():
    found = synkhronos.make_slices([np.zeros(3), [], [1]])
    assert found == (slice(0, 3), slice(3, 3), slice(3, 4))
    with pytest.raises(TypeError, match="a list of arrays"):
        synkhronos.make_slices(np.zeros(3))


def test_ops_that_name_the_way_of_the_arrays(two_ranks):
    x, s = pt.matrix("x"), pytensor.shared(np.zeros(2))
    f = synkhronos.function(
        [x], [(x.sum(), "c_sum"), (x, "gather")], updates=[(s, x.sum(0), "c_sum")]
    )
    assert f.output_modes == ["sum", "gather"]
    assert f.update_modes == ["sum"]
    assert synkhronos.function([x], (x.max(), "c_max")).output_modes == ["max"]
    assert synkhronos.function([x], x.mean()).output_modes == ["avg"]


def test_collectives_take_one_name_of_their_variables(two_ranks):
    s = pytensor.shared(np.arange(3.0))
    synk.broadcast(shared_vars=s, values=np.ones(3))
    assert synk.gather(shared_vars=[s])[0].shape == (2, 3)
    assert synk.get_lengths(vars=s) == synk.get_lengths(shared_vars=s) == [3, 3]
    with pytest.raises(TypeError, match="vars and shared_vars"):
        synk.all_reduce(vars=s, shared_vars=s)
    with pytest.raises(TypeError, match="missing"):
        synk.all_reduce()


# -- rules

RULES = {
    "sgd": {"learning_rate": 0.1},
    "momentum": {"learning_rate": 0.1, "momentum": 0.8},
    "nesterov_momentum": {"learning_rate": 0.1},
    "adagrad": {"learning_rate": 0.1},
    "rmsprop": {"learning_rate": 0.1, "rho": 0.8},
    "adadelta": {"learning_rate": 1.0},
    "adam": {"learning_rate": 0.1},
    "adamax": {"learning_rate": 0.1},
}


def regression():
    """Return inputs, two parameters, and the loss of a regression."""
    x, y = pt.matrix("x"), pt.vector("y")
    w = pytensor.shared(np.linspace(-1, 1, 4), name="w")
    b = pytensor.shared(np.float64(0.5), name="b")
    return x, y, [w, b], ((x @ w + b - y) ** 2).mean()


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.usefixtures("graphs_in_python")
def test_each_rule_has_the_numbers_of_lasagnes(rule, two_ranks):
    """Of adamax, which Lasagne has since 0.2 only, those of ours."""
    theirs = pytest.importorskip("lasagne.updates")
    rng = np.random.default_rng(0)
    X, Y = rng.normal(size=(9, 4)), rng.normal(size=9)
    x, y, params, loss = regression()
    make = train.make_train_function
    step = make(loss, params, x, y, getattr(updates, rule), **RULES[rule])
    got = [float(step(X, Y)) for _ in range(4)]
    x, y, plain, loss = regression()
    if rule == "adamax":
        moves = synk.updates.adamax(pytensor.grad(loss, plain), plain, **RULES[rule])
    else:
        moves = getattr(theirs, rule)(loss, plain, **RULES[rule])
    serial = pytensor.function([x, y], loss, updates=list(dict(moves).items()))
    np.testing.assert_allclose(got, [float(serial(X, Y)) for _ in range(4)], rtol=1e-9)
    for ours, other in zip(params, plain, strict=True):
        for rank in 0, 1:
            value = synk.get_value(rank, ours)
            np.testing.assert_allclose(value, other.get_value(), rtol=1e-9)


def test_what_a_rule_returns():
    _, _, (w, b), loss = regression()
    of_gradients, of_params, gradients = updates.adam(loss, [w, b], lr=0.1)
    assert [var for var, _ in of_gradients] == [gradients]
    assert gradients.get_value().shape == (5,)
    assert {var.name for var, _ in of_params} == {
        *("w", "w:adam_means", "w:adam_squares"),
        *("b", "b:adam_means", "b:adam_squares", "steps"),
    }
    with pytest.raises(TypeError, match="lr and learning_rate"):
        updates.sgd(loss, [w, b], lr=0.1, learning_rate=0.1)


def test_parameters_keep_their_dtype():
    x, w = pt.fmatrix("x"), pytensor.shared(np.ones((2, 3), "float32"), name="w")
    for rule, options in RULES.items():
        _, of_params, _ = getattr(updates, rule)((x @ w).mean(), [w], **options)
        assert all(var.dtype == new.dtype for var, new in of_params), rule


@pytest.mark.usefixtures("graphs_in_python")
def test_a_training_function_of_the_master_alone():
    x, y, params, loss = regression()
    step = train.make_train_function_theano(loss, params, x, y, updates.sgd, 0.1)
    X, Y = np.eye(4), np.ones(4)
    assert step(X, Y) > step(X, Y)
