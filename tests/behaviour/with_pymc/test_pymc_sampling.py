"""`synk.pymc.parallel`: PyMC samples as ever, with its log-density by ranks."""

import json
import re
import subprocess
import sys
import warnings

import numpy as np
import pytest
from children import in_a_child

import synk

pm = pytest.importorskip("pymc", reason="these tests are of synk with PyMC")

import pymc_models as models  # noqa: E402
import pytensor  # noqa: E402
import pytensor.tensor as pt  # noqa: E402
from comparing import GIVEN, MODE, groups_of  # noqa: E402

QUIET = {"progressbar": False, "compute_convergence_checks": False}


def sample(draws=60, tune=60, **kwargs):
    given = {"cores": 1, "chains": 2, "random_seed": 3, "nuts_sampler": "pymc"}
    given |= QUIET | kwargs
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="pymc.*")
        warnings.filterwarnings("always", message="synk.pymc")
        return pm.sample(draws=draws, tune=tune, compile_kwargs={"mode": MODE}, **given)


@pytest.fixture
def model():
    return models.made(models.by_group)


def test_the_same_seed_gives_the_same_trees_and_draws(capsys):
    """What everybody writes first: PyMC's own chains are on as many cores."""
    # Of a model that is no funnel: there a last bit grows to another tree in a while.
    model = models.made(models.logistic)
    with model:
        expected = sample(15, 30, cores=2)
    with synk.session(2), synk.pymc.parallel(model, serial=False) as how:
        found = sample(15, 30, cores=2)
    assert not how.is_serial
    assert (how.rows, how.ranks) == (models.N, 2)
    steps = [idata.sample_stats["n_steps"].values for idata in (expected, found)]
    np.testing.assert_array_equal(*steps)
    for name in ("a", "slopes"):
        draws = [idata.posterior[name].values for idata in (expected, found)]
        np.testing.assert_allclose(*draws, atol=1e-6)
    assert groups_of(found) == groups_of(expected)
    told = capsys.readouterr().out
    assert "synk: 2 chains at once, each on 1 rank" in told


def test_the_model_is_as_it_was_after_the_block_and_ranks_are_gone(model):
    before, logp = dict(vars(model)), pm.Model.logp
    with synk.pymc.parallel(model, serial=False, quiet=True) as how:
        assert synk.is_forked()
        assert pm.modelcontext(None) is model
        assert how.is_serial is None
        with pytest.raises(ValueError, match="already"), synk.pymc.parallel(model):
            pass
    with pytest.raises(KeyError, match="mine"), synk.pymc.parallel(model):
        raise KeyError("mine")
    assert vars(model) == before
    assert pm.Model.logp is logp
    assert not synk.is_forked()


def test_for_few_numbers_there_are_no_ranks(capsys):
    with pm.Model() as model:
        x = pm.Data("x", np.linspace(0, 1, 60))
        slope = pm.Normal("slope")
        pm.Normal("y", slope * x, observed=np.linspace(1, 3, 60), shape=x.shape)
    with synk.pymc.parallel(model) as how:
        model.logp_dlogp_function(**GIVEN)
        assert not synk.is_forked()
        assert (how.rows, how.is_serial) == (60, True)
    told = capsys.readouterr().out
    assert "60 rows, serial: one rank is faster for so little" in told
    with pm.Model() as large:  # no data, and many numbers
        pm.Normal("z", shape=100_000)
    with pm.Model() as unknown:
        pm.Normal("z", shape=pm.Data("d", np.zeros(3)).shape[0])
    for each in large, unknown:
        with synk.pymc.parallel(each, quiet=True):
            assert synk.is_forked()
    with synk.pymc.parallel(model, quiet=True) as how:
        with model:  # more than it had when the block began
            pm.Normal("more", slope, observed=np.linspace(0, 1, 5000))
        model.logp_dlogp_function(**GIVEN)
        assert synk.is_forked()
        assert how.rows == 5000


def test_few_rows_are_sampled_by_pymc_itself_chains_side_by_side(model, capsys):
    with model:
        expected = sample(10, 10, cores=2)
    with synk.session(2), synk.pymc.parallel(model) as how:
        found = sample(10, 10, cores=2)
    assert how.is_serial
    draws = [idata.posterior["slopes"].values for idata in (expected, found)]
    np.testing.assert_array_equal(*draws)
    told = capsys.readouterr().out
    assert "one after the other" not in told
    assert f"{models.N} rows, serial: one rank is faster" in told


@pytest.mark.parametrize("is_serial", [False, True])
def test_whether_ranks_are_faster_is_predicted_and_told(is_serial, capsys):
    """Ranks exchange as much as one would compute, or there are logarithms to take."""
    seen = np.random.default_rng(4).normal(size=20_000)
    with pm.Model() as model:
        slope = pm.Normal("slope")
        if is_serial:
            state = 1e-3 * pt.cumsum(pm.Normal("w", shape=20_000))
            pm.Normal("y", slope * seen + state, observed=seen)
        else:
            pm.Bernoulli("y", logit_p=slope * seen, observed=(seen > 0).astype(int))
    told = r"2 ranks, \d\.\d\d times as fast as PyMC by itself \(predicted\)$"
    if is_serial:
        told = r"serial: one rank is faster \(2 ranks would be 0\.\d\d times as fast\)$"
    with synk.session(2), synk.pymc.parallel(model) as how:
        model.logp_dlogp_function(**GIVEN)
    assert how.is_serial == is_serial
    assert (how.speed_up < 1) == is_serial
    assert re.match(rf"synk: 20,000 rows, {told}", capsys.readouterr().out)


