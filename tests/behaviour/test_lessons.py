"""Regressions named after what went wrong in systems of this kind before.

S1 to S13 are mistakes that were made in Synkhronos (arXiv 1710.04162), which did for
Theano what synk does for PyTensor. Each test is named after one and states what must
hold here. (S2 and S14 are about processes: see the tests of faults and of sessions.)
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from reference import (
    KINDS,
    PY,
    assert_same,
    ops_of,
    reduced,
    refused,
    values_of,
)
from world_sizes import one_and_three_ranks

import synk
from synk.engines import host
from synk.ranks.session import SESSION


@one_and_three_ranks
def test_s1_slices_with_updates_equal_the_serial_result(ranks):
    """Not an update for every slice, and not the last slice's gradient."""
    x = pt.matrix("x")
    gradient, steps = pytensor.shared(np.zeros(2)), pytensor.shared(0)
    weights = pytensor.shared(np.ones(2))
    error = (x.dot(weights) ** 2).mean()
    f = synk.function(
        [x],
        error,
        updates=[
            (gradient, pytensor.grad(error, weights)),
            (steps, steps + 1),
            (weights, weights * 2),
        ],
        mode=PY,
    )
    value = np.arange(2.0 * (3 * ranks + 1)).reshape(-1, 2)
    factor = 1.0
    for step, slices in enumerate((1, 2, 3, 7), 1):
        got = f(value, num_slices=slices)
        products = value.sum(axis=1) * factor
        assert_same(got, (products**2).mean(), 32)
        synk.all_reduce(gradient)
        right = 2 * (products[:, None] * value).mean(axis=0)
        factor *= 2
        for rank in range(ranks):
            assert_same(synk.get_value(rank, gradient), right, 32)
            assert synk.get_value(rank, steps) == step
            assert_same(synk.get_value(rank, weights), np.full(2, factor))


@one_and_three_ranks
@pytest.mark.parametrize("op", ["avg", "sum", "prod", "min", "max"])
def test_s1_slices_with_every_reduce_op_equal_the_serial_result(ranks, op):
    x = pt.matrix("x")
    whole = {
        "avg": (x.mean(axis=0), np.mean),
        "sum": (x.sum(axis=0), np.sum),
        "prod": (x.prod(axis=0), np.prod),
        "min": (x.min(axis=0), np.min),
        "max": (x.max(axis=0), np.max),
    }
    expression, serial = whole[op]
    s = pytensor.shared(np.zeros(3))
    updates = [(s, expression, op)]
    f = synk.function([x], (expression, op), updates=updates, mode=PY)
    value = values_of("float64", (3 * ranks + 2, 3), 1)
    for slices in (2, 3, 50):
        got = f(value, num_slices=slices)
        assert_same(got, serial(value, axis=0), 32)
        synk.all_reduce(s, op)
        assert_same(s.get_value(), serial(value, axis=0), 32)


@one_and_three_ranks
@pytest.mark.parametrize("kind", KINDS)
def test_s3_collectives_arrive_on_every_rank(ranks, kind):
    for dtype in KINDS[kind]:
        value, other = values_of(dtype, (4,), 1), values_of(dtype, (4,), 2)
        a = pytensor.shared(np.zeros(4, dtype))
        synk.broadcast(a, value)
        for rank in range(ranks):
            assert_same(synk.get_value(rank, a), value)
        synk.set_value(ranks - 1, a, other)
        values = [value] * (ranks - 1) + [other]
        assert_same(synk.gather(a), np.stack(values))
        synk.all_reduce(a, "sum")
        for rank in range(ranks):
            assert_same(synk.get_value(rank, a), reduced("sum", values), 4, 1)
        synk.broadcast(a, value)
        synk.all_gather(a)
        for rank in range(ranks):
            assert_same(synk.get_value(rank, a), np.concatenate([value] * ranks))


@one_and_three_ranks
@pytest.mark.parametrize("kind", KINDS)
def test_s4_reductions_of_any_dimensions_are_exact_and_keep_the_dtype(ranks, kind):
    """Rows equal in number to the ranks were the silent case."""
    for dtype in KINDS[kind]:
        for ndim in range(6):
            shape = (ranks, 3, 2, 1, 2)[:ndim]
            a = pytensor.shared(np.zeros((1,) * ndim, dtype))
            for op in ops_of(dtype):
                if op == "avg" and dtype in KINDS["integers"]:
                    continue  # rounded, see the tests of collectives
                values = [values_of(dtype, shape, rank) for rank in range(ranks)]
                for rank, value in enumerate(values):
                    synk.set_value(rank, a, value)
                synk.reduce(a, op)
                what = f"{op} of {dtype} {shape}"
                assert_same(a.get_value(), reduced(op, values), 4, 1, what)


