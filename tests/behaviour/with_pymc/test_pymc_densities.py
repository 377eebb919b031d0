"""Log-densities of PyMC models by ranks: those of PyMC, term by term."""

import pickle
import sys

import numpy as np
import pytest

pm = pytest.importorskip("pymc", reason="these tests are of synk with PyMC")

import pymc_models as models  # noqa: E402
import pytensor.tensor as pt  # noqa: E402
from comparing import (  # noqa: E402
    GIVEN,
    MODE,
    assert_equal,
    assert_equal_on_ranks,
    density,
    plain,
    points,
)

import synk  # noqa: E402


def pair_of(build) -> tuple:
    model = models.made(build)
    return density(model), plain(model)


def in_groups(builds, size: int) -> list:
    """Return some models at a time: a session is forked once for all of them."""
    groups = [builds[i : i + size] for i in range(0, len(builds), size)]
    return [
        pytest.param(some, id="-".join(build.__name__ for build in some))
        for some in groups
    ]


QUICK = models.poisson, models.by_group, models.categorical


def test_densities_are_those_of_pymc_on_any_number_of_ranks():
    assert_equal_on_ranks([pair_of(build) for build in (*QUICK, models.rows)])


@pytest.mark.slow
@pytest.mark.parametrize(
    "builds", in_groups([each for each in models.USERS if each not in QUICK], 10)
)
def test_densities_of_users_models_are_those_of_pymc(builds):
    assert_equal_on_ranks([pair_of(build) for build in builds], ranks=(2,))


@pytest.mark.slow
def test_what_is_arranged_anew_goes_by_rows():
    pairs = [pair_of(build) for build in models.ARRANGED]
    for (by_ranks, _), rows in zip(pairs, models.ARRANGED.values(), strict=True):
        assert not by_ranks.exchanged
        assert by_ranks.rows == rows
    assert_equal_on_ranks(pairs, ranks=(3,))


def test_sums_up_to_each_row_and_walks_are_of_all_rows_on_every_rank():
    pairs = [pair_of(build) for build in (models.partial_likelihood, models.walk)]
    of_sums, of_walk = (by_ranks for by_ranks, _ in pairs)
    assert "Cumsum" in of_sums.exchanged[0]
    assert of_walk.exchanged
    assert (of_sums.rows, of_walk.rows) == (models.P * models.K, models.M)
    assert_equal_on_ranks(pairs, ranks=(3,))


# -- latent values along the rows


def compare(*builds) -> None:
    """Compare functions of the block with PyMC's, at several discrete values."""
    for build in builds:
        model = models.made(build)
        with model:
            serial = model.logp_dlogp_function(**GIVEN)
        with synk.pymc.parallel(model, serial=False, quiet=True) as how:
            by_ranks = model.logp_dlogp_function(**GIVEN)
            assert how.is_serial is False
        start = model.initial_point(0)
        size = sum(np.size(start[var.name]) for var in model.continuous_value_vars)
        for every in (2, 3) if model.discrete_value_vars else (2,):
            others = {
                var.name: np.reshape(
                    np.arange(np.size(start[var.name])) % every == 1,
                    np.shape(start[var.name]),
                ).astype(start[var.name].dtype)
                for var in model.discrete_value_vars
            }
            assert_equal(
                lambda at: by_ranks([at], extra_vars=others),  # noqa: B023
                lambda at: serial([at], extra_vars=others),  # noqa: B023
                points(np.zeros(size)),
                rtol=1e-11,
            )


def test_walks_columns_and_discrete_values_have_the_numbers_of_pymc():
    with synk.session(3):
        compare(models.local_level, models.column_added_up, models.classes)


@pytest.mark.slow
@pytest.mark.parametrize("builds", in_groups(models.LATENTS[3:], 5))
def test_latent_values_along_the_rows_have_the_numbers_of_pymc(builds):
    with synk.session(2):
        compare(*builds)


@pytest.mark.slow
def test_a_rank_may_have_no_row_of_a_walk():
    with synk.session(3):
        compare(lambda: models.local_level(2), lambda: models.classes(2))


@pytest.mark.slow
def test_discrete_values_of_rows_may_be_summed_over():
    extras = pytest.importorskip("pymc_extras")
    with pm.Model() as model:
        of_row = pm.Bernoulli("k", pm.Beta("p", 1, 1), shape=models.M)
        means = pm.Normal("m", shape=2)
        location = pt.switch(of_row, means[0], means[1])
        pm.Normal("y", location, pm.HalfNormal("s"), observed=models.YM)
    model = extras.marginalize(model, ["k"])
    assert_equal_on_ranks([(density(model), plain(model))], ranks=(3,))


