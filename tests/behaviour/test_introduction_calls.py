"""Calls of a function: inputs of all kinds, graphs of all kinds, when it is made."""

import warnings
from pathlib import Path

import numpy as np
import pytensor
import pytensor.sparse as ps
import pytensor.tensor as pt
import pytest
import scipy.sparse
from on_ranks import one_and_three_ranks, three_ranks
from pytensor import In, Out
from pytensor.compile.mode import Mode
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
from pytensor.graph.rewriting.basic import GraphRewriter
from pytensor.graph.utils import MissingInputError
from reference import PY, assert_same, cut
from samples import WAYS

import synk


@one_and_three_ranks
def test_any_array_like_is_an_input(ranks):
    x, b = pt.matrix("x"), pt.matrix("b")
    f = synk.function([x], [(x * 2, "gather"), (b + 1, None)], [b], mode=PY)
    value = np.arange(14.0).reshape(7, 2)
    for way, make in WAYS.items():
        given = make(value)
        doubled, shifted = f(given, given)
        assert_same(doubled, value * 2, err_msg=way)
        assert_same(shifted, value + 1, err_msg=way)
        doubled, _ = f(given, given, batch=[5, 0, -1])
        assert_same(doubled, value[[5, 0, -1]] * 2, err_msg=way)
        plain = f.as_theano(given, given)
        assert_same(plain[0], value * 2, err_msg=way)
        assert_same(plain[1], value + 1, err_msg=way)
        np.testing.assert_array_equal(np.asarray(given), value)


@pytest.mark.filterwarnings("ignore:Casting complex values to real")
def test_what_pytensor_accepts_and_refuses_is_the_same(two_ranks):
    values = [
        [1, 2],
        [1.5, 2],
        [True, False],
        *(np.array([1, 2], dtype) for dtype in ("int8", "int64", "uint64", "bool")),
        *(np.array([1, 2], dtype) for dtype in ("float16", "float32", "float64")),
        *(np.array([1, 2], dtype) for dtype in ("complex64", "O", "M8[s]", "U")),
        np.array([[1, 2]], "float32"),
        1.5,
        "12",
    ]
    for dtype in ("float32", "int16", "bool"):
        x = pt.vector("x", dtype=dtype)
        for downcast in (None, True, False):
            plain = pytensor.function([x], x, mode=PY, allow_input_downcast=downcast)
            f = synk.function(
                [x], (x, "gather"), mode=PY, allow_input_downcast=downcast
            )
            for value in values:
                try:
                    right = plain(value)
                except Exception:
                    with pytest.raises(TypeError, match="input x"):
                        f(value)
                else:
                    assert_same(f(value), right, err_msg=f"{value!r} as {dtype}")


@one_and_three_ranks
def test_inputs_are_not_changed_and_not_kept(ranks):
    x = pt.vector("x")
    w = pytensor.shared(np.zeros(5))
    n = len(cut(np.zeros(5), ranks)[0])
    for local, kept in ((False, 5), (True, n)):
        outputs = [(x, None), (x * 1, "gather")]
        f = synk.function([x], outputs, updates={w: x}, local=local)
        for value in (np.arange(5.0), synk.data(np.arange(5.0))):
            own, rows = f(value)
            value[:] = -1
            assert_same(own, np.arange(float(n)))
            assert_same(synk.get_value(0, w), np.arange(float(kept)))
            again, _ = f(value)
            assert_same(own, np.arange(float(n)))  # a call leaves those of another
            assert_same(rows, np.arange(5.0))
            own[:] = 3
            assert_same(again, np.full(n, -1.0))
            assert_same(synk.get_value(0, w), np.full(kept, -1.0))
            assert_same(np.asarray(value), np.full(5, -1.0))


@one_and_three_ranks
def test_inputs_are_given_by_name_or_in_order(ranks):
    x, y, b = pt.vector("x"), pt.vector("y"), pt.scalar("b")
    f = synk.function([x, y], (x - b * y, "gather"), [b], mode=PY)
    X, Y = np.arange(7.0), np.arange(7.0) ** 2
    right = X - 2 * Y
    assert_same(f(X, Y, 2.0), right)
    assert_same(f(X, Y, b=2.0), right)
    assert_same(f(X, b=2.0, y=Y), right)
    assert_same(f(b=2.0, y=Y, x=X), right)
    assert_same(f(y=synk.data(Y), b=2, x=X, batch=slice(1, 4)), right[1:4])
    assert_same(f.as_theano(b=2.0, y=Y, x=X), right)


