"""Users' own Ops: placed, and padded, by what was registered of them."""

from __future__ import annotations

import functools
import warnings

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from children import in_a_child
from own_ops import (
    SQUARE,
    VECTOR,
    Average,
    Bent,
    M,
    Misfit,
    OfFunction,
    Peak,
    Running,
    Squash,
    SquashGrad,
    Through,
    Unregistered,
    W,
    X,
    Y,
    hypotenuse,
    running,
    values,
)
from pytensor.compile.builders import OpFromGraph
from pytensor.compile.ops import wrap_py
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
from pytensor.tensor.elemwise import Elemwise
from reference import PY

import synk
from synk.compiler.lengths import remembered, size
from synk.compiler.own_ops.registry import said_in
from synk.compiler.padded import CannotPad, Padder
from synk.ranks.session import SESSION


def graphs():
    """Return graphs of these Ops, and gradients through them."""
    squashed = Squash()(X)
    misfit = Misfit()(X, Y, W)
    posterior = -misfit - (W**2).sum()
    mean = ((Squash()(Through()(X, M)).sum(axis=1) - Y) ** 2).mean()
    peak = (Peak()(X * W) ** 2).sum()
    return [
        squashed,
        (squashed - squashed.mean(axis=0)).var(),
        posterior,
        *Average()(X, W),
        hypotenuse(Y, X[:, 1]),
        mean + 0.1 * (M**2).sum(),
        Through()(X.sum(axis=0)[None], M),
        Running(1)(X),
        Running(0)(X.T).T,
        Running(1)(squashed).sum(axis=0),
        Running(1)(X.max(axis=0)[None])[0],
        SquashGrad()(X.sum(axis=0)[None], pt.ones((1, 3)))[0],
        pytensor.grad((Bent()(X * W) ** 2).mean(), W),
        peak,
        *pytensor.grad(posterior, [W, X]),
        *pytensor.grad(mean, [M, X]),
        pytensor.grad(misfit / X.shape[0], W),
        pytensor.grad(peak, W),
    ]


@functools.cache
def plain(rows):
    """Return what plain PyTensor computes of so many rows."""
    return pytensor.function([X, Y], graphs(), mode=PY)(*values(rows))


@functools.cache
def made():
    """Make the function of all graphs, as outputs and as updates; nothing is warned."""
    outputs = graphs()
    kept = [
        pytensor.shared(np.zeros((0,) * var.ndim, var.dtype), f"kept_{i}")
        for i, var in enumerate(outputs)
    ]
    updates = list(zip(kept, outputs, strict=True))
    with warnings.catch_warnings():
        warnings.simplefilter("error", synk.SplitWarning)
        return synk.function([X, Y], outputs, updates=updates, mode=PY), kept


@pytest.mark.parametrize("n", [1, 2, 3])
def test_registered_ops_give_the_serial_numbers_on_any_ranks(n):
    f, kept = made()
    with synk.session(n):
        for rows in (7, 2):  # with fewer rows than ranks
            for slices in (1, 2):
                results = f(*values(rows), num_slices=slices)
                held = synk.get_value(n - 1, kept)
                for i, right in enumerate(plain(rows)):
                    for got in (results[i], held[i]):
                        assert np.shape(got) == np.shape(right), i
                        np.testing.assert_allclose(got, right, 1e-10, 1e-10, str(i))


def test_gradients_go_through_linear_ops_as_means_and_partial_sums():
    """Nothing is scaled by numbers of rows, and a sum is reduced behind the Op."""
    mean = Squash()(Through()(X, M)).mean()
    through = Through()(X.sum(axis=0)[None], M)
    f = synk.function([X], [pytensor.grad(mean, M), through], mode=PY, strict=True)
    assert f.output_modes == ["avg", "sum"]


