"""`theano.tensor` and `theano.sparse`, by Theano's own numbers and by numpy's.

403 expressions have the dtypes, shapes and numbers that Theano 1.0.5 printed:
``theano_values.json`` was printed by Theano itself, on Python 3.8, in its mode without
C. It holds the inputs, too, and what its notation means.
"""

import functools
import json
import sys

import numpy as np
import pytensor
import pytest
import scipy.sparse
import theano
import theano.sparse
import theano.tensor as T
import theano.tensor.fft
from places import SUPPORT
from theano.sandbox.rng_mrg import MRG_RandomStreams
from theano.sparse import basic
from theano.tensor.shared_randomstreams import RandomStreams
from theano.tensor.xlogx import xlogx

import synk

pytestmark = pytest.mark.usefixtures("scans_in_python")

MODE = "FAST_COMPILE"
RNG = np.random.default_rng(0)
PRINTED = json.loads((SUPPORT / "theano_values.json").read_text())
EXPRESSIONS = list(PRINTED["values"])
A = np.array([[1.0, 0, -2], [0, 0, 3.5], [0, 4, 0], [0.5, 0, 0]])
D = np.arange(12.0).reshape(3, 4) - 5


def value(graph):
    return theano.function([], graph, mode=MODE)()


VARIABLES = "x v i l b fx x3 x4 k4 iv lv s fs ls u8"
"""Inputs that expressions take as variables; the others are arrays in them."""
GROUP = 58
"""How many expressions are compiled as one function, which takes far less time."""


def array(dtype, shape, printed):
    """Return numbers that were printed: "nan", "inf", pairs of complex ones."""
    number = np.array(printed, dtype="O")
    if dtype.startswith("complex"):
        pairs = np.array(printed, dtype="float64")
        return (pairs[..., 0] + 1j * pairs[..., 1]).astype(dtype).reshape(shape)
    if (number.size and isinstance(number.flat[0], str)) or "float" in dtype:
        number = number.astype("float64")
    return number.astype(dtype).reshape(shape)


@functools.cache
def given():
    return {
        name: np.array(printed, dtype)
        for name, (dtype, printed) in PRINTED["inputs"].items()
    }


@functools.cache
def variables():
    arrays = {name: given()[name] for name in VARIABLES.split()}
    return {
        name: T.TensorType(str(array.dtype), (False,) * array.ndim)(name)
        for name, array in arrays.items()
    }


def outputs_of(expression):
    """Return the variables of an expression, and how many it has."""
    names = {"T": T, "theano": theano, "np": np, "sys": sys, **given(), **variables()}
    made = eval(expression, names)
    return list(made) if isinstance(made, list | tuple) else [made]


def wrong(printed, result):
    """Return what is wrong with a result, or nothing."""
    expected = array(*printed)
    found = np.asarray(result.toarray() if hasattr(result, "toarray") else result)
    if (found.dtype, found.shape) != (expected.dtype, expected.shape):
        return f"{found.dtype}{found.shape}, not {expected.dtype}{expected.shape}"
    bound = 1e-5 if found.dtype in ("float32", "complex64") else 1e-9
    if not np.allclose(found, expected, rtol=bound, atol=bound, equal_nan=True):
        return f"{found.tolist()}, not {expected.tolist()}"
    return None


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("first", range(0, len(EXPRESSIONS), GROUP))
def test_expressions_have_the_values_that_theano_printed(first):
    made = {}
    for expression in EXPRESSIONS[first : first + GROUP]:
        try:
            made[expression] = outputs_of(expression)
        except Exception as error:
            error.add_note(f"in {expression}")
            raise
    outputs = [output for outputs in made.values() for output in outputs]
    options = {"on_unused_input": "ignore", "mode": MODE}
    f = theano.function(list(variables().values()), outputs, **options)
    found = iter(f(**{name: given()[name] for name in variables()}))
    complaints = {}
    for expression, outputs in made.items():
        results = [next(found) for _ in outputs]
        if len(results) == 1 and isinstance(results[0], list):
            (results,) = results  # a shared variable that holds a list
        all_printed = PRINTED["values"][expression]
        for printed, result in zip(all_printed, results, strict=True):
            if complaint := wrong(printed, result):
                complaints[expression] = complaint
    assert not complaints


