"""Mistakes of systems of this kind, and what `pytensor.function` takes: taken likewise.

S1 to S13 are mistakes that were made in Synkhronos (arXiv 1710.04162), which did for
Theano what synk does for PyTensor. Each test is named after one and states what must
hold here. (S2 and S14 are about processes, S3 to S5 and S8 about collectives: see the
tests of these.)
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytensor
import pytensor.sparse
import pytensor.tensor as pt
import pytest
from on_ranks import one_and_three_ranks
from pytensor import In, Out
from pytensor.compile.mode import Mode
from pytensor.graph.rewriting.basic import GraphRewriter
from pytensor.typed_list import TypedListType
from reference import PY, assert_same, values_of

import synk


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
def test_s1_slices_with_every_reduce_op_equal_the_serial_result(ranks):
    x = pt.matrix("x")
    whole = {
        "avg": (x.mean(axis=0), np.mean),
        "sum": (x.sum(axis=0), np.sum),
        "prod": (x.prod(axis=0), np.prod),
        "min": (x.min(axis=0), np.min),
        "max": (x.max(axis=0), np.max),
    }
    kept = [pytensor.shared(np.zeros(3)) for _ in whole]
    outputs = [(made, op) for op, (made, _) in whole.items()]
    updates = [(s, *output) for s, output in zip(kept, outputs, strict=True)]
    f = synk.function([x], outputs, updates=updates, mode=PY)
    value = values_of("float64", (3 * ranks + 2, 3), 1)
    for slices in (2, 3, 50):
        results = f(value, num_slices=slices)
        for got, s, (op, (_, serial)) in zip(results, kept, whole.items(), strict=True):
            synk.all_reduce(s, op)
            assert_same(got, serial(value, axis=0), 32)
            assert_same(s.get_value(), serial(value, axis=0), 32)


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


def test_s9_rows_out_of_range_are_refused_before_anything_is_launched(two_ranks):
    x = pt.vector("x")
    f = synk.function([x], (x, "gather"), mode=PY)
    s = pytensor.shared(np.zeros(0))
    for value in (np.arange(5.0), synk.data(np.arange(5.0))):
        for rows in ([5], [0, 5], [-6], [-6, 0], np.array([2**40]), 6, [True] * 6):
            with pytest.raises(IndexError):
                f(value, batch=rows)
            with pytest.raises(IndexError):
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


class Noting(GraphRewriter):
    """Rewrites nothing, and notes in a file which rank has compiled a graph."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def apply(self, fgraph) -> None:
        with open(self.path, "a") as file:
            file.write(f"{synk.rank() if synk.is_forked() else 0}\n")


@pytest.fixture
def noting(tmp_path):
    """A mode that notes compilations, and how many there were on each of two ranks."""
    path = tmp_path / "compiled"
    path.touch()

    def compiled() -> list[int]:
        ranks = path.read_text().split()
        return [ranks.count("0"), ranks.count("1")]

    return Mode("py", Noting(path)), compiled


def test_s13_nothing_is_compiled_that_is_not_used(two_ranks, noting):
    mode, compiled = noting
    x = pt.vector("x")
    w = pytensor.shared(0.0)
    outputs, updates = [x.mean(), x.max()], {w: x.sum()}
    f = synk.function([x], outputs, updates=updates, mode=mode, local=True)
    g = synk.function([x], x.sum(), mode=mode)
    assert compiled() == [0, 0]
    for _ in range(2):
        f([1.0, 2.0])
        f([1.0])
        f([1.0, 2.0, 3.0], batch=[0, 2])
        f(synk.data([1.0, 2.0]))
        f.as_theano([1.0])
        assert compiled() == [1, 1]
    f([1.0, 2.0], num_slices=2)
    f([1.0, 2.0], num_slices=3)
    assert compiled() == [2, 2]
    f([1.0, 2.0], output_subset=[1])
    f([1.0, 2.0], output_subset=[-1])
    f([1.0, 2.0], output_subset=[1, 0])
    assert compiled() == [3, 3]
    g([1.0])
    assert compiled() == [4, 4]


