"""Ops that the script has compiled, or has defined where ranks cannot import them."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from processes import run_script
from pytensor import scalar as ps
from pytensor.compile.builders import OpFromGraph
from pytensor.compile.ops import wrap_py
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
from pytensor.tensor.elemwise import Elemwise
from reference import PY

import synk

X = pt.dvector("x")
ROWS = np.arange(1.0, 8.0)


def compiled():
    """Yield graphs whose Ops keep what is compiled of them."""
    a = pt.dvector("a")
    yield "product", pt.grad(X.prod(), X)
    yield "graph", OpFromGraph([a], [pt.exp(a) / 9])(X)
    yield "gradient", pt.grad(OpFromGraph([a], [(a**2).sum()])(X), X)
    yield "columns", pt.vectorize(lambda v: pt.linalg.norm(v), "(k)->()")(X[:, None])
    steps = pytensor.scan(
        lambda v, h: v + 0.5 * h, X, [np.float64(0)], return_updates=False
    )
    yield "loop", steps


@pytest.mark.filterwarnings("ignore::synk.SplitWarning")
@pytest.mark.usefixtures("scans_in_python")
def test_what_compilers_have_left_on_an_op_stays_here(two_ranks):
    for name, graph in compiled():
        for mode in (PY, "FAST_COMPILE"):
            expected = pytensor.function([X], graph, mode=mode)(ROWS)
            found = synk.function([X], graph, mode=mode)(ROWS)
            np.testing.assert_allclose(found, expected, err_msg=name)


def made(factor):
    """Return Ops that no rank can import, with what they make of rows."""

    @wrap_py([pt.dvector], [pt.dvector])
    def times(v):
        return v * factor

    class Times(Op):
        __props__ = ()

        def make_node(self, x):
            return Apply(self, [x], [x.type()])

        def perform(self, node, inputs, outputs):
            outputs[0][0] = inputs[0] * factor

    class Called(Op):
        def __init__(self, function):
            self.function = function

        make_node = Times.make_node

        def perform(self, node, inputs, outputs):
            outputs[0][0] = self.function(inputs[0])

    class TimesScalar(ps.UnaryScalarOp):
        def impl(self, x):
            return x * factor

    both = wrap_py(
        [pt.dvector] * 2, [pt.dvector] * 2, lambda fgraph, node, shapes: shapes
    )
    return {
        "function": times(X),
        "lambda": wrap_py([pt.dvector], [pt.dvector])(lambda v: factor * v)(X),
        "two results": both(lambda v, w: (v + w, (factor - 1) * w))(X, X)[1] + X,
        "class": Times()(X),
        "object with a lambda": Called(lambda v: v * factor)(X),
        "scalar": Elemwise(TimesScalar(ps.same_out, "times"))(X),
    }


@pytest.mark.filterwarnings("ignore::synk.SplitWarning")
def test_what_is_defined_within_functions_is_sent():
    before = made(3.0)
    early = synk.function([X], list(before.values()), mode=PY)
    with synk.session(2):
        for found in early(ROWS):
            np.testing.assert_array_equal(found, 3 * ROWS)
        late = synk.function([X], list(made(5.0).values()), mode=PY)
        for found in late(ROWS):
            np.testing.assert_array_equal(found, 5 * ROWS)
        named = [(var, "gather") for var in before.values()]
        for found in synk.function([X], named, mode=PY)(ROWS):
            np.testing.assert_array_equal(found, 3 * ROWS)


SCRIPT = """
import numpy as np, pytensor.tensor as pt, synk
from pytensor.compile.mode import Mode
from pytensor.compile.ops import wrap_py

class NotSent:
    def __reduce__(self):
        raise TypeError("what ranks have is not sent")

have = NotSent()

@wrap_py([pt.dvector], [pt.dvector])
def early(v):
    return v + isinstance(have, NotSent)

synk.fork(2)

@wrap_py([pt.dvector], [pt.dvector])
def late(v):
    return v * 2

x = pt.dvector("x")
f = synk.function([x], [(early(x), "gather"), (late(x), "gather")], mode=Mode("py"))
print([made.tolist() for made in f(np.arange(3.0))])
"""


def test_of_a_script_ranks_have_what_they_were_forked_with(tmp_path):
    result = run_script(SCRIPT, tmp_path)
    assert result.stdout.strip() == "[[1.0, 2.0, 3.0], [0.0, 2.0, 4.0]]", result.stderr