# -- what PyTensor has not, or with other arguments


def R(letters):
    """Return random numbers, each letter having a length of its own."""
    shape = ["bijklmn".index(letter) + 2 for letter in letters]
    return np.random.default_rng(len(letters)).normal(size=shape)


M, V = np.arange(6.0).reshape(2, 3), np.array([3.0, 1.0, 2.0])
SQUARE, SPARSE = R("ii") @ R("ii").T, scipy.sparse.csr_matrix(A)
BY_NUMPY = {
    # Arguments have Theano's names and order.
    "T.repeat(x=V, repeats=2)": "np.repeat(V, 2)",
    "T.dot(a=M, b=V)": "M @ V",
    "T.mean(M, 1, None, False, True)": "M.mean(1, keepdims=True)",
    "T.mean(input=V, op=True)": "2.0",
    "T.reshape(M, theano.shared(np.array([3, 2])), 2)": "M.reshape(3, 2)",
    "T.stack(tensors=[V, 2 * V], axis=1)": "np.stack([V, 2 * V], 1)",
    "T.flatten(R('bij'), outdim=2)": "R('bij').reshape(2, 12)",
    # Products of each row, and tiles of more axes.
    "T.batched_dot(R('bki'), R('bi'))": "np.einsum('bki,bi->bk', R('bki'), R('bi'))",
    "T.batched_dot(R('b'), R('bij'))": "np.einsum('b,bij->bij', R('b'), R('bij'))",
    "T.batched_dot(R('bi'), R('b'))": "np.einsum('bi,b->bi', R('bi'), R('b'))",
    **{
        f"T.batched_tensordot(R('bijk'), R('{of}'), {axes})": (
            f"np.einsum('bijk,{of}->{to}', R('bijk'), R('{of}'))"
        )
        for axes, of, to in (
            ("2", "bjkl", "bil"),
            ("1", "bkmn", "bijmn"),
            ("[[3, 1], [2, 3]]", "bmki", "bjm"),
            ("[-1, 1]", "bkmn", "bijmn"),
        )
    },
    "T.tile(M, 2, ndim=4)": "np.tile(M, (1, 1, 1, 2))",
    "T.tile(M, theano.shared(np.array([2, 1, 3])), 3)": "np.tile(M, (2, 1, 3))",
    # Decompositions and solvers.
    "T.dot(*T.nlinalg.qr(T.constant(A)))": "A",
    "T.nlinalg.qr(T.constant(A))[0].shape": "A.shape",
    **{
        f"T.nlinalg.eigh(T.constant(np.{half}(SQUARE)), '{half[-1].upper()}')[0]": (
            "np.linalg.eigvalsh(SQUARE)"
        )
        for half in ("tril", "triu")
    },
    "T.slinalg.solve_upper_triangular(np.triu(SQUARE), "
    "T.slinalg.solve_lower_triangular(np.tril(SQUARE), V))": (
        "np.linalg.solve(np.tril(SQUARE) @ np.triu(SQUARE), V)"
    ),
    "T.nnet.crossentropy_softmax_1hot(M, [2, 0])[0]": (
        "np.log(np.exp(M).sum(1)) - M[[0, 1], [2, 0]]"
    ),
    # Sparse matrices.
    "basic.hstack([basic.constant(SPARSE)] * 2, format='csr')": "np.hstack([A, A])",
    "basic.vstack([basic.constant(SPARSE)] * 2, format='csc')": "np.vstack([A, A])",
    "theano.sparse.sp_sum(basic.constant(SPARSE), axis=1)": "A.sum(axis=1)",
    "theano.sparse.sgn(basic.constant(SPARSE))": "np.sign(A)",
    "theano.sparse.structured_monoid(T.cosh)(lambda x: None)(basic.constant(SPARSE))": (
        "np.where(A == 0, 0, np.cosh(A))"
    ),
    "theano.sparse.dot(theano.shared(SPARSE), T.constant(D))": "A @ D",
    "basic.constant(SPARSE) * 2.0": "2 * A",
}


