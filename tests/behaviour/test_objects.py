"""What is no array of numbers: it lies in no memory that processes share."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.sparse as ps
import pytensor.tensor as pt
import pytest
import scipy.sparse
from processes import PY

import synk
from synk.memory.arena import Arena
from synk.memory.segment import Segment

X = np.random.default_rng(0).normal(size=(7, 3))
x = pt.matrix("x", dtype="float64")

pytestmark = pytest.mark.filterwarnings("ignore")  # of modes that compile no sparse Op


def test_sparse_outputs_of_any_number_of_rows(ranks):
    total = synk.function([x], x.sum(), mode=PY)
    rows = synk.function([x], ps.csr_from_dense(2 * x), mode=PY)
    whole = synk.function([x], [ps.csr_from_dense(x.T @ x), x.sum()], mode=PY)
    for n in (7, 1, 0, 0, 7, 0):
        assert total(X[:n]) == pytest.approx(X[:n].sum())
        made = rows(X[:n])
        assert scipy.sparse.issparse(made)
        np.testing.assert_array_equal(made.toarray(), 2 * X[:n])
        product, of_rows = whole(X[:n])
        np.testing.assert_allclose(product.toarray(), X[:n].T @ X[:n], atol=1e-12)
        assert of_rows == pytest.approx(X[:n].sum())


def test_sparse_outputs_of_many_calls(ranks):
    f = synk.function([x], [ps.csr_from_dense(x), x.sum()], mode=PY)
    for batches in ([[0, 1], [2, 3]], [[], []], [[0], [1, 2, 3]]):
        made, sums = f.run(batches, X)
        for batch, value, total in zip(batches, made, sums, strict=True):
            np.testing.assert_array_equal(value.toarray(), X[batch])
            assert total == pytest.approx(X[batch].sum())


def test_a_sparse_output_that_is_not_finite(two_ranks):
    f = synk.function([x], ps.csr_from_dense(pt.log(x)), mode=PY)
    rows = np.ones((5, 2))
    rows[:, 1] = 2
    assert f(rows, check="finite").nnz == 5
    rows[3] = -1
    with np.errstate(invalid="ignore"), pytest.raises(synk.NotFinite, match="row 3"):
        f(rows, check="finite")


def test_a_sparse_output_of_another_rank(two_ranks):
    rows = pytensor.shared(X, "rows")
    outputs = [(ps.csr_from_dense(rows), None), (rows.sum(), "sum")]
    f = synk.function([], outputs, sliceable_shareds=[rows], mode=PY)
    for _ in range(3):
        made, total = f(batch_s=[[], [0, 2]])
        np.testing.assert_array_equal(made.toarray(), X[[0, 2]])
        assert total == pytest.approx(X[[0, 2]].sum())
    made, _ = f.run([[[], [0, 2]], [[], [1]]])
    np.testing.assert_array_equal(made[0].toarray(), X[[0, 2]])
    np.testing.assert_array_equal(made[1].toarray(), X[[1]])


def test_a_generator_that_is_an_output(ranks):
    state = pytensor.shared(np.random.default_rng(3), "state")
    after, _ = pt.random.normal(rng=state, size=(2,)).owner.outputs
    f = synk.function([x], [(after, None), x.sum()], mode=PY)
    synk.function([x], x.sum(), mode=PY)(X)
    made, _ = f(X[:0])
    expected = np.random.default_rng(3)
    expected.normal(size=2)
    assert made.bit_generator.state == expected.bit_generator.state


@pytest.mark.parametrize(
    "array",
    [
        np.array([None, "text"]),
        np.array([(1, None)], [("number", int), ("object", object)]),
        np.array(3, object),
    ],
    ids=["objects", "records", "scalar"],
)
def test_no_segment_has_objects(array):
    segment = Segment(4096)
    with pytest.raises(TypeError, match="Python objects of one process"):
        segment.array(array.dtype, array.shape)
    with pytest.raises(TypeError, match="Python objects of one process"):
        Arena().put([array])
    with pytest.raises(TypeError):
        synk.data(array)
    segment.close()


def test_a_variable_of_objects_is_brought_to_ranks(two_ranks):
    objects = pytensor.compile.SharedVariable(
        pytensor.link.c.type.generic, np.array([None] * 500), False, name="objects"
    )
    f = synk.function([x], [x.sum()], mode=PY)
    f(X)
    synk.broadcast(objects)
    objects.set_value(np.array(["a"] * 500, object))
    synk.broadcast(objects)
    (value,) = synk.get_value(1, [objects])
    assert value.dtype == object
    assert list(value) == ["a"] * 500
    assert f(X)[0] == pytest.approx(X.sum())