def test_an_op_that_is_not_registered_is_computed_from_all_rows_and_warned_of():
    y = Unregistered()(X)
    with pytest.warns(synk.SplitWarning) as caught:
        f = synk.function([X], [y.sum(axis=0), y], mode=PY)
    (warning,) = caught
    text = str(warning.message)
    assert "made in test_own_ops.py" in text
    assert "`y = Unregistered()(X)`) needs all rows at once" in text
    assert "If it is your Op, synk.register_sharding tells how it goes by parts" in text
    x = values(7)[0]
    with synk.session(2):
        for got, right in zip(f(x), (np.tanh(x).sum(axis=0), np.tanh(x)), strict=True):
            np.testing.assert_allclose(got, right, 1e-10)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (
            lambda: Running(0)(X),
            r"registered as Sharding\(\[1\], \[1\], linear=\[0\]\)",
        ),
        (
            lambda: hypotenuse(Y, pt.zeros(7)),
            r"registered as Sharding\(\[0, 0\], \[0\]\)",
        ),
    ],
)
def test_what_no_sharding_suits_is_computed_from_all_rows_and_says_which(make, reason):
    with pytest.warns(synk.SplitWarning, match=reason):
        f = synk.function([X, Y], make(), mode=PY, on_unused_input="ignore")
    with synk.session(2):
        np.testing.assert_allclose(f(*values(7)), f.as_theano(*values(7)), 1e-10)


# -- registering -----------------------------------------------------------------------


class Twice(Unregistered):
    pass


@pytest.mark.parametrize(
    ("op", "said", "error", "message"),
    [
        (int, "rowwise", TypeError, "an Op, or a class of Ops; got <class 'int'>"),
        (Twice, "by rows", ValueError, "one of 'rowwise', 'sum'.*; got 'by rows'"),
        (Twice, 0, TypeError, "got 0"),
        (Twice, ["rowwise", running], TypeError, "words or Shardings; got <function"),
        (Elemwise, "rowwise", ValueError, "synk has a rule for Elemwise"),
        (Op, "rowwise", ValueError, "synk has a rule for"),
        (pt.exp, "rowwise", ValueError, "synk has a rule for Elemwise"),
        (Squash, "sum", ValueError, "Squash'> is registered already, as 'rowwise'"),
    ],
)
def test_what_cannot_be_registered_says_why(op, said, error, message):
    with pytest.raises(error, match=message):
        synk.register_sharding(op, said)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (("0", [0]), TypeError, "inputs must be a list; got '0'"),
        (([0.5], [0]), TypeError, "axes or None; got 0.5"),
        (([0], ["mean"]), TypeError, "got 'mean'"),
        (([0], [0], [1]), ValueError, "positions among 1 inputs; got 1"),
        (([None], [0]), ValueError, "no input has rows"),
        (([None], [None]), ValueError, "says nothing of the rows"),
    ],
)
def test_a_sharding_that_contradicts_itself_says_how(given, error, message):
    with pytest.raises(error, match=message):
        synk.Sharding(*given)


def test_the_same_may_be_registered_again_and_holds_for_derived_classes():
    synk.register_sharding(Squash, "rowwise")
    for _ in range(2):  # as a cell of a notebook is run twice
        synk.register_sharding(Twice, lambda node: "rowwise")
    with pytest.raises(ValueError, match="is registered already, as <function"):
        synk.register_sharding(Twice, lambda node: "sum")

    class Derived(Squash):
        pass

    assert synk.function([X], Derived()(X), mode=PY, strict=True).output_modes == [
        "gather"
    ]


@pytest.mark.parametrize(
    ("said", "message"),
    [
        (synk.Sharding([0, 0], [0]), r"is for 2 inputs, and Late.* has 1"),
        (synk.Sharding([2], [0]), "wants axis 2 of x, which has 2"),
        (synk.Sharding([0], ["avg"]), "'avg' of int64"),
        (lambda node: node.nothing, "<lambda> fails for Late.*no attribute 'nothing'"),
        (lambda node: "by rows", "one of 'rowwise'.*Late"),
    ],
)
def test_what_does_not_fit_the_operands_is_an_error_where_a_function_is_made(
    said, message
):
    class Late(Unregistered):
        def make_node(self, x):
            return Apply(self, [x], [pt.lmatrix()])

    synk.register_sharding(Late, said)
    with pytest.raises(TypeError, match=message):
        synk.function([X], Late()(X), mode=PY)


