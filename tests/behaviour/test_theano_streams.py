"""Random streams draw from the distributions that they are named after."""

import numpy as np
import pytest
import theano
import theano.tensor as T
from theano.sandbox.rng_mrg import MRG_RandomStreams
from theano.tensor.shared_randomstreams import RandomStreams

import synk

MODE = "FAST_COMPILE"
N = 4000
BOTH = pytest.mark.parametrize("kind", [RandomStreams, MRG_RandomStreams])


def draw(*graphs):
    """Return a value of each graph."""
    return theano.function([], list(graphs), mode=MODE)()


@BOTH
def test_moments_ranges_and_dtypes(kind):
    s = kind(seed=1)
    uniform, normal, cut, coins, counts, poisson = draw(
        s.uniform((N,), low=-1, high=3, dtype="float32"),
        s.normal((N,), avg=2.0, std=3.0),
        s.normal((N,), avg=1.0, std=2.0, truncate=True),
        s.binomial((N,), n=1, p=0.3, dtype="float64"),
        s.multinomial(pvals=np.full((N, 3), [0.2, 0.3, 0.5], dtype="float32")),
        s.poisson((N,), lam=2.0),
    )
    assert uniform.dtype == "float32"
    assert -1 <= uniform.min() < uniform.max() < 3
    # Five standard errors: with a fixed seed these never fail by chance.
    assert abs(uniform.mean() - 1) < 5 * (4 / 12**0.5) / N**0.5
    assert abs(normal.mean() - 2) < 5 * 3 / N**0.5
    assert abs(normal.std() - 3) < 0.2
    assert np.abs(cut - 1).max() <= 4
    assert abs(cut.std() - 2 * 0.87963) < 0.1
    assert set(coins) == {0.0, 1.0}
    assert abs(coins.mean() - 0.3) < 5 * 0.46 / N**0.5
    assert (counts.sum(axis=1) == 1).all()
    np.testing.assert_allclose(counts.mean(axis=0), [0.2, 0.3, 0.5], atol=0.04)
    assert abs(poisson.mean() - 2) < 5 * 2**0.5 / N**0.5


def test_integers_permutations_and_choices():
    s = RandomStreams(1)
    integers, orders, chosen, shuffled = draw(
        s.random_integers((N,), low=1, high=3),
        s.permutation((50,), n=6),
        s.choice((N,), a=4, p=[0.0, 0.5, 0.5, 0.0]),
        s.shuffle_row_elements(theano.shared(np.arange(60.0).reshape(2, 30))),
    )
    assert set(integers) == {1, 2, 3}
    assert (np.sort(orders, axis=1) == np.arange(6)).all()
    assert len(np.unique(orders, axis=0)) > 25
    assert set(chosen) == {1, 2}
    assert (np.sort(shuffled, axis=1) == np.arange(60).reshape(2, 30)).all()
    assert not (shuffled[0] + 30 == shuffled[1]).all()


def test_choices_for_each_row():
    s = MRG_RandomStreams(1)
    p = np.tile([0.1, 0.0, 0.6, 0.3], (N, 1))
    again, distinct = draw(
        s.choice(size=2, p=p), s.choice(size=2, p=p, replace=False, dtype="int32")
    )
    for chosen in again, distinct:
        assert chosen.shape == (N, 2)
        share = np.bincount(chosen[:, 0], minlength=4) / N
        np.testing.assert_allclose(share, p[0], atol=0.04)
    assert distinct.dtype == "int32"
    assert (distinct[:, 0] != distinct[:, 1]).all()
    assert (again[:, 0] == again[:, 1]).any()
    with pytest.raises(TypeError, match="a must be None"):
        s.choice(a=3, p=p)


@BOTH
def test_seed_starts_all_over(kind):
    s = kind(seed=5)
    f = theano.function([], [s.uniform((3,)), s.normal((3,))], mode=MODE)
    first, second = f(), f()
    assert not np.array_equal(first, second)
    assert not np.array_equal(first[0], kind(seed=6).uniform((3,)).eval())
    s.seed(5)
    np.testing.assert_array_equal(f(), first)
    assert len(s.updates()) == 2


@BOTH
def test_a_streams_generator_can_be_seeded_and_set_back(kind):
    """As in Theano's tutorial: seeding one stream, and sharing it between functions."""
    streams = kind(seed=234)
    u = streams.uniform((2, 2))
    f = theano.function([], u, mode=MODE)
    g = theano.function([], u + u - 2 * u, mode=MODE)
    drawn = []
    for get in (
        lambda: u.rng.get_value(borrow=True),
        u.rng.get_value,
        lambda: streams[u.rng],
    ):
        f()
        numbers = get()
        numbers.seed(89234)
        u.rng.set_value(numbers, borrow=True)
        drawn.append(f())
    np.testing.assert_array_equal(drawn[0], drawn[1])
    np.testing.assert_array_equal(drawn[0], drawn[2])
    before = u.rng.get_value().get_state()
    first, numbers = f(), u.rng.get_value(borrow=True)
    g()
    numbers.set_state(before)
    streams[u.rng] = numbers
    np.testing.assert_array_equal(f(), first)
    u.rng.get_value().seed(1)  # of a copy
    assert not np.array_equal(f(), first)


@BOTH
def test_streams_can_be_copied(kind):
    """By ``rstate`` those to come, by ``state_updates`` those that are there."""

    def made(seed):
        streams = kind(seed)
        return streams, theano.function([], streams.normal((3,)), mode=MODE)

    (one, f), (two, g) = made(1), made(2)
    f()
    for (mine, _), (theirs, _) in zip(
        one.state_updates, two.state_updates, strict=True
    ):
        theirs.set_value(mine.get_value())
    np.testing.assert_array_equal(g(), f())
    two.rstate = one.rstate
    a, b = (
        theano.function([], streams.uniform((3,)), mode=MODE) for streams in (one, two)
    )
    np.testing.assert_array_equal(a(), b())


@BOTH
def test_streams_differ_between_calls_and_ranks(kind, two_ranks):
    x = T.matrix("x")
    rng = kind(seed=42)
    mask = rng.binomial(size=x.shape, n=1, p=0.5, dtype=theano.config.floatX)
    masks = synk.function([x], (mask * x, "gather"), mode=MODE)
    first, second = masks(np.ones((40, 8))), masks(np.ones((40, 8)))
    for drawn in first, second:
        assert 0.3 < drawn.mean() < 0.7
        assert set(np.unique(drawn)) == {0.0, 1.0}
        assert not np.array_equal(drawn[:20], drawn[20:]), "ranks drew the same mask"
    assert not np.array_equal(first, second)
