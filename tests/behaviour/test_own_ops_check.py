"""Comparing what is registered of an Op with what it computes."""

from __future__ import annotations

import numpy as np
import pytensor.tensor as pt
import pytest
from own_ops import (
    SQUARE,
    VECTOR,
    Average,
    Misfit,
    MisfitGrad,
    OfFunction,
    Peak,
    Running,
    Squash,
    SquashGrad,
    Through,
    Unregistered,
    hypotenuse,
)
from pytensor.graph.basic import Apply
from reference import PY

import synk


@pytest.mark.parametrize(
    ("op", "operands"),
    [
        (Squash(), [(9, 4)]),
        (SquashGrad(), [(9, 4), (9, 4)]),
        (Misfit(), [(9, 4), (9,), (4,)]),
        (MisfitGrad(), [(9, 4), (9,), (4,), ()]),
        (Peak(), [(9, 4)]),
        (Through(), [(20, 4), (4, 3)]),
        (Running(1), [(9, 5)]),
        (Running(0), [(5, 9)]),
        (Average(), [(9, 4), (2,)]),
        (hypotenuse, [(9,), (9,)]),
    ],
    ids=str,
)
def test_what_is_registered_right_passes_the_check(op, operands):
    rng = np.random.default_rng(0)
    synk.check_sharding(op, *(rng.normal(size=shape) for shape in operands), mode=PY)


def wrong(function, said, types, pullback=None):
    """Return an Op of a function, registered as what may be wrong."""

    class Wrong(OfFunction):
        def make_node(self, *inputs):
            return Apply(self, list(inputs), [make() for make in types])

        def compute(self, *arrays):
            return function(*arrays)

    if pullback is not None:
        Wrong.pullback = pullback
    synk.register_sharding(Wrong, said)
    return Wrong()


MATRIX = (9, 3)
WRONG = {
    "centred": (
        wrong(lambda x: x - x.mean(axis=0), "rowwise", [SQUARE]),
        [MATRIX],
        r"result 0, of parts of .* rows, is \S+ at \[0, 0\], and \S+ by all rows",
    ),
    "mean": (wrong(lambda x: x.mean(axis=0), "sum", [VECTOR]), [MATRIX], "result 0"),
    "sum": (wrong(lambda x: x.sum(axis=0), "max", [VECTOR]), [MATRIX], "result 0"),
    "some rows": (
        wrong(lambda x: x[x[:, 0] > 0], "rowwise", [SQUARE]),
        [MATRIX],
        "entries along axis 0, and not one for each of",
    ),
    "number of rows": (
        wrong(
            lambda x, w: np.sum(w) + len(x),
            synk.Sharding([0, None], [None]),
            [pt.dscalar],
        ),
        [MATRIX, (2,)],
        "result 0, of parts",
    ),
    "another shape": (
        wrong(lambda x: x[:2].sum(axis=1), "sum", [VECTOR]),
        [MATRIX],
        r"has shape \(1,\), and \(2,\) of all rows",
    ),
    "one row": (
        wrong(lambda x: x * (len(x) > 1), "rowwise", [SQUARE]),
        [(5000, 3)],
        "result 0, of parts of 1, 1, 1, 1, 1, 1, ... rows",
    ),
    "an axis less": (
        wrong(lambda x: np.squeeze(x.sum(axis=1)), "rowwise", [VECTOR]),
        [MATRIX],
        r"has shape \(\), without axis 0",
    ),
    "exp": (
        wrong(np.exp, synk.Sharding([0], [0], linear=[0]), [SQUARE]),
        [MATRIX],
        "is not linear in operand 0: result 0",
    ),
    "affine": (
        wrong(lambda x: x + 1, synk.Sharding([0], [0], linear=[0]), [SQUARE]),
        [MATRIX],
        "is not linear",
    ),
    "gradient": (
        wrong(
            np.sin,
            "rowwise",
            [SQUARE],
            lambda self, x, _, g: [g[0] * pt.cos(x[0]).sum()],
        ),
        [MATRIX],
        "gradient 0, of parts",
    ),
    "gradient of an Op that is not registered": (
        wrong(np.sin, "rowwise", [SQUARE], lambda self, x, y, g: [Unregistered()(*g)]),
        [MATRIX],
        "the gradient of Wrong takes Unregistered, which is not registered",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_registered_wrong_is_found_by_the_check(name):
    op, shapes, message = WRONG[name]
    operands = [np.random.default_rng(1).normal(size=shape) for shape in shapes]
    with pytest.raises(AssertionError, match=message):
        synk.check_sharding(op, *operands, mode=PY)


@pytest.mark.parametrize(
    ("op", "operands", "error", "message"),
    [
        (Squash, [MATRIX], TypeError, "such as MyOp"),
        (Unregistered(), [MATRIX], ValueError, "is not registered"),
        (Squash(), [(3, 2)], ValueError, "5 rows or more; got 3"),
        (Squash(), [MATRIX, MATRIX], TypeError, "make_node"),
        (hypotenuse, [(9,), (4,)], ValueError, "9 of operand 0, 4 of operand 1"),
    ],
)
def test_a_check_that_cannot_be_made_says_why(op, operands, error, message):
    with pytest.raises(error, match=message):
        synk.check_sharding(op, *(np.zeros(shape) for shape in operands), mode=PY)
