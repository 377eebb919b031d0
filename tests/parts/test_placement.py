"""What is placed in a graph gives the serial numbers on any ranks, here in one process.

Random graphs are few and the same in every run. Those who change a rule look at ten
times as many by ``--hypothesis-profile=long``.
"""

import contextlib
import functools
import itertools
import random

import numpy as np
import placement_cases as cases
import pytensor
import pytensor.tensor as pt
import pytest
from hypothesis import settings
from in_process import COUNTS, InProcess
from placement_cases import INPUTS, X, Y
from proof_corpus import INPUTS as CORPUS_INPUTS
from proof_corpus import refused, values_of
from pytensor import scalar as ps
from pytensor.compile.builders import OpFromGraph
from pytensor.gradient import Rop, jacobian
from pytensor.scan.utils import until
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.math import Min
from pytensor.tensor.special import log_softmax, softmax
from random_graphs import is_close
from random_lengths import ROWS as LENGTHS
from random_lengths import Graph, inputs_of, scan
from random_loops import seeded
from reference import INTEGERS, PY, shared_of

import synk
from synk import nn

TIMES = 10 if settings.get_current_profile_name() == "long" else 1
FAST = pytensor.compile.mode.Mode("py", "fast_run")
IN_PYTHON = {"mode": PY, "linker": "py", "cxx": "", "traceback__limit": 0}
OPTIONS = {"mode": PY, "on_unused_input": "ignore"}

pytestmark = pytest.mark.filterwarnings("ignore::synk.SplitWarning")


@pytest.fixture(autouse=True, scope="module")
def in_python():
    """Have Ops that are graphs themselves, and scans, run in Python."""
    with pytensor.config.change_flags(**IN_PYTHON):
        yield


# -- graphs that people write ----------------------------------------------------------


def check(named, inputs, calls, counts=COUNTS):
    """Compare graphs with the serial run: as outputs, and as updates on every rank."""
    graphs = list(named.values())
    updates = [(shared_of(var.dtype, var.type.shape), var) for var in graphs]
    ranks = InProcess(synk.function(inputs, graphs, updates=updates, **OPTIONS))
    plain = pytensor.function(inputs, graphs, **OPTIONS)
    for values in calls:
        right = plain(*values)
        for n in counts:
            found = ranks(n, *values)
            for results in (found.outputs, *found.updates):
                for name, got, expected in zip(named, results, right, strict=True):
                    what = f"{name}, {len(values[0])} rows of {n} ranks"
                    cases.assert_equal(what, got, expected)


KINDS = [cases.statistics, cases.gradients, cases.gathered, cases.fitted]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_plain_graphs_give_the_serial_numbers(kind):
    check(dict(kind()), INPUTS, [cases.values(7), cases.values(4)])


NOT_SERIAL = {
    *("columns of a vector", "all in one row", "two rows", "less than no length"),
    *("matrix of fixed length", "noise alike for all"),
}
"""What the serial run cannot compute of seven rows either, and what draws."""


def test_what_the_proof_refuses_is_placed():
    graphs = {name: var for name, var, _ in refused() if name not in NOT_SERIAL}
    assert len(graphs) > 80
    check(graphs, CORPUS_INPUTS, [values_of(7)], (2, 5))


# -- rows that meet a constant of as many rows, and go into Ops that are graphs --------

A, B = pt.dvectors("a", "b")
PRODUCT = OpFromGraph([A, B], [A * B, (A * B).sum()])


def beside(c):
    """Yield what rows give beside a constant that has a number for each row."""
    weighted = X * c[:, None]
    yield "softmax", softmax(weighted, axis=1)
    yield "softmax along the rows", softmax(weighted, axis=0)
    yield "its gradient", pt.grad(log_softmax(weighted, axis=1)[:, 0].sum(), X)
    yield "a graph", PRODUCT(Y * c, Y)[0]
    yield "sum of a graph", PRODUCT(c, Y * c)[1]


def of_all(c):
    """Yield what takes all rows beside it."""
    weighted = X * c[:, None]
    yield "diagonal", pt.diag(Y * c)
    yield "gradient of padded", pt.grad((pt.pad(Y * c, (1, 1)) ** 2).sum(), Y)
    yield "padded columns", pt.pad(weighted, ((0, 0), (1, 1)), mode="edge")
    yield "Kronecker product", pt.linalg.kron(weighted, X)
    yield "pairs", pt.tril(pt.outer(Y * c, c))


