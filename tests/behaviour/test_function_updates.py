"""Updates and givens of a function, against plain PyTensor."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from reference import (
    PY,
    assert_same,
    cut,
)
from world_sizes import one_and_three_ranks

import synk


@one_and_three_ranks
def test_every_rank_has_the_new_value_of_the_serial_run(ranks):
    x = pt.vector("x")
    total = pytensor.shared(0.0, name="total")
    calls = pytensor.shared(np.int64(0), name="calls")
    f = synk.function(
        [x], updates=[(total, total + x.sum()), (calls, calls + 1)], mode=PY
    )
    assert f.update_modes == [None, None]
    value = np.arange(1.0, 8.0)
    for times in (1, 2, 3):
        f(value, num_slices=times)
        for rank in range(ranks):
            assert synk.get_value(rank, total) == times * value.sum()
            assert synk.get_value(rank, calls) == times


@one_and_three_ranks
def test_updates_act_on_every_rank_by_itself_where_the_function_is_local(ranks):
    x = pt.vector("x")
    total = pytensor.shared(0.0, name="total")
    calls = pytensor.shared(np.int64(0), name="calls")
    updates = [(total, total + x.sum()), (calls, calls + 1)]
    f = synk.function([x], updates=updates, mode=PY, local=True)
    assert f.update_modes == [None, None]
    value = np.arange(1.0, 8.0)
    for times in (1, 2, 3):
        f(value)
        for rank, part in enumerate(cut(value, ranks)):
            assert synk.get_value(rank, total) == times * part.sum()
            assert synk.get_value(rank, calls) == times


@one_and_three_ranks
def test_a_rank_without_rows_makes_only_the_updates_that_need_none(ranks):
    x, b = pt.vector("x"), pt.scalar("b")
    mean, calls, given, both = (pytensor.shared(-1.0) for _ in range(4))
    updates = {mean: x.mean(), calls: calls + 1, given: b * 2, both: b * x.sum()}
    f = synk.function([x], x.sum(), [b], updates=updates, mode=PY, local=True)
    for times in (1, 2):
        f([4.0], 3.0, num_slices=times)
        for rank in range(ranks):
            values = synk.get_value(rank, [mean, calls, given, both])
            if rank == 0:
                assert values == [4, times - 1, 6, 12]
            else:
                assert values == [-1, times - 1, 6, -1]


@one_and_three_ranks
def test_a_rank_without_rows_has_the_new_values_of_all_others(ranks):
    x, b = pt.vector("x"), pt.scalar("b")
    kept = pytensor.shared(np.zeros(0))
    mean, top, both, length = (pytensor.shared(-1.0) for _ in range(4))
    updates = {mean: x.mean(), top: x.max(), both: b * x.sum(), kept: 2 * x}
    updates[length] = 1.0 * x.shape[0]
    f = synk.function([x], x.sum(), [b], updates=updates, mode=PY)
    for times in (1, 2):
        f([4.0], 3.0, num_slices=times)
        for rank in range(ranks):
            values = synk.get_value(rank, [mean, top, both, kept, length])
            assert values == [4, 4, 12, [8], 1]


@one_and_three_ranks
def test_updates_see_the_values_before_the_call(ranks):
    a, b, c = (pytensor.shared(float(i)) for i in (1, 2, 3))
    f = synk.function([], [a + 0, c + 0], updates=[(a, b), (b, a), (c, a + b)], mode=PY)
    plain_values = [1.0, 2.0, 3.0]
    for _ in range(3):
        assert f() == [plain_values[0], plain_values[2]]
        one, two, _ = plain_values
        plain_values = [two, one, one + two]
        for rank in range(ranks):
            assert synk.get_value(rank, [a, b, c]) == plain_values


def test_updates_are_made_whatever_outputs_are_asked_for(two_ranks):
    x = pt.vector("x")
    n = pytensor.shared(0)
    f = synk.function([x], [x.mean(), x.max()], updates={n: n + 1}, mode=PY)
    f([1.0], output_subset=[1])
    f([1.0], output_subset=[])
    f([1.0])
    assert synk.get_value(0, n) == synk.get_value(1, n) == 3


def test_updates_may_be_a_dict_or_a_list_and_name_an_op(two_ranks):
    a, b, c = (pytensor.shared(0.0) for _ in range(3))
    x = pt.vector("x")
    updates = [(a, a + 1, "sum"), [b, x.sum()], (c, c - 1)]
    f = synk.function([x], updates=updates, mode=PY)
    assert f.update_modes == ["sum", None, None]
    f([3.0, 4.0])
    assert synk.get_value(1, [a, b, c]) == [1, 7, -1]
    f = synk.function([x], updates={a: x.sum(), b: b + 1}, mode=PY)
    assert f.update_modes == [None, None]
    f([3.0, 4.0])
    assert synk.get_value(1, [a, b, c]) == [7, 8, -1]


@pytest.mark.parametrize(
    ("dtype", "value"),
    [("float32", 0.5), ("float64", 1), ("int8", 1.5), ("float64", None)],
)
def test_a_new_value_that_pytensor_refuses_is_refused(dtype, value):
    w = pytensor.shared(np.zeros(2, dtype))
    new = pt.as_tensor(np.array(value)) if value is not None else "new"
    with pytest.raises(Exception) as plain:
        pytensor.function([], updates={w: new})
    with pytest.raises(plain.type):
        synk.function([], updates={w: new})


@one_and_three_ranks
@pytest.mark.filterwarnings("ignore:Setting default_update")
def test_a_default_update_is_made_unless_it_is_excluded(ranks):
    n = pytensor.shared(0)
    n.default_update = n + 1
    x = pt.vector("x")
    y = x.sum() + n

    def after(slices=1, **options):
        f = synk.function([x], (y, "max"), mode=PY, **options)
        result = f(np.zeros(ranks + 1), num_slices=slices)
        values = [int(synk.get_value(rank, n)) for rank in range(ranks)]
        assert values == values[:1] * ranks
        return int(result), values[0]

    assert after() == (0, 1)
    assert after(slices=3) == (1, 2)
    assert after(no_default_updates=True) == (2, 2)
    assert after(no_default_updates=True, slices=2) == (2, 2)
    assert after(no_default_updates=[n]) == (2, 2)
    assert after(updates={n: n + 10}) == (2, 12)
    assert after(updates={n: n + 10}, slices=2) == (12, 22)
    other = pytensor.shared(0)
    assert after(no_default_updates=[other]) == (22, 23)


@pytest.mark.filterwarnings("ignore:Setting default_update")
def test_a_default_update_of_what_givens_have_replaced_is_not_made(two_ranks):
    n, x = pytensor.shared(0), pt.vector("x")
    n.default_update = n + 1
    mask = n * 1.0
    for given, made in ((pt.as_tensor(np.float64(5)), 0), (n * 2.0, 1)):
        n.set_value(0)
        synk.broadcast(n)
        arguments = ([x], x.mean() + mask)
        plain = pytensor.function(*arguments, givens={mask: given}, mode=PY)
        plain([0.0])
        assert n.get_value() == made
        synk.broadcast(n, 0)
        f = synk.function(*arguments, givens={mask: given}, mode=PY)
        f([0.0, 0.0])
        assert synk.get_value(0, n) == synk.get_value(1, n) == made


@one_and_three_ranks
def test_givens_replace_variables_in_outputs_and_updates(ranks):
    x, y, z = pt.vectors("x", "y", "z")
    w = pytensor.shared(np.float64(3))
    s = pytensor.shared(np.float64(0))
    expression = (x * w + z).sum()
    pairs = [(x, 2 * y), (z, y + 1), (w, pt.as_tensor(np.float64(10)))]
    for givens in (pairs, dict(pairs)):
        f = synk.function([y], (expression, "sum"), None, {s: x.sum()}, givens, mode=PY)
        plain = pytensor.function([y], expression, givens=givens, mode=PY)
        value = np.arange(7.0)
        assert f(value) == plain(value) == (21 * value + 1).sum()
        for rank in range(ranks):
            assert synk.get_value(rank, s) == 2 * value.sum()


def test_what_is_given_is_cast_where_that_loses_nothing(two_ranks):
    x, k = pt.vector("x"), pt.ivector("k")
    singles = pytensor.shared(np.arange(6, dtype="float32"))
    bytes_ = pytensor.shared(np.arange(6, dtype="uint8"))
    givens, output = {x: singles, k: bytes_}, (x * k).sum()
    f = synk.function([], (output, None), givens=givens, mode=PY)
    assert_same(f(), np.float64(55))
    rows = [*givens.values()]
    f = synk.function([], (output, "sum"), None, None, givens, rows, mode=PY)
    assert_same(f(batch_s=[[5, 5], slice(1, 3)]), np.float64(55))
    with pytest.raises(TypeError, match="float64"):
        synk.function([], (output, None), givens={bytes_: x})


@one_and_three_ranks
def test_givens_can_take_rows_from_a_shared_variable(ranks):
    """The classical way: data in a shared variable, an index as input."""
    x, i = pt.matrix("x"), pt.lvector("i")
    X = pytensor.shared(np.arange(20.0).reshape(10, 2))
    f = synk.function([i], (x.sum(axis=1), "gather"), givens={x: X[i]}, mode=PY)
    rows = np.array([9, 0, 4, 4, 7])
    assert_same(f(rows), X.get_value()[rows].sum(axis=1))
