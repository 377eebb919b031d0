"""What random variables take from a stream, how a rank passes draws; versions."""

import warnings

import numpy as np
import pytensor
import pytensor.gradient
import pytensor.tensor as pt
import pytensor.tensor.random.basic as ptr
import pytest
from numpy.random import MT19937, PCG64, PCG64DXSM, SFC64, Generator, Philox
from reference import PY
from theano.tensor.shared_randomstreams import RandomStreams

from synk.draws import (
    BY_PARAMETERS,
    OF_ANY_PARAMETERS,
    SKIPPED,
    Passed,
    is_one_by_one,
    skip,
)
from synk.theano import pytensor_versions as versions

pytestmark = pytest.mark.filterwarnings("ignore:RandomVariable Ops will stop hiding")

FEW, ODDS = np.array([0.2, 0.8]), np.array([0.5, 0.1, 0.4])
PARAMETERS = {
    ptr.UniformRV: [(0.0, 1.0), (-3.0, 7.0)],
    ptr.TriangularRV: [(0.0, 0.5, 1.0), (-1.0, 2.0, 7.0)],
    ptr.CategoricalRV: [(FEW,), (ODDS,)],
    ptr.NormalRV: [(0.0, 1.0), (3.0, 1e5)],
    ptr.HalfNormalRV: [(0.0, 1.0), (3.0, 5.0)],
    ptr.LogNormalRV: [(0.0, 1.0), (3.0, 0.5)],
    ptr.LaplaceRV: [(0.0, 1.0), (3.0, 0.5)],
    ptr.LogisticRV: [(0.0, 1.0), (3.0, 0.5)],
    ptr.GumbelRV: [(0.0, 1.0), (3.0, 0.5)],
    ptr.CauchyRV: [(0.0, 1.0), (3.0, 0.5)],
    ptr.HalfCauchyRV: [(0.0, 1.0), (3.0, 0.5)],
    ptr.ParetoRV: [(1.0, 1.0), (3.0, 0.7)],
    ptr.ExponentialRV: [(1.0,), (3.0,)],
    ptr.WaldRV: [(1.0, 1.0), (3.0, 0.7)],
    ptr.BernoulliRV: [(0.5,), (0.03,)],
    ptr.BinomialRV: [(10, 0.3), (100, 0.7), (1, 0.8)],
    ptr.NegBinomialRV: [(10, 0.3), (4, 0.7)],
    ptr.GeometricRV: [(0.4,), (0.01,)],
    ptr.PoissonRV: [(1.0,), (30.0,)],
    ptr.GammaRV: [(2.0, 1.0), (0.3, 1.7)],
    ptr.InvGammaRV: [(2.0, 1.0), (0.3, 1.7)],
    ptr.BetaRV: [(1.0, 1.0), (0.3, 1.7)],
    ptr.WeibullRV: [(1.0,), (3.0,)],
    ptr.VonMisesRV: [(0.0, 1.0), (1.0, 4.0)],
    ptr.StudentTRV: [(4.0, 0.0, 1.0), (1.5, 2.0, 4.0)],
    ptr.TruncExponentialRV: [(1.0, 0.0, 1.0), (1.5, 2.0, 4.0)],
    ptr.GenGammaRV: [(1.0, 1.0, 1.0), (2.0, 0.5, 0.6)],
    ptr.IntegersRV: [(0, 10), (0, 2**40)],
}
OPS = {type(op): op for op in vars(ptr).values() if type(op) in PARAMETERS}
COMPILED = (ptr.NormalRV, ptr.GammaRV, ptr.ExponentialRV)
"""Those of which numba's draws are tried, too: it compiles each for seconds."""


def of(kind, mode=PY):
    """Return a function of a generator, of how many draws, and of parameters."""
    params = [pt.as_tensor_variable(np.asarray(value)) for value in PARAMETERS[kind][0]]
    rng = ptr.uniform(0, 1, rng=pytensor.shared(np.random.default_rng(0))).owner
    rng = rng.inputs[0].type()
    given = [pt.tensor(dtype=var.dtype, shape=(None,) * var.ndim) for var in params]
    size = pt.lvector(shape=(1,))
    drawn = OPS[kind](*given, rng=rng, size=size).owner.outputs
    f = pytensor.function([rng, size, *given], drawn, mode=mode)

    def draw(seed, count, parameters):
        generator = seed if isinstance(seed, Generator) else np.random.default_rng(seed)
        typed = [
            np.asarray(value, var.type.dtype)
            for value, var in zip(parameters, given, strict=True)
        ]
        return f(generator, np.array([count]), *typed)

    return draw


def state(generator):
    return generator.bit_generator.state


def passed(kind, seed, count, parameters=(), takes_one=False):
    generator = np.random.default_rng(seed)
    op = Passed(OPS[kind], "before", takes_one)
    params = list(map(np.asarray, parameters))
    op.lead_on(generator, np.array([count]), params)
    return generator


def test_all_kinds_are_tried():
    assert PARAMETERS.keys() == {*OF_ANY_PARAMETERS, *BY_PARAMETERS}
    assert set(SKIPPED) < OF_ANY_PARAMETERS.keys()
    assert OPS.keys() == PARAMETERS.keys()