@one_and_three_ranks
def test_s5_all_gather_gives_every_rank_and_the_caller_the_result(ranks):
    a = pytensor.shared(np.zeros(0))
    value = np.arange(2.0 * ranks + 1)
    synk.scatter(a, value)
    assert_same(synk.all_gather(a), value)
    for rank in range(ranks):
        assert_same(synk.get_value(rank, a), value)


@one_and_three_ranks
def test_s6_subsets_of_outputs_in_any_order_and_any_sequence_of_calls(ranks):
    x = pt.vector("x")
    outputs = [(x.sum(), "sum"), (x.max(), "max"), (x, "gather")]
    f = synk.function([x], outputs, mode=PY)
    value = np.arange(1.0, 8.0)
    right = [value.sum(), value.max(), value]
    for subset in ([1], None, [2, 0], [0, 2], None, [1, 2, 1], [], None):
        got = f(value, output_subset=subset)
        wanted = range(3) if subset is None else subset
        assert len(got) == len(wanted)
        for output, i in zip(got, wanted, strict=True):
            assert_same(output, np.asarray(right[i]))


def test_s7_functions_tell_how_outputs_and_updates_are_combined():
    x = pt.vector("x")
    a, b = pytensor.shared(0.0), pytensor.shared(0.0)
    outputs = [x.mean(), (x.sum(), "sum"), (x, "gather"), (x[0], None)]
    f = synk.function([x], outputs, updates=[(a, x.mean()), (b, x.max(), "max")])
    assert f.output_modes == ["avg", "sum", "gather", None]
    assert f.update_modes == [None, "max"]  # of all ranks and slices already


@one_and_three_ranks
def test_s8_collectives_take_data_wherever_they_take_arrays(ranks):
    a = pytensor.shared(np.zeros(1))
    value = np.arange(2.0 * ranks + 1)
    for given in (value, synk.data(value)):
        synk.broadcast(a, given)
        assert_same(synk.get_value(ranks - 1, a), value)
        synk.set_value(ranks - 1, a, given, batch=slice(2))
        assert_same(synk.get_value(ranks - 1, a), value[:2])
        synk.scatter([a], [given])
        assert_same(synk.gather(a, nd_up=0), value)
        synk.set_value(0, a, given)
        assert_same(synk.get_value(0, a), value)


def test_s9_rows_out_of_range_are_refused_before_anything_is_launched(two_ranks):
    x = pt.vector("x")
    f = synk.function([x], (x, "gather"), mode=PY)
    s = pytensor.shared(np.zeros(0))
    for value in (np.arange(5.0), synk.data(np.arange(5.0))):
        for rows in ([5], [0, 5], [-6], [-6, 0], np.array([2**40]), 6, [True] * 6):
            with refused(IndexError, "."):
                f(value, batch=rows)
            with refused(IndexError, "."):
                synk.scatter(s, value, batch=rows)
        assert_same(f(value, batch=[4, -5, -1, 0]), np.array([4.0, 0, 4, 0]))
        assert_same(f(value, batch=5), np.arange(5.0))


def test_s10_functions_are_made_and_replicated_any_number_of_times(tmp_path):
    package = Path(synk.__file__).parent

    def files():
        return {
            path: path.stat().st_mtime_ns
            for path in package.rglob("*")
            if path.is_file() and "__pycache__" not in path.parts
        }

    before = files()
    x = pt.vector("x")
    first = synk.function([x], (x.sum(), "sum"), mode=PY)
    for n in (2, 3):
        with synk.session(n):
            synk.distribute()
            assert first([1.0, 2.0]) == 3
            later = synk.function([x], (x.max(), "max"), mode=PY)
            assert later([1.0, 2.0]) == 2
            synk.distribute()
            assert first([1.0, 2.0]) == 3
    assert files() == before


@one_and_three_ranks
def test_s11_arrays_and_data_are_split_at_the_same_rows(ranks):
    x, y = pt.vectors("x", "y")
    outputs = [(abs(x - y).max(), "max"), (x * y, "gather")]
    f = synk.function([x, y], outputs, mode=PY)
    for rows in range(1, 3 * ranks + 2):
        value = np.arange(1.0, rows + 1)
        for batch in (None, slice(None, None, -1), np.arange(rows)[::2]):
            chosen = value[slice(None) if batch is None else batch]
            for pair in ((value, synk.data(value)), (synk.data(value), value)):
                difference, product = f(*pair, batch=batch)
                assert difference == 0
                assert_same(product, chosen**2)


