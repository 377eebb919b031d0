"""What variables hold after calls that fail, and after JAX's; draws of NumPy's own."""

import random

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from children import in_a_child
from on_ranks import by_rank, one_and_three_ranks
from own_ops import OfFunction
from processes import acting, die
from reference import PY, assert_same

import synk


def looked_up():
    """Return indices and a table: who has one that is too large raises IndexError."""
    i = pt.lvector("i")
    table = pytensor.shared(np.arange(4.0), "table")
    count, seen = pytensor.shared(0.0, "count"), pytensor.shared(0.0, "seen")
    return i, table, count, seen


@pytest.mark.parametrize("is_local", [False, True], ids=["reduced", "local"])
@one_and_three_ranks
def test_a_call_that_fails_on_one_rank_changes_nothing_on_any(ranks, is_local):
    i, table, count, seen = looked_up()
    picked = table[i].sum()
    updates = [(count, count + 1), (seen, picked)]
    f = synk.function([i], (picked, "sum"), updates=updates, mode=PY, local=is_local)
    right, made = 0.0, 0
    good, bad = np.arange(2 * ranks) % 4, np.arange(2 * ranks) % 4
    bad[-1] = 9  # the last rank's
    plan = (good, 1), (bad, 1), (good, 2), (bad, 2), (bad, 1), (good, 1)
    for rows, slices in plan:
        before = by_rank(seen) if made else None
        if rows is bad:
            with pytest.raises(IndexError):
                f(rows, num_slices=slices)
            assert before == by_rank(seen)
        else:
            right, made = f(rows, num_slices=slices), made + 1
        assert by_rank(count) == [made] * ranks
    if not is_local:
        assert by_rank(seen) == [right] * ranks


def test_streams_are_where_they_were(two_ranks):
    i, table, _, _ = looked_up()
    ours, common = (pytensor.shared(np.random.default_rng(k)) for k in (1, 2))
    size = pt.stack([i.shape[0]])
    state, of_rows = pt.random.normal(size=size, rng=ours).owner.outputs
    next_state, alike = pt.random.normal(size=(3,), rng=common).owner.outputs
    updates = [(ours, state), (common, next_state)]
    outputs = [of_rows, alike, (table[i].sum(), "sum")]

    def drawn(fails):
        f = synk.function([i], outputs, updates=updates, mode=PY)
        for var, seed in ((ours, 1), (common, 2)):
            var.set_value(np.random.default_rng(seed))
        f(np.arange(4))
        if fails:
            with pytest.raises(IndexError):
                f(np.array([0, 1, 2, 9]))
            with pytest.raises(IndexError):
                f.run([slice(0, 4), slice(4, 8)], np.array([0, 1, 2, 3, 3, 2, 1, 9]))
        else:
            f(np.arange(4))
        return f(np.arange(4))[:2]

    for value, right in zip(drawn(True), drawn(False), strict=True):
        assert_same(value, right)


def test_outputs_that_do_not_fit_together_undo_the_call(two_ranks):
    x, count = pt.vector("x"), pytensor.shared(0.0, "count")
    positive = x[(x > 0).nonzero()]
    f = synk.function([x], (positive, "sum"), updates=[(count, count + 1)], mode=PY)
    f([1.0, 2, 3, 4])
    with pytest.raises(synk.ShapeMismatch):
        f([1.0, 2, -3, 4])
    assert by_rank(count) == [1, 1]


def test_what_set_value_gives_all_ranks_get_and_what_is_written_they_do_not(two_ranks):
    x = pt.matrix("x")
    w = pytensor.shared(np.ones(3), name="w")
    f = synk.function([x], (x @ w, "gather"), mode=PY)
    rows = np.ones((2, 3))
    assert f(rows).tolist() == [3, 3]
    w.set_value(np.full(3, 2.0))
    assert f(rows).tolist() == [6, 6]
    w.get_value(borrow=True)[:] = 0
    assert f(rows).tolist() == [0, 6]
    w.set_value(w.get_value())
    assert f(rows).tolist() == [0, 0]


def test_what_is_of_all_rows_already_is_not_summed_again(two_ranks):
    x, total = pt.vector("x"), pytensor.shared(0.0, name="total")
    count = synk.function([x], updates={total: x.sum()}, mode=PY)
    count(np.ones(4))
    with pytest.raises(synk.SplitError, match="would count it 2 times"):
        synk.all_reduce(total, "sum")
    assert by_rank(total) == [4, 4]


# -- NumPy's global generator, and Python's --------------------------------------------

ZEROS = np.zeros((12, 2))


