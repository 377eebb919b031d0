"""Collectives that move values: broadcast, scatter, gather, get and set."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from reference import (
    KINDS,
    PY,
    SHAPES,
    assert_same,
    cut,
    give,
    refused,
    shared_of,
    values_of,
)
from tables import frame
from world_sizes import one_and_three_ranks

import synk


@one_and_three_ranks
@pytest.mark.parametrize("kind", KINDS)
def test_values_of_every_dtype_and_shape_arrive_exactly(ranks, kind):
    for dtype in KINDS[kind]:
        variables = [shared_of(dtype, shape) for shape in SHAPES]
        values = [values_of(dtype, shape, i) for i, shape in enumerate(SHAPES)]
        synk.broadcast(variables, values)
        for rank in range(ranks):
            got = synk.get_value(rank, variables)
            for one, right in zip(got, values, strict=True):
                assert_same(one, right)
        for var, value in zip(variables, values, strict=True):
            assert_same(synk.gather(var), np.stack([value] * ranks))
            if value.ndim:
                rows = np.concatenate([value] * ranks)
                assert_same(synk.gather(var, nd_up=0), rows)
                assert_same(synk.all_gather(var), rows)
                synk.scatter(var, rows)
                for rank, part in enumerate(cut(rows, ranks)):
                    assert_same(synk.get_value(rank, var), part)


@one_and_three_ranks
def test_broadcast_without_values_sends_the_masters(ranks):
    a, b = pytensor.shared(np.arange(3.0)), pytensor.shared(np.int8(4))
    synk.broadcast([a, b])
    a.set_value(np.arange(4.0))
    synk.set_value(ranks - 1, b, np.int8(5))
    b.set_value(np.int8(6))
    synk.broadcast([a, b])
    for rank in range(ranks):
        assert_same(synk.get_value(rank, a), np.arange(4.0))
        assert_same(synk.get_value(rank, b), np.int8(6))


@one_and_three_ranks
def test_a_variable_starts_with_the_masters_value(ranks):
    a = pytensor.shared(np.arange(3.0))
    for rank in range(ranks):
        assert_same(synk.get_value(rank, a), np.arange(3.0))


VALUE = np.arange(14.0).reshape(7, 2)

WAYS = {
    "array": VALUE,
    "Fortran": np.asfortranarray(VALUE),
    "strided": np.repeat(VALUE, 2, axis=1)[:, ::2],
    "other byte order": VALUE.astype(">f8"),
    "narrower": VALUE.astype("float32"),
    "integers": VALUE.astype("int16"),
    "read-only": np.broadcast_to(VALUE, VALUE.shape),
    "list": VALUE.tolist(),
}


@one_and_three_ranks
def test_values_are_whatever_numpy_takes_or_data(ranks):
    a = pytensor.shared(np.zeros((1, 1)))
    ways = {
        **WAYS,
        "pandas": frame(VALUE),
        "Data": synk.data(VALUE),
        "Data of float32": synk.data(VALUE.astype("float32")),
        "Data of int8": synk.data(VALUE.astype("int8")),
    }
    for way, value in ways.items():
        synk.broadcast(a, value)
        assert_same(synk.gather(a), np.stack([VALUE] * ranks), err_msg=way)
        synk.scatter(a, value)
        assert_same(synk.gather(a, nd_up=0), VALUE, err_msg=way)
        synk.scatter(a, value, batch=[5, 5, -1, 0])
        assert_same(synk.gather(a, nd_up=0), VALUE[[5, 5, -1, 0]], err_msg=way)
        for rank in range(ranks):
            synk.set_value(rank, a, value, batch=slice(rank, None))
            assert_same(synk.get_value(rank, a), VALUE[rank:], err_msg=way)
            synk.set_value(rank, a, value)
            assert_same(synk.get_value(rank, a), VALUE, err_msg=way)
            assert synk.get_value(rank, a).dtype == np.float64
        np.testing.assert_array_equal(np.asarray(value), VALUE)


@one_and_three_ranks
def test_lists_of_values_may_mix_arrays_and_data(ranks):
    a, b, c = (pytensor.shared(np.zeros(1, "float32")) for _ in range(3))
    one, two = np.arange(5, dtype="float32"), np.arange(5, dtype="float32") + 5
    synk.broadcast([a, b, c], [one, synk.data(two), [1, 2]])
    for rank in range(ranks):
        for got, right in zip(
            synk.get_value(rank, [a, b, c]), (one, two, [1, 2]), strict=True
        ):
            assert_same(got, np.array(right, "float32"))
    synk.scatter([a, b], [synk.data(one), two], batch=slice(None, None, -1))
    assert_same(synk.gather(a, nd_up=0), one[::-1])
    assert_same(synk.gather(b, nd_up=0), two[::-1])
    synk.set_value(ranks - 1, [a, b], [two, synk.data(one)], batch=2)
    assert_same(synk.get_value(ranks - 1, a), two[:2])
    assert_same(synk.get_value(ranks - 1, b), one[:2])


@one_and_three_ranks
@pytest.mark.parametrize(
    "batch",
    [None, 4, slice(1, 6, 2), slice(None, None, -1), [6, 0, 0], np.arange(7) > 4, 0],
    ids=str,
)
def test_scatter_cuts_a_batch_as_a_function_does(ranks, batch):
    a = pytensor.shared(np.zeros((0, 2)))
    own = pytensor.shared(np.zeros((0, 2)))
    x = pt.matrix("x")
    f = synk.function([x], updates={own: x}, mode=PY, local=True)
    synk.scatter(a, VALUE, batch=batch)
    f(VALUE, batch=batch)
    index = slice(batch) if isinstance(batch, int) else batch
    rows = VALUE if batch is None else VALUE[index]
    assert synk.get_lengths(a) == [len(part) for part in cut(rows, ranks)]
    for rank, part in enumerate(cut(rows, ranks)):
        assert_same(synk.get_value(rank, a), part)
        if len(part):
            assert_same(synk.get_value(rank, own), part)


@one_and_three_ranks
def test_gather_concatenates_differing_lengths_exactly(ranks):
    a = pytensor.shared(np.zeros((1, 2)))
    parts = [values_of("float64", (rank, 2), rank) for rank in range(ranks)]
    for rank, part in enumerate(parts):
        synk.set_value(rank, a, part)
    rows = np.concatenate(parts)
    assert synk.get_lengths(a) == list(range(ranks))
    assert_same(synk.gather(a, nd_up=0), rows)
    assert synk.get_lengths(a) == list(range(ranks))  # nothing was changed
    assert_same(synk.all_gather(a), rows)
    for rank in range(ranks):
        assert_same(synk.get_value(rank, a), rows)


@one_and_three_ranks
def test_what_is_returned_is_a_copy(ranks):
    a = pytensor.shared(np.zeros(3))
    for take in (
        lambda: synk.get_value(0, a),
        lambda: synk.get_value(ranks - 1, a),
        lambda: synk.gather(a),
        lambda: synk.gather(a, nd_up=0),
        lambda: synk.reduce(a, "sum", in_place=False),
    ):
        take()[...] = 5
        for rank in range(ranks):
            assert_same(synk.get_value(rank, a), np.zeros(3))
    synk.reduce(a, "sum")[...] = 5
    synk.all_gather(a)[...] = 5
    for rank in range(ranks):
        assert_same(synk.get_value(rank, a), np.zeros(3 * ranks))


@one_and_three_ranks
def test_results_of_one_call_survive_the_next(ranks):
    a = pytensor.shared(np.zeros(3))
    give([a], ranks, "float64", [(3,)], 1)
    kept = [synk.get_value(rank, a) for rank in range(ranks)]
    stacked, total = synk.gather(a), synk.reduce(a, "sum", in_place=False)
    copies = [value.copy() for value in (*kept, stacked, total)]
    synk.broadcast(a, np.full(3, 9.0))
    synk.gather(a)
    synk.all_reduce(a)
    for value, before in zip((*kept, stacked, total), copies, strict=True):
        assert_same(value, before)


@one_and_three_ranks
def test_values_that_are_given_are_copied(ranks):
    a = pytensor.shared(np.zeros(3))
    for value in (np.arange(3.0), synk.data(np.arange(3.0))):
        synk.broadcast(a, value)
        value[:] = -1
        for rank in range(ranks):
            assert_same(synk.get_value(rank, a), np.arange(3.0))
        synk.set_value(0, a, value)
        value[:] = -2
        assert_same(synk.get_value(0, a), np.full(3, -1.0))


@one_and_three_ranks
def test_a_fixed_length_is_that_of_each_rank(ranks):
    a = pytensor.shared(np.zeros((2, 3)), shape=(2, 3))
    rows = np.arange(6.0 * ranks).reshape(-1, 3)
    synk.scatter(a, rows)
    for rank, part in enumerate(cut(rows, ranks)):
        assert_same(synk.get_value(rank, a), part)
    if ranks > 1:
        with refused(ValueError, "fixed length"):
            synk.scatter(a, rows[1:])
        with refused(TypeError, "shape"):
            synk.broadcast(a, rows)
        with refused((TypeError, ValueError), "fixed length|shape"):
            synk.all_gather(a)


def test_variables_outlive_sessions_with_the_masters_value():
    a = pytensor.shared(np.ones(3))
    for n in (3, 2, 1, 5):
        before = a.get_value()
        with synk.session(n):
            synk.all_reduce(a, "sum")
            assert_same(synk.get_value(n - 1, a), before * n)
            synk.set_value(n - 1, a, before * 0 if n > 1 else before)
        assert_same(a.get_value(), before * n)
    assert_same(a.get_value(), np.full(3, 30.0))


# -- shapes that differ ----------------------------------------------------------------


def _uneven(ranks):
    a = pytensor.shared(np.zeros((1, 2)), name="a")
    parts = [np.full((rank + 1, 2), float(rank)) for rank in range(ranks)]
    for rank, part in enumerate(parts):
        synk.set_value(rank, a, part)
    return a, parts


@pytest.mark.parametrize("homed", [False, True])
def test_a_reduction_of_differing_shapes_names_every_ranks_shape(homed):
    with synk.session(3) as ranks:
        b = pytensor.shared(np.ones(4), name="b")
        a = pytensor.shared(np.zeros((1, 2)), name="a")
        if homed:
            synk.all_reduce([a, b])
        parts = [np.full((rank + 1, 2), float(rank)) for rank in range(ranks)]
        for rank, part in enumerate(parts):
            synk.set_value(rank, a, part)
        for reduction in (synk.all_reduce, synk.reduce):
            for op in ("avg", "max"):
                with pytest.raises(synk.ShapeMismatch) as caught:
                    reduction([b, a], op)
                text = str(caught.value)
                assert "reduce a" in text or "'a'" in text or f"{op!r} a" in text
                for rank in range(ranks):
                    assert f"rank {rank} ({rank + 1}, 2)" in text
        for rank, part in enumerate(parts):  # nobody's value was touched
            assert_same(synk.get_value(rank, a), part)
            assert_same(synk.get_value(rank, b), np.ones(4))
        synk.broadcast(a, np.ones((5, 2)))
        synk.all_reduce([a, b], "sum")
        for rank in range(ranks):
            assert_same(synk.get_value(rank, a), np.full((5, 2), 3.0))
            assert_same(synk.get_value(rank, b), np.full(4, 3.0))


@pytest.mark.parametrize("odd", [0, 1, 2])
def test_one_rank_of_another_shape_is_named_whichever_it_is(odd):
    with synk.session(3):
        a = pytensor.shared(np.zeros(4), name="a")
        synk.all_reduce(a)
        synk.set_value(odd, a, np.zeros(5))
        with pytest.raises(ValueError, match=rf"rank {odd} \(5,\)") as caught:
            synk.all_reduce(a)
        assert str(caught.value).count("(4,)") == 2


def test_stacking_differing_shapes_names_them_and_points_to_nd_up():
    with synk.session(2):
        a, _ = _uneven(2)
        with pytest.raises(synk.ShapeMismatch, match=r"1 \(2, 2\); try nd_up=0"):
            synk.gather(a)
        synk.set_value(1, a, np.zeros((1, 3)))
        for collect in (lambda: synk.gather(a, nd_up=0), lambda: synk.all_gather(a)):
            with pytest.raises(
                synk.ShapeMismatch, match=r"0 \(1, 2\), rank 1 \(1, 3\)"
            ):
                collect()
        assert synk.get_shapes(a) == [(1, 2), (1, 3)]
