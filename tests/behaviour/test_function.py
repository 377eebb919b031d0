"""Functions: subsets of outputs, plain calls, and when functions are made."""

from __future__ import annotations

import gc
import weakref

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
from synk.ranks.session import SESSION

# -- subsets, as_theano, build_inputs -------------------------------------------------


@one_and_three_ranks
def test_a_subset_of_the_outputs_in_any_order_and_repeated(ranks):
    x = pt.vector("x")
    outputs = [(x.sum(), "sum"), x.mean(), (x, "gather"), (x.max(), "max")]
    f = synk.function([x], outputs, mode=PY)
    value = np.arange(7.0)
    right = [value.sum(), value.mean(), value, value.max()]
    subsets = [None, [3, 0], [0, 3], [2], [1, 1, 2, 1], [-1, 0], [], [3, 2, 1, 0], None]
    subsets += [(0,), np.array([1, 0])]
    for subset in subsets:
        for slices in (1, 3):
            got = f(value, output_subset=subset, num_slices=slices)
            assert isinstance(got, list)
            wanted = range(4) if subset is None else subset
            for output, i in zip(got, wanted, strict=True):
                assert_same(output, np.asarray(right[i]), ulps=8)


@one_and_three_ranks
def test_as_theano_is_the_plain_function(ranks):
    x, b = pt.vector("x"), pt.scalar("b")
    w = pytensor.shared(1.0)
    outputs = [(x.sum(), "sum"), (x.std(), "avg"), (x * b, "gather")]
    f = synk.function([x], outputs, [b], updates={w: w + x.sum()}, mode=PY)
    plain = pytensor.function([x, b], [x.sum(), x.std(), x * b], mode=PY)
    value = np.arange(7.0)
    synk.broadcast(w)
    for given in (value, synk.data(value)):
        for got, right in zip(f.as_theano(given, 2.0), plain(value, 2.0), strict=True):
            assert_same(got, right)
    for rank in range(ranks):  # w is the script's, and was set there
        assert synk.get_value(rank, w) == 1 + 2 * value.sum()


def test_as_theano_needs_no_session():
    x = pt.vector("x")
    f = synk.function([x], (x.std(), "avg"), mode=PY)
    assert f.as_theano(np.arange(7.0)) == np.arange(7.0).std()
    assert isinstance(f.as_theano([1.0]), np.ndarray)


@one_and_three_ranks
def test_build_inputs_makes_data_of_the_inputs_types(ranks):
    x, y, b = pt.matrix("x", dtype="float32"), pt.lvector("y"), pt.scalar("b")
    f = synk.function([x, y], (x.sum(axis=1) * y * b, "gather"), [b], mode=PY)
    X, Y = f.build_inputs([[1, 2], [3, 4], [5, 6]], np.arange(3, dtype="int8"))
    assert (X.dtype, X.ndim, X.name) == (np.float32, 2, "x")
    assert (Y.dtype, Y.ndim, Y.name) == (np.int64, 1, "y")
    assert_same(f(X, Y, 2.0), np.array([0.0, 14, 44]))
    Y, X = f.build_inputs(y=[1, 2], x=[[1, 1], [2, 2]])[::-1]
    assert_same(f(X, Y, 1.0), np.array([2.0, 8]))
    one = synk.function([y], (y, "gather"), mode=PY).build_inputs([1])
    assert isinstance(one, synk.Data)


def test_build_inputs_takes_a_value_for_every_input(two_ranks):
    x, y = pt.matrix("x"), pt.ivector("y")
    k, z = pt.vector("k", dtype="float32"), pt.scalar("z")
    f = synk.function([x, y], (x @ k * y * z, "gather"), bcast_inputs=[k, z], mode=PY)
    X, Y, K = np.arange(6.0).reshape(3, 2), np.arange(3, dtype="uint8"), np.ones(2)
    expected = (X @ K) * Y * 2
    built = f.build_inputs(X, Y, K.astype("float32"), 2)
    assert [held.name for held in built] == ["x", "y", "k", "z"]
    assert [held.dtype for held in built] == ["float64", "int32", "float32", "float64"]
    assert not any(held.minibatch for held in built)
    assert_same(f(*built), expected)
    with pytest.raises(TypeError, match="float64 cannot be cast"):
        f.build_inputs(X, Y, K, 2)
    for forced in True, [False, False, True, False]:
        assert_same(f(*f.build_inputs(X, Y, K, z=2, force_cast=forced)), expected)
    X_rows, Y_all, *whole = f.build_inputs(
        *(X, [0, 1, 2, 3, 4], K, 2),
        force_cast=True,
        minibatch=(True, False, True, False),
        oversize=[100, 1, 1, 1],
    )
    assert (X_rows.minibatch, Y_all.minibatch) == (True, False)
    assert X_rows.alloc_size >= 600
    got = f(X_rows, Y_all, *whole, batch=[4, 0, 4])
    assert_same(got, (X @ K) * [4, 0, 4] * 2)
    # The broadcast ones may be left out, all of them.
    assert [held.name for held in f.build_inputs(X, y=Y)] == ["x", "y"]
    with pytest.raises(TypeError, match="misses a value for y"):
        f.build_inputs(X, k=K, z=2)
    with pytest.raises(TypeError, match="misses a value for z"):
        f.build_inputs(X, Y, K)
    with pytest.raises(TypeError, match="takes 4 arguments, got 5"):
        f.build_inputs(X, Y, K, 2, 3)
    with pytest.raises(ValueError, match="oversize has 3 entries for 4 inputs"):
        f.build_inputs(X, Y, K, 2, oversize=[1, 1, 1])


