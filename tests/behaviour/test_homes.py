"""Homes: shared variables that are reduced stay in shared memory, and keep to it."""

from __future__ import annotations

import gc
import itertools

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from reference import PY, assert_same, cut
from world_sizes import one_and_three_ranks

import synk
from synk.engines import host
from synk.ranks.session import SESSION


def worker_address(context, number):
    """Return where a variable's value lies on this rank."""
    value = host.get_value(context.registry.variables[number])
    return value.__array_interface__["data"][0], type(value.base).__name__


def addresses(variable):
    return SESSION.run(worker_address, SESSION.numbers[variable])


def worker_homes(context):
    """Return how many homes this rank knows, and variables in them."""
    return len(context.homes._rows), len(context.homes._slots)


def test_a_function_that_updates_in_place_writes_into_the_home(two_ranks):
    x = pt.vector("x")
    g = pytensor.shared(np.zeros(1000))
    f = synk.function([x], updates={g: pt.set_subtensor(g[:], x.sum())}, local=True)
    f([1.0, 2.0])
    synk.all_reduce(g, "sum")
    before = addresses(g)
    for _ in range(3):
        f([1.0, 2.0])
        synk.all_reduce(g, "sum")
        assert addresses(g) == before
        for rank in range(2):
            assert_same(synk.get_value(rank, g), np.full(1000, 3.0))


def test_a_value_that_left_its_home_returns_to_it(two_ranks):
    x = pt.vector("x")
    g = pytensor.shared(np.zeros(10))
    f = synk.function([x], updates={g: pt.ones(10) * x.sum()}, mode=PY, local=True)
    f([1.0, 2.0])
    synk.all_reduce(g, "sum")
    before = addresses(g)
    for value in (3.0, 4.0):
        f([value, value])
        synk.all_reduce(g, "sum")
        assert addresses(g) == before
        assert_same(synk.get_value(1, g), np.full(10, 2 * value))


@pytest.mark.parametrize("mode", ["py", "default"])
def test_a_variable_that_takes_over_a_reduced_one_keeps_its_value(two_ranks, mode):
    """The last gradient beside the present one: PyTensor hands over the array."""
    x = pt.vector("x")
    g, before = (pytensor.shared(np.zeros(3), name=name) for name in ("g", "before"))
    updates = [(before, g), (g, x.sum() * pt.ones(3))]
    mode = PY if mode == "py" else None
    f = synk.function([x], updates=updates, mode=mode, local=True)
    expected = np.zeros(3)
    for step in range(1, 5):
        f([float(step), 10.0 * step])
        synk.all_reduce(g, "sum")
        for rank in range(2):
            assert_same(synk.get_value(rank, before), expected)
            assert_same(synk.get_value(rank, g), np.full(3, 11.0 * step))
        expected = np.full(3, 11.0 * step)


@one_and_three_ranks
@pytest.mark.parametrize("together", [True, False])
def test_variables_that_swap_their_values_keep_them_apart(ranks, together):
    a, b = pytensor.shared(np.full(3, 1.0)), pytensor.shared(np.full(3, 2.0))
    swap = synk.function([], updates=[(a, b), (b, a)], mode=PY)
    lists = [[a, b]] if together else [[a], [b]]
    for vars in lists:
        synk.all_reduce(vars)
    for step in range(1, 5):
        swap()
        for vars in lists[:: 1 if step % 2 else -1]:
            synk.all_reduce(vars)
        for rank in range(ranks):
            assert_same(synk.get_value(rank, a), np.full(3, 1.0 + step % 2))
            assert_same(synk.get_value(rank, b), np.full(3, 2.0 - step % 2))


def test_variables_that_rotate_keep_their_values_apart(two_ranks):
    variables = [pytensor.shared(np.full(4, float(i))) for i in range(4)]
    rotate = synk.function(
        [],
        updates=[(variables[i], variables[i - 1]) for i in range(4)],
        mode=PY,
    )
    synk.all_reduce(variables, "max")
    for step in range(1, 6):
        rotate()
        synk.all_reduce(variables[step % 4], "max")
        synk.all_reduce(variables[::-1], "max")
        for i, var in enumerate(variables):
            for rank in range(2):
                assert_same(synk.get_value(rank, var), np.full(4, (i - step) % 4 * 1.0))