def test_what_was_measured_of_a_model_decides_from_then_on(
    tmp_path, monkeypatch, capsys
):
    file = tmp_path / "plans.json"
    monkeypatch.setenv("SYNK_PLANS", str(file))
    seen = np.random.default_rng(4).normal(size=20_000)
    with pm.Model(name="m") as model:
        slope = pm.Normal("slope")
        pm.Bernoulli("y", logit_p=slope * seen, observed=(seen > 0).astype(int))
    with synk.session(2), model:
        rows = synk.pymc.tune(mode=MODE)
        assert [row.name for row in rows] == ["ranks", "PyMC by itself"]
        assert "the model m\n  ranks: " in capsys.readouterr().out
        ((key, entry),) = json.loads(file.read_text()).items()
        for times, is_serial in (([2e-3, 1e-3], True), ([1e-3, 3e-3], False)):
            entry["measured"] = dict(zip(entry["measured"], times, strict=True))
            file.write_text(json.dumps({key: entry}))
            with synk.pymc.parallel() as how:
                model.logp_dlogp_function(**GIVEN)
                with pytest.raises(ValueError, match="before a block"):
                    synk.pymc.tune()
            assert how.is_serial == is_serial
            assert how.speed_up == times[1] / times[0]
    told = capsys.readouterr().out
    assert "would be 0.50 times as fast" in told
    assert "3.00 times as fast as PyMC by itself (measured)" in told


def test_what_computes_the_density_by_itself_is_refused_or_told(model):
    with synk.session(2), synk.pymc.parallel(model):
        for sampler in ("numpyro", "blackjax"):  # before they are looked for
            refused = rf"nuts_sampler='{sampler}'\) in a block"
            with pytest.raises(ValueError, match=refused):
                sample(nuts_sampler=sampler)
        alone = r"pymc.step_methods.metropolis .* serially"
        with pytest.warns(UserWarning, match=alone):
            pm.Metropolis([model["slopes"]], compile_kwargs={"mode": MODE})
        with pytest.warns(UserWarning, match="a tempered log-density is computed seri"):
            model.logp_dlogp_function(tempered=True, ravel_inputs=True, mode=MODE)


def test_tempered_sampling_is_pymcs_and_told(model):
    given = QUIET | {"draws": 30, "chains": 1, "cores": 1, "random_seed": 2}
    with pytensor.config.change_flags(mode=MODE), synk.session(2):
        with model:
            expected = pm.sample_smc(**given)
        with (
            synk.pymc.parallel(model, serial=False),
            pytest.warns(UserWarning, match=r"pymc\.smc.* by itself, serially"),
        ):
            found = pm.sample_smc(**given)
    draws = [idata.posterior["slopes"].values for idata in (expected, found)]
    np.testing.assert_array_equal(*draws)


def test_what_is_made_of_draws_is_pymcs_in_the_block_and_out_of_it(model):
    with pytensor.config.change_flags(mode=MODE), synk.session(2):
        with synk.pymc.parallel(model, serial=False, quiet=True):
            idata = sample(4, 4, chains=1)
            within = _made_of(idata)
        with model:
            without = _made_of(idata)
    for one, other in zip(within, without, strict=True):
        np.testing.assert_array_equal(one, other)


def _made_of(idata) -> list[np.ndarray]:
    """Return draws of the prior and the predictive, and each row's log-likelihood."""
    given = {"progressbar": False, "extend_inferencedata": False}
    prior = pm.sample_prior_predictive(draws=3, random_seed=1)
    seen = pm.sample_posterior_predictive(idata, random_seed=1, **given)
    each = pm.compute_log_likelihood(idata, **given)
    values = each["y"].values if "y" in each else each["log_likelihood"]["y"].values
    return [
        prior.prior_predictive["y"].values,
        seen.posterior_predictive["y"].values,
        values,
    ]


@in_a_child
def test_a_script_that_has_used_jax_has_ranks(model):
    """They come from a new Python: a process with an XLA backend cannot be forked."""
    import jax.numpy as jnp

    assert jnp.ones(3).sum() == 3.0
    expected = model.logp_dlogp_function(**GIVEN)
    point = np.zeros(sum(np.size(v) for v in model.initial_point(0).values()))
    with synk.session(2), synk.pymc.parallel(model, serial=False, quiet=True) as how:
        found = model.logp_dlogp_function(**GIVEN)([point])
        assert how.ranks == 2
    np.testing.assert_allclose(found[0], expected([point])[0])


@pytest.mark.slow
def test_a_step_for_some_variables_gets_the_others_values():
    with pm.Model() as model:
        k = pm.Poisson("k", 2.0)
        pm.Normal("y", models.X @ pm.Normal("b", shape=3) + k, 1.0, observed=models.Y)
    with model:
        expected = sample(20, 20)
    with (
        synk.session(2),
        synk.pymc.parallel(model, serial=False),
        pytest.warns(UserWarning, match="metropolis computes"),
    ):
        found = sample(20, 20)
    for name in ("k", "b"):
        draws = [idata.posterior[name].values for idata in (expected, found)]
        np.testing.assert_allclose(*draws, atol=1e-6)


def test_synk_itself_imports_no_pymc():
    code = "import sys, synk; synk.pymc.parallel; print('pymc' in sys.modules)"
    command = [sys.executable, "-c", code]
    found = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert found.stdout == "False\n", found.stderr