def test_results_are_numpys():
    made = [eval(expression, globals()) for expression in BY_NUMPY]
    found = theano.function([], made, mode=MODE)()
    for (expression, by_numpy), one in zip(BY_NUMPY.items(), found, strict=True):
        result = one.toarray() if scipy.sparse.issparse(one) else one
        expected = np.asarray(eval(by_numpy, globals()))
        assert np.shape(result) == expected.shape, expression
        np.testing.assert_allclose(result, expected, 1e-9, 1e-12, err_msg=expression)


@pytest.mark.parametrize(
    ("expression", "error", "message"),
    [
        ("T.dot(a=M, l=M, b=V)", TypeError, "are one argument"),
        ("T.flatten(M, ndim=2, outdim=2)", TypeError, "one argument"),
        ("T.tile(T.matrix(), 2, ndim=1)", ValueError, "ndim is 1, and x has 2"),
        ("T.tile(M, (1, 2, 3), ndim=2)", ValueError, "3 entries of reps for ndim=2"),
        (
            *("value(T.tile(M, theano.shared(V.astype(int)), ndim=2))", AssertionError),
            "reps has more than ndim=2 entries",
        ),
    ],
)
def test_what_has_no_meaning_is_refused(expression, error, message):
    with pytest.raises(error, match=message):
        eval(expression, globals())


def test_patterns_of_broadcasting():
    x, row = T.matrix(), T.row()
    assert T.patternbroadcast(x, (False, True)).broadcastable == (False, True)
    assert T.Rebroadcast((0, False), (1, True))(row).broadcastable == (False, True)
    forgotten = T.unbroadcast(row, 0)
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
    # Shared variables and constants are no tensor variables.
    shared = theano.shared(np.zeros(3))
    assert isinstance(shared + 1, T.TensorVariable)
    assert not isinstance(shared, T.TensorVariable)
    assert not isinstance(T.constant(1.0), T.TensorVariable)
    assert isinstance(shared, T.TensorSharedVariable)
    assert isinstance(shared, theano.compile.SharedVariable)
    assert isinstance(shared, theano.gof.Variable)


def test_the_gradient_of_x_log_x_is_finite():
    x = T.vector()
    f = theano.function([x], T.grad(xlogx(x).sum(), x), mode=MODE)
    at_zero, *others = f([0.0, 1.0, 2.0])
    assert np.isfinite(at_zero)
    np.testing.assert_allclose(others, [1, 1 + np.log(2)])


def test_assertions_in_graphs():
    v = T.dvector("v")
    checked = T.opt.assert_(v, v.sum() > 0)  # noqa: PT009
    f = theano.function([v], checked, mode=MODE)
    assert f([1.0]) == [1]
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


def test_one_row_is_set_for_all_places_in_numba():
    x, y, i = T.dmatrix("x"), T.dmatrix("y"), np.array([2, 0])
    given, expected = (np.ones((3, 2)), [[1.0, 2.0]]), [[1, 2], [1, 1], [1, 2]]
    plain = theano.function([x, y], T.set_subtensor(x[i], y), mode="NUMBA")
    np.testing.assert_array_equal(plain(*given), expected)
    told = T.addbroadcast(y, 0)
    added = T.inc_subtensor(x[i], told)
    outputs = [T.set_subtensor(x[i], told), T.grad((added * x).sum(), told)]
    found, slope = theano.function([x, y], outputs, mode=MODE)(*given)
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(slope, [[2, 2]])