def test_a_part_of_a_reduced_variable_is_kept_by_another(two_ranks):
    """A view of the home: not the whole slot, and not from its start."""
    g, tail = pytensor.shared(np.arange(6.0)), pytensor.shared(np.zeros(2))
    f = synk.function([], updates=[(tail, g[4:]), (g, g + 1)])
    synk.all_reduce(g, "max")
    for step in range(1, 4):
        f()
        synk.all_reduce(g, "max")
        for rank in range(2):
            assert_same(synk.get_value(rank, tail), np.array([3.0, 4.0]) + step)
            assert_same(synk.get_value(rank, g), np.arange(6.0) + step)


def test_values_set_by_the_user_do_not_write_into_the_home(two_ranks):
    g, h = pytensor.shared(np.zeros(3)), pytensor.shared(np.zeros(3))
    synk.all_reduce([g, h])
    h.set_value(g.get_value(borrow=True), borrow=True)
    g.set_value(np.ones(3))
    synk.all_reduce(g, "max")
    assert_same(h.get_value(), np.zeros(3))
    synk.all_reduce(h, "max")
    assert_same(g.get_value(), np.ones(3))
    assert_same(h.get_value(), np.zeros(3))


@one_and_three_ranks
def test_any_order_and_any_part_of_a_list_is_reduced_right(ranks):
    shapes = [(3,), (), (0,), (70,), (2, 2), (1,)]
    variables = [pytensor.shared(np.zeros(shape)) for shape in shapes]
    synk.all_reduce(variables[:4])
    synk.all_reduce(variables[3:])
    for chosen in itertools.islice(itertools.permutations(range(6), 3), 0, None, 7):
        for rank in range(ranks):
            synk.set_value(
                rank, variables, [np.full(shape, rank + 1.0) for shape in shapes]
            )
        synk.all_reduce([variables[i] for i in chosen], "sum")
        for i, shape in enumerate(shapes):
            for rank in range(ranks):
                total = ranks * (ranks + 1) / 2 if i in chosen else rank + 1.0
                assert_same(synk.get_value(rank, variables[i]), np.full(shape, total))


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
        for rank in range(ranks):
            assert_same(synk.get_value(rank, a), np.full(3, value.mean()), 16)
            assert_same(synk.get_value(rank, b), np.full(3, means.mean()), 16)
            assert_same(
                synk.get_value(rank, c), np.full(3, value.mean(), "float32"), 16
            )
            assert_same(synk.get_value(rank, d), np.full(3, means.mean()), 16)


def test_homes_of_variables_that_are_gone_are_given_back(two_ranks):
    keep = pytensor.shared(np.ones(3))
    synk.all_reduce(keep)
    before = SESSION.run(worker_homes)
    for _ in range(3):
        drop = [pytensor.shared(np.ones(1000)) for _ in range(3)]
        synk.all_reduce(drop)
        del drop
        gc.collect()
    synk.all_reduce(keep)  # takes the notices along
    assert SESSION.run(worker_homes) == before


def test_a_home_of_a_former_shape_is_given_back(two_ranks):
    a = pytensor.shared(np.ones(3))
    synk.all_reduce(a)
    before = SESSION.run(worker_homes)
    for length in (5, 50, 3):
        synk.broadcast(a, np.ones(length))
        synk.all_reduce(a, "sum")
        assert SESSION.run(worker_homes) == before


def test_values_stay_valid_after_the_session(two_ranks):
    a = pytensor.shared(np.arange(1000.0))
    synk.all_reduce(a, "sum")
    view = a.get_value(borrow=True)
    synk.close()
    gc.collect()
    assert_same(a.get_value(), np.arange(1000.0) * 2)
    assert_same(view, np.arange(1000.0) * 2)
    with synk.session(3):
        synk.all_reduce(a, "sum")
        assert_same(synk.get_value(2, a), np.arange(1000.0) * 6)
    assert_same(view, np.arange(1000.0) * 2)


def test_plain_pytensor_functions_work_on_reduced_variables(two_ranks):
    a = pytensor.shared(np.arange(3.0))
    f = pytensor.function([], a.sum(), updates={a: a + 1}, mode=PY)
    synk.all_reduce(a, "sum")
    assert f() == 6
    assert_same(a.get_value(), np.arange(3.0) * 2 + 1)
    synk.all_reduce(a, "sum")
    assert_same(synk.get_value(1, a), np.arange(3.0) * 4 + 2)


def test_empty_values_and_scalars_are_reduced_together(two_ranks):
    empty, scalar = pytensor.shared(np.zeros(0)), pytensor.shared(np.array(1.0))
    for variables in ([empty, scalar], [scalar, empty]):
        synk.broadcast(scalar, 1.0)
        synk.all_reduce(variables, "sum")
        assert synk.gather(scalar).tolist() == [2, 2]