def test_observed_walks_and_autoregressions_go_by_rows():
    """What was seen before is data: there are as many rows less."""
    with pm.Model() as walk:
        given = {"mu": pm.Normal("drift"), "sigma": pm.HalfNormal("s")}
        given["init_dist"] = pm.Normal.dist(0, 10)
        seen = pm.Data("seen", np.cumsum(models.Y))
        pm.GaussianRandomWalk("y", **given, observed=seen)
    with pm.Model() as autoregression:
        rho = pm.Normal("rho", 0, 0.3, shape=2)
        first = pm.Normal.dist(0, 5, shape=2)
        sigma = pm.HalfNormal("s")
        pm.AR("y", rho, sigma=sigma, init_dist=first, observed=models.Y)
    pairs = []
    for model, less in ((walk, 1), (autoregression, 2)):
        made = density(model)
        assert not made.exchanged
        assert made.rows == models.N - less
        pairs.append((made, plain(model)))
    assert_equal_on_ranks(pairs, ranks=(3,))


@pytest.mark.slow
def test_models_of_dims_go_by_their_dates():
    pytest.importorskip("pymc.dims")
    import pymc_dims

    made = [pymc_dims.made(build) for build in pymc_dims.MODELS[1:]]
    pairs = [(density(model), plain(model)) for model in made]
    for by_ranks, _ in pairs:
        assert not by_ranks.exchanged
        assert by_ranks.rows == pymc_dims.DATES
    assert_equal_on_ranks(pairs, ranks=(3,))


def test_data_of_dims_that_are_set_anew_are_followed():
    pytest.importorskip("pymc.dims")
    import pymc_dims

    model, rng = pymc_dims.made(pymc_dims.one_market), np.random.default_rng(1)
    by_ranks, serial = density(model), plain(model)
    with synk.session(3), model:
        assert_equal(by_ranks, serial, points(by_ranks.start))
        assert by_ranks.rows == pymc_dims.DATES
        new = {"spent": rng.random((20, 3)), "seasons": rng.normal(size=(20, 2))}
        pm.set_data(new | {"seen": rng.normal(size=20)}, coords={"date": range(20)})
        assert_equal(by_ranks, serial, points(by_ranks.start))
        assert by_ranks.rows == 20


# -- names


NAMES = [
    *("long", "half", "float32", "bool", "floatX", "object", "point", "self", "args"),
    *("p(k, n)", "censored(y, c)", "truncated(y, lb=0)", "weighted(y, w)", "a:b[2]"),
    *("", "two words", "{x}", "%s", "*", "größe", "line\nbreak", "rows_0"),
]


@pytest.mark.parametrize("first", [0, 1])
def test_any_string_is_a_name_of_data_and_of_variables(first):
    y = np.random.default_rng(1).normal(size=40)
    with pm.Model() as model:
        seen = sum(pm.Data(name, y) for name in NAMES[first::2])
        free = sum(pm.Normal(name, shape=40) for name in NAMES[1 - first :: 2])
        # Values of a walk are whole on each rank, of any length.
        mu = seen * pm.Normal("b") + (pt.cumsum(free) if first else free)
        pm.Normal("censored(obs)", mu, observed=y)
    assert_equal_on_ranks([(density(model), plain(model))], ranks=(2,))


# -- parameters that are not valid


def assert_as_pymc(made, serial, point) -> float:
    """Compare, infinities and NaN too; the gradient where the density is finite."""
    with np.errstate(all="ignore"):
        (logp, gradient), (expected, right) = made(point), serial(np.array(point))
    np.testing.assert_allclose(logp, expected, rtol=1e-12)
    if np.isfinite(expected):
        np.testing.assert_allclose(gradient, right, rtol=1e-12, atol=1e-300)
    return float(expected)


def one(row: int) -> np.ndarray:
    """Return eleven zeros, or with a one in a row."""
    return np.where(np.arange(11) == row, 1.0, 0.0)