class Noise(OfFunction):
    """Adds to each row a draw from NumPy's global generator, and one from Python's."""

    def compute(self, x):
        drawn = [(np.random.normal(), random.random()) for _ in x]
        return x + np.reshape(drawn, x.shape)


def noisy() -> synk.Function:
    x = pt.dmatrix("x")
    return synk.function([x], (Noise()(x), "gather"), mode=PY)


@pytest.fixture
def as_before():
    """Leave the generators of the tests' process as they were."""
    before = np.random.get_bit_generator()
    states = np.random.get_state(), random.getstate()
    yield
    np.random.set_bit_generator(before)
    np.random.set_state(states[0])
    random.setstate(states[1])


def seed(number: int) -> None:
    np.random.seed(number)
    random.seed(number)


def drawn(number: int, n: int) -> np.ndarray:
    """Return what a session of n ranks draws in two calls, after seeding."""
    seed(number)
    with synk.session(n):
        f = noisy()
        return np.concatenate([f(ZEROS), f(ZEROS)])


@pytest.mark.usefixtures("as_before")
def test_ranks_draw_different_numbers_and_a_script_the_same_again():
    for n in (1, 3):
        first = drawn(3, n)
        assert len(np.unique(first)) == first.size
        np.testing.assert_array_equal(drawn(3, n), first)
    other = drawn(4, 3)
    assert len(np.unique([first, other])) == 2 * first.size


@pytest.mark.usefixtures("as_before")
def test_rank_0_draws_what_the_script_would():
    seed(6)
    before = np.random.get_state(legacy=False)["state"]["key"].copy(), random.getstate()
    with synk.session(2):  # leaves the script's generators as they are
        f = noisy()
        after = np.random.get_state(legacy=False)["state"]["key"], random.getstate()
        np.testing.assert_array_equal(after[0], before[0])
        assert after[1] == before[1]
        seed(5)  # after the fork
        made = f(ZEROS)[:6]
        after = np.random.normal(), random.random()
    numpy, python = np.random.RandomState(5), random.Random(5)
    expected = [(numpy.normal(), python.random()) for _ in range(7)]
    np.testing.assert_array_equal(made, expected[:6])
    assert after == expected[6]


@pytest.mark.usefixtures("as_before")
def test_ranks_that_come_back_draw_no_number_again():
    made = []
    for _ in range(2):
        seed(7)
        with synk.session(2):
            f = noisy()
            drawn = [f(ZEROS)[6:]]
            seed(7)  # so that rank 0 is where it was when they were started
            with pytest.raises(synk.WorkerDied):
                acting(1, die, "SIGKILL")(np.zeros((2, 2)))
            synk.recover()
            drawn.append(f(ZEROS)[6:])
        assert len(np.unique(drawn)) == np.size(drawn)
        made.append(drawn)
    np.testing.assert_array_equal(*made)


# -- JAX's -----------------------------------------------------------------------------


@in_a_child
def test_values_that_jax_has_updated_are_numpys_and_the_scripts_own():
    x = pt.vector("x")
    w, s = (pytensor.shared(np.zeros(4), name) for name in "ws")
    f = synk.function([x], updates=[(w, w + x.sum())], mode="JAX")
    local = synk.function([x], updates=[(s, s + x.sum())], mode="JAX", local=True)
    modes = ("FAST_COMPILE", "NUMBA", "JAX")
    totals = [pytensor.function([], w.sum(), mode=mode) for mode in modes]
    step = pytensor.function([], [], updates=[(w, w * 2)], mode="FAST_COMPILE")
    of_local = pytensor.function([], s.sum(), mode="FAST_COMPILE")
    with synk.session(2):
        f(np.ones(6))
        value = w.get_value()
        assert type(value) is np.ndarray
        value[0] = 5
        np.testing.assert_array_equal(w.get_value(), np.full(4, 6.0))
        borrowed = w.get_value(borrow=True)
        assert type(borrowed) is np.ndarray
        with pytest.raises(ValueError, match="read-only"):
            borrowed[0] = 5
        internal = w.get_value(borrow=True, return_internal_type=True)
        assert not isinstance(internal, np.ndarray)  # else none of this is needed
        # Plain functions read them.
        w.set_value(np.zeros(4))
        for k in (1, 3, 7):  # 2 k + 1
            f(np.ones(1))
            assert [total() for total in totals] == [4 * k] * 3
            assert [synk.get_value(rank, w)[0] for rank in range(2)] == [k, k]
            step()
        # What is a rank's own stays so.
        for times in (1, 2):
            local(np.arange(4.0))
            assert of_local() == 4 * times
            own = [synk.get_value(rank, s)[0] for rank in range(2)]
            assert own == [times, 5 * times]
            assert synk.state(s).startswith("local to each rank")
