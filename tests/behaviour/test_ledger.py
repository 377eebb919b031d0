"""What ranks hold of shared variables: noted, given to them again, or refused."""

from __future__ import annotations

import gc
import warnings

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from reference import PY, assert_same, cut, on_all_ranks, refused

import synk


def descent():
    x = pt.vector("x")
    w, rate = pytensor.shared(0.0, "w"), pytensor.shared(0.5, "rate")
    loss = ((x - w) ** 2).mean()
    updates = [(w, w - rate * pytensor.grad(loss, w))]
    return x, w, rate, loss, updates


# -- what the script sets --------------------------------------------------------------


def set_by_method(var, value):
    var.set_value(value)


def set_in_the_container(var, value):
    var.container.value = value


def set_by_a_plain_function(var, value):
    pytensor.function(
        [], updates=[(var, pt.constant(value, dtype="float64"))], mode=PY
    )()


@pytest.mark.parametrize(
    "set_it", [set_by_method, set_in_the_container, set_by_a_plain_function]
)
def test_what_the_script_sets_the_next_call_reads_on_all_ranks(two_ranks, set_it):
    x, w, rate, loss, updates = descent()
    step = synk.function([x], loss, updates=updates, mode=PY)
    right = 0.0
    for value in (0.5, 0.25, 0.25, 0.125):
        set_it(rate, value)
        step([1.0, 2, 6])
        right -= value * 2 * (right - 3)
    for value in on_all_ranks(w):
        assert_same(value, right, 4)
    assert [float(value) for value in on_all_ranks(rate)] == [0.125, 0.125]


def test_runs_and_collectives_read_it_as_well(two_ranks):
    x, w, _, loss, updates = descent()
    step = synk.function([x], loss, updates=updates, mode=PY)
    step([1.0, 2])
    w.set_value(8.0)
    step.run([slice(None)], [2.0, 2])
    assert on_all_ranks(w) == [2, 2]
    w.set_value(5.0)
    synk.all_reduce(w, "sum")
    assert on_all_ranks(w) == [10, 10]
    w.set_value(4.0)
    assert_same(synk.gather(w), [4.0, 4.0])
    w.set_value(3.0)
    assert synk.get_value(1, w) == 3
    w.set_value(2.0)
    assert synk.reduce(w, "sum", in_place=False) == 4
    assert on_all_ranks(w) == [2, 2]


@pytest.mark.parametrize("shape", [(), (3,), (500, 2)])
@pytest.mark.parametrize("mode", [None, "FAST_COMPILE"])
def test_a_plain_function_that_writes_in_place_is_noticed(two_ranks, shape, mode):
    w = pytensor.shared(np.ones(shape), "w")
    # One that is there before the ranks know of the variable, and one made later.
    add = pytensor.function([], updates=[(w, w + 1)], mode=mode)
    total = synk.function([], (w.sum(), "sum"), mode=PY)
    read = synk.function([], w.sum(), mode=PY)
    size = np.ones(shape).sum()
    assert (total(), read()) == (2 * size, size)
    before = w.container.storage[0]
    add()
    assert mode is not None or w.container.storage[0] is before
    assert (total(), read()) == (4 * size, 2 * size)
    double = pytensor.function([], updates=[(w, w * 2)], mode=mode)
    double()
    double()
    assert total() == 16 * size
    assert total() == 16 * size
    assert synk.state(w) == "equal on all ranks, since it was set in the script"


def test_a_rank_s_own_values_stay_if_no_plain_function_has_written(two_ranks):
    w = pytensor.shared(np.ones(3), "w")
    synk.set_value(1, w, np.zeros(3))
    add = pytensor.function([], updates=[(w, w + 1)])
    for value, right in zip(synk.gather(w), (1, 0), strict=True):
        assert_same(value, np.full(3, float(right)))
    add()
    assert_same(synk.gather(w), np.full((2, 3), 2.0))
    del add
    gc.collect()
    synk.set_value(1, w, np.zeros(3))
    assert_same(synk.gather(w)[1], np.zeros(3))


def test_a_new_generator_gives_all_ranks_new_streams(two_ranks):
    def drawn(seed):
        rng.set_value(np.random.default_rng(seed))
        return draw(np.zeros(6))

    x = pt.vector("x")
    rng = pytensor.shared(np.random.default_rng(0), "rng")
    state, noise = pt.random.normal(size=x.shape, rng=rng).owner.outputs
    draw = synk.function([x], noise, updates=[(rng, state)], mode=PY)
    first, other, again = drawn(1), drawn(2), drawn(1)
    assert_same(first, again)
    assert len({*first, *other}) == 12