def test_a_name_is_told_and_shown():
    x = pt.vector("x")
    f = synk.function([x], [x.mean(), (x, "gather"), (x, None)], name="train")
    assert f.name == "train"
    assert f.output_modes == ["avg", "gather", None]
    assert f.update_modes == []
    assert repr(f) == "<synk.Function train(x)>"
    assert synk.function([x], x.sum()).name is None


# -- when functions are made ---------------------------------------------------------


def test_functions_are_made_at_any_time_and_outlive_sessions():
    x = pt.vector("x")
    w = pytensor.shared(1.0)
    before = synk.function([x], (x.sum() * w, "sum"), updates={w: w + 1}, mode=PY)
    made = [before]
    value = np.arange(7.0)
    times = 1.0
    for n in (2, 3, 1, 5):
        with synk.session(n):
            made.append(
                synk.function([x], (x.sum() * w, "sum"), updates={w: w + 1}, mode=PY)
            )
            for f in made:
                assert f(value) == value.sum() * times
                times += 1
            assert synk.get_value(n - 1, w) == times
    assert w.get_value() == times


def test_distribute_compiles_every_function_and_is_optional(two_ranks):
    x = pt.vector("x")
    f = synk.function([x], (x.sum(), "sum"), mode=PY)
    g = synk.function([x], (x.max(), "max"), mode=PY)
    synk.distribute()
    before = SESSION.control.command
    assert f([1.0, 2.0]) == 3
    assert g([1.0, 2.0]) == 2
    assert SESSION.control.command == before + 2  # nothing was left to prepare
    h = synk.function([x], (x.min(), "min"), mode=PY)
    assert h([1.0, 2.0]) == 1


@one_and_three_ranks
def test_functions_share_shared_variables_on_every_rank(ranks):
    x = pt.vector("x")
    w = pytensor.shared(0.0)
    store = synk.function([x], updates={w: x.sum()}, mode=PY)
    store_own = synk.function([x], updates={w: x.sum()}, mode=PY, local=True)
    read = synk.function([], (w, "gather"), mode=PY)
    value = np.arange(1.0, 12.0)
    store(value)
    assert_same(read(), np.full(ranks, value.sum()))
    store_own(value)
    assert_same(read(), [part.sum() for part in cut(value, ranks)])
    clear = synk.function([], updates={w: w * 0}, mode=PY, local=True)
    clear()
    assert_same(read(), np.zeros(ranks))


def test_a_function_that_is_dropped_is_forgotten_by_the_ranks(two_ranks):
    x = pt.vector("x")
    keep = synk.function([x], (x.sum(), "sum"), mode=PY)
    drop = synk.function([x], (x.sum(), "sum"), mode=PY)
    keep([1.0])
    drop([1.0])
    gone = weakref.ref(drop)
    known = SESSION.run(worker_count_functions)
    del drop
    gc.collect()
    assert gone() is None
    assert keep([1.0]) == 1
    assert SESSION.run(worker_count_functions) == [n - 1 for n in known]


def worker_count_functions(context):
    return len(context.registry.functions)


def test_a_variable_of_an_ended_session_does_not_disturb_the_next():
    old, new = pytensor.shared(np.zeros(3)), pytensor.shared(np.ones(3))
    x = pt.vector("x")
    f = synk.function([x], (x.sum() + new.sum(), "sum"), mode=PY)
    with synk.session(2):
        synk.broadcast(old)
    with synk.session(2):
        synk.broadcast(new)
        del old
        gc.collect()
        synk.all_reduce(new, "sum")
        assert_same(synk.get_value(1, new), np.full(3, 2.0))
        assert f([1.0, 2.0]) == 15


def test_a_function_that_is_dropped_is_gone_without_a_collection(two_ranks):
    x = pt.vector("x")
    f = synk.function([x], x.sum(), mode=PY)
    f(np.ones(4))
    known, programs = weakref.ref(f), weakref.ref(f._engines.present.local())
    gc.disable()
    try:
        del f
        assert known() is None
        synk.broadcast(pytensor.shared(0.0))  # which tells the ranks
        assert programs() is None
    finally:
        gc.enable()


def test_the_shared_variables_of_a_function_are_those_that_a_call_reads_or_updates():
    x, y = pt.vector("x"), pt.scalar("y")
    names = "read", "given", "rows", "updated", "counted", "unused"
    read, given, rows, updated, counted, _ = (
        pytensor.shared(np.ones(3), name, shape=(None,)) for name in names
    )
    counted.default_update = counted + 1
    f = synk.function(
        [x],
        (x * y * read.sum()).sum() + rows.sum() + counted.sum(),
        updates={updated: updated * 2},
        givens={y: given.mean()},
        sliceable_shareds=[rows],
        mode=PY,
    )
    assert set(f.get_shared()) == {read, given, rows, updated, counted}


def test_inputs_have_any_names():
    names = ["self", "long", "p(k, n)", "check", "{x}"]
    inputs = [pt.TensorType("float64", (None,))(name) for name in names]
    f = synk.function(inputs, sum(inputs).sum(), mode=PY)
    values = {name: [float(i), 1.0, 2.0] for i, name in enumerate(names)}
    with synk.session(2):
        assert f(*values.values()) == 25
        check = values.pop("check")
        with pytest.raises(TypeError, match=r"for check; as check= is an option"):
            f(**values, check=check)
        del inputs[3], names[3]
        g = synk.function(inputs, sum(inputs).sum(), mode=PY)
        assert g(**values) == 19