@three_ranks
def test_broadcast_inputs_go_whole_to_every_rank(ranks):
    x = pt.vector("x")
    b, c = pt.matrix("b"), pt.scalar("c", dtype="int8")
    f = synk.function([x], [(x + c, "gather"), (b.sum(axis=0), "sum")], [b, c], mode=PY)
    value = np.arange(3.0 * 2).reshape(3, 2)
    for given in (value, synk.data(value), value.tolist()):
        rows, total = f(np.arange(7.0), given, 3)
        assert_same(rows, np.arange(7.0) + 3)
        assert_same(total, value.sum(axis=0) * min(ranks, 7))
    _, total = f(np.arange(7.0), np.zeros((0, 2)), synk.data(np.int8(1)))
    assert_same(total, np.zeros(2))
    alone = synk.function([], (b.sum(), "sum"), [b], mode=PY)
    assert alone(value) == value.sum() * ranks


def test_columns_with_a_fixed_second_dimension_are_inputs(two_ranks):
    x = pt.col("x")
    f = synk.function([x], (x * 2, "gather"), mode=PY)
    value = np.arange(3.0).reshape(3, 1)
    assert_same(f(value), value * 2)
    assert_same(f(synk.data(value)), value * 2)
    for wrong in (np.zeros((3, 2)), synk.data(np.zeros((3, 2)))):
        with pytest.raises(TypeError, match="input x"):
            f(wrong)


def test_inputs_that_are_computed_from_others_cut_off_what_is_above(two_ranks):
    x, w, s = pt.vector("x"), pt.vector("w"), pytensor.shared(3.0)
    y = pt.tanh(x)
    z, total = y + 1, pt.exp(x).sum()
    by_shared = s * x
    a, b, c = [1.0, 2.0, 4.0], [3.0, -1.0, 5.0], 7.0
    cases = [
        ([y], [], y * 2, {}, [a]),
        ([x, y], [], x + y * 2, {}, [a, b]),  # and what is above
        ([z, y], [], z + y * 2, {}, [a, b]),  # and what is below
        ([y], [], z * 2, {}, [a]),
        ([x], [total], x * total, {}, [a, c]),  # whole to every rank
        ([y], [], pytensor.grad((z**2).sum(), y), {}, [a]),
        ([by_shared], [], by_shared - s, {}, [a]),
        ([y], [], w * 2, {w: z}, [a]),  # as a given, and within one
        ([w, z], [], y * z, {y: w}, [a, b]),
        ([y], [], y * z, {x: w}, [a]),
    ]
    for rows, whole, output, givens, values in cases:
        plain = pytensor.function([*rows, *whole], output, givens=givens, mode=PY)
        f = synk.function(rows, (output, "gather"), whole, givens=givens, mode=PY)
        assert_same(f(*values), plain(*values), err_msg=str(output))
        assert_same(f.as_theano(*values), plain(*values))


# -- as_theano, build_inputs, names ----------------------------------------------------


def test_build_inputs_takes_a_value_for_every_input(two_ranks):
    x, y = pt.matrix("x"), pt.ivector("y")
    k, z = pt.vector("k", dtype="float32"), pt.scalar("z")
    f = synk.function([x, y], (x @ k * y * z, "gather"), bcast_inputs=[k, z], mode=PY)
    X, Y, K = np.arange(6.0).reshape(3, 2), np.arange(3, dtype="uint8"), np.ones(2)
    expected = (X @ K) * Y * 2
    built = f.build_inputs(X, Y, K.astype("float32"), 2)
    assert [held.name for held in built] == ["x", "y", "k", "z"]
    assert [held.dtype for held in built] == ["float64", "int32", "float32", "float64"]
    assert not any(held.minibatch for held in built)
    assert_same(f(*built), expected)
    with pytest.raises(TypeError, match="float64 cannot be cast"):
        f.build_inputs(X, Y, K, 2)
    for forced in True, [False, False, True, False]:
        assert_same(f(*f.build_inputs(X, Y, K, z=2, force_cast=forced)), expected)
    X_rows, Y_all, *whole = f.build_inputs(
        *(X, [0, 1, 2, 3, 4], K, 2),
        force_cast=True,
        minibatch=(True, False, True, False),
        oversize=[100, 1, 1, 1],
    )
    assert (X_rows.minibatch, Y_all.minibatch) == (True, False)
    assert X_rows.alloc_size >= 600
    got = f(X_rows, Y_all, *whole, batch=[4, 0, 4])
    assert_same(got, (X @ K) * [4, 0, 4] * 2)
    # The broadcast ones may be left out, all of them.
    assert [held.name for held in f.build_inputs(X, y=Y)] == ["x", "y"]
    with pytest.raises(TypeError, match="misses a value for y"):
        f.build_inputs(X, k=K, z=2)
    with pytest.raises(TypeError, match="misses a value for z"):
        f.build_inputs(X, Y, K)
    with pytest.raises(TypeError, match="takes 4 arguments, got 5"):
        f.build_inputs(X, Y, K, 2, 3)
    with pytest.raises(ValueError, match="oversize has 3 entries for 4 inputs"):
        f.build_inputs(X, Y, K, 2, oversize=[1, 1, 1])