# -- sparse matrices, and tiles


def test_modules_have_one_type_and_the_functions():
    from theano.sparse.type import SparseType

    assert theano.sparse.enable_sparse
    assert theano.sparse.SparseType is SparseType
    assert isinstance(theano.sparse.csr_matrix("a").type, SparseType)
    assert not isinstance(T.matrix("a").type, SparseType)
    assert SparseType("csc", "float32")("b").format == "csc"
    with pytest.raises(AttributeError, match=r"theano\.sparse\.basic\.nonsense"):
        _ = basic.nonsense


# -- random streams draw from the distributions that they are named after

N = 4000
BOTH = pytest.mark.parametrize("kind", [RandomStreams, MRG_RandomStreams])


def draw(*graphs):
    """Return a value of each graph."""
    return theano.function([], list(graphs), mode=MODE)()


@BOTH
def test_moments_ranges_and_dtypes(kind):
    s = kind(seed=1)
    uniform, normal, coins = draw(
        s.uniform((N,), low=-1, high=3, dtype="float32"),
        s.normal((N,), avg=2.0, std=3.0),
        s.binomial((N,), n=1, p=0.3, dtype="float64"),
    )
    assert uniform.dtype == "float32"
    assert -1 <= uniform.min() < uniform.max() < 3
    # Five standard errors: with a fixed seed these never fail by chance.
    assert abs(uniform.mean() - 1) < 5 * (4 / 12**0.5) / N**0.5
    assert abs(normal.mean() - 2) < 5 * 3 / N**0.5
    assert abs(normal.std() - 3) < 0.2
    assert set(coins) == {0.0, 1.0}
    assert abs(coins.mean() - 0.3) < 5 * 0.46 / N**0.5


@BOTH
def test_draws_of_categories_integers_and_orders(kind):
    """Rows of probabilities as a softmax of float32 has them: sums are not quite 1."""
    s, x = kind(seed=1), np.arange(12.0).reshape(3, 4)
    p = T.nnet.softmax(np.tile(np.float32([0, 1, 3]), (N, 1)))
    rows, counts, whole, chosen, of_vector, orders, shuffled = draw(
        s.multinomial(pvals=p, dtype="float32"),
        s.multinomial(size=(2,), n=30, pvals=[0.2, 0.8]),
        s.random_integers((N,), 1, 3, dtype="int32"),
        s.choice((N,), a=4, p=[0.1, 0.0, 0.0, 0.9]),
        s.choice((2,), a=[1.5, 2.5], replace=False),
        s.permutation((N,), n=3),
        s.shuffle_row_elements(x),
    )
    assert (rows.dtype, whole.dtype, chosen.dtype) == ("float32", "int32", "int64")
    np.testing.assert_allclose(rows.mean(axis=0), p[0].eval(), atol=5 * 0.5 / N**0.5)
    assert (counts.shape, list(counts.sum(axis=1))) == ((2, 2), [30, 30])
    met = map(set, (rows.sum(axis=1), whole, chosen))
    assert [*met, set(of_vector)] == [{1}, {1, 2, 3}, {0, 3}, {1.5, 2.5}]
    assert len(np.unique(orders, axis=0)) == 6
    np.testing.assert_array_equal(np.sort(orders), np.tile([0, 1, 2], (N, 1)))
    assert ((shuffled != x).any(), (np.sort(shuffled) == x).all()) == (True, True)


def test_a_normal_distribution_is_cut_off_at_two_deviations():
    """As Keras draws initial weights."""
    from scipy import stats  # 40 MB, which sessions of other files need not copy

    s, of_rows = MRG_RandomStreams(1), np.array([1.0, 100.0])
    drawn, rows = draw(
        s.normal((N,), avg=2.0, std=3.0, truncate=True, dtype="float32"),
        s.normal(avg=of_rows, std=np.array([0.1, 5.0]), truncate=True),
    )
    assert (drawn.dtype, rows.shape) == ("float32", (2,))
    assert (abs(rows - of_rows) <= [0.2, 10]).all()
    assert stats.kstest(drawn, stats.truncnorm(-2, 2, 2, 3).cdf).pvalue > 0.01