@one_and_three_ranks
def test_s12_averages_are_weighted_over_ranks_and_slices(ranks):
    x = pt.vector("x")
    a = pytensor.shared(0.0)
    f = synk.function([x], x.mean(), updates={a: x.mean()}, mode=PY)
    for rows in range(1, 2 * ranks + 3):
        value = np.arange(float(rows)) ** 3
        for slices in (1, 2, 3):
            assert_same(f(value, num_slices=slices), value.mean(), 16)
            synk.all_reduce(a)
            assert_same(a.get_value(), value.mean(), 16)


def test_s13_one_rank_on_a_cpu_is_a_session():
    x = pt.vector("x")
    with synk.session(1, devices="cpu") as ranks:
        assert ranks == synk.size() == 1
        f = synk.function([x], x.mean(), mode=PY)
        assert f([1.0, 2.0]) == 1.5


COMPILED: list[tuple] = []
"""Every graph that this process has compiled, where `count_compilations` is used."""


@pytest.fixture
def count_compilations(monkeypatch):
    """Count on every rank that is forked while the test runs; return how to look."""
    compile_graph = host.compile_graph

    def counted(*args, **kwargs):
        COMPILED.append(args)
        return compile_graph(*args, **kwargs)

    monkeypatch.setattr(host, "compile_graph", counted)
    COMPILED.clear()
    return lambda: SESSION.run(worker_count_compilations)


def worker_count_compilations(context):
    return len(COMPILED)


def test_s13_nothing_is_compiled_that_is_not_used(count_compilations):
    x = pt.vector("x")
    w = pytensor.shared(0.0)
    outputs, updates = [x.mean(), x.max()], {w: x.sum()}
    f = synk.function([x], outputs, updates=updates, mode=PY, local=True)
    g = synk.function([x], x.sum(), mode=PY)
    with synk.session(2):
        assert count_compilations() == [0, 0]
        for _ in range(2):
            f([1.0, 2.0])
            f([1.0])
            f([1.0, 2.0, 3.0], batch=[0, 2])
            f(synk.data([1.0, 2.0]))
            f.as_theano([1.0])
            assert count_compilations() == [1, 1]
        f([1.0, 2.0], num_slices=2)
        f([1.0, 2.0], num_slices=3)
        assert count_compilations() == [2, 2]
        f([1.0, 2.0], output_subset=[1])
        f([1.0, 2.0], output_subset=[-1])
        f([1.0, 2.0], output_subset=[1, 0])
        assert count_compilations() == [3, 3]
        g([1.0])
        assert count_compilations() == [4, 4]


def test_s13_what_all_ranks_store_is_compiled_for_those_without_rows(
    count_compilations,
):
    x = pt.vector("x")
    w = pytensor.shared(0.0)
    f = synk.function([x], x.mean(), updates={w: x.sum()}, mode=PY)
    with synk.session(2):
        for _ in range(2):
            f([1.0, 2.0])
            f([1.0, 2.0, 3.0], batch=[0, 2])
            # Before the sum is reduced, and after it.
            assert count_compilations() == [2, 2]
        for _ in range(2):
            f([1.0])
            assert count_compilations() == [3, 3]  # without the stage of the rows
        f([1.0, 2.0], num_slices=2)
        f([1.0, 2.0], num_slices=3)
        compiled = count_compilations()
        f.as_theano([1.0])
        f.as_theano([1.0, 2.0])
        assert count_compilations() == [compiled[0] + 1, compiled[1]]


def test_s13_a_function_is_compiled_once_for_all_sessions(count_compilations):
    x = pt.vector("x")
    f = synk.function([x], x.mean(), mode=PY)
    for n in (2, 1, 3):
        with synk.session(n):
            assert f([1.0, 2.0]) == 1.5
            assert count_compilations()[0] == 1


def test_dtype_errors_name_the_input_and_both_dtypes(two_ranks):
    """What users of Synkhronos asked for (its issue 11)."""
    x = pt.matrix("pixels", dtype="float32")
    f = synk.function([x], x.sum(), mode=PY)
    with refused(TypeError, r"pixels[\s\S]*float32[\s\S]*float64"):
        f(np.full((2, 2), 0.1))
    with refused(TypeError, r"pixels[\s\S]*float32[\s\S]*float64[\s\S]*synk\.data"):
        f(synk.data(np.full((2, 2), 0.1)))
