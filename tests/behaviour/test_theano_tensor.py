"""What `theano.tensor` has and PyTensor has not, against numpy."""

import numpy as np
import pytest
import theano
import theano.tensor as T
from theano.tensor.xlogx import xlogx

pytestmark = pytest.mark.usefixtures("graphs_in_python")

MODE = "FAST_COMPILE"
RNG = np.random.default_rng(0)


def value(graph):
    """Return what a graph without inputs computes to."""
    return theano.function([], graph, mode=MODE)()


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ((3, 4), (3, 4), "bi,bi->b"),
        ((3, 4), (3, 4, 5), "bi,bij->bj"),
        ((3, 2, 4), (3, 4), "bki,bi->bk"),
        ((3, 2, 4), (3, 4, 5), "bki,bij->bkj"),
        ((3,), (3, 4, 5), "b,bij->bij"),
        ((3, 4), (3,), "bi,b->bi"),
        ((3, 6, 2, 4), (3, 4, 5), "blki,bij->blkj"),
    ],
)
def test_batched_dot(a, b, expected):
    x, y = RNG.normal(size=a), RNG.normal(size=b)
    np.testing.assert_allclose(value(T.batched_dot(x, y)), np.einsum(expected, x, y))


@pytest.mark.parametrize(
    ("axes", "expected"),
    [
        (2, "bijk,bjkl->bil"),
        (1, "bijk,bkmn->bijmn"),
        ([[2, 3], [1, 2]], "bijk,bjkl->bil"),
        ([[3, 1], [2, 3]], "bijk,bmki->bjm"),
        ([-1, 1], "bijk,bkmn->bijmn"),
    ],
)
def test_batched_tensordot(axes, expected):
    size = dict(zip("bijklmn", range(2, 9), strict=True))
    of_x, of_y = expected.partition("->")[0].split(",")
    x = RNG.normal(size=[size[letter] for letter in of_x])
    y = RNG.normal(size=[size[letter] for letter in of_y])
    product = value(T.batched_tensordot(x, y, axes))
    np.testing.assert_allclose(product, np.einsum(expected, x, y))


@pytest.mark.parametrize("kth", [2, -2])
@pytest.mark.parametrize("axis", [0, 1, -1, None])
def test_topk_by_sorting(kth, axis):
    x = RNG.normal(size=(4, 5))
    values, places = theano.function([], T.topk_and_argtopk(x, kth, axis), mode=MODE)()
    flat, along = (x.ravel(), 0) if axis is None else (x, axis)
    descending = -np.sort(-flat, axis=along)
    some = range(kth) if kth > 0 else range(kth, 0)
    np.testing.assert_array_equal(values, descending.take(some, axis=along))
    np.testing.assert_array_equal(np.take_along_axis(flat, places, along), values)
    np.testing.assert_array_equal(value(T.topk(x, kth, axis=axis)), values)
    np.testing.assert_array_equal(value(T.argtopk(x, kth, axis=axis)), places)


def test_patterns_of_broadcasting():
    x = T.matrix()
    assert T.addbroadcast(x, 0).broadcastable == (True, False)
    assert T.patternbroadcast(x, (False, True)).broadcastable == (False, True)
    row = T.row()
    forgotten = T.unbroadcast(row, 0)
    assert forgotten.broadcastable == (False, False)
    assert T.Rebroadcast((0, False), (1, True))(row).broadcastable == (False, True)
    f = theano.function([row], [forgotten + 1, T.grad(forgotten.sum(), row)], mode=MODE)
    np.testing.assert_array_equal(f([[1.0, 2.0]]), [[[2.0, 3.0]], [[1.0, 1.0]]])
    g = theano.function([x], T.addbroadcast(x, 0) + np.zeros((3, 2)), mode=MODE)
    assert g([[1.0, 2.0]]).shape == (3, 2)
    with pytest.raises((AssertionError, ValueError)):
        g([[1.0, 2.0], [3.0, 4.0]])
    with pytest.raises(ValueError, match="3 entries for 2 axes"):
        T.patternbroadcast(x, (True, False, True))


@pytest.mark.filterwarnings("ignore:The `broadcastable` keyword:DeprecationWarning")
def test_constructors_take_broadcastable_and_a_second_argument():
    assert T.matrix("x", "float32").dtype == "float32"
    assert T.matrix(dtype="int8").dtype == "int8"
    assert T.tensor3().dtype == theano.config.floatX
    assert T.tensor("float32", (False, True), "name").type == T.fcol
    assert T.TensorType("float32", broadcastable=(True, False)) == T.frow
    assert T.TensorType("float64", (False,) * 6)("z").ndim == 6
    assert T.matrix(broadcastable=(True, False)).broadcastable == (True, False)
    x, y = T.dmatrices("x", "y")
    assert (x.name, y.name) == ("x", "y")


