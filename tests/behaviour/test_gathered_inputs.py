"""All rows of an input, where the compiler needs them: each rank reads them itself."""

from __future__ import annotations

import warnings

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from children import in_a_child
from reference import PY

import synk
from synk.comm.flat import FlatBuffers

X, K, B = pt.matrix("x"), pt.lvector("k"), pt.vector("b", dtype="bool")
INPUTS = [X, K, B]
GRAPHS = [
    pt.sort(X, axis=0),
    X @ X.T,
    pt.cumsum(K) * pt.sort(K),
    pt.sort(B),
    synk.ops.all_gather(X).sum(axis=0),
    pt.sort(K).sum() + X.sum(),
]
SELECTED = np.array([8, 1, 4, 4, 0])


def values(rows):
    random = np.random.default_rng(rows)
    x = random.normal(size=(rows, 3))
    return [x, random.integers(0, 9, rows), random.integers(0, 2, rows) > 0]


def chosen(arrays, rows):
    return [array[rows] for array in arrays]


def function_of(graphs, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", synk.SplitWarning)  # every rank sorts
        return synk.function(INPUTS, graphs, on_unused_input="ignore", **options)


def serial():
    return pytensor.function(INPUTS, GRAPHS, mode=PY)


def assert_same(got, right):
    for mine, value in zip(got, right, strict=True):
        assert mine.dtype == value.dtype
        np.testing.assert_allclose(mine, value, 1e-10)


def test_they_are_the_rows_of_the_call_wherever_the_arguments_lie():
    f, plain = function_of(GRAPHS, mode=PY), serial()
    arrays = values(9)
    for n in (1, 3):
        with synk.session(n):
            data = [synk.data(array) for array in arrays]
            batch = synk.data(arrays[0][SELECTED], minibatch=True)
            for many in (1, 3):
                for rows in (7, 2):
                    assert_same(f(*values(rows), num_slices=many), plain(*values(rows)))
                for given in (data, arrays, [data[0], *arrays[1:]]):
                    for rows in (SELECTED, slice(2, 8), slice(8, 1, -2)):
                        got = f(*given, batch=rows, num_slices=many)
                        assert_same(got, plain(*chosen(arrays, rows)))
                got = f(batch, *data[1:], batch=SELECTED, num_slices=many)
                assert_same(got, plain(*chosen(arrays, SELECTED)))


def test_they_are_those_of_each_call_of_a_run():
    f, plain = function_of(GRAPHS, mode=PY), serial()
    arrays, batches = values(9), [SELECTED, slice(3, 9), np.array([1])]
    with synk.session(3):
        for given in (arrays, [synk.data(array) for array in arrays]):
            results = f.run(batches, *given)
            for i, rows in enumerate(batches):
                right = plain(*chosen(arrays, rows))
                assert_same([result[i] for result in results], right)


@in_a_child
def test_in_jax_mode_with_padding():
    f, plain = function_of(GRAPHS[:3], mode="JAX", pad=True), serial()
    same = function_of(synk.ops.all_gather(X), mode="JAX")
    with synk.session(2):
        for rows in (5, 1):
            assert_same(f(*values(rows)), plain(*values(rows))[:3])
        arrays = values(6)
        data = [synk.data(array) for array in arrays]
        result = same(*data)
        data[0][:] = 0
        np.testing.assert_array_equal(result, arrays[0])


@pytest.fixture
def meetings(monkeypatch):
    """Return what the ranks combine in the middle of calls, as rank 0 has it."""
    found = []
    reduce = FlatBuffers.reduce

    def noted(self, key, values, ops, *args):
        found.append(list(ops))
        return reduce(self, key, values, ops, *args)

    monkeypatch.setattr(FlatBuffers, "reduce", noted)
    return found


def test_ranks_meet_for_what_they_compute_and_for_no_rows_of_inputs(meetings):
    of_inputs = function_of([pt.sort(X, axis=0), X @ X.T], mode=PY)
    both = function_of([pt.sort(X * 2, axis=0), pt.sort(K) - X.mean()], mode=PY)
    with synk.session(2):
        of_inputs(*values(5))
        assert meetings == []
        both(*values(5))
        # The mean, and the rows of x * 2; not those of k.
        assert [sorted(ops) for ops in meetings] == [["avg", "sum"]]


def test_a_variable_that_is_set_to_them_has_a_copy(two_ranks):
    kept = pytensor.shared(np.zeros((0, 3)), "kept")
    before = (X - X.mean(axis=0)) * kept.sum()  # so that it is set at the end
    f = function_of(before, updates={kept: X}, mode=PY)
    arrays = values(5)
    for many in (1, 2):
        data = [synk.data(array) for array in arrays]
        f(*data, num_slices=many)
        data[0][:] = 0
        for rank in range(2):
            np.testing.assert_array_equal(synk.get_value(rank, kept), arrays[0])
