"""Rows that meet a constant of as many rows, and go into Ops that are graphs."""

from __future__ import annotations

import warnings

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.builders import OpFromGraph
from pytensor.tensor.special import log_softmax, softmax
from reference import PY

import synk

pytestmark = pytest.mark.usefixtures("graphs_in_python")

N = 8
X, Y = pt.dmatrix("x"), pt.dvector("y")
NUMBERS = np.arange(1.0, N + 1)
A, B = pt.dvectors("a", "b")
PRODUCT = OpFromGraph([A, B], [A * B, (A * B).sum()])


def by_rows(c):
    """Yield what each rank computes of its own rows."""
    weighted = X * c[:, None]
    yield "softmax", softmax(weighted, axis=1)
    yield "softmax along the rows", softmax(weighted, axis=0)
    yield "log-softmax", log_softmax(weighted, axis=1)
    yield "its gradient", pt.grad(log_softmax(weighted, axis=1)[:, 0].sum(), X)
    yield "log-sum-exp", pt.logsumexp(weighted, axis=1)
    yield "a graph", PRODUCT(Y * c, Y)[0]
    yield "sum of a graph", PRODUCT(c, Y * c)[1]


def of_all(c):
    """Yield what takes all rows."""
    weighted = X * c[:, None]
    yield "diagonal", pt.diag(Y * c)
    yield "padded", pt.pad(Y * c, (1, 1))
    yield "gradient of padded", pt.grad((pt.pad(Y * c, (1, 1)) ** 2).sum(), Y)
    yield "padded columns", pt.pad(weighted, ((0, 0), (1, 1)), mode="edge")
    yield "Kronecker product", pt.linalg.kron(weighted, X)
    yield "block diagonal", pt.linalg.block_diag(weighted, X)
    yield "differences", pt.diff(Y * c)
    yield "pairs", pt.tril(pt.outer(Y * c, c))


CONSTANTS = {
    "constant": pt.constant(NUMBERS),
    "shared": pytensor.shared(NUMBERS, "shared"),
    "shared of fixed length": pytensor.shared(NUMBERS, "fixed", shape=(N,)),
}


def check(cases):
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(N, 3)), rng.normal(size=N)
    options = {"mode": PY, "on_unused_input": "ignore"}
    for name, made in cases:
        expected = pytensor.function([X, Y], made, **options)(x, y)
        found = synk.function([X, Y], made, **options)(x, y)
        np.testing.assert_allclose(found, expected, 1e-10, err_msg=name)


@pytest.mark.parametrize("n", [2, 3])
def test_ranks_take_their_rows_of_the_constant(n):
    with synk.session(n), warnings.catch_warnings():
        warnings.simplefilter("error", synk.SplitWarning)
        for constant in CONSTANTS.values():
            check(by_rows(constant))


@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.filterwarnings("ignore::synk.SplitWarning")
def test_what_needs_all_rows_is_computed_of_all(n):
    with synk.session(n):
        for constant in CONSTANTS.values():
            check(of_all(constant))
