"""What ranks hold of shared variables: the script's values, their own, and parts."""

import gc
import itertools
import warnings

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from on_ranks import assert_on_ranks, by_rank, one_and_three_ranks
from processes import bytes_of_segments
from pytensor.compile.mode import Mode
from reference import PY, assert_same, cut

import synk

IN_PLACE = Mode("py", "fast_run")
"""Writes new values over old ones, as the default mode does, and needs no compiler."""


def descent():
    x = pt.vector("x")
    w, rate = pytensor.shared(0.0, "w"), pytensor.shared(0.5, "rate")
    loss = ((x - w) ** 2).mean()
    updates = [(w, w - rate * pytensor.grad(loss, w))]
    return x, w, rate, loss, updates


# -- what the script sets --------------------------------------------------------------


def set_by_a_plain_function(var, value):
    new = pt.constant(value, dtype="float64")
    pytensor.function([], updates=[(var, new)], mode=PY)()


SETS = {
    "method": lambda var, value: var.set_value(value),
    "container": lambda var, value: setattr(var.container, "value", value),
    "twin": lambda var, value: var.clone().set_value(value),
    "plain function": set_by_a_plain_function,
}


def test_what_the_script_sets_the_next_call_reads_on_all_ranks(two_ranks):
    x, w, rate, loss, updates = descent()
    step = synk.function([x], loss, updates=updates, mode=PY)
    right = 0.0
    for how, set_it in SETS.items():
        for value in (0.5, 0.25, 0.25, 0.125):
            set_it(rate, value)
            step([1.0, 2, 6])
            right -= value * 2 * (right - 3)
            assert_on_ranks(w, np.array(right), 4, how)
            assert_on_ranks(rate, np.array(value), 0, how)


@pytest.mark.parametrize("shape", [(), (500, 2)])
@pytest.mark.parametrize("mode", [IN_PLACE, "FAST_COMPILE"], ids=["in place", ""])
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
    assert mode is not IN_PLACE or w.container.storage[0] is before
    assert (total(), read()) == (4 * size, 2 * size)
    double = pytensor.function([], updates=[(w, w * 2)], mode=mode)
    double()
    double()
    assert total() == 16 * size
    assert total() == 16 * size
    assert synk.state(w) == "replicated, since it was set in the script"


def test_outputs_updates_and_values_that_are_set_share_no_memory(two_ranks):
    x, w = pt.vector("x"), pytensor.shared(np.zeros(2), "w")
    other = pytensor.shared(np.zeros(2), "other")
    new = w + x.sum()
    f = synk.function([x], [new, new], updates=[(w, new), (other, new)], mode=PY)
    for output in f([1.0, 2.0]):
        output[:] = -1
    w.get_value(borrow=True)[:] = 7
    assert_same(other.get_value(), np.full(2, 3.0))
    # Nor does a reduction write to a value that the script took from another variable.
    synk.all_reduce([w, other])
    other.set_value(w.get_value(borrow=True), borrow=True)
    right = w.get_value()
    w.set_value(np.ones(2))
    synk.all_reduce(w, "max")
    assert_same(other.get_value(), right)
    synk.all_reduce(other, "max")
    assert_same(w.get_value(), np.ones(2))


# -- what ranks hold -------------------------------------------------------------------


def test_the_state_says_what_made_it(two_ranks):
    x, w = pt.vector("x"), pytensor.shared(np.zeros(4), "w")
    assert synk.state(w) == "replicated, since the ranks were given its value"
    synk.scatter(w, np.arange(5.0))
    assert synk.state([w]) == ["sharded in 3, 2 rows, since synk.scatter"]
    synk.broadcast(w)
    assert synk.state(w) == "replicated, since synk.broadcast"
    f = synk.function([x], updates=[(w, w + x.sum())], mode=PY, name="f")
    f([1.0, 2, 3])
    assert synk.state(w) == "replicated, since function 'f' has updated it"
    g = synk.function([x], updates=[(w, w + x.sum())], mode=PY, local=True)
    g([1.0, 2, 3])
    assert synk.state(w).startswith(
        "local to each rank, from 2, 1 rows, since a function of x has updated it, on"
        " each rank by what its own rows or random streams give "
        "(test_shared_variables_values.py"
    )
    synk.all_reduce(w)
    assert synk.state(w) == "replicated, since synk.all_reduce by 'avg'"
    synk.reduce(w)
    assert synk.state(w).startswith("local to each rank, since synk.reduce")
    w.set_value(np.zeros(4))
    assert synk.state(w) == "replicated, since it was set in the script"
    rng = pytensor.shared(np.random.default_rng(0))
    assert "random stream" in synk.state(rng)


