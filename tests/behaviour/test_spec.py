"""What synk.function refuses at once, and what it makes of its arguments."""

from __future__ import annotations

import warnings

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
import scipy.sparse
from pytensor.compile import UnusedInputError
from pytensor.graph.utils import MissingInputError
from pytensor.sparse import csr_matrix
from reference import DTYPES, ops_of

import synk


def x_of(dtype="float64", ndim=1, name="x"):
    return pt.tensor(name, dtype=dtype, shape=(None,) * ndim)


def bad_arguments():
    """Yield what is wrong, the arguments, and the error they must raise."""
    x, y, c = x_of(), x_of(name="y"), pt.scalar("c")
    w = pytensor.shared(np.zeros(3), name="w")
    n = pytensor.shared(0, name="n")
    rng = pytensor.shared(np.random.default_rng(0), name="rng")
    flag = pt.vector("flag", dtype="bool")
    z = pt.vector("z", dtype="complex128")
    yield "inputs no list", (x,), {}, TypeError, "inputs must be a list"
    yield "generator", ((v for v in [x]),), {}, TypeError, "inputs must be a list"
    yield "no variable", (["x"],), {}, TypeError, "tensor variables, got 'x'"
    yield "array", ([np.zeros(3)],), {}, TypeError, "tensor variables, got array"
    yield "In", ([pytensor.In(x, strict=True)],), {}, TypeError, "variable itself"
    yield "shared input", ([w], w.sum()), {}, TypeError, "w.*sliceable_shareds"
    yield "generator input", ([rng],), {}, TypeError, "rng"
    sparse = pytensor.shared(scipy.sparse.csr_matrix(np.eye(2)), name="S")
    m = csr_matrix("m")
    yield "sparse input", ([m], m), {}, TypeError, "m"
    yield "sparse output", ([], (sparse, "sum")), {}, TypeError, "S.*cannot be reduced"
    yield (
        "slice sparse",
        ([x], x, None, None, None, [sparse]),
        {},
        TypeError,
        "shared t",
    )
    yield "twice", ([x, x], x.sum()), {}, ValueError, "input x is given twice"
    yield "in both", ([x], x.sum(), [x]), {}, ValueError, "input x is given twice"
    yield "scalar", ([c], c), {}, ValueError, "c has no dimensions.*bcast_inputs"
    yield (
        "fixed length",
        ([pt.row("r")], pt.row("r").sum()),
        {},
        ValueError,
        r"r has a fixed first dimension of 1.*\(None, \.\.\.\)",
    )
    yield "bcast no list", ([x], x, c), {}, TypeError, "bcast_inputs must be a list"
    yield "no output", ([x], "x"), {}, TypeError, "outputs must be.*got 'x'"
    yield "triple", ([x], (x, "sum", 1)), {}, TypeError, "outputs must be"
    yield (
        "an op among variables",
        ([x], (x, x, "sum")),
        {},
        TypeError,
        "outputs must be",
    )
    yield "a dict", ([x], {"x": x}), {}, TypeError, "outputs must be"
    yield "unknown op", ([x], (x, "mean")), {}, ValueError, "x: the op.*'avg'.*'mean'"
    yield "op of list", ([x], [(x, ["sum"])]), {}, (TypeError, ValueError), "op"
    yield "avg of bools", ([flag], (flag, "avg")), {}, TypeError, "flag.*'min'.*'max'"
    yield "max of complex", ([z], (z, "max")), {}, TypeError, "complex.*no 'max'"
    yield "generator out", ([], (rng, "sum")), {}, TypeError, "rng.*cannot be reduced"
    yield "no pairs", ([], None, None, [w]), {}, (TypeError, ValueError), "update"
    yield "short", ([], None, None, [(w,)]), {}, ValueError, "an update is"
    yield "no shared", ([x], None, None, [(x, x)]), {}, TypeError, "shared.*got x"
    yield "two", ([], None, None, [(w, w), (w, w)]), {}, ValueError, "w has two updates"
    s = pytensor.shared(0.0, "s")
    yield "gather", ([], None, None, [(s, s, "gather")]), {}, ValueError, "update of s"
    yield "dtype", ([], None, None, {n: n * 0.5}), {}, TypeError, "onvert"
    yield "ndim", ([], None, None, {w: w.sum()}), {}, TypeError, "onvert"
    yield "givens", ([y], x.sum(), None, None, {x: c}), {}, TypeError, "onvert"
    yield "slice y", ([x], x, None, None, None, [y]), {}, TypeError, "shared tensor"
    yield "slice n", ([], n, None, None, None, [n]), {}, ValueError, "n has no dimens"
    yield "slice rng", ([], rng, None, None, None, [rng]), {}, TypeError, "shared tens"
    yield "slice twice", ([], w, None, None, None, [w, w]), {}, ValueError, "twice"
    yield "unused", ([x, y], x.sum()), {}, UnusedInputError, "given y, which no output"
    yield "unused c", ([x], x.sum(), [c]), {}, UnusedInputError, "given c"
    yield "unused w", ([x], x, None, None, None, [w]), {}, UnusedInputError, "given w"
    yield "argument", ([x], x.sum()), {"nane": "f"}, TypeError, "no argument 'nane'"
    yield "missing", ([y], x.sum() + y.sum()), {}, MissingInputError, "x"
    yield "missing c", ([x], x.sum()), {"updates": {w: w * c}}, MissingInputError, "c"
    yield "mode", ([x], x.sum()), {"mode": "FASTER"}, Exception, "FASTER"