def test_ranks_take_their_rows_of_a_constant_of_as_many():
    numbers = np.arange(1.0, 9)
    kinds = {
        "constant": pt.constant(numbers),
        "shared": pytensor.shared(numbers, "shared"),
        "shared of fixed length": pytensor.shared(numbers, "fixed", shape=(8,)),
    }
    graphs = dict(of_all(kinds["shared of fixed length"]))
    for kind, c in kinds.items():
        graphs |= {f"{name} by {kind}": graph for name, graph in beside(c)}
    check(graphs, INPUTS, [cases.values(8)], (2, 3))


# -- integers near the limits of their dtypes, which wrap around -----------------------

ROWS = 9


def near_the_limits(dtype, shape):
    """Return values that are small, or close to the least or the largest."""
    limits, rng = np.iinfo(dtype), np.random.default_rng(3)
    close = [limits.min, limits.min + 2, limits.max, limits.max - 5, limits.max // 2]
    some = [*close, 1, 3, 7, limits.max // 3, limits.max // 5 + 1]
    return np.array(some, dtype)[rng.integers(0, len(some), shape)]


def reduced(x):
    """Return what comes of rows, over all of them."""
    dtype = x.type.dtype
    return [
        x.max(axis=0),
        Min(axis=(0,))(x),  # x.min() is -max(-x), of the least what rewrites make of it
        x.sum(axis=0),
        x.sum(axis=0, dtype=dtype),
        x.prod(axis=0, dtype=dtype),
        pt.dot(x.T, x),
        x.shape[0].astype(dtype) * x[0, 0],
        x.shape[0].astype(dtype) * x,
        pt.eq(x, x.max()).sum(axis=0),
        (x * 3).max(axis=0),
        -Min(axis=(0,))(x),
    ]


def cast_to(dtype):
    """Return a cast whose Op nothing has compiled before; see `casts_in_python`."""

    def cast(v, constant=None):
        if dtype in INTEGERS and v.type.dtype.startswith("float"):
            return v  # what comes of numbers out of range is not defined
        return Elemwise(ps.Cast(getattr(ps, dtype), f"cast to {dtype}"))(v)

    return cast


def wrapping(dtype):
    """Return what makes of a number one of a dtype, as C does."""
    return lambda number: np.asarray(number).astype(dtype)[()]


def steps(n):
    """Return what computes with such a value and a constant."""
    return [
        *[pt.add, pt.mul, pt.sub, pt.maximum, pt.minimum],
        lambda v, c: c - v,
        lambda v, c: v // c,
        lambda v, c: v / c,
        lambda v, c: pt.switch(v > 0, v, c),
        lambda v, c: -v,
        lambda v, c: pt.abs(v),
        lambda v, c: pt.sqr(v),
        lambda v, c: v + v,
        lambda v, c: v * n,
        lambda v, c: v / n,
        lambda v, c: v + np.int32(1),
        lambda v, c: v + np.int64(1),
        lambda v, c: v.sum(axis=-1),
        lambda v, c: v.max(axis=-1),
        lambda v, c: pt.stack([v, cast_to("int64")(v)]),
        *map(cast_to, [*INTEGERS, "float64", "float32"]),
    ]


def expressions(x, seed, many):
    """Yield values of one, two or three steps."""
    choice = random.Random(seed).choice
    first, then = reduced(x), steps(x.shape[0])
    for _ in range(many):
        value = choice(first)
        for _ in range(choice([1, 2, 2, 3])):
            if value.type.ndim:
                numbers = [2, 10]
                if value.type.dtype in INTEGERS:
                    limits = np.iinfo(value.type.dtype)
                    numbers += [limits.max - 3, limits.min + 1]
                constant = np.array(choice(numbers)).astype(value.type.dtype)
                value = choice(then)(value, constant)
        yield value


@pytest.fixture
def casts_in_python(monkeypatch):
    """Have casts wrap around in Python mode as they do in C; they would raise there.

    PyTensor's own Ops keep the method that they were compiled with, which may have been
    before; it asks for their `ctor`.
    """

    def impl(self, number):
        return wrapping(self.o_type.dtype)(number)

    monkeypatch.setattr(ps.Cast, "impl", impl)
    for dtype in INTEGERS:
        cast = getattr(ps, f"convert_to_{dtype}")
        monkeypatch.setattr(cast, "ctor", wrapping(dtype))


@pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::UserWarning")
def test_values_near_the_limits_are_those_of_the_serial_run(casts_in_python):
    for seed, dtype in enumerate(INTEGERS):
        x = pt.matrix("x", dtype=dtype)
        values = near_the_limits(dtype, (ROWS, 3))
        outputs = list(expressions(x, 10 * seed, 40))
        expected = pytensor.function([x], outputs, mode=PY)(values)
        ranks = InProcess(synk.function([x], outputs, mode=PY))
        for n in (2, 3):
            found = ranks(n, values).outputs
            for var, one, other in zip(outputs, found, expected, strict=True):
                text = f"{dtype}: {pytensor.printing.pp(var)}"
                assert one.dtype == other.dtype, text
                np.testing.assert_allclose(one, other, 1e-5, err_msg=text)
                if one.dtype.kind in "biu":
                    np.testing.assert_array_equal(one, other, text)


# -- random graphs ---------------------------------------------------------------------


def made(graph):
    return [term.var for term in graph.made]


def placed(seed, names):
    """Return the function of a random graph on ranks; None where one is refused."""
    graph = seeded(seed, of=names)
    f = synk.function(graph.inputs, made(graph), **OPTIONS)
    with contextlib.suppress(synk.SplitError):
        return InProcess(f)


@functools.cache
def serial(seed, names, rows, mode):
    """Return what plain PyTensor makes of a random graph."""
    graph, options = seeded(seed, of=names), OPTIONS | {"mode": mode}
    with np.errstate(all="ignore"):
        plain = pytensor.function(graph.inputs, made(graph), **options)
        return plain(*graph.values(rows, 1))


def wrongs(seed, names, ranks, counts, all_rows):
    """Yield what ranks compute of random rows, and should not.

    PyTensor's rewrites make 1 of x / x, be x 0: it is enough to agree with them.
    """
    for rows, n in itertools.product(all_rows, counts):
        with np.errstate(all="ignore"):
            found = ranks(n, *seeded(seed, of=names).values(rows, 1)).outputs
        plain = (serial(seed, names, rows, mode) for mode in (PY, FAST))
        if not any(all(map(is_close, found, right)) for right in plain):
            yield seed, n, rows


@pytest.mark.parametrize("names", ["rows", "met"])
def test_random_graphs_are_placed_and_give_the_serial_numbers(names):
    unplaced, seeds = 0, 12 * TIMES
    for seed in range(seeds):
        ranks = placed(seed, names)
        unplaced += ranks is None
        if ranks is not None:
            assert not list(wrongs(seed, names, ranks, (2, 3, 5), (5, 2)))
    assert unplaced <= seeds / 100


# -- a length is a value like any other: what is whole and a number are of the same rows


def check_outputs(inputs, graph, calls, counts=(1, 2, 3)):
    """Compare a function with PyTensor's."""
    ranks = InProcess(synk.function(inputs, list(graph), **OPTIONS))
    plain = pytensor.function(inputs, list(graph), **OPTIONS)
    for values, n in itertools.product(calls, counts):
        triples = zip(graph, ranks(n, *values).outputs, plain(*values), strict=True)
        for var, got, expected in triples:
            where = f"{var}, {len(values[0])} rows of {n} ranks"
            np.testing.assert_allclose(got, expected, 1e-9, 1e-12, err_msg=where)


def recurrences(x, w):
    """Yield gradients and values that go through steps from row to row."""
    a, zero = x @ w, pt.as_tensor(np.float64(0))
    mean = a.mean()

    def states(**options):
        return scan(lambda a, h: pt.tanh(a + 0.5 * h), [a], [zero], **options)

    def slope(h, wrt=w):
        return pt.grad((h**2).mean(), wrt)

    yield slope(states(go_backwards=True))
    yield slope(states(truncate_gradient=3))
    yield pt.grad((slope(states()) ** 2).sum(), w)
    yield jacobian(states(), w)
    taps = {"initial": pt.zeros(2), "taps": [-2, -1]}
    yield slope(scan(lambda a, g, h: pt.tanh(a + 0.5 * h - 0.2 * g), [a], [taps]))
    taps = {"input": a, "taps": [-1, 0]}
    yield slope(scan(lambda b, a, h: pt.tanh(a - 0.3 * b + 0.5 * h), [taps], [zero]))
    by_mean = {"non_sequences": [mean]}
    yield slope(scan(lambda a, h, m: pt.tanh(a * m + 0.5 * h), [a], [zero], **by_mean))
    yield slope(scan(lambda a, h: pt.tanh(a + 0.5 * h), [a], [mean]))
    by_mean["n_steps"] = x.shape[0]  # no rows but their number
    h = scan(lambda h, m: pt.tanh(m + 0.5 * h), [], [zero], **by_mean)
    yield from [h, *slope(h, [w, x])]
    vectors = {"non_sequences": [w], "strict": True}
    h = scan(lambda a, h, w: pt.tanh(a * w + 0.5 * h), [x], [pt.zeros(3)], **vectors)
    yield from [h.sum(axis=0), slope(h)]
    h, out = scan(lambda a, h: (pt.tanh(a + 0.5 * h), a * h), [a], [zero, None])
    yield pt.grad((h * out).mean(), w)
    yield from [Rop(states(), w, pt.ones_like(w)), Rop((states() ** 2).mean(), w, w)]
    h = states()
    yield from [h[::-1], pt.grad(((h - a) ** 2).mean() / x.shape[0], w)]
    h = scan(lambda v: (v * v, until(v > 0.5)), [a], [None])
    yield from [h, h.sum(), *pt.grad(h.sum(), [w, x])]


def test_what_goes_through_a_recurrence_is_as_in_the_serial_run():
    x, w = pt.matrix("x"), pytensor.shared(np.array([0.3, -0.2, 0.5]), "w")
    rng = np.random.default_rng(8)
    calls = [[rng.normal(size=(n, 3))] for n in (8, 5, 2, 1)]
    check_outputs([x], list(recurrences(x, w)), calls, (2, 3))


@pytest.mark.parametrize("seed", range(300 if TIMES > 1 else 8))
def test_lengths_are_of_the_same_rows_as_what_they_meet(seed):
    graph = Graph(seed)
    graph.grow(8)
    made = graph.made
    f = synk.function(graph.inputs, [term.var for term in made], **OPTIONS)
    ranks = InProcess(f)
    for (i, rows), n in itertools.product(enumerate(LENGTHS), (1, 2, 3)):
        with np.errstate(all="ignore"):
            found = ranks(n, *inputs_of(rows)).outputs
        for term, got in zip(made, found, strict=True):
            expected, where = term.values[i], f"{(rows, n, term.var)}"
            scale = 1e-9 * np.abs(expected).max(initial=1)
            np.testing.assert_allclose(got, expected, 1e-9, scale, True, where)


def test_arrays_whose_length_the_values_of_all_rows_decide():
    x, y, k = pt.matrix("x"), pt.vector("y"), pt.lvector("k")
    many = pt.alloc(y, (y > y.mean()).sum(), y.shape[0])
    above = x[y > y.mean()]
    graph = [
        many.shape[0] * many,
        pt.inc_subtensor(pt.zeros((9, y.shape[0]))[: many.shape[0]], many),
        pt.zeros((9, 2))[: above.shape[0]],
        above.shape[0] + pt.arange(y.shape[0]),
        pt.inc_subtensor(pt.zeros((y.shape[0], x[k].shape[1]))[k], x[k]),
        pt.specify_shape(pt.sort(y), y.shape[0]),
        pt.specify_shape(y[k], x.shape[0]),
    ]
    check_outputs([x, y, k], graph, map(inputs_of, (9, 4, 2)))


def test_gradients_of_images_that_are_needed_at_once():
    images = pt.tensor4("images")
    filters = pytensor.shared(np.random.default_rng(0).normal(size=(3, 2, 2, 2)))
    modes = "max", "sum", "average_exc_pad", "average_inc_pad"
    made = [nn.pool_2d(images, (2, 2), mode=mode) for mode in modes]
    made.append(nn.conv2d(images, filters))
    graph = [pt.grad((pt.cumsum(h, axis=0) ** 2).sum(), images) for h in made]
    values = np.random.default_rng(1).normal(size=(5, 2, 4, 4))
    check_outputs([images], graph, [[values], [values[:4]]])
