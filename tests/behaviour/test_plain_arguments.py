"""What `pytensor.function` takes: taken likewise, or refused with what to write."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.sparse
import pytensor.tensor as pt
import pytest
from pytensor import In, Out
from pytensor.typed_list import TypedListType
from reference import PY

import synk

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