def test_an_output_that_is_an_update_is_not_the_variable_itself(two_ranks):
    x, w = pt.vector("x"), pytensor.shared(np.zeros(2), "w")
    other = pytensor.shared(np.zeros(2), "other")
    new = w + x.sum()
    f = synk.function([x], [new, new], updates=[(w, new), (other, new)], mode=PY)
    for output in f([1.0, 2.0]):
        output[:] = -1
    w.get_value(borrow=True)[:] = 7
    assert_same(other.get_value(), np.full(2, 3.0))


# -- what ranks hold -------------------------------------------------------------------


def test_the_state_says_what_made_it(two_ranks):
    x, w = pt.vector("x"), pytensor.shared(np.zeros(4), "w")
    assert synk.state(w) == "equal on all ranks, since the ranks were given its value"
    synk.scatter(w, np.arange(5.0))
    assert synk.state([w]) == ["in parts of 3, 2 rows, since synk.scatter"]
    synk.broadcast(w)
    assert synk.state(w) == "equal on all ranks, since synk.broadcast"
    f = synk.function([x], updates=[(w, w + x.sum())], mode=PY, name="f")
    f([1.0, 2, 3])
    assert synk.state(w) == "equal on all ranks, since function 'f' has updated it"
    g = synk.function([x], updates=[(w, w + x.sum())], mode=PY, local=True)
    g([1.0, 2, 3])
    assert synk.state(w).startswith(
        "each rank's own, from 2, 1 rows, since a function of x has updated it, on each"
        " rank by what its own rows or random streams give (test_ledger.py"
    )
    synk.all_reduce(w)
    assert synk.state(w) == "equal on all ranks, since synk.all_reduce by 'avg'"
    synk.reduce(w)
    assert synk.state(w).startswith("each rank's own, since synk.reduce")
    w.set_value(np.zeros(4))
    assert synk.state(w) == "equal on all ranks, since it was set in the script"
    rng = pytensor.shared(np.random.default_rng(0))
    assert "random stream" in synk.state(rng)


def test_what_is_a_rank_s_own_is_not_taken_for_equal(two_ranks):
    x, w, _, loss, updates = descent()
    local = synk.function([x], updates=updates, mode=PY, local=True, name="local")
    step = synk.function([x], loss, updates=updates, mode=PY, name="step")
    local([1.0, 2, 3])
    before = on_all_ranks(w)
    said = (
        "function 'step' takes w for equal on all ranks, and it is each rank's own.*"
        "function 'local' has updated it.*synk.all_reduce.*set_value.*local=True"
    )
    with pytest.raises(synk.SplitError, match=said):
        step([1.0, 2])
    assert on_all_ranks(w) == before
    synk.all_reduce(w)
    assert_same(step([3.0, 1.0]), ((np.array([3, 1]) - 2.0) ** 2).mean(), 4)


def test_ops_that_are_named_read_each_rank_s_own(two_ranks):
    w = pytensor.shared(1.0, "w")
    synk.set_value(1, w, 3.0)
    outputs = [(w, "sum"), (2 * w, "gather"), synk.ops.all_reduce(w, "max")]
    f = synk.function([], outputs, mode=PY)
    total, rows, largest = f()
    assert (total, largest) == (4, 3)
    assert_same(rows, [2.0, 6.0])


def test_a_local_function_says_so_where_its_ops_rest_on_equal_values(two_ranks):
    x, _, _, loss, updates = descent()
    options = {"updates": updates, "mode": PY, "local": True}
    with warnings.catch_warnings():
        warnings.simplefilter("error", synk.SplitWarning)
        f = synk.function([x], loss, **options)
        named = synk.function([x], (loss, "avg"), **options)
        f([1.0, 2, 3])
        named([1.0, 2, 3])
        named([1.0, 2, 3])
    with pytest.warns(synk.SplitWarning, match="with w equal on all ranks, and that"):
        f([1.0, 2, 3])
    with warnings.catch_warnings():
        warnings.simplefilter("error", synk.SplitWarning)
        f([1.0, 2, 3])  # once
    strict = synk.function([x], loss, strict=True, **options)
    with pytest.raises(synk.SplitError, match="with w equal on all ranks"):
        strict([1.0, 2, 3])


def test_weights_follow_what_is_computed_from_a_rank_s_own(two_ranks):
    x = pt.vector("x")
    g, h, k = (pytensor.shared(0.0, name) for name in "ghk")
    mean = synk.function([x], updates=[(g, x.mean())], mode=PY, local=True)
    twice = synk.function([], updates=[(h, 2 * g), (k, g + h)], mode=PY, local=True)
    mean(np.arange(5.0))
    twice()
    synk.all_reduce([g, h, k])
    assert_same(np.array([g.get_value(), h.get_value(), k.get_value()]), [2.0, 4, 2])


