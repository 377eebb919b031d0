"""Rows: those of all ranks where they are needed, pairs of them, groups, and steps."""

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from children import in_a_child
from on_ranks import levels, one_and_three_ranks, three_ranks
from pytensor.tensor.signal import convolve1d
from reference import PY

import synk

pytestmark = [
    pytest.mark.filterwarnings("ignore::synk.SplitWarning"),
    pytest.mark.usefixtures("graphs_in_python"),
]

# -- all rows of an input: each rank reads them itself ---------------------------------

X, Y = pt.matrix("x"), pt.vector("y")
K, B = pt.lvector("k"), pt.vector("b", dtype="bool")
INPUTS = [X, K, B]
GRAPHS = [
    pt.sort(X, axis=0),
    X @ X.T,
    pt.cumsum(K) * pt.sort(K),
    pt.sort(B),
    synk.ops.all_gather(X).sum(axis=0),
    pt.sort(K).sum() + X.sum(),
]
SELECTED = np.array([8, 1, 4, 4, 0])


def values(rows):
    random = np.random.default_rng(rows)
    x = random.normal(size=(rows, 3))
    return [x, random.integers(0, 9, rows), random.integers(0, 2, rows) > 0]


def chosen(arrays, rows):
    return [array[rows] for array in arrays]


def function_of(graphs, mode=PY, **options):
    options |= {"mode": mode, "on_unused_input": "ignore"}
    return synk.function(INPUTS, graphs, **options)


def serial():
    return pytensor.function(INPUTS, GRAPHS, mode=PY)


def assert_serial(got, right):
    for mine, value in zip(got, right, strict=True):
        assert np.asarray(mine).dtype == value.dtype
        np.testing.assert_allclose(mine, value, 1e-12, 1e-12)


@one_and_three_ranks
def test_they_are_the_rows_of_the_call_wherever_the_arguments_lie(ranks):
    f, plain = function_of(GRAPHS), serial()
    arrays = values(9)
    data = [synk.data(array) for array in arrays]
    batch = synk.data(arrays[0][SELECTED], minibatch=True)
    for many in (1, 3):
        for rows in (7, 2):
            assert_serial(f(*values(rows), num_slices=many), plain(*values(rows)))
        for given in (data, arrays, [data[0], *arrays[1:]]):
            for rows in (SELECTED, slice(2, 8), slice(8, 1, -2)):
                got = f(*given, batch=rows, num_slices=many)
                assert_serial(got, plain(*chosen(arrays, rows)))
        got = f(batch, *data[1:], batch=SELECTED, num_slices=many)
        assert_serial(got, plain(*chosen(arrays, SELECTED)))


@three_ranks
def test_they_are_those_of_each_call_of_a_run(ranks):
    f, plain = function_of(GRAPHS), serial()
    arrays, batches = values(9), [SELECTED, slice(3, 9), np.array([1])]
    for given in (arrays, [synk.data(array) for array in arrays]):
        results = f.run(batches, *given)
        for i, rows in enumerate(batches):
            right = plain(*chosen(arrays, rows))
            assert_serial([result[i] for result in results], right)


@in_a_child
def test_in_jax_mode_with_padding():
    f, plain = function_of(GRAPHS[:3], mode="JAX", pad=True), serial()
    with synk.session(2):
        for rows in (5, 1):
            assert_serial(f(*values(rows)), plain(*values(rows))[:3])


def test_ranks_meet_for_what_they_compute_and_for_no_rows_of_inputs():
    of_inputs = function_of([pt.sort(X, axis=0), X @ X.T])
    both = function_of([pt.sort(X * 2, axis=0), pt.sort(K) - X.mean()])
    assert levels(of_inputs) == [["read"]]
    # The mean, and the rows of x * 2; those of k are read.
    assert levels(both) == [["avg", "gather", "read"]]


