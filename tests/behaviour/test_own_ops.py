"""Users' own Ops: placed, padded and checked by what was registered of them."""

import functools
import re
import warnings

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from children import in_a_child
from on_ranks import one_and_three_ranks
from own_ops import (
    VECTOR,
    Average,
    Bent,
    M,
    Misfit,
    MisfitGrad,
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
from processes import run_script
from pytensor import scalar as ps
from pytensor.compile.builders import OpFromGraph
from pytensor.compile.ops import wrap_py
from pytensor.graph.op import Op
from pytensor.tensor.elemwise import Elemwise
from reference import PY, shared_of

import synk


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
    kept = [shared_of(var.dtype, var.type.shape) for var in outputs]
    updates = list(zip(kept, outputs, strict=True))
    with warnings.catch_warnings():
        warnings.simplefilter("error", synk.SplitWarning)
        return synk.function([X, Y], outputs, updates=updates, mode=PY), kept


@one_and_three_ranks
def test_registered_ops_give_the_serial_numbers_on_any_ranks(ranks):
    f, kept = made()
    for rows, slices in ((7, 1), (7, 2), (2, 1)):  # with fewer rows than ranks
        results = f(*values(rows), num_slices=slices)
        held = synk.get_value(ranks - 1, kept)
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


def test_an_op_that_is_not_registered_is_computed_from_all_rows(two_ranks):
    y = Unregistered()(X)
    with pytest.warns(synk.SplitWarning) as caught:
        f = synk.function([X], [y.sum(axis=0), y], mode=PY)
    (warning,) = caught
    text = str(warning.message)
    assert "made in test_own_ops.py" in text
    assert "`y = Unregistered()(X)`) needs all rows at once" in text
    assert "If it is your Op, synk.register_sharding tells how it goes by parts" in text
    x = values(7)[0]
    for got, right in zip(f(x), (np.tanh(x).sum(axis=0), np.tanh(x)), strict=True):
        np.testing.assert_allclose(got, right, 1e-10)


class Whole(Unregistered):
    pass


synk.register_sharding(Whole, None)


@pytest.mark.parametrize(
    ("graph", "reason"),
    [
        (Whole()(X), "needs all rows at once"),
        (Running(0)(X), r"registered as Sharding\(\[1\], \[1\], linear=\[0\]\)"),
        (hypotenuse(Y, pt.zeros(7)), r"registered as Sharding\(\[0, 0\], \[0\]\)"),
    ],
)
def test_what_no_sharding_suits_is_computed_from_all_rows(graph, reason, two_ranks):
    with pytest.warns(synk.SplitWarning, match=reason) as caught:
        f = synk.function([X, Y], graph, mode=PY, on_unused_input="ignore")
    assert "If it is your Op" not in str(caught[0].message)
    np.testing.assert_allclose(f(*values(7)), f.as_theano(*values(7)), 1e-10)


# -- registering -----------------------------------------------------------------------


class Twice(Unregistered):
    pass


def registered(op, said):
    return lambda: synk.register_sharding(op, said)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (registered(int, "rowwise"), TypeError, "or a class of Ops; got <class 'int'>"),
        (registered(Twice, "by rows"), ValueError, "'rowwise', 'sum'.*; got 'by rows'"),
        (registered(Twice, 0), TypeError, "got 0"),
        (
            registered(Twice, ["rowwise", running]),
            TypeError,
            "a list of these, .*; got <function",
        ),
        (registered(Op, "rowwise"), ValueError, "synk has a rule for"),
        (registered(pt.exp, "rowwise"), ValueError, "synk has a rule for Elemwise"),
        (registered(Squash, "sum"), ValueError, "Squash'> is registered.* 'rowwise'"),
        (lambda: synk.Sharding("0", [0]), TypeError, "inputs must be a list; got '0'"),
        (lambda: synk.Sharding([0.5], [0]), TypeError, "axes or None; got 0.5"),
        (lambda: synk.Sharding([0], ["mean"]), TypeError, "got 'mean'"),
        (lambda: synk.Sharding([0], [0], [1]), ValueError, "among 1 inputs; got 1"),
        (lambda: synk.Sharding([None], [0]), ValueError, "no input has rows"),
        (lambda: synk.Sharding([None], [None]), ValueError, "says nothing of the rows"),
    ],
)
def test_what_cannot_be_registered_or_contradicts_itself_says_why(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_the_same_may_be_registered_again_and_holds_for_derived_classes():
    synk.register_sharding(Squash, "rowwise")
    for _ in range(2):  # as a cell of a notebook is run twice
        synk.register_sharding(Twice, lambda node: "rowwise")
    with pytest.raises(ValueError, match="is registered already, as <function"):
        synk.register_sharding(Twice, lambda node: "sum")

    class Derived(Squash):
        pass

    f = synk.function([X], Derived()(X), mode=PY, strict=True)
    assert f.output_modes == ["gather"]


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
        makes = (pt.lmatrix,)

    synk.register_sharding(Late, said)
    with pytest.raises(TypeError, match=message):
        synk.function([X], Late()(X), mode=PY)


def test_lengths_follow_from_the_sharding_and_from_the_shapes_that_the_op_infers():
    """A reshape by such a length keeps the rows where they are."""
    w = pt.dmatrix("w")
    through = Through()(X, w)
    graphs = [
        X.reshape((through.shape[0], -1)),  # as long as X
        (X @ w).reshape((X.shape[0], through.shape[1])),  # as wide as w
        X.reshape((Squash()(X).shape[0], -1)),
    ]
    f = synk.function([X], graphs, [w], mode=PY, strict=True)
    assert f.output_modes == ["gather"] * 3


def test_ranks_need_no_registration_of_a_class_that_they_do_not_know(
    two_ranks, graphs_in_python
):
    class Later(Unregistered):
        pass

    synk.register_sharding(Later, "rowwise")
    graph = OpFromGraph([X], [Later()(X)])(X).sum(axis=0)
    f = synk.function([X], graph, mode=PY, strict=True)
    x = values(7)[0]
    np.testing.assert_allclose(f(x), np.tanh(x).sum(axis=0), 1e-10)


# -- padded calls in JAX mode ----------------------------------------------------------


@pytest.mark.parametrize(
    ("graph", "reason"),
    [
        (Misfit()(X, Y, W), r"combines rows by \['sum'\], and is not registered"),
        (Average()(X, W)[0], r"combines rows by \['avg', 'min', 'prod'\]"),
        (Running(0)(X), r"Running.* is registered to take x with rows along axis 1"),
        (Unregistered()(X), "Unregistered.* is not known to work row by row"),
    ],
)
def test_what_would_count_the_copies_of_rows_is_not_padded(graph, reason):
    f = synk.function(
        [X, Y], (graph, None), mode="JAX", pad=True, on_unused_input="ignore"
    )
    padding = f.explain().to_dict()["padding"]
    assert not padding["padded"]
    assert re.search(reason, padding["reason"])


@in_a_child
def test_calls_in_jax_mode_are_padded_by_what_was_registered_after_the_fork():
    from pytensor.link.jax.dispatch import jax_funcify

    class Local(OfFunction):
        """As in a script, which ranks cannot import."""

        makes = VECTOR, VECTOR, VECTOR

        def compute(self, x, y, w):
            return (x @ w) * y, y @ x, y @ abs(x)

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
        assert f.explain().to_dict()["shapes_compiled"] == 1


# -- what is registered is compared with what the Op computes --------------------------


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


def wrong(function, said, types=(), pullback=OfFunction.pullback):
    """Return an Op of a function, registered as what may be wrong."""

    class Wrong(OfFunction):
        makes = types

        def compute(self, *arrays):
            return function(*arrays)

    Wrong.pullback = pullback
    synk.register_sharding(Wrong, said)
    return Wrong()


MATRIX = (9, 3)
OF_W = synk.Sharding([0, None], [None])
LINEAR = synk.Sharding([0], [0], linear=[0])


def of_all(self, inputs, outputs, cotangents):
    return [cotangents[0] * pt.cos(inputs[0]).sum()]


WRONG = {
    "mean": (
        wrong(lambda x: x.mean(axis=0), "sum", [VECTOR]),
        r"result 0, of parts of .* rows, is \S+ at \[0\], and \S+ by all rows",
    ),
    "some rows": (
        wrong(lambda x: x[x[:, 0] > 0], "rowwise"),
        "entries along axis 0, and not one for each of",
    ),
    "number of rows": (
        wrong(lambda x, w: np.sum(w) + len(x), OF_W, [pt.dscalar]),
        "result 0, of parts",
        *(MATRIX, (2,)),
    ),
    "another shape": (
        wrong(lambda x: x[:2].sum(axis=1), "sum", [VECTOR]),
        r"has shape \(1,\), and \(2,\) of all rows",
    ),
    "one row": (
        wrong(lambda x: x * (len(x) > 1), "rowwise"),
        "result 0, of parts of 1, 1, 1, 1, 1, 1, ... rows",
        (5000, 3),
    ),
    "an axis less": (
        wrong(lambda x: np.squeeze(x.sum(axis=1)), "rowwise", [VECTOR]),
        r"has shape \(\), without axis 0",
    ),
    "exp": (wrong(np.exp, LINEAR), "is not linear in operand 0: result 0"),
    "gradient": (wrong(np.sin, "rowwise", pullback=of_all), "gradient 0, of parts"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_registered_wrong_is_found_by_the_check(name):
    op, message, *shapes = WRONG[name]
    rng = np.random.default_rng(1)
    operands = [rng.normal(size=shape) for shape in shapes or [MATRIX]]
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


# -- Ops that the script has compiled, or has defined where ranks cannot import them ---

V, ROWS = pt.dvector("v"), np.arange(1.0, 8.0)


@pytest.mark.filterwarnings("ignore::synk.SplitWarning")
@pytest.mark.usefixtures("scans_in_python")
def test_what_compilers_have_left_on_an_op_stays_here(two_ranks):
    a, start = pt.dvector("a"), [np.float64(0)]
    graphs = [
        pt.grad(V.prod(), V),
        OpFromGraph([a], [pt.exp(a) / 9])(V),
        pt.grad(OpFromGraph([a], [(a**2).sum()])(V), V),
        pt.vectorize(lambda v: pt.linalg.norm(v), "(k)->()")(V[:, None]),
        pytensor.scan(lambda v, h: v + 0.5 * h, V, start, return_updates=False),
    ]
    expected = pytensor.function([V], graphs, mode="FAST_COMPILE")(ROWS)
    found = synk.function([V], graphs, mode="FAST_COMPILE")(ROWS)
    for number, (one, other) in enumerate(zip(found, expected, strict=True)):
        np.testing.assert_allclose(one, other, err_msg=str(number))


def multiplying(factor):
    """Return what Ops make of rows that no rank can import."""

    class Times(OfFunction):
        def compute(self, x):
            return x * factor

    class TimesScalar(ps.UnaryScalarOp):
        def impl(self, x):
            return x * factor

    one = wrap_py([VECTOR], [VECTOR])
    both = wrap_py([VECTOR] * 2, [VECTOR] * 2, lambda fgraph, node, shapes: shapes)
    return [
        one(lambda v: factor * v)(V),
        both(lambda v, w: (v + w, (factor - 1) * w))(V, V)[1] + V,
        Times()(V),
        Elemwise(TimesScalar(ps.same_out, "times"))(V),
    ]


@pytest.mark.filterwarnings("ignore::synk.SplitWarning")
def test_what_is_defined_within_functions_is_sent():
    before = multiplying(3.0)
    early = synk.function([V], before, mode=PY)
    with synk.session(2):
        late = synk.function([V], multiplying(5.0), mode=PY)
        named = synk.function([V], [(var, "gather") for var in before], mode=PY)
        for f, factor in (early, 3), (late, 5), (named, 3):
            for found in f(ROWS):
                np.testing.assert_array_equal(found, factor * ROWS)


SCRIPT = """
import numpy as np, pytensor.tensor as pt, synk
from pytensor.compile.mode import Mode
from pytensor.compile.ops import wrap_py

class NotSent:
    def __reduce__(self):
        raise TypeError("what ranks have is not sent")

have = NotSent()

@wrap_py([pt.dvector], [pt.dvector])
def early(v):
    return v + isinstance(have, NotSent)

synk.fork(2)

@wrap_py([pt.dvector], [pt.dvector])
def late(v):
    return v * 2

x = pt.dvector("x")
f = synk.function([x], [(early(x), "gather"), (late(x), "gather")], mode=Mode("py"))
print([made.tolist() for made in f(np.arange(3.0))])
"""


def test_of_a_script_ranks_have_what_they_were_forked_with(tmp_path):
    result = run_script(SCRIPT, tmp_path)
    assert result.stdout.strip() == "[[1.0, 2.0, 3.0], [0.0, 2.0, 4.0]]", result.stderr
