"""What of a model ranks share, what is serial, and what fails: with a word for each."""

import contextlib
import warnings
from collections.abc import Iterator

import numpy as np
import pytest

import synk

pm = pytest.importorskip("pymc", reason="these tests are of synk with PyMC")

import pymc_models as models  # noqa: E402
import pytensor.tensor as pt  # noqa: E402
from comparing import (  # noqa: E402
    GIVEN,
    MODE,
    OnlyHere,
    Same,
    assert_equal,
    assert_equal_on_ranks,
    plain,
    points,
    slow_rows,
)


def test_what_pairs_all_rows_is_serial_with_a_word_that_names_it(two_ranks):
    with pm.Model() as model:
        cov = pm.gp.cov.ExpQuad(1, pm.HalfNormal("length"))
        seen = {"X": models.X[:, :1], "y": models.Y}
        pm.gp.Marginal(cov_func=cov).marginal_likelihood("y", **seen, sigma=0.5)
    shapes = r"the term of 'y' \(made in .* by rows: .* of shape \(53, 53\)"
    with pytest.raises(synk.SplitError, match=shapes):
        synk.pymc.logp_dlogp(model, mode=MODE)
    with pm.Model() as model:
        process = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(1, pm.HalfNormal("length")))
        effects = process.prior("f", X=models.X[:, :1])
        pm.Normal("y", effects, 0.5, observed=models.Y)
    word = r"the term of 'y' \(made in test_pymc_sharing.py:\d+: .* by rows: "
    with pytest.raises(synk.SplitError, match=word):
        synk.pymc.logp_dlogp(model, mode=MODE)
    with synk.pymc.parallel(model, serial=False, quiet=True) as how:
        with pytest.warns(UserWarning, match=word):
            model.logp_dlogp_function(**GIVEN)
        assert how.is_serial


def test_a_table_on_disk_is_data_of_a_model(tmp_path, two_ranks):
    pytest.importorskip("pyarrow", reason="pyarrow, of synk[tables], is missing")
    table, how = np.column_stack([models.X, models.Y]), {"header": "a,b,c,y"}
    for part in range(3):
        path = tmp_path / f"{part}.csv"
        np.savetxt(path, table[part::3], "%.17g", ",", comments="", **how)
    rows = synk.files.table(tmp_path, [["a", "b", "c"], "y"])
    x, y = rows.take(np.arange(len(rows)))
    with pm.Model() as model:
        slopes = pm.Normal("slopes", shape=3)
        pm.Normal("y", pm.Data("x", x) @ slopes, 1.0, observed=pm.Data("seen", y))
    at = np.array([0.5, -1.0, 2.0])
    _, gradient = synk.pymc.logp_dlogp(model, mode=MODE)(at)
    expected = models.X.T @ (models.Y - models.X @ at) - at
    np.testing.assert_allclose(gradient, expected, rtol=1e-10)


def test_what_cannot_be_shared_is_computed_serially_beside_the_rest():
    with pm.Model() as prior:
        inside = pm.gp.cov.ExpQuad(1, pm.HalfNormal("length"))(models.X[:, :1])
        cov = inside + pt.eye(models.N)
        state = pm.MvNormal("state", pt.zeros(models.N), cov=cov)
        pm.Normal("y", state, 0.5, observed=models.Y)
    with pm.Model() as term:
        slopes = pm.Normal("slopes", shape=3)
        seen = pm.Data("seen", models.Y)
        pm.Normal("y", models.X @ slopes, 1, observed=models.Y)
        chol = pt.linalg.cholesky(pt.exp(-((seen[:, None] - seen) ** 2)) + pt.eye(53))
        pm.MvNormal("all", pt.full((53,), slopes[0]), chol=chol, observed=seen)
        inside = pm.gp.cov.ExpQuad(1, pt.exp(slopes[1]))(models.X[:, :1])
        cov = inside + pt.eye(53)
        pm.MvNormal("more", pt.zeros(53), cov=cov, observed=models.X[:, 1])
    with pytest.warns(UserWarning, match="computed serially: 'state'"):
        of_prior = synk.pymc.logp_dlogp(prior, mode=MODE)
    assert list(of_prior.refused) == ["state"]
    assert of_prior.rows == models.N
    serially = r"computed serially: 'more' .*all rows beside all rows"
    with pytest.warns(UserWarning, match=serially):
        of_term = synk.pymc.logp_dlogp(term, mode=MODE)
    pairs = [(of_prior, plain(prior)), (of_term, plain(term))]
    assert_equal_on_ranks(pairs, ranks=(3,))
    with synk.session(2), term:
        pm.set_data({"seen": models.Y[::-1].copy()})
        assert_equal(*pairs[1], points(of_term.start), rtol=1e-11)