# -- when functions are made ---------------------------------------------------------


class Noting(GraphRewriter):
    """Rewrites nothing, and notes in a file which rank has compiled a graph."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def apply(self, fgraph) -> None:
        with open(self.path, "a") as file:
            file.write(f"{synk.rank() if synk.is_forked() else 0}\n")


@pytest.fixture
def noting(tmp_path):
    """A mode that notes compilations, and how many there were on each of two ranks."""
    path = tmp_path / "compiled"
    path.touch()

    def compiled() -> list[int]:
        ranks = path.read_text().split()
        return [ranks.count("0"), ranks.count("1")]

    return Mode("py", Noting(path)), compiled


def test_nothing_is_compiled_that_is_not_used(two_ranks, noting):
    mode, compiled = noting
    x = pt.vector("x")
    w = pytensor.shared(0.0)
    outputs, updates = [x.mean(), x.max()], {w: x.sum()}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        f = synk.function([x], outputs, updates=updates, mode=mode, local=True)
    assert compiled() == [0, 0]
    for _ in range(2):
        f([1.0, 2.0])
        f([1.0])
        f([1.0, 2.0, 3.0], batch=[0, 2])
        f(synk.data([1.0, 2.0]))
        f.as_theano([1.0])
        assert compiled() == [1, 1]
    f([1.0, 2.0], num_slices=2)
    f([1.0, 2.0], num_slices=3)
    assert compiled() == [2, 2]
    for subset in ([1], [-1], [1, 0]):
        f([1.0, 2.0], output_subset=subset)
    assert compiled() == [3, 3]


def test_distribute_compiles_every_function_and_is_optional(two_ranks, noting):
    mode, compiled = noting
    x = pt.vector("x")
    f, g = (synk.function([x], (y, "max"), mode=mode) for y in (x.max(), 2 * x.max()))
    synk.distribute()
    assert compiled() == [2, 2]
    assert (f([1.0, 2.0]), g([1.0, 2.0])) == (2, 4)
    assert compiled() == [2, 2]
    h = synk.function([x], (x.min(), "min"), mode=mode)
    assert h([1.0, 2.0]) == 1
    assert compiled() == [3, 3]


def test_a_function_is_compiled_once_for_all_sessions(noting):
    mode, compiled = noting
    x = pt.vector("x")
    f = synk.function([x], x.mean(), mode=mode)
    for n in (2, 1, 3):
        with synk.session(n):
            assert f([1.0, 2.0]) == 1.5
            assert compiled()[0] == 1


def test_the_shared_variables_of_a_function_are_those_that_a_call_reads_or_updates():
    x, y = pt.vector("x"), pt.scalar("y")
    names = "read", "given", "rows", "updated", "counted", "unused"
    read, given, rows, updated, counted, _ = (
        pytensor.shared(np.ones(3), name, shape=(None,)) for name in names
    )
    counted.default_update = counted + 1
    f = synk.function(
        [x],
        (x * y * read.sum()).sum() + rows.sum() + counted.sum(),
        updates={updated: updated * 2},
        givens={y: given.mean()},
        sliceable_shareds=[rows],
        mode=PY,
    )
    assert set(f.get_shared()) == {read, given, rows, updated, counted}


def test_inputs_have_any_names():
    names = ["self", "long", "p(k, n)", "check", "{x}"]
    inputs = [pt.TensorType("float64", (None,))(name) for name in names]
    f = synk.function(inputs, sum(inputs).sum(), mode=PY)
    values = {name: [float(i), 1.0, 2.0] for i, name in enumerate(names)}
    with synk.session(2):
        assert f(*values.values()) == 25
        check = values.pop("check")
        with pytest.raises(TypeError, match=r"for check; as check= is an option"):
            f(**values, check=check)
        del inputs[3], names[3]
        g = synk.function(inputs, sum(inputs).sum(), mode=PY)
        assert g(**values) == 19


# -- graphs ----------------------------------------------------------------------------

X = np.random.default_rng(0).normal(size=(7, 3))


class Map(Op):
    def __init__(self, function):
        self.function = function

    def make_node(self, x):
        return Apply(self, [x], [x.type()])

    def perform(self, node, inputs, outputs):
        outputs[0][0] = self.function(inputs[0])


@three_ranks
def test_a_graph_with_an_inner_function_travels(ranks):
    from pytensor.compile.builders import OpFromGraph

    a, b, x = pt.vector("a"), pt.scalar("b"), pt.vector("x")
    w = pytensor.shared(3.0)
    try:
        y = OpFromGraph([a], [a * w])(x)
    except MissingInputError:  # PyTensor 3.3 wants every shared variable given
        y = OpFromGraph([a, b], [a * b])(x, w)
    f = synk.function([x], (y, "gather"), updates={w: w + 1}, mode=PY)
    assert_same(f(np.arange(7.0)), np.arange(7.0) * 3)
    assert_same(f(np.arange(7.0)), np.arange(7.0) * 4)


@three_ranks
def test_a_sparse_shared_variable_travels(ranks):
    matrix = scipy.sparse.csr_matrix(np.diag([2.0, 3.0]))
    w = pytensor.shared(matrix, name="w")
    x = pt.matrix("x")
    product = ps.structured_dot(w, x.T).T
    f = synk.function([x], (product, "gather"), mode=PY)
    value = np.arange(14.0).reshape(7, 2)
    assert_same(f(value), value * [2.0, 3.0])
    synk.broadcast(w, matrix * 2)
    assert_same(f(value), value * [4.0, 6.0])
    assert_same(synk.get_value(ranks - 1, w).toarray(), np.diag([4.0, 6.0]))
    with pytest.raises(TypeError, match=r"w is a .*not a tensor"):
        synk.all_reduce(w)


def test_in_and_out_are_their_variables(two_ranks):
    x, k = pt.matrix("x"), pt.scalar("k")
    f = synk.function(
        [In(x, borrow=True)],
        [Out(2 * x, borrow=True), (Out(x.sum(axis=0)), "sum"), x.mean() + k],
        bcast_inputs=[In(k, mutable=True)],
        mode=PY,
    )
    doubled, total, mean = f(X, 3.0)
    assert_same(doubled, 2 * X)
    assert_same(total, X.sum(axis=0), 4, 2)
    assert_same(mean, X.mean() + 3)
    assert_same(synk.function([x], Out(x + 1), mode=PY)(X), X + 1)
    pair = synk.function([x], (Out(x.sum(axis=0)), "sum"), mode=PY)
    assert_same(pair(X), X.sum(axis=0), 4, 2)


def test_ranks_follow_settings_that_are_changed_after_the_fork(two_ranks):
    """Rewrites make 0.5 a float32 or a float64, by config.floatX."""
    x = pt.matrix("x", dtype="float32")
    ones = np.ones((4, 2), "float32")
    seen = synk.function([x], (Map(settings)(x), "gather"), mode=PY)
    with pytensor.config.change_flags(floatX="float32"):
        f = synk.function([x], ((x * 0.5).sum(), "sum"), mode=PY)
        assert f(ones).dtype == "float32"
        assert_same(seen(ones), np.ones((4, 2), "float32"))
        with pytensor.config.change_flags(cast_policy="numpy+floatX"):
            # Compiles anew.
            assert_same(seen(ones, num_slices=2), np.full((4, 2), 3, "float32"))


def settings(value):
    """Return 1 for a float32 as PyTensor's setting, and 2 more for a cast policy."""
    config = pytensor.config
    told = (config.floatX == "float32") + 2 * (config.cast_policy != "custom")
    return np.full_like(value, told)


# -- what is no array of numbers -------------------------------------------------------


@three_ranks
def test_sparse_outputs_of_any_number_of_rows(ranks):
    x = pt.matrix("x", dtype="float64")
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
    for batches in ([[0, 1], [2, 3]], [[], []], [[0], [1, 2, 3]]):
        made = rows.run(batches, X)
        for batch, value in zip(batches, made, strict=True):
            np.testing.assert_array_equal(value.toarray(), 2 * X[batch])
