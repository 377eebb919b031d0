"""Whatever the splitting proof says of a random graph is true of it, for any split.

The equations of the proof's domain are checked for every variable of a graph, by
computing it from all rows, and from the rows of each part. What each op then makes of
the parts is compared with the whole, and for some graphs by ranks in real sessions.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from dataclasses import replace

import numpy as np
import pytensor
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pytensor.compile import SharedVariable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.type import DenseTensorType
from random_graphs import Choice, Graph
from random_productions import PRODUCTIONS
from reference import PY

import synk
from synk.comm.ops import combine
from synk.compiler import domain
from synk.compiler.domain import Fold, Listed, Position, Rows, Same, Unknown
from synk.compiler.proof import examine, ops_of
from synk.compiler.rules import elementwise, indexing, products, reductions, shapes
from synk.errors import ShapeMismatch

UFUNCS = {
    "sum": np.add,
    "prod": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
}


@pytest.fixture(autouse=True, scope="module")
def python_linker():
    """Have graphs inside of Ops run by Python too: compiling takes far longer."""
    with pytensor.config.change_flags(linker="py"):
        yield


def close(got, expected, scale, before=0) -> bool:
    """Compare to rounding.

    Numbers were as large as `scale` in the parts, and `before` in what they were
    computed from, and may have cancelled.
    """
    if np.shape(got) != np.shape(expected):
        return False
    if np.asarray(expected).dtype.kind == "b":
        return bool(np.all(got == expected))
    with np.errstate(all="ignore"):
        bound = 1e-6 * np.maximum(np.abs(expected), scale)
        if np.isfinite(before):
            bound = bound + 1e-12 * before
        near = np.abs(np.subtract(got, expected)) <= bound
    same = near | (got == expected) | (np.isnan(got) & np.isnan(expected))
    return bool(np.all(same))


def largest(arrays) -> float:
    """Return the largest magnitude."""
    with np.errstate(all="ignore"):
        return float(np.max([np.abs(array).max(initial=0) for array in arrays]))


def fulfils(value, whole, parts, sizes, before) -> bool:
    """Tell whether a variable's values fulfil the equation of the proof's domain."""
    n = sum(sizes)
    scale = largest([whole, *parts])
    if isinstance(value, Position):
        shape = [1] * whole.ndim
        shape[value.axis] = -1
        return all(
            np.array_equal(v, np.arange(size).reshape(shape))
            for v, size in zip(parts, sizes, strict=True)
        )
    if value.power is None and scale:
        return False
    power = value.power or 0
    parts = [part / size**power for part, size in zip(parts, sizes, strict=True)]
    whole = whole / n**power
    most = 1 / min(1, *(size**power for size in sizes))
    scale, before = scale * most, before * most
    if isinstance(value, Same):
        exact = not value.exact or np.all(whole == 1)
        number = value.number is None or np.all(whole == value.number)
        return (
            exact
            and number
            and all(close(part, whole, scale, before) for part in parts)
        )
    if isinstance(value, Rows):
        lengths = [part.shape[value.axis] for part in parts]
        if value.length == "n" and lengths != sizes:
            return False
        return close(np.concatenate(parts, value.axis), whole, scale, before)
    total = UFUNCS[value.op].reduce(parts)
    return close(total, whole, scale * len(parts), before)


def combined(op, parts, sizes):
    """Do what a session does with the ranks' values."""
    if op is None:
        return parts[0]
    if op == "gather":
        return np.concatenate(parts)
    return combine(op, parts, sizes)


def wrongs(graph: Graph, splits) -> list[str]:
    """Return what the proof says of a graph that is not so."""
    made = {term.var for term in graph.made}
    values = examine(graph.inputs, [], made)
    known = [
        var
        for var in ancestors(made)
        if isinstance(var.type, DenseTensorType)
        and not isinstance(var, SharedVariable)
        and not isinstance(values[var], (Unknown, Listed))
    ]
    earlier = {var: set(ancestors([var])) for var in known}
    f = pytensor.function(graph.inputs, known, mode=PY, on_unused_input="ignore")
    found = []
    for sizes in splits:
        try:
            results = computed(f, graph.values(sum(sizes), 1), sizes)
        except (ValueError, IndexError, TypeError) as error:
            found.append(f"{error!r} for {sizes}")
            continue
        present = [size for size in sizes if size]
        scales = {var: largest(of) for var, of in zip(known, results, strict=True)}
        for var, (whole, *parts) in zip(known, results, strict=True):
            before = max(s for v, s in scales.items() if v in earlier[var])
            claims = [values[var], *(ops_of(values[var]) if var in made else ())]
            for claim in claims:
                if not is_true(claim, whole, parts, present, before):
                    found.append(f"{claim} of {var} for {sizes}")
    return found


def computed(f, inputs, sizes) -> list[tuple]:
    """Return for each output what comes of all rows, then of each part that has any."""
    cuts = np.cumsum([0, *sizes])
    parts = [(0, cuts[-1]), *itertools.pairwise(cuts)]
    with np.errstate(all="ignore"):
        results = [
            f(*(array[low:high] for array in inputs))
            for low, high in parts
            if low < high
        ]
    return list(zip(*results, strict=True))