@pytest.mark.parametrize(
    ("args", "kwargs", "error", "match"),
    [pytest.param(*case[1:], id=case[0]) for case in bad_arguments()],
)
def test_a_bad_argument_is_refused_where_the_function_is_made(
    args, kwargs, error, match
):
    with pytest.raises(error, match=match):
        synk.function(*args, **kwargs)


def test_an_unused_input_may_be_meant():
    x, y = x_of(), x_of(name="y")
    synk.function([x, y], x.sum(), on_unused_input="ignore")
    with pytest.warns(UserWarning, match="given y"):
        synk.function([x, y], x.sum(), on_unused_input="warn")
    with pytensor.config.change_flags(on_unused_input="ignore"):
        synk.function([x, y], x.sum())


def test_the_arguments_are_not_changed():
    x, y, c = x_of(), x_of(name="y"), pt.scalar("c")
    w = pytensor.shared(np.zeros(3))
    inputs, outputs, bcast = [x, y], [x.sum(), (y, "gather")], [c]
    updates, givens, sliceable = [(w, w + c, "sum")], {y: y * 2}, []
    copies = [list(v) for v in (inputs, outputs, bcast, updates, givens, sliceable)]
    synk.function(inputs, outputs, bcast, updates, givens, sliceable)
    after = [list(v) for v in (inputs, outputs, bcast, updates, givens, sliceable)]
    assert after == copies


def test_lists_may_be_tuples_where_pytensor_takes_them():
    x, c = x_of(), pt.scalar("c")
    w = pytensor.shared(0.0)
    f = synk.function((x,), [x.sum() * c], (c,), ((w, w + 1),), ((c, c + 1),), ())
    assert f.output_modes == ["sum"]
    assert f.update_modes == [None]


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_op_that_means_something_is_accepted(dtype):
    x = x_of(dtype)
    ops = [*ops_of(dtype), "gather", None]
    f = synk.function([x], [(x[0] if op else x, op) for op in ops])
    assert f.output_modes == ops


def test_an_op_that_is_not_named_is_the_one_that_fits():
    x, y, b = x_of(), x_of("int64", name="y"), pt.vector("b")
    s = pytensor.shared(np.zeros(3))
    w = pytensor.shared(0.0)
    outputs = [x.mean(), y.max(), b.sum(), w, (x, None), x.shape[0] * 1.0, y * 2]
    f = synk.function([x, y], outputs, [b], {w: b.sum()}, givens={})
    assert f.output_modes == ["avg", "max", None, None, None, "sum", "gather"]
    assert f.update_modes == [None]
    g = synk.function([y], x.mean(), givens={x: y * 1.0})
    assert g.output_modes == ["avg"]
    h = synk.function([x], [x.sum() + 0 * w, x[0]], updates={w: x.sum() * w})
    assert h.output_modes == ["sum", None]
    assert h.update_modes == [None]
    h = synk.function([x], [x.sum()], updates={w: x.sum() * w}, local=True)
    assert h.update_modes == ["sum"]
    k = synk.function([], [s.sum(), s.mean()], sliceable_shareds=[s])
    assert k.output_modes == ["sum", "avg"]


def test_what_a_local_function_does_not_combine_is_averaged_with_a_warning():
    x = x_of()
    with pytest.warns(synk.SplitWarning, match=r"output 0 \(Sqrt.*Sqrt") as caught:
        f = synk.function([x], pt.sqrt(x.mean()), local=True)
    assert f.output_modes == ["avg"]
    assert [warning.filename for warning in caught] == [__file__]


def test_nothing_is_compiled_and_nobody_is_told_before_the_first_call():
    from synk.ranks.session import SESSION

    x = x_of()
    with synk.session(2):
        before = SESSION.control.command
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            f = synk.function([x], x.sum())
        assert SESSION.control.command == before
        assert not f._engines.present.is_compiled