def test_shared_variables_and_constants_are_no_tensor_variables():
    shared = theano.shared(np.zeros(3))
    assert isinstance(T.vector(), T.TensorVariable)
    assert isinstance(shared + 1, T.TensorVariable)
    assert not isinstance(shared, T.TensorVariable)
    assert not isinstance(T.constant(1.0), T.TensorVariable)
    assert isinstance(shared, T.TensorSharedVariable)
    assert isinstance(shared, theano.compile.SharedVariable)
    assert isinstance(shared, theano.gof.Variable)


def test_stack_takes_a_list_or_the_tensors():
    a, b = T.vector(), T.vector()
    for stacked in T.stack([a, b]), T.stack(a, b), T.stack(tensors=[a, b]):
        assert stacked.eval({a: [1.0], b: [2.0]}).tolist() == [[1.0], [2.0]]
    assert T.stack([a, b], axis=1).eval({a: [1.0], b: [2.0]}).tolist() == [[1.0, 2.0]]
    assert T.stack([a, b], 1).eval({a: [1.0], b: [2.0]}).tolist() == [[1.0, 2.0]]


def test_flatten_keeps_leading_axes():
    x = np.arange(24.0).reshape(2, 3, 4)
    for graph in T.flatten(x, 2), T.flatten(x, outdim=2), T.flatten(x, ndim=2):
        np.testing.assert_array_equal(value(graph), x.reshape(2, 12))
    assert value(T.flatten(x)).shape == (24,)
    with pytest.raises(ValueError, match="one argument"):
        T.flatten(x, ndim=2, outdim=2)


def test_renamed_functions():
    x = np.array([-1.5, -0.5, 0.5, 2.0])
    np.testing.assert_array_equal(value(T.abs_(x)), np.abs(x))
    np.testing.assert_array_equal(value(T.inv(x)), 1 / x)
    np.testing.assert_array_equal(value(T.rint(x)), np.rint(x))
    np.testing.assert_array_equal(value(T.eq(x, 2.0)), x == 2)
    np.testing.assert_array_equal(value(T.neq(x, 2.0)), x != 2)


def test_x_log_x_is_zero_at_zero():
    x = T.vector()
    f = theano.function([x], [xlogx(x), T.grad(xlogx(x).sum(), x)], mode=MODE)
    values, gradient = f([0.0, 1.0, 2.0])
    np.testing.assert_allclose(values, [0, 0, 2 * np.log(2)])
    assert np.isfinite(gradient).all()
    np.testing.assert_allclose(gradient[1:], [1, 1 + np.log(2)])


def test_solvers_of_slinalg():
    from theano.tensor import slinalg

    a = RNG.normal(size=(3, 3)) + 4 * np.eye(3)
    b = RNG.normal(size=(3,))
    for solver, matrix in (
        (slinalg.solve_lower_triangular, np.tril(a)),
        (slinalg.solve_upper_triangular, np.triu(a)),
        (slinalg.solve_symmetric, a + a.T),
    ):
        np.testing.assert_allclose(matrix @ value(solver(matrix, b)), b)


def test_arguments_have_theanos_names_and_order():
    v, m = np.array([3.0, 1.0, 2.0]), np.arange(6.0).reshape(2, 3)
    np.testing.assert_array_equal(value(T.repeat(x=v, repeats=2)), np.repeat(v, 2))
    np.testing.assert_array_equal(value(T.dot(a=m, b=v)), m @ v)
    np.testing.assert_array_equal(value(T.diag(x=v)), np.diag(v))
    assert value(T.nlinalg.trace(X=m[:, :2])) == 4
    kept = T.mean(m, 1, None, False, True)
    np.testing.assert_array_equal(value(kept), m.mean(1, keepdims=True))
    assert value(T.mean(input=v, op=True)) == 2
    dims = T.as_tensor_variable(np.array([2, 3]))
    places = T.unravel_index(np.array([4]), dims, "C", 2)
    assert [value(place).tolist() for place in places] == [[1], [1]]
    np.testing.assert_array_equal(value(T.reshape(m, dims[::-1], 2)), m.reshape(3, 2))
    assert T.get_scalar_constant_value(orig_v=T.constant(3)) == 3
    with pytest.raises(TypeError, match="are one argument"):
        T.dot(a=m, l=m, b=v)