def test_data_that_are_drawn_in_each_call_are_pymcs(two_ranks):
    with pm.Model() as model:
        seen = pm.Minibatch(models.Y, batch_size=10)
        pm.Normal("y", pm.Normal("mu"), observed=seen, total_size=models.N)
    with pytest.raises(synk.SplitError, match="drawn at random in each call"):
        synk.pymc.logp_dlogp(model)
    with synk.pymc.parallel(model, serial=False, quiet=True) as how:
        with pytest.warns(UserWarning, match="drawn at random"):
            model.logp_dlogp_function(**GIVEN)
        assert how.is_serial


class Hidden(Same):
    """A likelihood that has its data within."""

    def compute(self, x):
        return -((models.Y - x) ** 2).sum()

    def pullback(self, inputs, outputs, cotangents):
        return [cotangents[0] * 2 * (models.Y.sum() - models.N * inputs[0])]


def test_a_model_without_data_and_data_within_an_op_are_told_of():
    with pm.Model() as model:
        pm.Normal("mu", shape=3)
    with pytest.raises(synk.SplitError, match="no term of this model has data"):
        synk.pymc.logp_dlogp(model)
    with pm.Model() as model:
        pm.Potential("likelihood", Hidden()(pm.Normal("m")))
    with pytest.raises(synk.SplitError) as caught:
        synk.pymc.logp_dlogp(model, mode=MODE)
    assert "what Hidden (made in test_pymc_sharing.py:" in str(caught.value)
    assert "give the Op its data as inputs" in str(caught.value)


# -- what fails while a density is made, or called, does not end `pm.sample`

LARGE = np.random.default_rng(3).normal(size=20_000)
"""Rows for which ranks are tried, where nobody has asked for them."""


def model_of(when: str) -> pm.Model:
    with pm.Model() as model:
        slope = pm.Normal("slope")
        pm.Normal("good", slow_rows(slope * LARGE), observed=LARGE**2)
        location = OnlyHere(when)(slope)
        pm.Normal("bad", location + LARGE**3, observed=LARGE)  # this line
    return model


@contextlib.contextmanager
def functions_of(model: pm.Model, serial: bool | None) -> Iterator[tuple]:
    """Give what a block makes, and texts of its warnings until then."""
    with (
        warnings.catch_warnings(record=True) as told,
        synk.pymc.parallel(model, serial=serial, quiet=True) as how,
    ):
        warnings.simplefilter("always")
        made = model.logp_dlogp_function(**GIVEN)

        def texts() -> list[str]:
            return [t for each in told if "synk.pymc" in (t := str(each.message))]

        yield (lambda at: made([at])), how, texts


ERRORS = {
    "called": "AssertionError: an operand of ours",
    "compiled": "NotImplementedError: no code for this",
    "sent": "TypeError: stays here",
}


@pytest.mark.parametrize("when", ERRORS)
def test_what_fails_is_computed_serially_with_a_word_that_names_it(two_ranks, when):
    model = model_of(when)
    with functions_of(model, None) as (made, how, texts):
        assert how.is_serial is False
        (text,) = texts()
        assert "computed serially: 'bad' (made in test_pymc_sharing.py:" in text
        assert '`pm.Normal("bad", location + LARGE**3, observed=LARGE)' in text
        assert ERRORS[when] in text
        assert "good" not in text
        assert_equal(made, plain(model), points(np.zeros(1)))
    error = ERRORS[when].split(": ")[1][:10]
    with pytest.raises(Exception, match=error), functions_of(model, False):
        pass


def test_what_fails_in_a_later_call_is_computed_by_pymc_from_then_on(two_ranks):
    model = model_of("later")
    serial = plain(model)
    at = [np.array([0.5]), np.array([2.0]), np.array([0.2])]
    with functions_of(model, None) as (made, how, texts):
        assert how.is_serial is False
        assert not texts()
        assert_equal(made, serial, at)
        (text,) = texts()
        assert "serially from here on, as there is an error: Not" in text
        assert "so far out" in text
    with functions_of(model, False) as (made, *_):
        with pytest.raises(NotImplementedError, match="so far out"):
            made(at[1])
        assert_equal(made, serial, at[::2])


def test_a_rank_that_dies_is_another_matter(two_ranks):
    with pytest.raises(synk.WorkerDied), functions_of(model_of("dies"), None):
        pass