def test_what_is_a_rank_s_own_is_not_taken_for_equal(two_ranks):
    x, w, _, loss, updates = descent()
    local = synk.function([x], updates=updates, mode=PY, local=True, name="local")
    step = synk.function([x], loss, updates=updates, mode=PY, name="step")
    local([1.0, 2, 3])
    before = by_rank(w)
    assert before[0] != before[1]
    said = (
        "function 'step' takes w as replicated, and it is local to each rank.*"
        "function 'local' has updated it.*synk.all_reduce.*set_value.*local=True"
    )
    with pytest.raises(synk.SplitError, match=said):
        step([1.0, 2])
    assert by_rank(w) == before
    synk.all_reduce(w)
    assert_same(step([3.0, 1.0]), ((np.array([3, 1]) - 2.0) ** 2).mean(), 4)
    local([1.0, 2, 3])
    own = w.get_value()
    synk.close()  # a new session begins with the script's values
    with synk.session(3):
        assert_same(step([2.0, 4.0]), ((np.array([2, 4]) - own) ** 2).mean(), 4)
        assert len(set(map(float, by_rank(w)))) == 1


def test_ops_that_are_named_read_each_rank_s_own(two_ranks):
    w = pytensor.shared(1.0, "w")
    synk.set_value(1, w, 3.0)
    outputs = [(w, "sum"), (2 * w, "gather"), synk.ops.all_reduce(w, "max")]
    total, rows, largest = synk.function([], outputs, mode=PY)()
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
    with pytest.warns(synk.SplitWarning, match="with w replicated, and that"):
        f([1.0, 2, 3])
    with warnings.catch_warnings():
        warnings.simplefilter("error", synk.SplitWarning)
        f([1.0, 2, 3])  # once
    strict = synk.function([x], loss, strict=True, **options)
    with pytest.raises(synk.SplitError, match="with w replicated"):
        strict([1.0, 2, 3])


# -- scattered variables ---------------------------------------------------------------


@one_and_three_ranks
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
    with pytest.raises(synk.SplitError, match="name it in sliceable_shareds"):
        f(batch_s=1)


# -- slices ----------------------------------------------------------------------------


def test_updates_that_slices_do_not_make_up_are_refused_in_slices(two_ranks):
    x, t = pt.vector("x"), pytensor.shared(0.0, "t")
    f = synk.function([x], updates=[(t, t + x.sum())], mode=PY, local=True)
    why = "new value of t .*does not follow from those of sli"
    with pytest.raises(synk.SplitError, match=why):
        f(np.arange(6.0), num_slices=2)
    assert by_rank(t) == [0, 0]
    named = synk.function([x], updates=[(t, t + x.sum(), "sum")], mode=PY, local=True)
    named(np.arange(6.0), num_slices=2)
    assert by_rank(t) == [3, 12]


# -- in the midst of a run -------------------------------------------------------------


@one_and_three_ranks
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
    assert by_rank(w) == [w_end] * ranks


def test_what_cannot_be_set_in_the_midst_of_a_run_is_refused(two_ranks):
    def batches():
        yield slice(0, 2)
        halve()
        yield slice(0, 2)

    def falling(k):
        if k == 2:
            rate.set_value(0.1)

    x, w, rate, loss, updates = descent()
    halve = pytensor.function([], updates=[(rate, rate / 2)], mode=IN_PLACE)
    step = synk.function([x], loss, updates=updates, mode=PY)
    with pytest.raises(synk.StateError, match="updates a shared variable in place"):
        step.run(batches(), np.arange(4.0))
    assert by_rank(w) == [0, 0]
    rate.set_value(0.5)
    with pytest.raises(synk.StateError, match="callback has set a shared variable"):
        step.run([slice(0, 2)] * 4, np.arange(4.0), progress=falling)
    assert by_rank(w) == [0.5, 0.5]
    assert step.run([slice(0, 2)], np.arange(4.0)).shape == (1,)