@pytest.mark.parametrize(
    ("kind", "mode"),
    [*[(kind, PY) for kind in PARAMETERS], *[(kind, "NUMBA") for kind in COMPILED]],
)
def test_an_array_is_drawn_as_its_parts_one_after_the_other(kind, mode):
    """And as many numbers are taken, whatever the parameters, where that is said."""
    draw, count, first = of(kind, mode), 100_000, 37_891
    if kind is ptr.CategoricalRV:
        count, first = 5_000, 1_234
    ends = []
    for parameters in PARAMETERS[kind]:
        after, whole = draw(1, count, parameters)
        between, one = draw(1, first, parameters)
        last, other = draw(between, count - first, parameters)
        np.testing.assert_array_equal(np.concatenate([one, other]), whole)
        assert state(last) == state(after)
        ends.append(state(after))
        if mode is PY:
            led_on = passed(kind, 1, count, parameters)
            assert state(led_on) == state(after)
    if kind in OF_ANY_PARAMETERS:
        assert all(end == ends[0] for end in ends)
        listed = draw(1, count, OF_ANY_PARAMETERS[kind])[0]
        assert state(listed) == ends[0]


@pytest.mark.slow
@pytest.mark.parametrize("mode", [PY, "NUMBA"], ids=["NumPy", "numba"])
@pytest.mark.parametrize("kind", [*SKIPPED, ptr.BernoulliRV, ptr.BinomialRV])
def test_ten_million_draws_are_skipped(kind, mode):
    """To the draw: those after a third of them are the rest of all, the state equal.

    A category is found by a uniform number; without numba PyTensor does so in Python.
    """
    count, first = 10_000_000, 3_333_331
    if kind is ptr.CategoricalRV and mode is PY:
        count, first = 100_000, 33_333
    draw = of(kind, mode)
    takes_one = kind in SKIPPED or (kind is ptr.BernoulliRV and mode != PY)
    parameters = PARAMETERS[kind][-1]
    after, whole = draw(3, count, parameters)
    there = passed(kind, 3, first, parameters, takes_one)
    _, rest = draw(there, count // 10, parameters)
    np.testing.assert_array_equal(rest, whole[first : first + count // 10])
    assert state(passed(kind, 3, count, parameters, takes_one)) == state(after)


def test_what_is_drawn_in_passes_is_not_taken_for_one_after_the_other():
    """As a beta-binomial number, of which NumPy draws all first halves first."""
    assert not is_one_by_one(ptr.betabinom)
    assert not is_one_by_one(ptr.multinomial)
    assert not is_one_by_one(ptr.permutation)


@pytest.mark.parametrize("bits", [PCG64, PCG64DXSM, MT19937, SFC64, Philox])
def test_any_generator_skips_and_keeps_the_half_of_a_number(bits):
    one, other = Generator(bits(5)), Generator(bits(5))
    for generator in one, other:
        generator.integers(0, 10, dtype=np.int32)
    one.random(1000)
    skip(other, 1000)
    assert str(state(one)) == str(state(other))


def test_a_coin_is_tossed_with_one_number_where_that_is_said():
    """By the largest number that there is, of which alone it can be otherwise."""
    probabilities = [0.5, 0.8, 0.75, 1e-300, 1e-17, 1 - 1e-16, 1 / 3]
    probabilities += list(np.random.default_rng(0).random(2000))
    for p in probabilities:
        generator = _before_the_largest()
        assert generator.random() == 1 - 2.0**-53
        after, generator = state(generator), _before_the_largest()
        generator.binomial(1, p)
        skipped = _before_the_largest()
        Passed(ptr.bernoulli, "all", False).lead_on(skipped, [1], [np.asarray(p)])
        assert state(skipped) == state(generator) == after, p
    for p in 0.0, np.array([0.0, 0.5]):  # of which the first takes none
        plain, generator = np.random.default_rng(1), np.random.default_rng(1)
        plain.binomial(1, p, size=(5, np.size(p)))
        size, params = [5, np.size(p)], [np.asarray(p)]
        Passed(ptr.bernoulli, "all", False).lead_on(generator, size, params)
        assert state(generator) == state(plain)


def _before_the_largest() -> Generator:
    """Return a generator whose next number of 64 bits has all of them set.

    PCG64 makes a step, ``state * multiplier + increment``, and gives the exclusive or
    of the state's halves, turned by its upper six bits (O'Neill 2014, 6.3.4).
    """
    multiplier, words = 0x2360ED051FC65DA44385DF649FCCF645, 1 << 128
    bits = PCG64(1)
    before = bits.state
    increment = before["state"]["inc"]
    reached = (1 << 64) - 1
    value = (reached - increment) * pow(multiplier, -1, words) % words
    bits.state = before | {"state": {"state": value, "inc": increment}}
    return Generator(bits)


# -- what `synk.theano.pytensor_versions` says of PyTensor's versions -----------------

_MAJOR = int(pytensor.__version__.split(".")[0])


def test_what_has_other_names_and_places_since_3():
    assert hasattr(pytensor.gradient, "pullback") == (_MAJOR >= 3)
    assert hasattr(pytensor.gradient, "pushforward") == (_MAJOR >= 3)


def test_scripts_are_spared_advice_on_drawing():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sample = RandomStreams(1).gen(pt.random.uniform, 0.0, 1.0, size=(2,))
    assert sample.type.shape == (2,)
    rng, update = sample.update
    with versions.quiet():
        assert rng.default_update is update


def test_default_updates_of_more_specific_shape_are_refused():
    from synk.theano.changes import THEIR_DEFAULT_UPDATE

    x = pt.tensor("x", shape=(None, 3))
    average = pytensor.shared(np.zeros(3))
    with versions.quiet():
        THEIR_DEFAULT_UPDATE.fset(average, 0.5 * average + x.mean(0))
    with pytest.raises(TypeError, match="Cannot convert Type Vector"):
        pytensor.function([x], x + average, mode="FAST_COMPILE")