def test_other_distributions_are_drawn_by_gen():
    s = RandomStreams(1)
    counts, gaps = draw(
        s.gen(pytensor.tensor.random.poisson, 2.0, size=(N,)),
        s.gen(pytensor.tensor.random.exponential, 3.0, size=(N,)),
    )
    assert abs(counts.mean() - 2) < 5 * 2**0.5 / N**0.5
    assert abs(gaps.mean() - 3) < 5 * 3 / N**0.5
    with pytest.raises(AttributeError, match=r"gen\(pytensor\.tensor\.random\.poisson"):
        s.poisson((N,), lam=2.0)


@BOTH
def test_seed_starts_all_over(kind):
    s = kind(seed=5)
    f = theano.function([], [s.uniform((3,)), s.normal((3,))], mode=MODE)
    first, second = f(), f()
    assert not np.array_equal(first, second)
    assert not np.array_equal(first[0], kind(seed=6).uniform((3,)).eval())
    s.seed(5)
    np.testing.assert_array_equal(f(), first)
    assert len(s.state_updates) == 2


@BOTH
def test_a_streams_generator_can_be_seeded_and_set_back(kind):
    """As in Theano's tutorial: seeding one stream, and sharing it between functions."""
    streams = kind(seed=234)
    u = streams.uniform((2, 2))
    f = theano.function([], u, mode=MODE)
    drawn = []
    for get in (lambda: u.rng.get_value(borrow=True), u.rng.get_value):
        f()
        numbers = get()
        numbers.seed(89234)
        u.rng.set_value(numbers, borrow=True)
        drawn.append(f())
    np.testing.assert_array_equal(drawn, [drawn[0]] * 2)
    before = u.rng.get_value().get_state()
    first, numbers = f(), u.rng.get_value(borrow=True)
    theano.function([], u + u - 2 * u, mode=MODE)()
    numbers.set_state(before)
    u.rng.set_value(numbers, borrow=True)
    np.testing.assert_array_equal(f(), first)
    u.rng.get_value().seed(1)  # of a copy
    assert not np.array_equal(f(), first)


@BOTH
def test_streams_can_be_copied(kind):
    def made(seed):
        streams = kind(seed)
        return streams, theano.function([], streams.normal((3,)), mode=MODE)

    (one, f), (two, g) = made(1), made(2)
    f()
    for (mine, _), (theirs, _) in zip(
        one.state_updates, two.state_updates, strict=True
    ):
        theirs.set_value(mine.get_value())
    np.testing.assert_array_equal(g(), f())
    two.rstate = one.rstate
    a, b = (
        theano.function([], streams.uniform((3,)), mode=MODE) for streams in (one, two)
    )
    np.testing.assert_array_equal(a(), b())


@BOTH
def test_ranks_draw_what_the_plain_function_draws(kind, two_ranks):
    def made():
        s, x = kind(seed=42), T.matrix("x")
        rows = s.multinomial(pvals=T.nnet.softmax(x)), s.shuffle_row_elements(x)
        return [x], [s.binomial(size=x.shape, n=1, p=0.5), *rows]

    plain, ours = (f(*made(), mode=MODE) for f in (theano.function, synk.function))
    rows = np.random.default_rng(0).normal(size=(40, 8))
    first, second = ours(rows), ours(rows)
    for found, expected in (first, plain(rows)), (second, plain(rows)):
        assert all(map(np.array_equal, found, expected))
    assert not any(map(np.array_equal, first, second))
    assert not np.array_equal(first[0][:20], first[0][20:])