def test_a_variable_that_is_set_to_them_has_a_copy(two_ranks):
    kept = pytensor.shared(np.zeros((0, 3)), "kept")
    before = (X - X.mean(axis=0)) * kept.sum()  # so that it is set at the end
    f = function_of(before, updates={kept: X})
    arrays = values(5)
    for many in (1, 2):
        data = [synk.data(array) for array in arrays]
        f(*data, num_slices=many)
        data[0][:] = 0
        for rank in range(2):
            np.testing.assert_array_equal(synk.get_value(rank, kept), arrays[0])


# -- rows of two sliceable shared variables that a function pairs, as Synkhronos did ---


def images_and_labels(rows=9):
    rng = np.random.default_rng(rows)
    labels = rng.integers(0, 3, rows).astype("int32")
    return rng.normal(size=(rows, 4)), labels, rng.normal(size=(4, 3))


def classifier(x, y, w):
    """Return the loss, the errors and the gradient of a classifier."""
    p = pt.special.softmax(x @ w, axis=1)
    loss = -pt.log(p)[pt.arange(y.shape[0]), y].mean()
    return [loss, pt.neq(p.argmax(axis=1), y).mean(), pt.grad(loss, w)]


def serial_classifier(*arrays):
    """Return the same of all rows, without ranks."""
    return pytensor.function([], classifier(*map(pt.constant, arrays)), mode=PY)()


@three_ranks
def test_a_loss_by_the_labels_of_rows_that_lie_on_the_ranks(ranks):
    arrays = images, labels, weights = images_and_labels()
    x, y, w = map(pytensor.shared, arrays)
    f = synk.function([], classifier(x, y, w), sliceable_shareds=[x, y], mode=PY)
    synk.scatter([x, y], [images, labels])
    assert_serial(f(), serial_classifier(*arrays))
    found = f(batch_s=[slice(0, many) for many in (2, 1, 3)])
    taken = [0, 1, 3, 6, 7, 8]
    right = serial_classifier(images[taken], labels[taken], weights)
    assert_serial(found, right)


def test_rows_beside_an_input_are_paired_too_if_they_are_as_many(two_ranks):
    images, labels, weights = images_and_labels(8)
    x, w = pt.dmatrix("x"), pytensor.shared(weights, "w")
    y = pytensor.shared(labels[:1], "y")
    f = synk.function([x], classifier(x, y, w), sliceable_shareds=[y], mode=PY)
    synk.scatter(y, labels)
    assert_serial(f(images), serial_classifier(images, labels, weights))
    with pytest.raises(ValueError, match=r"has 2 of x, 4 of y; scatter them alike"):
        f(images[:4])
    s = pytensor.shared(images, "s")
    f = synk.function([], classifier(s, y, w), sliceable_shareds=[s, y], mode=PY)
    synk.scatter(s, images)
    synk.scatter(y, labels[:6])
    with pytest.raises(ValueError, match="rank 0 has 4 of s, 3 of y; scatter"):
        f()
    assert f(batch_s=[slice(0, 3), slice(0, 3)])[0] > 0


# -- reshapes that make groups, and other arrangements ---------------------------------


