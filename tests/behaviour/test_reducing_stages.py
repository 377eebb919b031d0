"""The all-reduce in the graph: stages give the serial run's numbers, in one launch."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from on_ranks import by_rank, three_ranks
from pytensor.compile.mode import Mode

import synk

PY = Mode("py", "fast_run")


@three_ranks
def test_an_update_that_a_later_stage_still_reads_waits(ranks):
    x = pt.vector("x")
    a, b = pytensor.shared(1.0), pytensor.shared(0.0)
    total = synk.ops.all_reduce(x.sum() * a, "sum")
    # b's new value, of a later stage, is made of a's old one.
    split = synk.function([x], None, updates=[(a, a + 1), (b, total * a)], mode=PY)
    split(np.array([1.0, 2.0, 3.0]))
    split(np.array([1.0, 2.0, 3.0]))
    assert by_rank([a, b]) == [[3.0, 6.0 * 2 * 2]] * 3


def test_shapes_may_change_but_those_of_ranks_must_not_differ(two_ranks):
    x = pt.vector("x")
    split = synk.function([x], synk.ops.all_reduce(x, "sum"), mode=PY)
    for rows in (4, 2, 8):
        np.testing.assert_array_equal(split(np.ones(rows)), [2.0] * (rows // 2))
        with pytest.raises(synk.ShapeMismatch, match=r"\(2,\).*\(1,\)"):
            split(np.ones(3))


def test_plain_pytensor_takes_an_all_reduce_for_the_identity():
    x = pt.vector("x")
    reduced = synk.ops.all_reduce(x.mean())
    gradient = pytensor.grad((reduced**2).sum(), x)
    f = pytensor.function([x], [reduced, gradient], mode=PY)
    value, slope = f(np.array([1.0, 3.0]))
    assert value == 2.0
    np.testing.assert_allclose(slope, [2.0, 2.0])


def test_an_all_reduce_inside_a_scan_is_refused(two_ranks):
    x = pt.vector("x")
    total = lambda value: synk.ops.all_reduce(value, "sum")  # noqa: E731
    sums = pytensor.scan(total, [x], return_updates=False)
    split = synk.function([x], (sums, "gather"), mode=PY)
    with pytest.raises(ValueError, match="all_reduce inside of"):
        split(np.ones(3))


def test_a_list_is_reduced_value_by_value(two_ranks):
    x, v, w = pt.matrix("x"), pytensor.shared(np.ones(2)), pytensor.shared(2.0)
    cost = ((x @ v - w) ** 2).mean()
    by_list = synk.ops.all_reduce(pytensor.grad(cost, [v, w]))
    assert [var.owner.op for var in by_list] == [synk.ops.AllReduce("avg")] * 2
    graphs = [*synk.grad(cost, [v, w]), *by_list]
    f = synk.function([x], [(var, None) for var in graphs], mode=PY)
    one, two, *others = f(np.arange(10.0).reshape(5, 2))
    np.testing.assert_array_equal([*one, two], [*others[0], others[1]])
    assert synk.ops.all_reduce([]) == []
    with pytest.raises(ValueError, match="'mean'"):
        synk.ops.all_reduce([], "mean")


def test_a_wrong_op_is_refused_and_one_without_a_gradient_says_so():
    x = pt.vector("x")
    with pytest.raises(pytensor.gradient.NullTypeGradError, match="max"):
        pytensor.grad(synk.ops.all_reduce(x.max(), "max"), x)
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
    options = {"disconnected_inputs": "ignore"}
    none = synk.grad(cost, unused, **options)
    assert synk.grad(cost, [unused], return_disconnected="none", **options) == [None]
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
        pairs = [(synk.reduce(variables, op, in_place=False), right)]
        pairs += [(synk.get_value(2, variables), own[2])]
        synk.all_reduce(variables[1::2], op)  # some have moved since, others stay
        synk.all_reduce(variables[::2], op)
        for found, expected in [
            *pairs,
            *((held, right) for held in by_rank(variables)),
        ]:
            for one, other in zip(found, expected, strict=True):
                np.testing.assert_array_equal(one, other)


@three_ranks
def test_reductions_of_several_types_ops_and_shapes_share_a_call(ranks):
    """Large ones, and of transposed values, among them."""
    x = pt.matrix("x")
    values = [
        ((x[:, :, None] * x[:, None, :]).sum(axis=0).T, "sum"),
        (x.max(axis=0), "max"),
        (x.min(axis=0), "min"),
        (pt.cast(x, "int64").prod(axis=0), "prod"),
        (pt.cast(x, "float32").sum(axis=0), "sum"),
        (x.mean(axis=0)[None, :, None], "avg"),
        (pt.cast(x.shape[0], "int64"), "sum"),
    ]
    outputs = [(synk.ops.all_reduce(value, op), None) for value, op in values]
    f = synk.function([x], outputs, mode=PY)
    plain = pytensor.function([x], [value for value, _ in values], mode=PY)
    for rows in (11, 2, 5):
        given = np.random.default_rng(0).integers(-8, 8, (rows, 150)).astype("float64")
        for got, right in zip(f(given), plain(given), strict=True):
            assert (got.dtype, got.shape) == (right.dtype, right.shape)
            np.testing.assert_allclose(got, right, 1e-12, 1e-12)
