"""Updates of some elements of a variable, which are written into its own array."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from reference import PY, assert_same, on_all_ranks

import synk

ROWS = np.array([4, 1, 1, 0, 4, 2, 4])


def row_steps(table, i, x):
    return pt.inc_subtensor(table[i], x)


def rows_set(table, i, x):
    return pt.set_subtensor(table[i], x * 0 + x.sum())


def columns_of_all(table, i, x):
    return pt.inc_subtensor(table[:, i.max() % 3 : 2], x.mean())


def a_block(table, i, x):
    return pt.set_subtensor(table[1:4, ::2], x.sum(axis=0)[:2])


def a_row_of_choice(table, i, x):
    return pt.inc_subtensor(table[i.max()], x.sum(axis=0))


def pairs(table, i, x):
    return pt.inc_subtensor(table[i, i % 3], x[:, 0])


def where_positive(table, i, x):
    return pt.set_subtensor(table[table[:, 0] > 2], x.sum())


def taken_by_another(table, i, x):
    return pt.inc_subtensor(table[i], x) * 1


FORMS = [
    row_steps,
    rows_set,
    columns_of_all,
    a_block,
    a_row_of_choice,
    pairs,
    where_positive,
    taken_by_another,
]


@pytest.mark.filterwarnings("ignore::synk.SplitWarning")
@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
def test_they_are_the_serial_ones(two_ranks, form):
    i, x = pt.lvector("i"), pt.matrix("x")
    start = np.arange(15.0).reshape(5, 3)
    table, plain = pytensor.shared(start, "table"), pytensor.shared(start, "plain")
    seen = pytensor.shared(0.0, "seen")
    updates = [(table, form(table, i, x)), (seen, table.sum())]
    options = {"on_unused_input": "ignore", "mode": PY}
    f = synk.function([i, x], table[1].sum(), updates=updates, **options)
    serial = pytensor.function([i, x], updates=[(plain, form(plain, i, x))], **options)
    values = np.random.default_rng(0).normal(size=(7, 3))
    for slices in (1, 2):
        before = plain.get_value()
        output = f(ROWS, values, num_slices=slices)
        serial(ROWS, values)
        for value in on_all_ranks(table):
            assert_same(value, plain.get_value(), 64)
        assert_same(output, before[1].sum(), 8)  # all that is read is from before
        assert_same(seen.get_value(), before.sum(), 64)


def test_no_other_element_is_copied(two_ranks):
    i, x = pt.lvector("i"), pt.matrix("x")
    table = pytensor.shared(np.zeros((5, 3)), "table")
    i_all = synk.ops.all_gather(i)
    steps = pt.inc_subtensor(table[i_all], synk.ops.all_gather(x))
    f = synk.function([i, x], updates=[(table, steps)])
    f(ROWS, np.ones((7, 3)))
    array = table.container.storage[0]
    f(ROWS, np.ones((7, 3)))
    assert table.container.storage[0] is array
    for value in on_all_ranks(table):
        assert_same(value[:, 0], np.bincount(ROWS) * 2.0)


def test_what_was_there_comes_back_if_another_rank_fails(two_ranks):
    i, x, k = pt.lvector("i"), pt.vector("x"), pt.lvector("k")
    table = pytensor.shared(np.arange(5.0), "table")
    steps = pt.inc_subtensor(table[i], x)
    outputs = (table[k].sum(), "sum")
    options = {"mode": PY, "local": True}
    f = synk.function([k], outputs, [i, x], updates=[(table, steps)], **options)
    rows, ones = np.array([1, 1, 3]), np.ones(3)
    for number in (9, 2):
        after = np.array([0.0, 3, 2, 4, 4]) if number == 2 else np.arange(5.0)
        if number == 9:
            with pytest.raises(IndexError):
                f(np.array([0, number]), rows, ones)
        else:
            f(np.array([0, number]), rows, ones)
        for value in on_all_ranks(table):
            assert_same(value, after)
    with pytest.raises(IndexError):  # what is written is nowhere
        f(np.array([0, 1]), np.array([0, 1, 7]), ones)
    for value in on_all_ranks(table):
        assert_same(value, after)