def test_a_new_session_begins_with_the_script_s_values():
    x, w, _, loss, updates = descent()
    local = synk.function([x], updates=updates, mode=PY, local=True)
    step = synk.function([x], loss, updates=updates, mode=PY)
    with synk.session(2):
        local([1.0, 2, 3])
        own = w.get_value()
    with synk.session(3):
        assert_same(step([2.0, 4.0]), ((np.array([2, 4]) - own) ** 2).mean(), 4)
        assert len(set(map(float, on_all_ranks(w)))) == 1


# -- scattered variables ---------------------------------------------------------------


def regression():
    x, y = pt.matrix("x"), pytensor.shared(np.zeros(0), "y")
    w = pytensor.shared(np.ones(3), "w")
    loss = ((x @ w - y) ** 2).mean()
    outputs = [loss, y.sum(), y - y.mean(), (y * 2).max()]
    return x, y, w, outputs, [(w, w - 0.1 * pytensor.grad(loss, w))]


def test_scattered_variables_take_part_as_rows(ranks):
    x, y, w, outputs, updates = regression()
    f = synk.function([x], outputs, updates=updates, mode=PY, strict=True)
    random = np.random.default_rng(0)
    rows, targets = random.normal(size=(7, 3)), random.normal(size=7)
    t = pt.vector("t")
    plain = pytensor.function([x, t], [*outputs, updates[0][1]], givens={y: t}, mode=PY)
    value = w.get_value()
    synk.scatter(y, targets)
    for slices in (1, 3):
        plain_w = w.get_value()
        right = plain(rows, targets)
        found = f(rows, num_slices=slices)
        for got, serial in zip([*found, w.get_value()], right, strict=True):
            assert_same(got, serial, 40)
        assert not np.allclose(plain_w, w.get_value())
    assert not np.allclose(value, w.get_value())
    if ranks > 1:
        with pytest.raises(synk.SplitError, match="rows of y together with those of"):
            f(rows[:6])


def test_an_update_of_a_scattered_variable_leaves_each_rank_its_part(ranks):
    s = pytensor.shared(np.zeros(0), "s")
    rows = np.arange(7.0) ** 2
    synk.scatter(s, rows)
    centred = synk.function([], updates=[(s, s - s.mean())], mode=PY)
    centred()
    right = rows - rows.mean()
    for value, part in zip(on_all_ranks(s), cut(right, ranks), strict=True):
        assert_same(value, part, 8)
    parts = synk.get_lengths(s)
    total = synk.function([], updates=[(s, 0 * s + (s**2).sum())], mode=PY)
    total()
    assert synk.get_lengths(s) == parts
    assert_same(synk.gather(s, nd_up=0), np.full(7, (right**2).sum()), 8)


def test_rows_of_sliceable_variables_that_a_call_does_not_use_stay(ranks):
    s = pytensor.shared(np.zeros((0, 2)), "s")
    rows = np.arange(24.0).reshape(12, 2)
    synk.scatter(s, rows)
    f = synk.function(
        [], s.sum(), updates=[(s, s * 10)], sliceable_shareds=[s], mode=PY
    )
    right = cut(rows, ranks)
    for chosen in (slice(0, 2), np.array([1, 0]), [slice(1)] * ranks, None):
        batch_s = chosen if isinstance(chosen, list) else [chosen] * ranks
        taken = [slice(None) if rows_of is None else rows_of for rows_of in batch_s]
        expected = sum(p[t].sum() for p, t in zip(right, taken, strict=True))
        assert_same(f(batch_s=chosen), expected, 8)
        for part, of_rank in zip(right, taken, strict=True):
            part[of_rank] *= 10
        for value, part in zip(on_all_ranks(s), right, strict=True):
            assert_same(value, part)


def test_a_sliceable_variable_is_left_without_rows_where_there_are_none(ranks):
    x, s = pt.vector("x"), pytensor.shared(np.zeros(0), "s")
    options = {"sliceable_shareds": [s], "mode": PY, "on_unused_input": "ignore"}
    f = synk.function([x], updates=[(s, x * 10)], **options)
    read = synk.function([x], [(x * s).sum(), s.sum()], mode=PY)
    synk.scatter(s, np.arange(8.0))
    for rows in (np.array([3.0]), np.arange(5.0)):
        f(rows)
        assert_same(synk.gather(s, nd_up=0), rows * 10)
        assert_same(np.array(read(rows)), [(rows**2).sum() * 10, rows.sum() * 10], 4)


def test_batch_s_chooses_no_rows_of_what_was_not_declared(two_ranks):
    y, t = pytensor.shared(np.zeros(0), "y"), pytensor.shared(np.zeros(0), "t")
    f = synk.function([], [y.sum(), t.sum()], sliceable_shareds=[t], mode=PY)
    synk.scatter([y, t], [np.arange(4.0)] * 2)
    with refused(synk.SplitError, "name it in sliceable_shareds"):
        f(batch_s=1)


