"""What a rank is given: its rows, a stream of its own, and graphs.

Rows are compared with numpy's own indexing.
"""

from __future__ import annotations

import pickle

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pytensor.graph.traversal import ancestors
from pytensor.tensor.elemwise import DimShuffle

from synk.memory.partition import select
from synk.memory.rows import RowTaker
from synk.ranks.graphs import VariableNumbers, dump_graph, load_graph
from synk.ranks.streams import value_for_rank

few = settings(max_examples=60, deadline=None, derandomize=True, database=None)

lengths = st.integers(0, 12)
ends = st.none() | st.integers(-15, 15)
steps = st.none() | st.integers(-4, 4).filter(bool)


@st.composite
def batches(draw, length: int):
    """Everything that `batch` may be, for so many rows, and numpy's index for it."""
    kind = draw(st.sampled_from(["none", "int", "slice", "rows", "mask"]))
    if kind == "none":
        return None, slice(None)
    if kind == "int":
        n = draw(st.integers(0, length))
        return n, slice(n)
    if kind == "slice":
        index = slice(draw(ends), draw(ends), draw(steps))
        return index, index
    if kind == "mask":
        mask = draw(st.lists(st.booleans(), min_size=length, max_size=length))
        batch = draw(st.sampled_from([mask, np.array(mask, bool)]))
        return batch, np.array(mask, bool)
    row = st.integers(-length, length - 1) if length else st.nothing()
    rows = draw(st.lists(row, max_size=15)) if length else []
    dtype = draw(st.sampled_from(["int8", "int32", "int64"]))
    batch = draw(st.sampled_from([rows, tuple(rows), np.array(rows, dtype)]))
    return batch, np.array(rows, int)


# -- taking rows ---------------------------------------------------------------------


def read_only(array):
    array = array.copy()
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    "make",
    [np.array, np.asfortranarray, read_only, lambda a: np.repeat(a, 2, axis=1)[:, ::2]],
    ids=["C", "Fortran", "read-only", "strided"],
)
@few
@given(data=st.data())
def test_rows_are_taken_as_compiled_functions_want_them(make, data):
    """Whole, in order, C-contiguous and writeable: numba compiles anew for others."""
    taker = RowTaker()
    for _ in range(3):
        length = data.draw(lengths)
        batch, index = data.draw(batches(length))
        array = make(np.arange(length * 3.0).reshape(length, 3))
        rows = taker.take(array, select(batch, length))
        np.testing.assert_array_equal(rows, array[index])
        assert rows.flags.carray


def test_adjacent_rows_are_taken_without_a_copy():
    array = np.arange(12.0).reshape(6, 2)
    assert np.shares_memory(RowTaker().take(array, slice(2, 5)), array)


def test_the_memory_for_rows_is_used_again():
    taker = RowTaker()
    array = np.arange(12.0).reshape(6, 2)
    first = taker.take(array, np.array([3, 1, 5]))
    assert not np.shares_memory(first, array)
    assert np.shares_memory(taker.take(array, np.array([0, 1])), first)
    assert taker.take(array.astype("float32"), np.array([0])).dtype == np.float32


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


class Entropy(np.random.bit_generator.ISeedSequence):
    """Something that seeds a generator and has no children."""

    def generate_state(self, n_words, dtype=np.uint32):
        return np.arange(5, 5 + n_words).astype(dtype)


def without_a_seed_sequence():
    return np.random.Generator(np.random.PCG64(Entropy()))


def of_a_former_state():
    restored = np.random.default_rng()
    restored.bit_generator.state = np.random.default_rng(5).bit_generator.state
    return restored


@pytest.mark.parametrize("make", [without_a_seed_sequence, of_a_former_state])
def test_generators_in_the_same_state_have_the_same_ranks(make):
    first, again = (
        [value_for_rank(original, rank).integers(2**63) for rank in (1, 2, 0)]
        for original in (make(), make())
    )
    assert first == again
    assert first[2] == make().integers(2**63)  # which the others' have not moved on
    assert len(set(first)) == 3


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
    numbers = VariableNumbers()
    for var in variables:
        numbers.add(var)
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


def test_an_op_is_sent_after_pytensor_has_made_its_gradient():
    # What PyTensor keeps of it, for `grad` and to compare Ops, holds the Op itself.
    a, q = pt.dtensor3("a"), pt.dtensor3("q")
    x, same = (
        pt.linalg.solve_discrete_lyapunov(a, q, method="bilinear") for _ in range(2)
    )
    before, _ = sent(x)
    pytensor.grad(x.sum(), a)
    assert x.owner.op == same.owner.op
    after, _ = sent(x)
    assert len(after) < 1.1 * len(before)
    assert load_graph(after, {}).owner.op == x.owner.op
