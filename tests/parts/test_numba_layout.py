"""Numba mode: transposes keep the layout of what they transpose, and all values."""

from __future__ import annotations

import warnings

import numba
import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from numba_keys import keys_of
from pytensor.compile.mode import Mode
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
from pytensor.link.numba.dispatch import basic
from pytensor.tensor.elemwise import DimShuffle

import synk
from synk.engines.numba_code import with_own_code
from synk.engines.numba_layout import IS_NEEDED, order_of

PYTENSORS = "A" if IS_NEEDED else "F"
"""The layout of a transpose of PyTensor's, as numba has it."""

NUMBA = Mode("numba", None)
"""No rewrites: a graph is compiled as it is written."""


class Layout(Op):
    """Returns which layout numba has for a value: C, F or A, as a letter's number."""

    __props__ = ()

    def make_node(self, x):
        return Apply(self, [x], [pt.lscalar()])

    def perform(self, node, inputs, outputs):
        raise NotImplementedError("for numba mode")


def letter(x):
    """Stand for what numba compiles for `Layout`."""


@numba.extending.overload(letter)
def _letter(x):
    code = ord(x.layout)
    return lambda x: code


@basic.numba_funcify.register(Layout)
def _of_layout(op, **kwargs):
    @basic.numba_njit
    def layout(x):
        return np.asarray(letter(x))

    return layout


def layout_of(x, made, value, keeps=True) -> str:
    """Return the layout that numba has for a graph of `x`."""

    def compiled():
        return pytensor.function([x], Layout()(made), mode=NUMBA, trust_input=True)

    f = with_own_code(NUMBA, compiled) if keeps else compiled()
    return chr(f(value))


CASES = [
    ((1, 0), "F"),
    ((2, 1, 0), "F"),
    ((0, "x"), "C"),
    (("x", 0, 1), "C"),
    ((0, "x", 1), "C"),
    ((1, "x", 0), "F"),
    ((0, 2, 1), "A"),
    ((1, 0, 2), "A"),
]


@pytest.mark.parametrize(("order", "layout"), CASES, ids=str)
def test_a_layout_is_kept_where_dimensions_stay_in_order_or_are_reversed(order, layout):
    x = pt.TensorType("float64", (None,) * sum(i != "x" for i in order))("x")
    value = np.arange(24.0).reshape((2, 3, 4)[: x.ndim - 1] + (-1,))
    made = x.dimshuffle(order)
    assert layout_of(x, made, value) == layout


@pytest.mark.parametrize("rows", [0, 1, 3])
def test_a_dimension_of_length_1_goes_and_the_layout_stays(rows):
    x = pt.TensorType("float64", (None, 1, None))("x")
    value = np.ones((rows, 1, 2))
    assert layout_of(x, x.dimshuffle(0, 2), value) == "C"
    assert layout_of(x, x.dimshuffle(2, 0), value) == "F"


def test_strided_arrays_stay_strided():
    x = pt.matrix("x", dtype="float64")
    value = np.arange(24.0).reshape(4, 6)[:, ::2]
    assert layout_of(x, x.T, value) == "A"


def test_orders():
    assert order_of(DimShuffle(input_ndim=3, new_order=(2, 0, 1))) is None
    assert order_of(DimShuffle(input_ndim=1, new_order=())) is None
    assert order_of(DimShuffle(input_ndim=0, new_order=("x",))) is None
    assert order_of(DimShuffle(input_ndim=2, new_order=(1, "x", 0))) == "reversed"
    assert order_of(DimShuffle(input_ndim=1, new_order=("x", 0))) == "kept"


@pytest.mark.parametrize("order", [(1, 0), (0, "x"), (2, 1, 0)], ids=str)
def test_what_reads_a_view_reads_its_values(order):
    ndim = sum(i != "x" for i in order)
    x = pt.TensorType("float64", (None,) * ndim)("x")
    view = x.dimshuffle(order)
    made = [view.reshape((-1,)), view[::-1]]
    if view.ndim == 2:
        made += [view.dot(view.T), pt.set_subtensor(view[:1], 2.0)]
    kept = with_own_code(
        NUMBA, pytensor.function, [x], made, mode=NUMBA, trust_input=True
    )
    plain = pytensor.function([x], made, mode=Mode("py", None))
    for shape in [(1, 2, 3), (3, 1, 2), (2, 3, 1)]:
        value = np.random.default_rng(0).normal(size=shape[:ndim])
        for mine, other in zip(kept(value), plain(value), strict=True):
            np.testing.assert_allclose(mine, other)


@pytest.mark.filterwarnings("ignore:Scan return signature:DeprecationWarning")
def test_within_a_loop_and_a_graph_that_is_an_op_too():
    x, v = pt.matrix("x"), pt.vector("v")
    inner = pytensor.compile.builders.OpFromGraph([x, v], [x.T @ (x @ v)])
    states, _ = pytensor.scan(
        lambda u, x: x.T @ (x @ u), outputs_info=v, non_sequences=x, n_steps=2
    )
    last = states[-1]
    f = synk.function([], [inner(x, v), last], bcast_inputs=[x, v], mode="NUMBA")
    a, b = np.random.default_rng(0).normal(size=(5, 3)), np.ones(3)
    once, twice = f.as_theano(a, b)
    np.testing.assert_allclose(once, a.T @ (a @ b))
    np.testing.assert_allclose(twice, a.T @ (a @ (a.T @ (a @ b))))


def copies(compile_it, monkeypatch) -> list[str]:
    """Return what numba says of products of strided arrays while a function is made."""
    monkeypatch.setattr(pytensor.config, "numba__cache", False)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always", numba.NumbaPerformanceWarning)
        compile_it()(np.ones((5, 3)), np.ones(5))
    return [str(each.message) for each in found if "contiguous" in str(each.message)]


def test_a_product_copies_no_rows_which_numba_would_warn_of(monkeypatch):
    x, r = pt.matrix("x", dtype="float64"), pt.vector("r", dtype="float64")
    graph = x.T @ r

    def plain():
        return pytensor.function([x, r], graph, mode=NUMBA, trust_input=True)

    assert copies(lambda: with_own_code(NUMBA, plain), monkeypatch) == []
    if IS_NEEDED:  # otherwise both are PyTensor's
        assert copies(plain, monkeypatch)


# -- beside PyTensor ------------------------------------------------------------------


def test_plain_functions_have_the_code_and_the_keys_that_they_have_without_synk():
    x = pt.matrix("x", dtype="float64")
    graph = x.T + 0
    value = np.ones((3, 2))

    def plain():
        return pytensor.function([x], graph, mode=NUMBA)

    before = keys_of(plain)
    mine = keys_of(lambda: with_own_code(NUMBA, plain))
    assert before
    assert keys_of(plain) == before  # synk has registered its own meanwhile
    assert bool(before - mine) is IS_NEEDED, "the transpose has the key of PyTensor's"
    assert bool(mine - before) is IS_NEEDED
    assert layout_of(x, x.T, value) == "F"
    assert layout_of(x, x.T, value, keeps=False) == PYTENSORS


def test_an_interrupt_leaves_nothing_behind():
    def interrupted():
        raise KeyboardInterrupt

    x = pt.matrix("x", dtype="float64")
    with pytest.raises(KeyboardInterrupt):
        with_own_code(NUMBA, interrupted)
    assert layout_of(x, x.T, np.ones((3, 2)), keeps=False) == PYTENSORS
