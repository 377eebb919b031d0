"""Methods of inference other than sampling, with the log-density by ranks."""

import contextlib
import inspect
import os
import warnings

import numpy as np
import pytensor
import pytest

import synk

pm = pytest.importorskip("pymc", reason="these tests are of synk with PyMC")

from comparing import MODE  # noqa: E402
from pymc_models import GROUP, G, X, Y  # noqa: E402

QUIET = {"progressbar": False}


@pytest.fixture
def model():
    with pm.Model() as model:
        effects = pm.Normal("effects", shape=G)
        mu = effects[GROUP] + X @ pm.Normal("b", shape=3)
        pm.Normal("y", mu, pm.HalfCauchy("s", 1), observed=Y)
        pm.Potential("smooth", -0.1 * (effects**2).sum())
    return model


def find_map():
    return pm.find_MAP(**QUIET)


def advi():
    fit = pm.fit(60, method="advi", random_seed=1, **QUIET)
    found = {name: getattr(fit, name).eval() for name in ("mean", "std")}
    return found | {"losses": fit.hist}


def start_by_advi():
    given = {"chains": 1, "cores": 1, "random_seed": 1, "nuts_sampler": "pymc"}
    given |= {"compute_convergence_checks": False, "n_init": 50} | QUIET
    found = pm.sample(5, tune=5, init="advi", **given)
    return {"b": found.posterior["b"].values}


def laplace():
    from pymc_extras import fit_laplace

    # It ends where its gradient is zero, and its Hessian is exact.
    given = {"optimize_method": "trust-ncg", "random_seed": 1, "draws": 5} | QUIET
    fit = fit_laplace(**given).fit
    return {name: fit[name].values for name in ("mean_vector", "covariance_matrix")}


def pathfinder():
    from pymc_extras import fit_pathfinder

    given = {"num_paths": 2, "num_draws": 50, "num_draws_per_path": 50}
    if not synk.is_forked():  # else it is to know by itself that paths are in turn
        takes = inspect.signature(fit_pathfinder).parameters
        given |= {"parallel": False} if "parallel" in takes else {"concurrent": None}
    found = fit_pathfinder(random_seed=1, **given, **QUIET)
    return {n: found.posterior[n].values for n in ("b", "effects")}


@pytest.mark.parametrize("method", [find_map, advi, start_by_advi, laplace, pathfinder])
def test_methods_that_take_a_gradient_get_it_by_ranks(model, method):
    if method in (laplace, pathfinder):
        pytest.importorskip("pymc_extras")
    with pytensor.config.change_flags(mode=MODE), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        warnings.filterwarnings("ignore", module="pymc.*")
        with model:
            expected = method()
        with (
            synk.session(2),
            warnings.catch_warnings(record=True) as told,
            synk.pymc.parallel(model, serial=False, quiet=True) as how,
        ):
            warnings.simplefilter("always")
            found = method()
    assert (how.is_serial, how.ranks, how.rows) == (False, 2, len(Y))
    assert not [each for each in told if "synk.pymc" in str(each.message)]
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-6, atol=1e-8)


@contextlib.contextmanager
def by_two_ranks(model):
    """Compute by ranks in a block, whatever that costs."""
    flags = pytensor.config.change_flags(mode=MODE)
    parallel = synk.pymc.parallel(model, serial=False, quiet=True)
    with flags, synk.session(2), parallel:
        yield


def test_data_that_are_set_between_are_seen():
    with pm.Model() as model:
        seen = pm.Data("seen", Y)
        pm.Normal("y", pm.Normal("m", 0, 100), 1, observed=seen)
    with by_two_ranks(model), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        first = pm.find_MAP(**QUIET)["m"]
        pm.set_data({"seen": Y + 3})
        again = pm.find_MAP(**QUIET)["m"]
    np.testing.assert_allclose(first, Y.mean(), rtol=1e-3)
    np.testing.assert_allclose(again, Y.mean() + 3, rtol=1e-3)


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_process_that_the_script_forks_computes_by_itself(model):
    """What `pm.fit` and others compile may be called there."""
    with by_two_ranks(model):
        step = pm.ADVI(model=model, random_seed=1).objective.step_function()
        step()
        read, write = os.pipe()
        child = os.fork()
        if not child:
            step()
            os.write(write, b"done")
            os._exit(0)
        os.close(write)
        assert os.read(read, 10) == b"done"
        assert os.waitpid(child, 0)[1] == 0
        os.close(read)
        step()
