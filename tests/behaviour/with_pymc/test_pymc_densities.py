"""Log-densities of PyMC models by ranks: those of PyMC, term by term."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

pm = pytest.importorskip("pymc", reason="these tests are of synk with PyMC")

import pymc_models as models  # noqa: E402
import pytensor.tensor as pt  # noqa: E402
from comparing import MODE, assert_equal, density, plain, points  # noqa: E402

import synk  # noqa: E402
from synk.errors import SplitError, StateError  # noqa: E402

QUICK = (models.poisson, models.by_group, models.categorical)


def cases():
    for build in models.ALL:
        marks = () if build in QUICK else (pytest.mark.slow,)
        yield pytest.param(build, id=build.__name__, marks=marks)


def test_there_are_five_and_twenty_models():
    assert len(set(models.ALL)) >= 25


@pytest.mark.parametrize("build", cases())
def test_a_density_is_that_of_pymc_on_any_number_of_ranks(build):
    model = models.made(build)
    made, serial = density(model), plain(model)
    assert made.parts
    assert not made.refused
    for ranks in (1, 2, 3):
        with synk.session(ranks):
            assert_equal(made, serial, points(made.start, 20 if ranks == 2 else 5))


def test_rows_are_what_meets_the_observed_values_and_not_what_is_as_long():
    model = models.made(models.groups_as_many_as_rows)
    (part,) = density(model).parts
    shapes = sorted(given.source.type.shape for given in part._made.data)
    assert shapes == [(models.N,), (models.N,), (models.N, 3)]  # y, groups and X
    assert not part._made.free


def test_free_variables_along_the_rows_go_with_them():
    (part,) = density(models.made(models.latent_per_row)).parts
    assert [given.source.name for given in part._made.free] == ["z"]


def test_likelihoods_of_other_lengths_have_functions_of_their_own():
    made = density(models.made(models.several_likelihoods))
    assert sorted(part.rows for part in made.parts) == [31, models.N]
    assert made.rows == models.N + 31
    few = density(models.made(models.several_likelihoods), least=10**6)
    assert [part.rows for part in few.parts] == [models.N]


@pytest.mark.parametrize("bad", [0, 5, 6, 10])
def test_one_bad_row_makes_it_minus_infinity_wherever_it_is(bad):
    x = np.zeros(11)
    x[bad] = 1.0
    with pm.Model() as model:
        pm.Normal("y", 0, 1.0 - pm.Flat("a") * x, observed=np.arange(11.0))
    made, serial = density(model), plain(model)
    with synk.session(2):
        for a in (0.5, 2.0):
            (logp, gradient), (expected, right) = made([a]), serial(np.array([a]))
            assert np.isneginf(expected) == (a == 2.0)
            np.testing.assert_allclose(logp, expected, rtol=1e-12)
            if np.isfinite(expected):
                np.testing.assert_allclose(gradient, right, rtol=1e-12)


def assert_as_pymc(made, serial, point) -> None:
    """Compare, infinities and NaN too; the gradient where the density is finite."""
    with np.errstate(all="ignore"):
        (logp, gradient), (expected, right) = made(point), serial(np.array(point))
    np.testing.assert_allclose(logp, expected, rtol=1e-12)
    if np.isfinite(expected):
        np.testing.assert_allclose(gradient, right, rtol=1e-12, atol=1e-300)


def one(row: int) -> np.ndarray:
    """Return eleven zeros, or with a one in a row."""
    return np.where(np.arange(11) == row, 1.0, 0.0)


def test_a_bad_row_makes_it_minus_infinity_beside_a_row_that_is_nan():
    with pm.Model() as model:
        a, bad, nan = pm.Flat("a"), pm.Data("bad", one(0)), pm.Data("nan", one(0))
        pm.Normal("y", pt.log(1 - a * nan), 1 - a * bad, observed=np.arange(11.0))
    made, serial = density(model), plain(model)
    (part,) = made.parts
    with synk.session(3):
        for rows in ((5, -1), (0, 10), (10, 0), (5, 5), (-1, 10), (-1, -1)):
            with model:
                pm.set_data({"bad": one(rows[0]), "nan": one(rows[1])})
            assert_as_pymc(made, serial, [0.5])
            assert_as_pymc(made, serial, [2.0])
            expected = -np.inf if rows[0] >= 0 else np.nan if rows[1] >= 0 else None
            if expected is not None:
                np.testing.assert_equal(float(made([2.0])[0]), expected)
            # A function of whole conditions is made when there is a NaN, not before.
            assert (part._exact is None) == (rows == (5, -1))


@pytest.mark.parametrize("kind", ["zeros", "components"])
def test_a_bad_row_of_a_mixtures_component_counts_for_all_rows(kind):
    with pm.Model() as model:
        scale = 1.5 - pm.Flat("a") * pm.Data("bad", one(3))
        if kind == "zeros":  # the bad row's count may come from the other component
            seen = np.where(one(3), 0, np.arange(11))
            pm.ZeroInflatedPoisson("y", 0.5, scale, observed=seen)
        else:
            parts = [pm.Normal.dist(0, scale), pm.Normal.dist(1, 2)]
            pm.Mixture("y", [0.5, 0.5], parts, observed=np.arange(11.0))
    made, serial = density(model), plain(model)
    with synk.session(2):
        for row in (3, 10):
            with model:
                pm.set_data({"bad": one(row)})
            for a in (1.0, 2.0):
                assert_as_pymc(made, serial, [a])
        found = float(made([2.0])[0])
    assert found == -np.inf if kind == "zeros" else np.isfinite(found)


def test_a_model_without_bounds_checks_none():
    with pm.Model(check_bounds=False) as model:
        pm.Normal("y", 0, pm.Flat("sigma") * np.ones(5), observed=np.arange(5.0))
    made, serial = density(model), plain(model)
    with synk.session(2):
        for sigma in (0.7, -0.7):
            with np.errstate(invalid="ignore"):
                found, right = made([sigma]), serial(np.array([sigma]))
            np.testing.assert_allclose(found[0], right[0], rtol=1e-12)
            np.testing.assert_allclose(found[1], right[1], rtol=1e-12)


def test_data_that_is_set_anew_is_followed_and_so_are_other_lengths():
    with pm.Model() as model:
        x, seen = pm.Data("x", models.X), pm.Data("seen", models.Y)
        centred = x - x.mean(axis=0)
        pm.Normal("y", centred @ pm.Normal("b", shape=3), 0.5, observed=seen)
    made, serial = density(model), plain(model)
    with synk.session(2):
        assert_equal(made, serial, points(made.start, 3))
        for rows in (models.N, 20, 77, 1):
            rng = np.random.default_rng(rows)
            with model:
                pm.set_data({"x": rng.normal(size=(rows, 3)), "seen": rng.random(rows)})
            assert_equal(made, serial, points(made.start, 3))
            assert made.rows == rows


def test_what_has_all_rows_beside_all_rows_is_refused_by_name():
    with pm.Model() as model:
        cov = pm.gp.cov.ExpQuad(1, pm.HalfNormal("length"))
        process = pm.gp.Marginal(cov_func=cov)
        process.marginal_likelihood("y", X=models.X[:, :1], y=models.Y, sigma=0.5)
    with pytest.raises(
        SplitError,
        match=r"'y' \(made in .* is not computed by rows: .* of shape \(53, 53\)",
    ):
        synk.pymc.logp_dlogp(model, mode=MODE)


def test_an_observed_walk_goes_by_rows():
    """Its steps are rows: one less than there are values."""
    with pm.Model() as model:
        given = {"mu": pm.Normal("drift"), "sigma": pm.HalfNormal("s")}
        given["init_dist"] = pm.Normal.dist(0, 10)
        seen = pm.Data("seen", np.cumsum(models.Y))
        pm.GaussianRandomWalk("y", **given, observed=seen)
    assert_by_rows(model, models.N - 1)


def test_an_observed_autoregression_goes_by_rows():
    """Each value is beside the two before it."""
    with pm.Model() as model:
        rho = pm.Normal("rho", 0, 0.3, shape=2)
        first = pm.Normal.dist(0, 5, shape=2)
        sigma = pm.HalfNormal("s")
        pm.AR("y", rho, sigma=sigma, init_dist=first, observed=models.Y)
    assert_by_rows(model, models.N - 2)


def assert_by_rows(model: pm.Model, rows: int) -> None:
    made, serial = density(model), plain(model)
    assert not made.refused
    assert not made.exchanged
    assert made.rows == rows
    for ranks in (1, 2, 3):
        with synk.session(ranks):
            assert_equal(made, serial, points(made.start, 4))


def latent_process():
    process = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(1, pm.HalfNormal("length")))
    pm.Normal("y", process.prior("f", X=models.X[:, :1]), 0.5, observed=models.Y)


def test_what_ranks_cannot_share_is_serial_with_a_word_that_names_it():
    model = models.made(latent_process)
    word = r"the term of 'y' \(made in test_pymc_densities.py:\d+: .* by rows: "
    with pytest.raises(SplitError, match=word):
        synk.pymc.logp_dlogp(model, mode=MODE)
    with synk.session(2), synk.pymc.parallel(model, serial=False, quiet=True) as how:
        with pytest.warns(UserWarning, match=word):
            made = model.logp_dlogp_function(ravel_inputs=True, mode=MODE)
        assert how.is_serial
    assert type(made).__module__ == "pymc.model.core"


def process_as_a_prior():
    inside = pm.gp.cov.ExpQuad(1, pm.HalfNormal("length"))(models.X[:, :1])
    cov = inside + pt.eye(models.N)
    state = pm.MvNormal("state", pt.zeros(models.N), cov=cov)
    pm.Normal("y", state, 0.5, observed=models.Y)


def test_a_prior_that_cannot_be_shared_is_serial_and_its_likelihood_by_rows():
    model = models.made(process_as_a_prior)
    with pytest.warns(UserWarning, match="computed serially: 'state'") as told:
        made = synk.pymc.logp_dlogp(model, mode=MODE)
    assert "name the op" not in str(told[0].message)
    assert list(made.refused) == ["state"]
    assert made.rows == models.N
    serial = plain(model)
    for ranks in (2, 3):
        with synk.session(ranks):
            assert_equal(made, serial, points(made.start, 4), rtol=1e-11)


def test_a_term_that_cannot_be_shared_is_computed_serially_beside_the_others():
    with pm.Model() as model:
        slopes = pm.Normal("slopes", shape=3)
        seen = pm.Data("seen", models.Y)
        pm.Normal("y", models.X @ slopes, 1, observed=models.Y)
        chol = pt.linalg.cholesky(pt.exp(-((seen[:, None] - seen) ** 2)) + pt.eye(53))
        pm.MvNormal("all", pt.full((53,), slopes[0]), chol=chol, observed=seen)
        inside = pm.gp.cov.ExpQuad(1, pt.exp(slopes[1]))(models.X[:, :1])
        cov = inside + pt.eye(53)
        pm.MvNormal("more", pt.zeros(53), cov=cov, observed=models.X[:, 1])
    serially = r"computed serially: 'more' .*all rows beside all rows"
    with pytest.warns(UserWarning, match=serially):
        made = synk.pymc.logp_dlogp(model, mode=MODE)
    serial = plain(model)
    with synk.session(2):
        assert_equal(made, serial, points(made.start, 5), rtol=1e-11)
        with model:
            pm.set_data({"seen": models.Y[::-1].copy()})
        assert_equal(made, serial, points(made.start, 5), rtol=1e-11)


def test_data_that_are_drawn_in_each_call_are_refused():
    with pm.Model() as model:
        seen = pm.Minibatch(models.Y, batch_size=10)
        pm.Normal("y", pm.Normal("mu"), observed=seen, total_size=models.N)
    with pytest.raises(SplitError, match="drawn at random in each call"):
        synk.pymc.logp_dlogp(model)
    with synk.session(2), synk.pymc.parallel(model, serial=False, quiet=True) as how:
        with pytest.warns(UserWarning, match="drawn at random"):
            made = model.logp_dlogp_function(ravel_inputs=True, mode=MODE)
        assert how.is_serial
    assert type(made).__module__ == "pymc.model.core"


def test_a_model_without_data_is_refused():
    with pm.Model() as model:
        pm.Normal("mu", shape=3)
    with pytest.raises(SplitError, match="no term of this model has data"):
        synk.pymc.logp_dlogp(model)


@pytest.mark.parametrize("kind", ["walk", "sum"])
def test_a_state_along_the_rows_is_computed_by_every_rank(kind):
    with pm.Model() as model:
        if kind == "walk":
            start = pm.Normal.dist()
            state = pm.GaussianRandomWalk("w", init_dist=start, shape=models.N)
        else:
            state = pt.cumsum(pm.Normal("w", shape=models.N))
        pm.Poisson("y", pt.exp(0.1 * state), observed=models.COUNTS)
    made, serial = density(model), plain(model)
    assert not made.refused
    assert made.exchanged
    with synk.session(2):
        assert_equal(made, serial, points(made.start, 5))


def test_a_density_is_of_one_process():
    made = density(models.made(models.poisson))
    with pytest.raises(StateError, match="cores=1"):
        pickle.dumps(made)


def test_a_density_for_other_samplers():
    model = models.made(models.poisson)
    made = synk.pymc.logp_dlogp(model, mode=MODE)
    by_name = made.unravelled(np.arange(3.0))
    assert {k: v.tolist() for k, v in by_name.items()} == {"slopes": [0.0, 1.0, 2.0]}
    only = synk.pymc.logp_dlogp(model, [model["slopes"]], mode=MODE)
    with synk.session(2):
        first, again = made(made.start), made(made.start + 1)
        assert first[0] != again[0]
        assert not np.shares_memory(first[1], again[1])
        np.testing.assert_array_equal(only(made.start)[1], first[1])
    with pytest.raises(StateError):
        made(made.start)