def test_s13_a_function_is_compiled_once_for_all_sessions(noting):
    mode, compiled = noting
    x = pt.vector("x")
    f = synk.function([x], x.mean(), mode=mode)
    for n in (2, 1, 3):
        with synk.session(n):
            assert f([1.0, 2.0]) == 1.5
            assert compiled()[0] == 1


def test_dtype_errors_name_the_input_and_both_dtypes(two_ranks):
    """What users of Synkhronos asked for (its issue 11)."""
    x = pt.matrix("pixels", dtype="float32")
    f = synk.function([x], x.sum(), mode=PY)
    with pytest.raises(TypeError, match=r"pixels[\s\S]*float32[\s\S]*float64"):
        f(np.full((2, 2), 0.1))
    with pytest.raises(
        TypeError, match=r"pixels[\s\S]*float32[\s\S]*float64[\s\S]*synk\.data"
    ):
        f(synk.data(np.full((2, 2), 0.1)))


# -- what `pytensor.function` takes is taken likewise, or refused with what to write ---

X, K = pt.dmatrix("x"), pt.dscalar("k")
ROWS = np.arange(12.0).reshape(4, 3)


def test_in_and_out_are_their_variables(two_ranks):
    f = synk.function(
        [In(X, borrow=True)],
        [Out(2 * X, borrow=True), (Out(X.sum(axis=0)), "sum"), X.mean() + K],
        bcast_inputs=[In(K, mutable=True)],
        mode=PY,
    )
    doubled, total, mean = f(ROWS, 3.0)
    np.testing.assert_array_equal(doubled, 2 * ROWS)
    np.testing.assert_array_equal(total, ROWS.sum(axis=0))
    assert mean == ROWS.mean() + 3
    one = synk.function([X], Out(X + 1), mode=PY)(ROWS)
    np.testing.assert_array_equal(one, ROWS + 1)
    pair = synk.function([X], (Out(X.sum(axis=0)), "sum"), mode=PY)(ROWS)
    np.testing.assert_array_equal(pair, ROWS.sum(axis=0))


INPUTS = {
    "strict": (In(X, strict=True), "convert arrays before the call"),
    "downcast": (In(X, allow_downcast=True), "pass allow_input_downcast=True"),
    "name": (In(X, name="rows"), "x.name ="),
    "sparse": (pytensor.sparse.csr_matrix("s"), "pytensor.shared"),
    "list": (TypedListType(pt.dvector)("l"), "pass the arrays of a list as inputs"),
    "generator": (pt.random.type.random_generator_type("g"), "pytensor.shared"),
    "fixed": (pt.tensor("t", shape=(4, 3)), "make it with shape="),
}


@pytest.mark.parametrize("kind", INPUTS)
def test_of_other_inputs_it_is_said_what_to_write(kind):
    given, advice = INPUTS[kind]
    with pytest.raises((TypeError, ValueError), match=advice):
        synk.function([given], X.sum(), mode=PY, on_unused_input="ignore")
    if kind != "fixed":
        with pytest.raises(TypeError, match=advice):
            synk.function([X], X.sum(), bcast_inputs=[given], mode=PY)


@pytest.mark.filterwarnings("ignore::synk.SplitWarning")
def test_a_sparse_matrix_is_kept_in_a_shared_variable(two_ranks):
    scipy_sparse = pytest.importorskip("scipy.sparse")
    matrix = scipy_sparse.csr_matrix(np.eye(3) * 2)
    kept = pytensor.shared(matrix, "kept")
    made = pytensor.sparse.dot(X, kept)
    np.testing.assert_array_equal(synk.function([X], made, mode=PY)(ROWS), 2 * ROWS)


def test_of_a_dict_of_outputs_it_is_said_what_to_write():
    with pytest.raises(TypeError, match=r"list\(outputs.values\(\)\)"):
        synk.function([X], {"sum": X.sum()}, mode=PY)
