"""What is placed in a graph gives the serial numbers on any ranks, here in one process.

Random graphs are few and the same in every run. Those who change a rule look at ten
times as many by ``--hypothesis-profile=long``.
"""

from __future__ import annotations

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
from pytensor.graph.traversal import ancestors
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.math import Min
from pytensor.tensor.special import log_softmax, softmax
from random_equations import examine
from random_graphs import is_close
from random_loops import seeded
from reference import INTEGERS, PY

import synk
from synk.compiler.domain import Unknown
from synk.compiler.placement.function import place
from synk.compiler.spec import UNNAMED, Asked, PlacedSpec

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
    kept = [
        pytensor.shared(np.zeros([n or 0 for n in graph.type.shape], graph.dtype))
        for graph in graphs
    ]
    updates = list(zip(kept, graphs, strict=True))
    ranks = InProcess(synk.function(inputs, graphs, updates=updates, **OPTIONS))
    plain = pytensor.function(inputs, graphs, **OPTIONS)
    for values in calls:
        right = plain(*values)
        for n in counts:
            found = ranks(n, *values)
            for results in (found.outputs, *found.updates):
                for name, got, expected in zip(named, results, right, strict=True):
                    what = f"{name}, {len(values[0])} rows of {n} ranks"
                    assert np.shape(got) == np.shape(expected), what
                    size = np.abs(expected).max(initial=0, where=np.isfinite(expected))
                    np.testing.assert_allclose(
                        got, expected, 1e-10, 1e-10 * size, err_msg=what
                    )


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


# -- what placing says of the values that it places: the proof takes it as it is -------


def differences(inputs, graph, own_statistics=False):
    """Return of what the rules say something else than was known when it was placed."""
    asked = Asked(
        arguments=inputs,
        inputs=inputs,
        bcast_inputs=[],
        cut=None,
        plain_outputs=graph,
        output_ops=[UNNAMED] * len(graph),
        plain_updates=[],
        update_ops=[],
        sliceable=[],
        stand_ins=[],
        returns="list",
        keeps_statistics=own_statistics,
    )
    spec, known = place(PlacedSpec.as_written(asked))
    found = examine(inputs, spec.outputs, spec.asserted)
    return [
        (var, known.values[var], found[var])
        for var in ancestors(spec.outputs)
        if var in known.values
        and known.values[var] != found[var]
        and not isinstance(found[var], Unknown)
    ]


def graphs():
    """Return inputs and outputs of many functions."""
    kinds = cases.statistics, cases.gradients
    found = [(INPUTS, [var]) for kind in kinds for _, var in kind()]
    for seed, names in itertools.product(range(6 * TIMES), ("rows", "met")):
        graph = seeded(seed, of=names)
        found.append((graph.inputs, made(graph)))
    return found


def test_the_rules_say_of_a_placed_graph_what_was_known_when_it_was_placed():
    for own_statistics, of in itertools.product((False, True), graphs()):
        assert differences(*of, own_statistics) == []
