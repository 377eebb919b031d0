"""What fails while a density is made, or called, does not end `pm.sample`."""

from __future__ import annotations

import os
import warnings

import numpy as np
import pytest
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op

import synk

pm = pytest.importorskip("pymc", reason="these tests are of synk with PyMC")

from comparing import MODE, assert_equal, plain, points  # noqa: E402

MASTER = os.getpid()
N = 60
Y = np.random.default_rng(3).normal(size=N)


class OnlyHere(Op):
    """Gives its operand back, in the script's process; elsewhere there is an error."""

    __props__ = ("when",)

    def __init__(self, when: str) -> None:
        self.when = when

    def make_node(self, x):
        return Apply(self, [x], [x.type()])

    def perform(self, node, inputs, outputs):
        if self.when == "called" and os.getpid() != MASTER:
            raise AssertionError("an operand\nof ours")
        if self.when == "later" and os.getpid() != MASTER and abs(inputs[0]) > 1:
            raise NotImplementedError("so far out")
        outputs[0][0] = inputs[0].copy()

    def prepare_node(self, node, storage_map, compute_map, impl):
        if self.when == "compiled" and os.getpid() != MASTER:
            raise NotImplementedError("no code for this")

    def __reduce__(self):
        if self.when == "sent":
            raise TypeError("stays here")
        return type(self), (self.when,)

    def pullback(self, inputs, outputs, cotangents):
        return list(cotangents)

    L_op = pullback


class Dies(OnlyHere):
    def perform(self, node, inputs, outputs):
        if os.getpid() != MASTER:
            os._exit(1)
        outputs[0][0] = inputs[0].copy()


def model_of(when):
    with pm.Model() as model:
        slope = pm.Normal("slope")
        pm.Normal("good", slope * Y, observed=Y**2)
        location = OnlyHere(when)(slope)
        pm.Normal("bad", location + Y**3, observed=Y)  # this line
    return model


def functions_of(model, serial):
    given = {"ravel_inputs": True, "mode": MODE}
    with (
        warnings.catch_warnings(record=True) as told,
        synk.session(2),
        synk.pymc.parallel(model, serial=serial, quiet=True) as how,
    ):
        warnings.simplefilter("always")
        made = model.logp_dlogp_function(**given)
        yield made, how, told


def texts(told):
    found = [str(each.message) for each in told]
    return [text for text in found if "synk.pymc" in text]


@pytest.fixture(autouse=True)
def large(monkeypatch):
    """Sixty rows are few, and these tests are of what is done with many."""
    from synk.pymc import context

    monkeypatch.setattr(context, "SHORT", 0.0)
    monkeypatch.setattr(context, "_typical", lambda *_: next(times))
    times = iter([1.0, 1.9] * 10)


ERRORS = {
    "called": "AssertionError: an operand of ours",
    "compiled": "NotImplementedError: no code for this",
    "sent": "TypeError: stays here",
}


@pytest.mark.parametrize("when", ERRORS)
def test_what_fails_is_computed_serially_with_a_word_that_names_it(when):
    model = model_of(when)
    for made, how, told in functions_of(model, None):
        assert not how.is_serial
        (text,) = texts(told)
        assert "computed serially: 'bad' (made in test_pymc_failures.py:" in text
        assert '`pm.Normal("bad", location + Y**3, observed=Y)' in text
        assert ERRORS[when] in text
        assert "good" not in text
        by_ranks = made._pytensor_function
        assert_equal(by_ranks, plain(model), points(np.zeros(1), 3))
    with pytest.raises(Exception, match=ERRORS[when].split(": ")[1][:10]):
        for _ in functions_of(model, False):
            pass


def test_what_fails_in_a_later_call_is_computed_by_pymc_from_then_on():
    model = model_of("later")
    serial = plain(model)
    at = [np.array([0.5]), np.array([2.0]), np.array([0.2])]
    for made, _, told in functions_of(model, None):
        assert not texts(told)
        assert_equal(made._pytensor_function, serial, at)
        (text,) = texts(told)
        assert "serially from here on, as there is an error: Not" in text
        assert "so far out" in text
    for made, *_ in functions_of(model, False):
        with pytest.raises(NotImplementedError, match="so far out"):
            made._pytensor_function(at[1])
        assert_equal(made._pytensor_function, serial, at[::2])


def test_a_rank_that_dies_is_another_matter():
    with pm.Model() as model:
        pm.Normal("y", Dies("never")(pm.Normal("slope")) + Y**3, observed=Y)
    with pytest.raises(synk.WorkerDied):
        for _ in functions_of(model, None):
            pass


def test_sampling_goes_on_where_a_rank_cannot_compute():
    model = model_of("called")
    given = {"draws": 20, "tune": 20, "chains": 1, "cores": 1, "random_seed": 2}
    given |= {"progressbar": False, "compute_convergence_checks": False}
    given |= {"nuts_sampler": "pymc", "compile_kwargs": {"mode": MODE}}
    with model:
        expected = pm.sample(**given)
    with (
        synk.session(2),
        synk.pymc.parallel(model, quiet=True),
        pytest.warns(UserWarning, match="'bad'.*AssertionError"),
    ):
        found = pm.sample(**given)
    draws = [idata.posterior["slope"].values for idata in (expected, found)]
    np.testing.assert_allclose(*draws, atol=1e-6)


class Hidden(Op):
    """A likelihood that has its data within."""

    def make_node(self, x):
        return Apply(self, [x], [x.type()])

    def perform(self, node, inputs, outputs):
        outputs[0][0] = np.asarray(-((Y - inputs[0]) ** 2).sum())

    def pullback(self, inputs, outputs, cotangents):
        return [cotangents[0] * 2 * (Y.sum() - N * inputs[0])]

    L_op = pullback


def test_data_within_an_op_are_told_of():
    with pm.Model() as model:
        pm.Potential("likelihood", Hidden()(pm.Normal("m")))
    with pytest.raises(synk.SplitError) as caught:
        synk.pymc.logp_dlogp(model, mode=MODE)
    assert "what Hidden (made in test_pymc_failures.py:" in str(caught.value)
    assert "give the Op its data as inputs" in str(caught.value)


def test_the_rows_of_a_likelihood_come_before_a_few_coordinates():
    points_ = np.random.default_rng(1).normal(size=(7, 3))
    with pm.Model() as model:
        centre = pm.Normal("centre", shape=3)
        scale = pm.math.exp(pm.Normal("scale", shape=3) + centre**3 - centre)
        pm.Normal("y", centre, pm.math.sqrt(scale), observed=points_)
    assert synk.pymc.logp_dlogp(model, mode=MODE).most_rows == 7