# -- where values lie ------------------------------------------------------------------


def test_reduced_values_lie_in_shared_memory_and_return_there(two_ranks):
    x = pt.vector("x")
    g, h = (pytensor.shared(np.zeros(1000)) for _ in range(2))
    in_place = {g: pt.set_subtensor(g[:], x.sum())}
    anew = {h: pt.ones(1000) * x.sum()}
    f = synk.function([x], updates={**in_place, **anew}, local=True, mode=IN_PLACE)
    f([1.0, 2.0])
    synk.all_reduce([g, h], "sum")
    homes = [var.get_value(borrow=True) for var in (g, h)]
    for value in (3.0, 4.0, 5.0):
        f([value, value])
        synk.all_reduce([g, h], "sum")
        for var, home in zip((g, h), homes, strict=True):
            assert np.shares_memory(var.get_value(borrow=True), home)
            assert_on_ranks(var, np.full(1000, 2 * value))


def test_memory_of_variables_that_are_gone_or_of_other_shape_is_given_back(two_ranks):
    keep = pytensor.shared(np.ones(3))
    synk.all_reduce(keep)
    before, large = bytes_of_segments(), 800_000
    for length in range(1, 6):
        drop = [pytensor.shared(np.ones(100_000)) for _ in range(3)]
        synk.all_reduce(drop)
        assert bytes_of_segments() > before + 3 * 2 * large
        del drop
        synk.broadcast(keep, np.ones(100_000 * length))
        synk.all_reduce(keep)
    gc.collect()
    for _ in range(101):  # which let go of what large messages have taken, too
        synk.broadcast(keep, np.ones(3))
        synk.all_reduce(keep)
    assert bytes_of_segments() < before + large


def test_values_stay_valid_after_the_session():
    a = pytensor.shared(np.arange(1000.0))
    with synk.session(2):
        synk.all_reduce(a, "sum")
        view = a.get_value(borrow=True)
        synk.set_value(1, a, np.zeros(1000))
    gc.collect()
    assert_same(a.get_value(), np.arange(1000.0) * 2)
    assert_same(view, np.arange(1000.0) * 2)
    with synk.session(3):
        synk.all_reduce(a, "sum")
        assert_on_ranks(a, np.arange(1000.0) * 6)
    assert_same(view, np.arange(1000.0) * 2)
    add = pytensor.function([], a.sum(), updates={a: a + 1}, mode=PY)
    add()
    assert_same(a.get_value(), np.arange(1000.0) * 6 + 1)


@one_and_three_ranks
def test_neighbours_of_other_dtypes_and_weights_are_not_mixed(ranks):
    x = pt.vector("x")
    a, b, d = (pytensor.shared(np.zeros(3)) for _ in range(3))
    c = pytensor.shared(np.zeros(3, "float32"))
    updates = {a: pt.ones(3) * x.mean(), c: (pt.ones(3) * x.mean()).astype("float32")}
    f = synk.function([x], updates=updates, mode=PY, local=True)
    value = np.arange(2.0 * ranks + 1) ** 2
    means = np.array([part.mean() for part in cut(value, ranks)])
    for _ in range(2):
        f(value)
        for rank in range(ranks):
            synk.set_value(rank, [b, d], [np.full(3, means[rank])] * 2)
        synk.all_reduce([a, b, c, d])
        assert_on_ranks(a, np.full(3, value.mean()), 16)
        assert_on_ranks(c, np.full(3, value.mean(), "float32"), 16)
        for var in (b, d):
            assert_on_ranks(var, np.full(3, means.mean()), 16)


# -- updates of some elements, which are written into the variable's own array ---------