def is_true(claim, whole, parts, sizes, before) -> bool:
    """Check an equation, or that an op combines the parts to the whole."""
    scale = largest([whole, *parts])
    if not np.isfinite(scale) or scale > 1e9:
        return True  # rounding may be anything
    try:
        if claim is None or isinstance(claim, str):
            result = combined(claim, parts, sizes)
            return close(result, whole, scale * len(parts), before)
        return fulfils(claim, whole, parts, sizes, before)
    except (ValueError, IndexError, ShapeMismatch):
        return False  # shapes are not what they should be


SPLITS = [[5], [3, 2], [1, 4], [4, 2, 1], [1, 0, 2], [3, 1, 2, 2, 1], [1, 0, 1, 0, 0]]


def seeded(seed: int, steps: int = 7) -> Graph:
    """Return a random graph that a seed determines."""
    graph = Graph(Choice(random.Random(seed).randrange))
    graph.grow(steps, PRODUCTIONS)
    return graph


@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(st.data())
def test_what_the_proof_says_is_true(data):
    choice = Choice(lambda n: data.draw(st.integers(0, n - 1)))
    graph = Graph(choice)
    graph.grow(data.draw(st.integers(1, 8)), PRODUCTIONS)
    sizes = data.draw(
        st.sampled_from([1, 2, 3, 5]).flatmap(
            lambda n: st.lists(st.integers(0, 4), min_size=n, max_size=n).filter(any)
        )
    )
    assert not wrongs(graph, [sizes])


def test_the_proof_understands_most_and_refuses_some():
    kinds: Counter = Counter()
    for seed in range(120):
        graph = seeded(seed)
        assert not wrongs(graph, SPLITS)
        made = [term.var for term in graph.made]
        values = examine(graph.inputs, [], made)
        for value in map(values.get, made):
            kinds[type(value).__name__, getattr(value, "op", None)] += 1
            assert not isinstance(value, Unknown) or "examined" not in value.why
    total = sum(kinds.values())
    unknown = sum(count for (kind, _), count in kinds.items() if kind == "Unknown")
    assert 0.1 < unknown / total < 0.5
    for kind in ("Rows", "Same"):
        assert kinds[kind, None] > 0.1 * total
    for op, share in (("sum", 0.1), ("max", 0.01), ("min", 0.01), ("prod", 0.01)):
        assert kinds["Fold", op] > share * total, op


def flattery(rule, *found):
    """Return a rule that says what is found, where the right one refuses."""

    def wrong(*args):
        try:
            return rule(*args)
        except domain.Refused:
            return next(value(*args) for value in found)

    return wrong


def first_rows(values):
    rows = [value for value in values if isinstance(value, Rows)]
    return rows[0] if rows else None


BROKEN = {
    "rows along any axis go together": (domain, "align", first_rows),
    "a sum and a constant make a sum": (
        domain,
        "common",
        lambda powers: max((p for p in powers if p is not None), default=None),
    ),
    "minus leaves a maximum a maximum": (elementwise, "negated", lambda value: value),
    "factors leave a maximum a maximum": (domain, "negated", lambda value: value),
    "a product's power is that of one factor": (
        domain,
        "times",
        lambda *powers: powers[0],
    ),
    "one over n is n": (elementwise, "inverse", lambda value: domain.plain(value)),
    "functions of folds are folds": (
        elementwise,
        "independent",
        flattery(
            domain.independent,
            lambda values: next(v for v in values if isinstance(v, Fold)),
        ),
    ),
    "any rows are all rows": (indexing.Index, "check_rows", lambda *args: None),
    "reductions forget the power": (
        reductions,
        "fold",
        lambda op, rows: Fold(op, 0),
    ),
    "any axis that is gone was before the rows'": (
        reductions,
        "shifted",
        lambda rows, axes: replace(rows, axis=max(rows.axis - len(axes), 0)),
    ),
    "sorts go along the rows": (
        reductions,
        "_along",
        lambda axes, value: domain.plain(value),
    ),
    "the first axis has n entries": (
        shapes,
        "length",
        lambda value, axis: Same(int(axis == 0), exact=axis == 0),
    ),
    "products over the rows are rows": (
        products,
        "fold",
        lambda op, rows: Rows(0, rows.power),
    ),
}


@pytest.mark.parametrize(
    ("module", "attribute", "wrong"), BROKEN.values(), ids=BROKEN.keys()
)
def test_a_wrong_rule_would_be_noticed(monkeypatch, module, attribute, wrong):
    monkeypatch.setattr(module, attribute, wrong)
    for seed in range(1000):
        if wrongs(seeded(seed, steps=10), SPLITS[1:3]):
            return
    pytest.fail("no graph has shown that the rule is wrong")


def test_ranks_return_what_the_serial_run_does(ranks):
    for seed in range(10):
        graph = seeded(1000 + seed, steps=10)
        values = examine(graph.inputs, [], [term.var for term in graph.made])
        outputs = [term.var for term in graph.made if ops_of(values[term.var])]
        f = synk.function(
            graph.inputs, outputs, mode=PY, on_unused_input="ignore", strict=True
        )
        plain = pytensor.function(
            graph.inputs, outputs, mode=PY, on_unused_input="ignore"
        )
        for rows in (1, 4, 9):
            inputs = graph.values(rows, seed)
            with np.errstate(all="ignore"):
                got, expected = f(*inputs), plain(*inputs)
            for var, one, other in zip(outputs, got, expected, strict=True):
                scale = np.abs(other).max(initial=0)
                big = not np.isfinite(scale) or scale > 1e9
                assert big or close(one, other, scale * rows), (seed, rows, var)
