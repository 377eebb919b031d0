"""What a rank is given: its rows, a stream of its own, and graphs.

Rows are compared with numpy's own indexing.
"""

import pickle

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.graph.traversal import ancestors
from pytensor.tensor.elemwise import DimShuffle

from synk.memory.partition import select
from synk.memory.rows import RowTaker
from synk.ranks.graphs import dump_graph, load_graph
from synk.ranks.streams import value_for_rank

# -- taking rows ---------------------------------------------------------------------


def read_only(array):
    array = array.copy()
    array.flags.writeable = False
    return array


MASK = np.arange(11) % 3 == 0
SELECTIONS = [slice(None), slice(2, 9), slice(1, 10, 3), slice(-2, 1, -2), slice(5, 5)]
SELECTIONS += [MASK, ~MASK, np.array([3, -1, 3, 10], "int8"), np.zeros(0, int)]


@pytest.mark.parametrize(
    "make",
    [np.array, np.asfortranarray, read_only, lambda a: np.repeat(a, 2, axis=1)[:, ::2]],
    ids=["C", "Fortran", "read-only", "strided"],
)
def test_rows_are_taken_as_compiled_functions_want_them(make):
    """Whole, in order, C-contiguous and writeable: numba compiles anew for others."""
    taker, array = RowTaker(), make(np.arange(33.0).reshape(11, 3))
    for selection in SELECTIONS * 2:
        rows = taker.take(array, select(selection, 11))
        np.testing.assert_array_equal(rows, array[selection])
        assert rows.flags.carray


# -- a generator for each rank ---------------------------------------------------------


def test_streams_of_ranks_are_neither_each_others_nor_a_users_children():
    sequence = np.random.SeedSequence(7)
    original = np.random.default_rng(sequence)
    streams = [value_for_rank(original, rank) for rank in range(1, 40)]
    streams += [np.random.default_rng(child) for child in sequence.spawn(40)]
    streams += [value_for_rank(np.random.default_rng(8), rank) for rank in range(1, 40)]
    streams.append(np.random.default_rng(7))
    first = [generator.integers(2**63) for generator in streams]
    assert len(set(first)) == len(first)


# -- graphs arrive as they were sent, and equal parts are sent once --------------------


def as_row():
    return DimShuffle(input_ndim=1, new_order=["x", 0])


def many_equal_ops(n, make=as_row):
    """Return a graph of n Ops that `make` makes, and the shared variable."""
    w = pytensor.shared(np.arange(3.0), "w")
    x = pt.matrix("x")
    out = x
    for _ in range(n):
        out = out + make()(w)
    return x, out, w


def sent(graph, *variables):
    """Return the pickle of a graph, and the numbers of its variables."""
    numbers = {var: number for number, var in enumerate(variables)}
    return dump_graph(graph, numbers), numbers


def test_equal_ops_are_sent_once():
    op = as_row()
    _, out, w = many_equal_ops(102, lambda: op)
    same, _ = sent(out, w)
    _, out, w = many_equal_ops(102)
    many, numbers = sent(out, w)
    assert len(many) - len(same) < 20 * len(pickle.dumps(op))  # and not 101 of them
    found = load_graph(many, {numbers[w]: w})
    ops = [var.owner.op for var in ancestors([found]) if var.owner]
    assert len([op for op in ops if isinstance(op, DimShuffle)]) == 102
    assert len({id(op) for op in ops if isinstance(op, DimShuffle)}) == 1