def test_triangles_and_reduced_decompositions():
    tall = np.random.default_rng(0).normal(size=(4, 3))
    q, r = T.nlinalg.qr(T.constant(tall))
    assert (value(q).shape, value(r).shape) == ((4, 3), (3, 3))
    np.testing.assert_allclose(value(T.dot(q, r)), tall)
    square = tall.T @ tall
    upper = np.triu(square) + 9 * np.tril(np.ones((3, 3)), -1)
    for of, triangle in (upper, "U"), (upper.T, "L"):
        found = value(T.nlinalg.eigh(T.constant(of), triangle)[0])
        np.testing.assert_allclose(found, np.linalg.eigvalsh(square))


def test_patches_of_a_shape_that_is_known_in_calls():
    images = np.arange(2 * 6 * 4.0).reshape(2, 1, 6, 4)
    x, shape = T.dtensor4("x"), theano.shared(np.array([2, 2]))
    cut = T.nnet.neighbours.images2neibs
    f = theano.function([x], cut(x, shape), mode=MODE)
    given = theano.function([x], cut(x, T.constant(np.array([3, 2]))), mode=MODE)
    rows = images.reshape(2, 3, 2, 2, 2).transpose(0, 1, 3, 2, 4).reshape(12, 4)
    np.testing.assert_array_equal(f(images), rows)
    slope = theano.function([x], T.grad((cut(x, shape) ** 2).sum(), x), mode=MODE)
    np.testing.assert_array_equal(slope(images), 2 * images)
    shape.set_value(np.array([3, 2]))
    np.testing.assert_array_equal(f(images), given(images))
    shape.set_value(np.array([4, 2]))
    with pytest.raises(AssertionError, match="do not fill"):
        f(images)
    with pytest.raises(ValueError, match="known before a call"):
        cut(x, shape, mode="half")


def test_products_of_some_blocks():
    rng = np.random.default_rng(0)
    w, b = rng.normal(size=(4, 5, 2, 3)), rng.normal(size=(5, 3))
    h, rows = rng.normal(size=(2, 2, 2)), np.array([[0, 2], [3, 1]])
    columns = np.array([[1, 4], [0, 2]])
    expected = b[columns] + np.einsum(
        "nik,nijkl->njl", h, w[rows[:, :, None], columns[:, None, :]]
    )
    dot = T.nnet.blocksparse.sparse_block_dot
    np.testing.assert_allclose(value(dot(w, h, rows, b, columns)), expected)
    one = dot(w, h[0], rows[0], b, columns[0])
    np.testing.assert_allclose(value(one), expected[0])
    outer = T.nnet.blocksparse.sparse_block_outer(w, h, expected, rows, columns, 0.5)
    total = w.copy()
    for n, i, j in np.ndindex(2, 2, 2):
        total[rows[n, i], columns[n, j]] += 0.5 * np.outer(h[n, i], expected[n, j])
    np.testing.assert_allclose(value(outer), total)


def test_errors_and_assertions_in_graphs():
    v = T.dvector("v")
    raising = theano.raise_op.Raise("not here", ValueError)(v)
    with pytest.raises(ValueError, match="not here"):
        theano.function([v], raising * 2, mode=MODE)([1.0])
    checked = T.opt.assert_(v, v.sum() > 0)  # noqa: PT009
    f = theano.function([v], checked, mode=MODE)
    np.testing.assert_array_equal(f([1.0]), [1])
    with pytest.raises(AssertionError):
        f([-1.0])


def test_objects_lie_in_zip_files_with_their_arrays_by_name(tmp_path):
    from theano.misc.pkl_utils import dump, load

    w, also = theano.shared(np.arange(3.0), "w"), theano.shared(np.zeros(2), "w")
    with (tmp_path / "model.zip").open("wb") as file:
        dump((w, also, np.array(2), w), file)
    arrays = np.load(tmp_path / "model.zip")
    assert sorted(arrays.files) == ["array_0", "pkl", "w", "w_2"]
    np.testing.assert_array_equal(arrays["w"], [0, 1, 2])
    with (tmp_path / "model.zip").open("rb") as file:
        first, second, array, again = load(file)
    assert first is again
    np.testing.assert_array_equal(first.get_value(), [0, 1, 2])
    np.testing.assert_array_equal(second.get_value(), [0, 0])
    assert (first.name, int(array)) == ("w", 2)