ROWS = np.array([4, 1, 1, 0, 4, 2, 4])

FORMS = {
    "steps of rows": lambda t, i, x: pt.inc_subtensor(t[i], x),
    "rows set": lambda t, i, x: pt.set_subtensor(t[i], x * 0 + x.sum()),
    "columns": lambda t, i, x: pt.inc_subtensor(t[:, i.max() % 3 : 2], x.mean()),
    "a block": lambda t, i, x: pt.set_subtensor(t[1:4, ::2], x.sum(axis=0)[:2]),
    "a row of choice": lambda t, i, x: pt.inc_subtensor(t[i.max()], x.sum(axis=0)),
    "pairs": lambda t, i, x: pt.inc_subtensor(t[i, i % 3], x[:, 0]),
    "a mask": lambda t, i, x: pt.set_subtensor(t[t[:, 0] > 2], x.sum()),
    "taken by another": lambda t, i, x: pt.inc_subtensor(t[i], x) * 1,
}


@pytest.mark.filterwarnings("ignore::synk.SplitWarning")
def test_updates_of_some_elements_are_the_serial_ones(two_ranks):
    i, x = pt.lvector("i"), pt.matrix("x")
    start = np.arange(15.0).reshape(5, 3)
    tables = {name: pytensor.shared(start, name) for name in FORMS}
    seen = {name: pytensor.shared(0.0) for name in FORMS}
    updates = [(table, FORMS[name](table, i, x)) for name, table in tables.items()]
    updates += [(seen[name], table.sum()) for name, table in tables.items()]
    outputs = [table[1].sum() for table in tables.values()]
    f = synk.function([i, x], outputs, updates=updates, mode=PY)
    stand_ins = {table: table.type() for table in tables.values()}
    news = [new for _, new in updates[: len(FORMS)]]
    serial = pytensor.function(
        [i, x, *stand_ins.values()], news, givens=stand_ins, mode=PY
    )
    values = np.random.default_rng(0).normal(size=(7, 3))
    for slices in (1, 2):
        before = [table.get_value() for table in tables.values()]
        found = f(ROWS, values, num_slices=slices)
        right = serial(ROWS, values, *before)
        for name, output, old, new in zip(FORMS, found, before, right, strict=True):
            assert_on_ranks(tables[name], new, 64, name)
            assert_same(output, old[1].sum(), 8, err_msg=name)  # from before it
            assert_same(seen[name].get_value(), old.sum(), 64, err_msg=name)


def test_no_other_element_is_copied(two_ranks):
    i, x = pt.lvector("i"), pt.matrix("x")
    table = pytensor.shared(np.zeros((5, 3)), "table")
    i_all = synk.ops.all_gather(i)
    steps = pt.inc_subtensor(table[i_all], synk.ops.all_gather(x))
    f = synk.function([i, x], updates=[(table, steps)], mode=IN_PLACE)
    f(ROWS, np.ones((7, 3)))
    array = table.container.storage[0]
    f(ROWS, np.ones((7, 3)))
    assert table.container.storage[0] is array
    for value in by_rank(table):
        assert_same(value[:, 0], np.bincount(ROWS) * 2.0)


KINDS = (
    *(
        (1, 2),
        (3, "four"),
        (1,) * 7,
        (),
        {"a": 1},
        {"b": (2,)},
        "text",
        "a" * 3_000_000,
    ),
    [1, 2.5, "three", b"four", (5, None), {"six": 6}],
    [np.float32(2), np.int64(3), np.bool_(True)],
    {"a": np.zeros((2, 0))},
    np.array(["x"], dtype=object),
)


def test_values_of_any_kind_and_size_are_set_and_read_as_they_are(two_ranks):
    def are(*values):
        for found, right in zip(by_rank(held), values, strict=True):
            assert type(found) is type(right)
            assert repr(found) == repr(right)

    for value, new in itertools.pairwise(KINDS):
        held = pytensor.shared(value, "held")
        are(value, value)
        synk.set_value(1, held, new)
        are(value, new)
        synk.broadcast(held)
        are(value, value)
        synk.broadcast(held, new)
        are(new, new)