def groups(x, w):
    """Return reshapes of rows that merge or split them."""
    h = pt.tanh(x @ w)
    return [
        h.reshape((-1, 2, 2)),
        x.reshape((-1, 2)),
        x.reshape((-1, 3, 2)).mean(axis=1),
        x.reshape((-1, 3)).reshape((-1, 2)),
        x.flatten().reshape((-1, 6)),
        pt.repeat(x[:, 0], 3).reshape((-1, 2)).sum(axis=0),
        x.reshape((x.shape[0] // 2, 2, 3)),
        pt.grad((h.reshape((-1, 2, 2)) ** 2).mean(), w),
    ]


def arranged(x, w):
    """Return rows in other orders, repeated, joined and cut, and their gradient."""
    f, two = x @ w[:, 0], x @ w
    made = [
        *(pt.repeat(two, 3, axis=0), pt.tile(f, 3), pt.tile(two, (2, 1))),
        *(two.T.flatten(), pt.concatenate([f[:8], pt.exp(f[8:])])),
        *(pt.concatenate([f, f**2]), pt.einsum("ni,ni->n", x, x * w[:, 1])),
        *(f + f[::-1], f + pt.roll(f, 2), pt.diff(f), pt.cumsum(two, axis=0)),
        f - pt.log(pt.cumsum(pt.exp(f)[::-1])[::-1]),
        convolve1d(pt.concatenate([pt.zeros(2), f]), w[:, 0], mode="valid"),
    ]
    return [*made, pt.grad(sum((each**2).mean() for each in made), w)]


@three_ranks
@pytest.mark.parametrize("graph", [groups, arranged])
def test_reshapes_that_merge_rows_in_groups(ranks, graph):
    rng = np.random.default_rng(0)
    x, w = pt.matrix("x"), pytensor.shared(rng.normal(size=(3, 2)))
    f = synk.function([x], graph(x, w), mode=PY)
    for n in (10, 12) if graph is arranged else (10, 8, 12, 6, 2):
        given = rng.normal(size=(n, 3))
        assert_serial(f(given), f.as_theano(given))
    given = rng.normal(size=(20, 3))
    assert_serial(f(given, num_slices=3), f.as_theano(given))
    both = f.run([slice(0, 10), slice(10, 20)], given)
    for i in range(2):
        right = f.as_theano(given[10 * i : 10 * i + 10])
        assert_serial([one[i] for one in both], right)


@three_ranks
def test_rows_that_fill_groups_stay_where_they_are(ranks):
    x, w = pt.matrix("x"), pytensor.shared(np.ones((3, 4)), "w")
    f = synk.function([x], pt.tanh(x @ w).reshape((-1, 2, 2)), mode=PY)
    assert f.output_modes == ["gather"]
    given = np.random.default_rng(0).normal(size=(8, 3))
    for columns in (4, 2, 4, 3):  # of two and three, rows make a group together
        w.set_value(np.ones((3, columns)))
        expected = np.tanh(given @ np.ones((3, columns))).reshape(-1, 2, 2)
        np.testing.assert_allclose(f(given), expected)


# -- integers that wrap around, in modes that compile ----------------------------------

UNSIGNED, SHORT, LONG = (
    pt.vector(dtype, dtype=dtype) for dtype in ("uint32", "int32", "int64")
)
WRAPPING = [
    (UNSIGNED, UNSIGNED.max() + np.uint32(10), [4294967290, 7, 5], 4),
    (LONG, pt.cast(LONG.max(), "int32"), [2**32 + 5, 7, 99], 5),
    (LONG, pt.cast(LONG.max(), "float32"), [2**40, 7, 99], 2.0**40),
    (LONG, 2 * LONG.max(), [2**62 + 1, 7, 99], 2 - 2**63),
    (LONG, 5 - LONG.max(), [-(2**63), -(2**63), 7], -2),
    (LONG, LONG.sum() / 2, [2**62, 2**62, 2**62 + 2**20], -(2.0**61) + 2**19),
    (SHORT, SHORT.sum(dtype="int32").astype("int64"), [2**31 - 1, 1, 5], 5 - 2**31),
]
"""An input, an expression, rows and the right value."""


def check_wrapping(mode):
    inputs = [UNSIGNED, SHORT, LONG]
    f = synk.function(inputs, [made for _, made, _, _ in WRAPPING], mode=mode)
    for i, (x, made, rows, right) in enumerate(WRAPPING):
        values = [rows if one is x else [0, 0, 0] for one in inputs]
        given = zip(values, inputs, strict=True)
        found = f(*(np.array(value, of.type.dtype) for value, of in given))[i]
        assert found == right, pytensor.printing.pp(made)


def test_integers_wrap_in_numba(two_ranks):
    check_wrapping("NUMBA")


@in_a_child
def test_integers_wrap_in_jax():
    with synk.session(2):
        check_wrapping("JAX")
