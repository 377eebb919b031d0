"""Chains by ranks and by PyMC, of other seeds, have one posterior: to be run by hand.

``python -m pytest -m slow tests/behaviour/with_pymc/test_pymc_long.py``
"""

from __future__ import annotations

import warnings

import numpy as np
import pytest

pm = pytest.importorskip("pymc", reason="these tests are of synk with PyMC")

import arviz as az  # noqa: E402
import pymc_models as models  # noqa: E402

import synk  # noqa: E402

MODELS = (models.logistic, models.student_t, models.negative_binomial, models.by_group)
DRAWS = 1000

APART = 4.5
"""Standard errors: of 40 numbers one is beyond by chance once in 3,000 times."""

ESS_RATIO = 3.0
"""The bound for two ESS of one sampler.

The integrated autocorrelation time has the relative variance 2 (2 M + 1) / n, where M
is the lag up to which one sums (Sokal 1997). With M = 10 and n = 2000 that is a
deviation of 15 %, 21 % for a ratio of two, and exp(5 x 0.21) = 2.9.
"""


def sample(seed: int):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="pymc.*")
        return pm.sample(
            DRAWS,
            tune=DRAWS,
            chains=2,
            cores=1,
            random_seed=seed,
            target_accept=0.9,
            nuts_sampler="pymc",
            progressbar=False,
            compute_convergence_checks=False,
            compile_kwargs={"mode": "CVM"},
        ).posterior


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("build", MODELS, ids=lambda build: build.__name__)
def test_long_chains_have_the_posterior_of_pymcs(build):
    model = models.made(build)
    with model:
        plain = sample(3)
    with synk.session(2), synk.pymc.parallel(model, serial=False) as how:
        by_ranks = sample(4)
    assert not how.is_serial
    for name in plain.data_vars:
        ours, theirs = (posterior[name].values for posterior in (by_ranks, plain))
        assert ours.shape == theirs.shape
        for index in np.ndindex(ours.shape[2:]):
            assert_alike(ours[(..., *index)], theirs[(..., *index)])


def assert_alike(ours: np.ndarray, theirs: np.ndarray) -> None:
    """Compare the draws of a number, in chains."""
    both = ours, theirs
    ess = np.array([float(az.ess(x)) for x in both])
    of_sd = np.array([float(az.ess(x, method="sd")) for x in both])
    sd = np.array([x.std() for x in both])
    assert abs(ours.mean() - theirs.mean()) < APART * np.hypot(*(sd / np.sqrt(ess)))
    assert abs(sd[0] - sd[1]) < APART * np.hypot(*(sd / np.sqrt(2 * of_sd)))
    assert float(az.rhat(ours)) < 1.01
    assert 1 / ESS_RATIO < ess[0] / ess[1] < ESS_RATIO
