"""Graphs arrive on a rank as they were sent, and equal parts are sent once."""

import gc
import pickle

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.compile import SharedVariable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.elemwise import DimShuffle
from reference import PY

from synk.ranks.graphs import dump_graph, load_graph
from synk.ranks.registry import Numbers


def row():
    return DimShuffle(input_ndim=1, new_order=["x", 0])


def many_equal_ops(n, make=row):
    """Return a graph of n Ops that `make` makes, and the shared variable."""
    w = pytensor.shared(np.arange(3.0), "w")
    x = pt.matrix("x")
    out = x
    for _ in range(n):
        out = out + make()(w)
    return x, out, w


def sent(graph, *variables):
    """Return the pickle of a graph, and the numbers of its variables."""
    numbers = Numbers()
    return dump_graph(graph, numbers_of(numbers, variables)), numbers


def numbers_of(numbers, variables):
    for var in variables:
        numbers.add(var)
    return numbers


def test_a_graph_computes_the_same_with_the_ranks_own_variables():
    x, out, w = many_equal_ops(3)
    data, numbers = sent(([x], [out]), w)
    replica = pytensor.shared(np.full(3, 2.0), "w")
    (x2,), (out2,) = load_graph(data, {numbers[w]: replica})
    shared = [var for var in ancestors([out2]) if isinstance(var, SharedVariable)]
    assert shared == [replica]
    result = pytensor.function([x2], out2, mode=PY)(np.ones((2, 3)))
    np.testing.assert_array_equal(result, np.full((2, 3), 7.0))


def test_equal_ops_are_sent_once():
    op = row()
    _, out, w = many_equal_ops(102, lambda: op)
    same, _ = sent(out, w)
    _, out, w = many_equal_ops(102)
    many, numbers = sent(out, w)
    assert len(many) - len(same) < 20 * len(pickle.dumps(op))  # and not 101 of them
    found = load_graph(many, {numbers[w]: w})
    ops = [var.owner.op for var in ancestors([found]) if var.owner]
    assert len([op for op in ops if isinstance(op, DimShuffle)]) == 102
    assert len({id(op) for op in ops if isinstance(op, DimShuffle)}) == 1


def test_variables_tell_where_the_script_made_them():
    x, out, w = many_equal_ops(2)
    data, numbers = sent([x, out], w)
    _, out2 = load_graph(data, {numbers[w]: w})
    assert out2.tag.trace == out.tag.trace
    assert "many_equal_ops" in str(out2.tag.trace)


def test_garbage_is_collected_afterwards_as_it_was_before():
    _, out, w = many_equal_ops(1)
    try:
        for enable in gc.disable, gc.enable:
            enable()
            data, numbers = sent(out, w)
            load_graph(data, {numbers[w]: w})
            assert gc.isenabled() is (enable is gc.enable)
    finally:
        gc.enable()