def test_lengths_follow_from_the_sharding_and_from_the_shapes_that_the_op_infers():
    @wrap_py(
        [SQUARE, SQUARE], [SQUARE], lambda *args: [(args[-1][0][0], args[-1][1][1])]
    )
    def product(x, w):
        return x @ w

    synk.register_sharding(product, synk.Sharding([0, None], [0], linear=[0, 1]))
    w = pt.dmatrix("w")
    made = Through()(X, w)
    with remembered():
        assert size(made, 0) == size(X, 0)
        assert size(made, 1) == size(product(X, w), 1) == size(w, 1)
        assert size(Squash()(X), 0) == size(X, 0)
        assert size(Squash()(X), 1) != size(X, 1)  # nothing tells


def test_ranks_need_no_registration_of_a_class_that_they_do_not_know():
    with synk.session(3):

        class Later(Unregistered):
            pass

        synk.register_sharding(Later, "rowwise")
        f = synk.function([X], Later()(X).sum(axis=0), mode=PY, strict=True)
        x = values(7)[0]
        np.testing.assert_allclose(f(x), np.tanh(x).sum(axis=0), 1e-10)


def test_what_is_registered_of_ops_within_a_graph_goes_with_it():
    graph = OpFromGraph([X], [Squash()(X)])(X) + SquashGrad()(X, X)
    assert dict(said_in([graph])) == {
        Squash: "rowwise",
        SquashGrad: synk.Sharding([0, 0], [0], linear=[1]),
    }


CLASSES = []


def test_ranks_compute_by_the_classes_of_a_script_that_they_were_forked_with():
    """What a script has told engines of a class, ranks know of theirs."""

    class Known(Unregistered):
        def compute(self, x):
            return np.full(x.shape, type(self) in CLASSES)

    CLASSES.append(Known)
    synk.register_sharding(Known, "rowwise")
    with synk.session(3):
        assert synk.function([X], Known()(X), mode=PY)(values(7)[0]).all()


# -- padded calls in JAX mode ----------------------------------------------------------


def worker_compiled(context):
    """Return for how many shapes this rank has compiled each function."""
    return [f.shapes_compiled() for f in context.registry.functions.values()]


@pytest.mark.parametrize(
    ("graph", "reason"),
    [
        (
            Misfit()(X, Y, W),
            r"Misfit.* combines rows by \['sum'\], and is not registered",
        ),
        (Average()(X, W)[0], r"combines rows by \['avg', 'min', 'prod'\]"),
        (Running(0)(X), r"Running.* is not registered for x as it is here"),
        (Unregistered()(X), "Unregistered.* is not known to work row by row"),
    ],
)
def test_what_would_count_the_copies_of_rows_is_not_padded(graph, reason):
    with pytest.raises(CannotPad, match=reason):
        Padder([X, Y], pt.lscalar()).walk([graph])


class Scores(OfFunction):
    def make_node(self, x, y, w):
        return Apply(self, [x, y, w], [VECTOR(), VECTOR(), VECTOR()])

    def compute(self, x, y, w):
        return (x @ w) * y, y @ x, y @ abs(x)


@in_a_child
def test_calls_in_jax_mode_are_padded_by_what_was_registered_after_the_fork():
    from pytensor.link.jax.dispatch import jax_funcify

    class Local(Scores):
        """As in a script, which ranks cannot import."""

    @jax_funcify.register(Local)
    def _(op, **kwargs):
        return op.compute

    with synk.session(2):
        way = synk.Sharding([0, 0, None], [0, "sum", "sum"], linear=[1])
        synk.register_sharding(Local, way)
        numbers = pt.arange(X.shape[0])
        graph = Local()(X * pt.exp(numbers * Y)[:, None], Y, W)
        f = synk.function([X, Y], graph, mode="JAX", pad=True)
        plain = pytensor.function([X, Y], graph, mode=PY)
        for rows, scale in ((8, 1), (7, 3), (6, 120)):  # numbers of copies overflow
            given = np.ones((rows, 3)), np.full(rows, float(scale))
            for got, right in zip(f(*given), plain(*given), strict=True):
                np.testing.assert_allclose(got, right, 1e-10)
        assert SESSION.run(worker_compiled) == [[1]] * 2
