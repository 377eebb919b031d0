"""The all-reduce in the graph: stages give the serial run's numbers, in one launch."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from on_ranks import levels, one_and_three_ranks
from pytensor.compile.mode import Mode

import synk

PY = Mode("py", "fast_run")
three_ranks = pytest.mark.parametrize("ranks", [3], ids=["3ranks"], indirect=True)
BATCHES = (11, 1, 7, 2, 5, 11)  # fewer rows than ranks among them


@pytest.fixture
def rows():
    random = np.random.default_rng(0)
    return random.normal(size=(11, 3)), random.normal(size=11)


def _regression(reduce):
    """Return inputs, loss, variables and updates of a step with momentum."""
    x, y = pt.matrix("x"), pt.vector("y")
    w = pytensor.shared(np.array([0.5, -1.0, 2.0]), "w")
    velocity, step = pytensor.shared(np.zeros(3)), pytensor.shared(0)
    loss = ((x @ w - y) ** 2).mean() + 0.1 * (w**2).sum()
    new = 0.9 * velocity - 0.1 * reduce(loss, w)
    updates = [(velocity, new), (w, w + new), (step, step + 1)]
    return [x, y], loss, [w, velocity, step], updates


def _batch_norm(mean_over_all):
    """Return inputs, outputs, variables and updates of batch normalisation."""
    x, y = pt.matrix("x"), pt.vector("y")
    gain, running = pytensor.shared(np.ones(3)), pytensor.shared(np.zeros(3))
    mean = mean_over_all(x.mean(axis=0))
    variance = mean_over_all(((x - mean) ** 2).mean(axis=0))
    normal = gain * (x - mean) / pt.sqrt(variance + 1e-3)
    loss = (pt.tanh(normal) ** 3 + y[:, None] * normal).mean()
    return [x, y], loss, normal, [gain, running], mean


@one_and_three_ranks
def test_a_training_step_is_that_of_the_serial_run(ranks, rows):
    inputs, loss, variables, updates = _regression(pytensor.grad)
    serial = pytensor.function(inputs, loss, updates=updates, mode=PY)
    expected = [serial(*(array[:n] for array in rows)) for n in BATCHES]
    finals = [var.get_value() for var in variables]

    inputs, loss, variables, updates = _regression(synk.grad)
    starts = [var.get_value() for var in variables]
    train = synk.function(inputs, loss, updates=updates, mode=PY)
    for num_slices in (1, 3):
        for var, start in zip(variables, starts, strict=True):
            synk.broadcast(var, start)
        losses = [train(*rows, batch=n, num_slices=num_slices) for n in BATCHES]
        np.testing.assert_allclose(losses, expected, rtol=1e-12)
        for var, final in zip(variables, finals, strict=True):
            for rank in range(ranks):
                value = synk.get_value(rank, var)
                np.testing.assert_allclose(value, final, rtol=1e-12)


@one_and_three_ranks
def test_batch_normalisation_takes_the_statistics_of_all_rows(ranks, rows):
    inputs, loss, normal, variables, mean = _batch_norm(lambda value: value)
    gain, running = variables
    updates = [
        (gain, gain - 0.5 * pytensor.grad(loss, gain)),
        (running, 0.9 * running + 0.1 * mean),
    ]
    serial = pytensor.function(inputs, [loss, normal], updates=updates, mode=PY)
    expected = [serial(*rows), serial(*rows)]
    finals = [var.get_value() for var in variables]

    inputs, loss, normal, variables, mean = _batch_norm(synk.ops.all_reduce)
    gain, running = variables
    updates = [
        (gain, gain - 0.5 * synk.grad(loss, gain)),
        (running, 0.9 * running + 0.1 * mean),
    ]
    starts = [var.get_value() for var in variables]
    split = synk.function(inputs, [loss, (normal, "gather")], updates=updates, mode=PY)
    for num_slices in (1, 2, 4):
        for var, start in zip(variables, starts, strict=True):
            synk.broadcast(var, start)
        for values in expected:
            got = split(*rows, num_slices=num_slices)
            np.testing.assert_allclose(got[0], values[0], rtol=1e-11)
            np.testing.assert_allclose(got[1], values[1], rtol=1e-10)
        for var, final in zip(variables, finals, strict=True):
            for rank in range(ranks):
                np.testing.assert_allclose(synk.get_value(rank, var), final, rtol=1e-10)


def test_a_training_step_is_one_meeting():
    inputs, loss, _, updates = _regression(synk.grad)
    train = synk.function(inputs, loss, updates=updates, mode=PY)
    assert levels(train) == [["avg", "avg"]]  # the loss goes along with the gradient
    assert train.output_modes == ["avg"]


@three_ranks
def test_every_op_combines_the_ranks(ranks):
    for dtype in ("float32", "float64", "int64"):
        check_every_op(dtype)


def check_every_op(dtype):
    ops = ["avg", "sum", "prod", "min", "max"]
    x = pt.matrix("x", dtype=dtype)
    local = [getattr(x, {"avg": "mean"}.get(op, op))(axis=0) for op in ops]
    outputs = [synk.ops.all_reduce(*pair) for pair in zip(local, ops, strict=True)]
    split = synk.function([x], outputs, mode=PY)
    array = np.arange(1, 15).reshape(7, 2).astype(dtype)
    expected = pytensor.function([x], local, mode=PY)(array)
    rtol = 1e-6 if dtype == "float32" else 1e-12
    for op, got, right in zip(ops, split(array), expected, strict=True):
        what = f"{op} of {dtype}"
        assert got.dtype == right.dtype, what
        np.testing.assert_allclose(got, right, rtol=rtol, err_msg=what)
    for op, got in zip(ops, split(array[:1]), strict=True):
        np.testing.assert_allclose(got, array[0], rtol=1e-6, err_msg=f"one row, {op}")


@three_ranks
def test_reductions_of_several_types_and_shapes_share_a_call(ranks):
    x = pt.matrix("x")
    values = [
        (x.sum(axis=0), "sum"),
        (x.max(), "max"),
        (pt.cast(x.sum(), "float32"), "sum"),
        (x.mean(axis=0)[None, :, None], "avg"),
        (pt.cast(x.shape[0], "int64"), "sum"),
    ]
    outputs = [synk.ops.all_reduce(value, op) for value, op in values]
    array = np.arange(10.0).reshape(5, 2)
    expected = pytensor.function([x], [value for value, _ in values], mode=PY)(array)
    for got, value in zip(
        synk.function([x], outputs, mode=PY)(array), expected, strict=True
    ):
        assert (got.dtype, got.shape) == (value.dtype, value.shape)
        np.testing.assert_allclose(got, value, rtol=1e-6)


@three_ranks
def test_an_update_that_a_later_stage_still_reads_waits(ranks):
    x = pt.vector("x")
    a, b = pytensor.shared(1.0), pytensor.shared(0.0)
    total = synk.ops.all_reduce(x.sum() * a, "sum")
    # b's new value, of a later stage, is made of a's old one.
    split = synk.function([x], None, updates=[(a, a + 1), (b, total * a)], mode=PY)
    split(np.array([1.0, 2.0, 3.0]))
    split(np.array([1.0, 2.0, 3.0]))
    for rank in range(ranks):
        assert synk.get_value(rank, [a, b]) == [3.0, 6.0 * 2 * 2]


@three_ranks
def test_a_variable_set_to_a_reduced_value_keeps_it(ranks):
    x = pt.vector("x")
    kept = pytensor.shared(np.zeros(2))
    total = synk.ops.all_reduce(pt.stack([x.sum(), x.sum() ** 2 * 0 + 1]), "sum")
    split = synk.function([x], total, updates=[(kept, total)], mode=PY)
    first = split(np.array([1.0, 2.0, 3.0]))
    copy, value = first.copy(), kept.get_value(borrow=True)
    synk.function([x], total, mode=PY)(np.array([5.0]))
    split.as_theano(np.array([5.0]))
    np.testing.assert_array_equal(first, copy)
    np.testing.assert_array_equal(value, copy)


@three_ranks
def test_shapes_may_change_from_call_to_call(ranks):
    x = pt.matrix("x")
    total = synk.function([x], synk.ops.all_reduce(x.sum(axis=0), "sum"), mode=PY)
    for columns in (2, 5, 1, 2):
        got = total(np.ones((4, columns)))
        np.testing.assert_array_equal(got, np.full(columns, 4.0))


def test_values_of_different_shapes_are_refused_and_the_session_goes_on(two_ranks):
    x = pt.vector("x")
    split = synk.function([x], synk.ops.all_reduce(x, "sum"), mode=PY)
    with pytest.raises(synk.ShapeMismatch, match=r"\(2,\).*\(1,\)"):
        split(np.ones(3))
    np.testing.assert_array_equal(split(np.ones(4)), [2.0, 2.0])


def test_plain_pytensor_takes_an_all_reduce_for_the_identity():
    x = pt.vector("x")
    reduced = synk.ops.all_reduce(x.mean())
    gradient = pytensor.grad((reduced**2).sum(), x)
    f = pytensor.function([x], [reduced, gradient], mode=PY)
    value, slope = f(np.array([1.0, 3.0]))
    assert value == 2.0
    np.testing.assert_allclose(slope, [2.0, 2.0])


def test_ops_without_a_gradient_say_so():
    x = pt.vector("x")
    with pytest.raises(pytensor.gradient.NullTypeGradError, match="max"):
        pytensor.grad(synk.ops.all_reduce(x.max(), "max"), x)


def test_an_all_reduce_inside_a_scan_is_refused(two_ranks):
    x = pt.vector("x")
    sums = pytensor.scan(
        lambda value: synk.ops.all_reduce(value, "sum"),
        sequences=[x],
        return_updates=False,
    )
    split = synk.function([x], (sums, "gather"), mode=PY)
    with pytest.raises(ValueError, match="all_reduce inside of"):
        split(np.ones(3))


def test_a_list_is_reduced_value_by_value(two_ranks):
    x = pt.matrix("x")
    values = (x.sum(axis=0), x.sum(), pt.cast(x.sum(axis=1).sum(), "int64"))
    reduced = synk.ops.all_reduce(values, "sum")
    assert isinstance(reduced, list)
    assert [var.type for var in reduced] == [var.type for var in values]
    assert [var.owner.op for var in reduced] == [synk.ops.AllReduce("sum")] * 3
    f = synk.function([x], [(var, None) for var in reduced], mode=PY)
    array = np.arange(6.0).reshape(3, 2)
    expected = pytensor.function([x], list(values), mode=PY)(array)
    for got, value in zip(f(array), expected, strict=True):
        np.testing.assert_array_equal(got, value)


def test_gradients_in_a_list_are_those_of_grad(two_ranks):
    x, v, w = pt.matrix("x"), pytensor.shared(np.ones(2)), pytensor.shared(2.0)
    cost = ((x @ v - w) ** 2).mean()
    by_grad = synk.grad(cost, [v, w])
    by_list = synk.ops.all_reduce(pytensor.grad(cost, [v, w]))
    f = synk.function([x], [(g, None) for g in (*by_grad, *by_list)], mode=PY)
    one, two, *others = f(np.arange(10.0).reshape(5, 2))
    np.testing.assert_array_equal([*one, two], [*others[0], others[1]])


def test_an_empty_list_is_reduced_to_one():
    assert synk.ops.all_reduce([]) == []
    with pytest.raises(ValueError, match="'mean'"):
        synk.ops.all_reduce([], "mean")


def test_a_wrong_op_is_refused():
    x = pt.vector("x")
    with pytest.raises(ValueError, match="'mean'"):
        synk.ops.all_reduce(x, "mean")
    with pytest.raises(ValueError, match="'max'"):
        synk.grad(x.sum(), x, op="max")
    with pytest.raises(TypeError, match="bool"):
        synk.ops.all_reduce(x > 0)


def test_gradients_take_the_options_of_pytensors():
    x, w, unused = pt.vector("x"), pytensor.shared(2.0, "w"), pytensor.shared(1.0)
    square = w**2
    cost = (w * square * x).mean()
    constant = synk.grad(cost, w, [square])  # the place that it has in Theano's grad
    none = synk.grad(cost, unused, disconnected_inputs="ignore")
    missing = synk.grad(
        cost, [unused], disconnected_inputs="ignore", return_disconnected="none"
    )
    assert missing == [None]
    f = synk.function([x], [constant, none], mode=PY)
    with synk.session(2):
        by_w, by_unused = f(np.array([1.0, 2.0, 6.0]))
    assert (by_w, by_unused) == (4.0 * 3.0, 0.0)


# -- large values: each rank reduces a part, and copies nothing of its own -------------

LARGE = [(40_000,), (3, 5), (0, 4), (12_900, 7), (1,), (20, 64, 33)]
"""Some parts of them have more than 16 kB on each of three ranks, and some have not."""


@three_ranks
@pytest.mark.parametrize("op", ["sum", "max", "avg"])
def test_large_values_are_reduced_where_they_lie(ranks, op):
    variables = [pytensor.shared(np.zeros((1,) * len(shape))) for shape in LARGE]
    random = np.random.default_rng(0)
    of_op = {"sum": np.sum, "max": np.max, "avg": np.mean}[op]
    for _ in range(2):
        own = [
            [random.integers(-9, 9, shape).astype(float) * 3 for shape in LARGE]
            for _ in range(ranks)
        ]
        for rank, values in enumerate(own):
            synk.set_value(rank, variables, values)
        right = [of_op(np.stack(values), axis=0) for values in zip(*own, strict=True)]
        results = synk.reduce(variables, op, in_place=False)
        kept = synk.get_value(2, variables)
        synk.all_reduce(variables[1::2], op)  # some have moved since, others stay
        synk.all_reduce(variables[::2], op)
        held = [synk.get_value(rank, variables) for rank in range(ranks)]
        for found, expected in (
            (results, right),
            (kept, own[2]),
            *((h, right) for h in held),
        ):
            for one, other in zip(found, expected, strict=True):
                np.testing.assert_array_equal(one, other)


@three_ranks
def test_large_reductions_in_a_graph_by_several_ops_and_of_transposed_values(ranks):
    x = pt.matrix("x")
    reduced = [
        synk.ops.all_reduce((x[:, :, None] * x[:, None, :]).sum(axis=0).T, "sum"),
        synk.ops.all_reduce(x.max(axis=0), "max"),
        synk.ops.all_reduce(pt.cast(x, "float32").sum(axis=0), "sum"),
        synk.ops.all_reduce(x.mean(axis=0)),
    ]
    f = synk.function([x], [(r, None) for r in reduced], mode=PY)
    random = np.random.default_rng(0)
    for rows in (11, 2, 5):
        values = random.integers(-8, 8, (rows, 150)).astype("float64")
        got = f(values)
        np.testing.assert_array_equal(got[0], values.T @ values)
        np.testing.assert_array_equal(got[1], values.max(axis=0))
        np.testing.assert_array_equal(got[2], values.sum(axis=0))
        np.testing.assert_allclose(got[3], values.mean(axis=0), atol=1e-12)
