"""Updates and givens of a function, against plain PyTensor."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from reference import PY, assert_same, cut, values_of
from world_sizes import one_and_three_ranks

import synk

three_ranks = pytest.mark.parametrize("ranks", [3], ids=["3ranks"], indirect=True)

SLICES = (1, 2, 7)


@one_and_three_ranks
def test_every_rank_has_the_new_value_of_the_serial_run(ranks):
    x = pt.vector("x")
    total = pytensor.shared(0.0, name="total")
    calls = pytensor.shared(np.int64(2**60), name="calls")
    rate = pytensor.shared(np.float32(0.1))
    flag = pytensor.shared(np.array(False))
    updates = [(total, total + x.sum()), (calls, calls + 1), (rate, rate * 3)]
    updates.append((flag, ~flag))
    f = synk.function([x], updates=updates, mode=PY)
    assert f.update_modes == [None] * 4
    value = np.arange(1.0, 8.0)
    right = np.float32(0.1)
    for times in (1, 2, 3):
        f(value, num_slices=times)
        right = np.float32(right * np.float32(3))
        for rank in range(ranks):
            held = synk.get_value(rank, [total, calls, rate, flag])
            # What depends on no rows is made once in any slices, and exactly.
            assert held[0] == times * value.sum()
            assert held[1] == 2**60 + times
            assert_same(held[2], right)
            assert held[3] == bool(times % 2)


@one_and_three_ranks
def test_updates_act_on_every_rank_by_itself_where_the_function_is_local(ranks):
    x = pt.vector("x")
    total = pytensor.shared(0.0, name="total")
    calls = pytensor.shared(np.int64(0), name="calls")
    rows = pytensor.shared(np.zeros(0))
    updates = [(total, total + x.sum()), (calls, calls + 1), (rows, x * 1)]
    f = synk.function([x], updates=updates, mode=PY, local=True)
    value = np.arange(1.0, 8.0)
    for times, slices in ((1, 1), (2, 1)):
        f(value, num_slices=slices)
        for rank, part in enumerate(cut(value, ranks)):
            held = synk.get_value(rank, [total, calls, rows])
            assert held[:2] == [times * part.sum(), times]
            assert_same(held[2], part)
    g = synk.function([x], updates={rows: x * 1}, mode=PY, local=True)
    g(value, num_slices=3)  # the rows of all slices
    for rank, part in enumerate(cut(value, ranks)):
        assert_same(synk.get_value(rank, rows), part)


@three_ranks
def test_a_rank_without_rows_makes_only_local_updates_that_need_none(ranks):
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


@three_ranks
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
    right = [1.0, 2.0, 3.0]
    for _ in range(3):
        assert f() == [right[0], right[2]]
        right = [right[1], right[0], right[0] + right[1]]
        for rank in range(ranks):
            assert synk.get_value(rank, [a, b, c]) == right
    x, w = pt.vector("x"), pytensor.shared(1.0)
    g = synk.function([x], [(x * w, "gather")], updates={w: w * 2}, mode=PY)
    for times in range(3):  # in every slice, too
        assert_same(g(np.arange(1.0, 8), num_slices=3)[0], np.arange(1.0, 8) * 2**times)


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


@three_ranks
@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
def test_slices_of_an_update_are_accumulated_by_its_op(ranks, dtype):
    x = pt.matrix("x", dtype=dtype)
    new_values = {
        "avg": x.sum(axis=0) // x.shape[0] if dtype == "int64" else x.mean(axis=0),
        "sum": pt.sum(x, axis=0, dtype=dtype),
        "prod": pt.prod(x, axis=0, dtype=dtype),
        "min": x.min(axis=0),
        "max": x.max(axis=0),
    }
    stores = {op: pytensor.shared(np.zeros(3, dtype)) for op in new_values}
    updates = [(stores[op], new, op) for op, new in new_values.items()]
    f = synk.function([x], updates=updates, mode=PY)
    value = values_of(dtype, (4 * ranks + 1, 3), 2)
    if dtype == "int64":  # equal rows have an integer mean, whatever the slices
        value = np.broadcast_to(np.array([3, -5, 2**40]), value.shape)
    expected = {"sum": np.sum, "prod": np.prod, "min": np.min, "max": np.max}
    expected["avg"] = np.mean
    for slices in SLICES:
        f(value, num_slices=slices)
        for rank, part in enumerate(cut(value, ranks)):
            for op, store in stores.items():
                right = expected[op](part, axis=0).astype(dtype)
                what = f"{op} in {slices} slices"
                assert_same(synk.get_value(rank, store), right, 16, err_msg=what)


def test_a_row_update_of_a_bool_takes_an_op_or_none(two_ranks):
    x = pt.vector("x")
    seen, missing = (pytensor.shared(np.array(flag)) for flag in (False, True))
    updates = [(seen, (x > 2).any(), "max"), (missing, (x < 3).all(), "min")]
    f = synk.function([x], updates=updates, mode=PY)
    f([0.0, 1, 5, 0, 0, 0, 0, 0], num_slices=2)
    assert synk.get_value(0, [seen, missing]) == [True, False]
    assert synk.get_value(1, [seen, missing]) == [False, True]


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


# -- training --------------------------------------------------------------------------


def serial_step(momentum, X, y, w, v):
    """One step of momentum for the mean of squared errors, in numpy."""
    gradient = 2 * X.T @ (X @ w - y) / len(X)
    v = momentum * v - 0.1 * gradient
    return w + v, v


@one_and_three_ranks
def test_training_with_momentum_in_any_slices_equals_the_serial_run(ranks):
    rng = np.random.default_rng(4)
    X, y = rng.normal(size=(7, 3)), rng.normal(size=7)
    w, v = pytensor.shared(np.zeros(3)), pytensor.shared(np.zeros(3))
    inputs = pt.matrix("X"), pt.vector("y")
    loss = ((inputs[0].dot(w) - inputs[1]) ** 2).mean()
    new = 0.9 * v - 0.1 * pytensor.grad(loss, w)
    f = synk.function(inputs, loss, updates=[(v, new), (w, w + new)], mode=PY)
    right_w = right_v = np.zeros(3)
    for rows, slices in ((7, 1), (5, 2), (1, 3), (7, 7), (6, 4)):
        value = f(X, y, batch=rows, num_slices=slices)
        errors = X[:rows] @ right_w - y[:rows]
        assert_same(value, (errors**2).mean(), 32, 1)
        right_w, right_v = serial_step(0.9, X[:rows], y[:rows], right_w, right_v)
        for rank in range(ranks):
            assert_same(synk.get_value(rank, w), right_w, 128, 1)
            assert_same(synk.get_value(rank, v), right_v, 128, 1)


@three_ranks
def test_gradients_in_shared_variables_train_as_the_serial_run(ranks):
    """The classical way: gradients to variables, all_reduce, then the update rule."""
    rng = np.random.default_rng(5)
    X, y = rng.normal(size=(2 * ranks + 1, 3)), rng.normal(size=2 * ranks + 1)
    inputs = pt.matrix("X"), pt.vector("y")
    data = synk.data(X), synk.data(y)
    for local in (False, True):
        w, v, g = (pytensor.shared(np.zeros(3), name=name) for name in "wvg")
        loss = ((inputs[0].dot(w) - inputs[1]) ** 2).mean()
        updates = {g: pytensor.grad(loss, w)}
        collect = synk.function(inputs, loss, updates=updates, mode=PY, local=local)
        new = 0.9 * v - 0.1 * g
        step = synk.function([], updates=[(v, new), (w, w + new)], mode=PY)
        right_w = right_v = np.zeros(3)
        for slices in SLICES:
            for rows in (len(X), 1, ranks):
                collect(*data, batch=rows, num_slices=slices)
                synk.all_reduce(g)
                step()
                right_w, right_v = serial_step(
                    0.9, X[:rows], y[:rows], right_w, right_v
                )
                for rank in range(ranks):
                    assert_same(synk.get_value(rank, w), right_w, 128, 1)
                    assert_same(synk.get_value(rank, v), right_v, 128, 1)


# -- default updates and givens --------------------------------------------------------


@pytest.mark.filterwarnings("ignore:Setting default_update")
def test_a_default_update_is_made_unless_it_is_excluded(two_ranks):
    n = pytensor.shared(0)
    n.default_update = n + 1
    x = pt.vector("x")
    y = x.sum() + n

    def after(slices=1, **options):
        f = synk.function([x], (y, "max"), mode=PY, **options)
        result = f(np.zeros(3), num_slices=slices)
        values = [int(synk.get_value(rank, n)) for rank in range(2)]
        assert values[0] == values[1]
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
    # The classical way: data in a shared variable, an index as input.
    X = pytensor.shared(np.arange(20.0).reshape(10, 2))
    m, i = pt.matrix("m"), pt.lvector("i")
    f = synk.function([i], (m.sum(axis=1), "gather"), givens={m: X[i]}, mode=PY)
    rows = np.array([9, 0, 4, 4, 7])
    assert_same(f(rows), X.get_value()[rows].sum(axis=1))


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