def test_a_bad_row_makes_it_minus_infinity_also_beside_a_row_that_is_nan():
    with pm.Model() as model:
        a, bad, nan = pm.Flat("a"), pm.Data("bad", one(0)), pm.Data("nan", one(0))
        pm.Normal("y", pt.log(1 - a * nan), 1 - a * bad, observed=np.arange(11.0))
    with pm.Model(check_bounds=False) as unbounded:
        pm.Normal("y", 0, pm.Flat("sigma") * np.ones(5), observed=np.arange(5.0))
    made, serial = density(model), plain(model)
    unchecked = density(unbounded), plain(unbounded)
    with synk.session(3):
        for rows in ((5, -1), (10, -1), (0, 10), (10, 0), (5, 5), (-1, 10), (-1, -1)):
            with model:
                pm.set_data({"bad": one(rows[0]), "nan": one(rows[1])})
            assert np.isfinite(assert_as_pymc(made, serial, [0.5]))
            found = assert_as_pymc(made, serial, [2.0])
            if rows[0] >= 0:
                assert np.isneginf(found)
            else:
                assert np.isnan(found) == (rows[1] >= 0)
        assert np.isfinite(assert_as_pymc(*unchecked, [0.7]))
        assert np.isnan(assert_as_pymc(*unchecked, [-0.7]))


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
            assert_as_pymc(made, serial, [1.0])
            found = assert_as_pymc(made, serial, [2.0])
    assert found == -np.inf if kind == "zeros" else np.isfinite(found)


# -- the function itself


def test_data_that_is_set_anew_is_followed_and_so_are_other_lengths():
    with pm.Model() as model:
        x, seen = pm.Data("x", models.X), pm.Data("seen", models.Y)
        centred = x - x.mean(axis=0)
        pm.Normal("y", centred @ pm.Normal("b", shape=3), 0.5, observed=seen)
    made, serial = density(model), plain(model)
    with synk.session(2):
        assert_equal(made, serial, points(made.start))
        for rows in (models.N, 20, 77, 1):
            rng = np.random.default_rng(rows)
            with model:
                pm.set_data({"x": rng.normal(size=(rows, 3)), "seen": rng.random(rows)})
            assert_equal(made, serial, points(made.start))
            assert made.rows == rows


def test_data_are_taken_again_where_an_interrupt_came_meanwhile():
    def interrupt(frame, event, _):
        if frame.f_code is synk.Data.set_value.__wrapped__.__code__:
            sys.settrace(None)
            raise KeyboardInterrupt

    with pm.Model() as model:
        seen = pm.Data("seen", models.Y)
        pm.Normal("y", pm.Normal("m"), 1, observed=seen)
    made, serial = density(model), plain(model)
    with synk.session(2), model:
        pm.set_data({"seen": models.Y + 1})
        sys.settrace(interrupt)
        try:
            with pytest.raises(KeyboardInterrupt):
                made(made.start)
        finally:
            sys.settrace(None)
        assert_equal(made, serial, points(made.start))


def test_likelihoods_of_another_length_are_shared_where_that_pays():
    """They are computed by every rank where they are small."""
    rng = np.random.default_rng(3)
    pairs = []
    for lengths in ((53, 31), (20_000, 30_000)):
        first, second = (rng.normal(size=(length, 3)) for length in lengths)
        with pm.Model() as model:
            slopes, sigma = pm.Normal("slopes", shape=3), pm.HalfNormal("sigma")
            pm.Normal("first", first @ slopes, sigma, observed=first[:, 0])
            pm.Normal("second", second @ slopes, 2 * sigma, observed=second[:, 0])
        pairs.append((density(model), plain(model)))
    assert [by_ranks.rows for by_ranks, _ in pairs] == [53, 50_000]
    assert_equal_on_ranks(pairs, ranks=(3,))


def test_the_rows_of_a_likelihood_come_before_a_few_coordinates():
    places = np.random.default_rng(1).normal(size=(7, 3))
    with pm.Model() as model:
        centre = pm.Normal("centre", shape=3)
        scale = pm.math.exp(pm.Normal("scale", shape=3) + centre**3 - centre)
        pm.Normal("y", centre, pm.math.sqrt(scale), observed=places)
    assert density(model).rows == 7


def test_a_density_for_other_samplers():
    model = models.made(models.poisson)
    made = density(model)
    by_name = made.unravelled(np.arange(3.0))
    assert {k: v.tolist() for k, v in by_name.items()} == {"slopes": [0.0, 1.0, 2.0]}
    only = synk.pymc.logp_dlogp(model, [model["slopes"]], mode=MODE)
    with synk.session(2):
        first, again = made(made.start), made(made.start + 1)
        assert first[0] != again[0]
        assert not np.shares_memory(first[1], again[1])
        np.testing.assert_array_equal(only(made.start)[1], first[1])
    with pytest.raises(synk.StateError):
        made(made.start)
    with pytest.raises(synk.StateError, match="cores=1"):  # it is of one process
        pickle.dumps(made)