# -- slices ----------------------------------------------------------------------------


def test_updates_that_slices_do_not_make_up_are_refused_in_slices(two_ranks):
    x, t = pt.vector("x"), pytensor.shared(0.0, "t")
    f = synk.function([x], updates=[(t, t + x.sum())], mode=PY, local=True)
    with refused(synk.SplitError, "new value of t .*does not follow from those of sli"):
        f(np.arange(6.0), num_slices=2)
    named = synk.function([x], updates=[(t, t + x.sum(), "sum")], mode=PY, local=True)
    named(np.arange(6.0), num_slices=2)
    assert [float(value) for value in on_all_ranks(t)] == [3, 12]


# -- in the midst of a run -------------------------------------------------------------


def test_what_a_generator_of_batches_sets_holds_from_there_on(ranks):
    def batches(rate):
        for k in range(5):
            if k != 1:
                rate.set_value(0.5 / (k + 1))
            if k == 3:
                w.set_value(7.0)
            yield slice(2 * k, 2 * k + 3)
        rate.set_value(0.25)

    x, w, rate, loss, updates = descent()
    step = synk.function([x], loss, updates=updates, mode=PY)
    rows = np.arange(13.0) ** 2
    found = step.run(batches(rate), rows)
    end, w_end = float(rate.get_value()), float(w.get_value())
    w.set_value(0.0)
    right = [float(step(rows, batch=batch)) for batch in batches(rate)]
    assert_same(found, np.array(right), 4)
    assert (end, w_end) == (0.25, float(w.get_value()))
    assert on_all_ranks(w) == [w_end] * ranks


def test_a_generator_that_writes_in_place_is_refused_in_a_run(two_ranks):
    def batches():
        yield slice(0, 2)
        halve()
        yield slice(0, 2)

    x, w, rate, loss, updates = descent()
    halve = pytensor.function([], updates=[(rate, rate / 2)])
    step = synk.function([x], loss, updates=updates, mode=PY)
    with pytest.raises(synk.StateError, match="updates a shared variable in place"):
        step.run(batches(), np.arange(4.0))
    assert_same(synk.gather(w), [0.0, 0.0])


def test_a_progress_callback_that_sets_a_variable_is_refused(two_ranks):
    def falling(k):
        if k == 2:
            rate.set_value(0.1)

    x, w, rate, loss, updates = descent()
    step = synk.function([x], loss, updates=updates, mode=PY)
    with pytest.raises(synk.StateError, match="callback has set a shared variable"):
        step.run([slice(0, 2)] * 4, np.arange(4.0), progress=falling)
    values = on_all_ranks(w)
    assert values[0] == values[1] == 0.5
    assert step.run([slice(0, 2)], np.arange(4.0)).shape == (1,)


def test_values_for_each_row_follow_one_another(two_ranks):
    x, rows = pt.vector("x"), pytensor.shared(np.zeros(0), "rows")
    sums = pytensor.shared(np.zeros(0), "sums")
    updates = [(rows, x * 2), (sums, pt.stack([x.sum()]), "gather")]
    f = synk.function([x], updates=updates, mode=PY, local=True)
    f(np.arange(8.0), num_slices=2)
    found = [*on_all_ranks(rows), *on_all_ranks(sums)]
    for value, right in zip(
        found, ([0, 2, 4, 6], [8, 10, 12, 14], [1, 5], [9, 13]), strict=True
    ):
        assert_same(value, np.array(right, float))


def test_integers_without_a_proof_stay_integers(ranks):
    x = pt.lvector("x")
    with pytest.warns(synk.SplitWarning, match="is combined by 'avg'"):
        f = synk.function([x], x.sum() ** 2, mode=PY, local=True)
    value = f(np.arange(5))
    assert value.dtype == "int64"
    assert ranks > 1 or value == 100


def test_what_the_script_has_set_is_that_of_a_variable_of_the_same_container(two_ranks):
    total = pytensor.shared(1.0, "total")
    read = synk.function([], total * 2, mode=PY)
    read()
    total.set_value(3.0)
    twin = total.clone()  # which the ranks do not know yet
    assert synk.function([], twin * 2, mode=PY)() == 6
    assert_same(synk.gather(total), np.array([3.0, 3.0]))


def test_as_theano_updates_a_variable_by_another_of_its_container(two_ranks):
    total = pytensor.shared(1.0, "total")
    twin = total.clone()
    f = synk.function([], total, updates=[(twin, total + 1)], mode=PY)
    synk.set_value(1, total, 5.0)
    f.as_theano()
    assert synk.state(total).startswith("equal")
    assert synk.gather(total).tolist() == [2.0, 2.0]
