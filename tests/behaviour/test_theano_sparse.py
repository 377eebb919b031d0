"""Sparse matrices and `tile` under Theano's names, to SciPy's and NumPy's numbers."""

import importlib

import numpy as np
import pytest
import scipy.sparse
import theano
import theano.sparse
import theano.tensor as T
from theano.sparse import basic

import synk

MODE = "FAST_COMPILE"
A = np.array([[1.0, 0, -2], [0, 0, 3.5], [0, 4, 0], [0.5, 0, 0]])
D = np.arange(12.0).reshape(3, 4) - 5


def evaluate(inputs, outputs, *values):
    found = theano.function(inputs, outputs, mode=MODE)(*values)
    return [r.toarray() if scipy.sparse.issparse(r) else r for r in found]


def test_modules_have_one_type_and_the_functions():
    import pytensor.sparse

    assert theano.sparse.enable_sparse
    assert theano.sparse.SparseType is pytensor.sparse.SparseTensorType
    for name in "basic", "type", "sharedvar", "utils":
        module = importlib.import_module(f"theano.sparse.{name}")
        assert module is getattr(theano.sparse, name)
    from theano.sparse.type import SparseType

    assert isinstance(theano.sparse.csr_matrix("a").type, SparseType)
    assert not isinstance(T.matrix("a").type, SparseType)
    assert SparseType("csc", "float32")("b").format == "csc"
    with pytest.raises(AttributeError, match=r"theano\.sparse\.basic\.nonsense"):
        _ = basic.nonsense


def test_functions_are_scipys():
    a, d = theano.sparse.csr_matrix("a"), T.matrix("d")
    value = scipy.sparse.csr_matrix(A)
    found = evaluate(
        [a, d],
        [
            basic.hstack([a, a], format="csr"),
            basic.vstack([a, a], format="csc"),
            basic.structured_dot(a, d),
            theano.sparse.dot(a, d),
            theano.sparse.sp_sum(a, axis=1),
            theano.sparse.sgn(a),
            theano.sparse.structured_monoid(T.cosh)(lambda x: None)(a),
            theano.sparse.dense_from_sparse(theano.sparse.transpose(a)),
            theano.sparse.dot(theano.shared(value), d),
            basic.constant(value) * 2.0,
        ],
        value,
        D,
    )
    expected = [
        np.hstack([A, A]),
        np.vstack([A, A]),
        A @ D,
        A @ D,
        A.sum(axis=1),
        np.sign(A),
        np.where(A == 0, 0, np.cosh(A)),
        A.T,
        A @ D,
        2 * A,
    ]
    for number, (one, other) in enumerate(zip(found, expected, strict=True)):
        np.testing.assert_allclose(one, other, rtol=1e-12, err_msg=str(number))


def test_the_gradient_of_rows_is_the_dense_one():
    w, rows = T.matrix("w"), np.array([2, 0, 2])
    picked = theano.sparse_grad(w[rows])
    gradient = T.grad((picked**3).sum(), w)
    expected = np.zeros_like(A)
    np.add.at(expected, rows, 3 * A[rows] ** 2)
    np.testing.assert_allclose(evaluate([w], [gradient], A)[0], expected, rtol=1e-12)
    for no_rows in w, w.sum(axis=0):
        with pytest.raises(TypeError):
            theano.sparse_grad(no_rows)


@pytest.mark.parametrize(
    ("reps", "ndim", "expected"),
    [
        (3, None, np.tile(A, 3)),
        ((2, 1), 2, np.tile(A, (2, 1))),
        (2, 4, np.tile(A, (1, 1, 1, 2))),
        ([2, 1, 3], 3, np.tile(A, (2, 1, 3))),
        ((3,), 3, np.tile(A, (1, 1, 3))),
    ],
)
def test_tile_is_numpys(reps, ndim, expected):
    x, vector = T.matrix("x"), T.lvector("reps")
    tiled = [T.tile(x, reps, ndim=ndim)]
    symbolic = np.atleast_1d(np.array(reps))
    if ndim is not None:
        tiled.append(T.tile(x, vector, ndim))  # a vector whose length is not known
        assert tiled[1].ndim == ndim
    tiled.append(vector.sum())
    for found in evaluate([x, vector], tiled, A, symbolic)[:-1]:
        np.testing.assert_array_equal(found, expected)


def test_tile_refuses_too_few_axes():
    x, vector = T.matrix("x"), T.lvector("reps")
    with pytest.raises(ValueError, match="ndim is 1, and x has 2"):
        T.tile(x, 2, ndim=1)
    with pytest.raises(ValueError, match="3 entries of reps for ndim=2"):
        T.tile(x, (1, 2, 3), ndim=2)
    with pytest.raises(AssertionError, match="reps has more than ndim=2 entries"):
        evaluate([x, vector], [T.tile(x, vector, ndim=2)], A, np.array([1, 2, 3]))


@pytest.mark.parametrize("ranks", [2, 3])
def test_tiles_of_rows_are_the_serial_ones_on_ranks(ranks):
    x = T.matrix("x")
    f = synk.function([x], T.tile(x, (1, 2), ndim=2).sum(axis=1), mode=MODE)
    with synk.session(ranks):
        np.testing.assert_allclose(f(D.T), np.tile(D.T, (1, 2)).sum(axis=1))
