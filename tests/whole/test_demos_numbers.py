"""The demos that compare numbers: what they print is so, and near what numpy says."""

from __future__ import annotations

import re
import sys

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from reference import PY
from test_demos import DEMOS, QUICK, run


def number(pattern: str, output: str) -> float:
    found = re.findall(pattern, output)
    assert len(found) == 1, output
    return float(found[0])


@pytest.fixture
def demo(import_from):
    """Import a demo by its name."""
    import_from(DEMOS)
    return __import__


# -- logistic_regression.py ----------------------------------------------------------


@pytest.mark.parametrize("ranks", [1, 3])
def test_both_fits_find_the_same_optimum_near_the_truth(ranks, tmp_path):
    options = "--rows", 20_011, "--columns", 6, "--ranks", ranks
    environment = QUICK if ranks == 1 else {}
    output = run(
        DEMOS / "logistic_regression.py", *options, folder=tmp_path, **environment
    )
    lines = output.splitlines()
    assert lines[0] == f"{ranks} rank{'s' * (ranks > 1)}, 20,011 rows of 6"
    for name in ("parallel", "serial"):
        line = rf"{name}: +\d+ evaluations in \d+\.\d\d s, \d+\.\d ms each"
        assert re.search(line, output)
    assert number(r"coefficients differ by (\S+) at the most", output) < 1e-7
    assert 0 < number(r"off by (\S+) standard errors", output) < 5
    assert lines[-1].startswith("logistic_regression: both found the same optimum")


def test_the_optimum_is_that_of_scikit_learn(demo):
    from sklearn.linear_model import LogisticRegression

    model = demo("logistic_regression")
    features, outcomes, _ = model.simulate(3000, 4, seed=1)
    plain = pytensor.function(
        [model.x, model.y, model.w], [model.loss, model.gradient], mode=PY
    )
    found = model.fit(lambda w: plain(features, outcomes, w), 4).coefficients
    right = LogisticRegression(C=np.inf, fit_intercept=False, tol=1e-10, max_iter=1000)
    right.fit(features, outcomes)
    np.testing.assert_allclose(found, right.coef_[0], atol=1e-5)


def test_standard_errors_are_those_of_repeated_draws(demo):
    model = demo("logistic_regression")
    plain = pytensor.function(
        [model.x, model.y, model.w], [model.loss, model.gradient], mode=PY
    )
    information = pytensor.function([model.x, model.w], model.information, mode=PY)
    found, errors = [], []
    for seed in range(60):
        features, outcomes, truth = model.simulate(500, 2, seed)
        fit = model.fit(
            lambda w, x=features, y=outcomes: plain(x, y, w), 2
        ).coefficients
        inverse = np.linalg.inv(information(features, fit))
        found.append(fit - truth)
        errors.append(np.sqrt(np.diag(inverse)))
    # The spread of 120 values is known to 7 percent.
    assert np.std(np.array(found) / errors) == pytest.approx(1, abs=0.25)


# -- sync_batch_norm.py --------------------------------------------------------------


@pytest.mark.slow
def test_statistics_of_all_rows_give_the_serial_run_and_those_of_a_rank_do_not(
    tmp_path,
):
    # Python's linker: compiling the networks would take most of a minute.
    output = run(
        DEMOS / "sync_batch_norm.py",
        *("--ranks", 3, "--epochs", 1, "--mode", "FAST_COMPILE"),
        folder=tmp_path,
        PYTENSOR_FLAGS="linker=py",
    )
    lines = output.splitlines()
    assert lines[0] == "3 ranks, 29 steps of 50 rows, the last of an epoch of 37"
    off = re.findall(r"losses (\S+), parameters at last (\S+)", output)
    (loss, values), (own_loss, own_values) = ((float(a), float(b)) for a, b in off)
    assert max(loss, values) < 1e-9
    assert min(own_loss, own_values) > 1e-2
    first, last = re.findall(r"serial: loss (\S+) at first, (\S+) at last", output)[0]
    assert float(first) > 2 > 1 > float(last)
    assert lines[-1].startswith("sync_batch_norm: with statistics of all rows")


def test_columns_are_normalised(demo):
    model = demo("sync_batch_norm")
    h, scale, shift = pt.dmatrix("h"), pt.dvector("scale"), pt.dvector("shift")
    normalised = model.normalise(h, scale, shift)
    f = pytensor.function([h, scale, shift], normalised, mode=PY)
    rows = np.random.default_rng(0).normal(3, 2, size=(50, 4))
    got = f(rows, np.arange(1.0, 5), np.full(4, -2.0))
    np.testing.assert_allclose(got.mean(axis=0), np.full(4, -2.0), rtol=1e-12)
    np.testing.assert_allclose(got.std(axis=0), np.arange(1.0, 5), rtol=1e-4)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("logistic_regression", ("--rows", "99"), "100 rows for each, got 99 rows"),
        ("logistic_regression", ("--columns", "0"), "at least 1 column"),
        ("sync_batch_norm", ("--epochs", "0"), "must be at least 1"),
        ("sync_batch_norm", ("--batch-size", "0"), "must be at least 1"),
    ],
)
def test_senseless_options_are_refused(
    name, options, message, demo, monkeypatch, capsys
):
    module = demo(name)
    monkeypatch.setattr(sys, "argv", [f"{name}.py", *options])
    with pytest.raises(SystemExit) as caught:
        module.parse_arguments()
    assert caught.value.code == 2
    assert message in capsys.readouterr().err
