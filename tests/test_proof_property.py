"""Whatever the splitting proof says of a random graph is true of it, for any split.

The equations of the proof's domain are checked for every variable of a graph, by
computing it from all rows, and from the rows of each part. What each op then makes of
the parts is compared with the whole, and for some graphs by ranks in real sessions.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter

import numpy as np
import pytensor
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pytensor.compile import SharedVariable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.type import DenseTensorType
from random_graphs import Choice, Graph
from reference import PY

from synk.comm.ops import combine
from synk.compiler.domain import Listed, Position, Rows, Same, Unknown
from synk.compiler.proof import examine, ops_of

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


def close(got, expected, scale) -> bool:
    """Compare to rounding, of numbers that were as large as `scale` on the way."""
    if np.shape(got) != np.shape(expected):
        return False
    with np.errstate(all="ignore"):
        bound = 1e-7 * np.maximum(np.abs(expected), scale)
        near = np.abs(np.subtract(got, expected)) <= bound
    same = near | (got == expected) | (np.isnan(got) & np.isnan(expected))
    return bool(np.all(same))


def fulfils(value, whole, parts, sizes) -> bool:
    """Tell whether a variable's values fulfil the equation of the proof's domain."""
    n = sum(sizes)
    scale = max(np.abs(part).max(initial=0) for part in [whole, *parts])
    if not np.isfinite(scale) or scale > 1e9:
        return True  # rounding may be anything
    if isinstance(value, Listed):
        entries = zip(value.entries, whole, *parts, strict=True)
        return all(
            isinstance(v, Unknown) or fulfils(v, w, p, sizes) for v, w, *p in entries
        )
    if isinstance(value, Position):
        shape = [1] * whole.ndim
        shape[value.axis] = -1
        return all(
            np.array_equal(v, np.arange(size).reshape(shape))
            for v, size in zip(parts, sizes, strict=True)
        )
    if value.power is None and any(np.any(part) for part in [whole, *parts]):
        return False
    power = value.power or 0
    parts = [part / size**power for part, size in zip(parts, sizes, strict=True)]
    whole = whole / n**power
    scale /= min(1, *(size**power for size in sizes))
    if isinstance(value, Same):
        exact = not value.exact or whole == 1
        number = value.number is None or np.all(whole == value.number)
        return exact and number and all(close(part, whole, scale) for part in parts)
    if isinstance(value, Rows):
        lengths = [part.shape[value.axis] for part in parts]
        if value.length == "n" and lengths != sizes:
            return False
        return close(np.concatenate(parts, value.axis), whole, scale)
    total = UFUNCS[value.op].reduce(parts)
    return close(total, whole, scale * len(parts))


def combined(op, parts, sizes):
    """Do what a session does with the ranks' values."""
    if op is None:
        return parts[0]
    if op == "gather":
        return np.concatenate(parts)
    return combine(op, parts, sizes)


def wrongs(graph: Graph, splits, kinds: Counter | None = None) -> list[str]:
    """Return what the proof says of a graph that is not so."""
    made = [term.var for term in graph.made]
    values = examine(graph.inputs, [], made)
    known = [
        var
        for var in ancestors(made)
        if isinstance(var.type, DenseTensorType)
        and not isinstance(var, SharedVariable)
        and not isinstance(values[var], Unknown)
    ]
    for var in {*made, *known}:
        value = values[var]
        assert not isinstance(value, Unknown) or "could not" not in value.why, value
        if kinds is not None and var in made:
            kinds[type(value).__name__, getattr(value, "op", None)] += 1
    f = pytensor.function(graph.inputs, known, mode=PY, on_unused_input="ignore")
    found = []
    for sizes in splits:
        inputs = graph.values(sum(sizes), 1)
        cuts = np.cumsum([0, *sizes])
        with np.errstate(all="ignore"):
            whole = f(*inputs)
            parts = [
                f(*(array[low:high] for array in inputs))
                for low, high in itertools.pairwise(cuts)
                if low < high
            ]
        present = [size for size in sizes if size]
        for i, var in enumerate(known):
            of_var = [part[i] for part in parts]
            value = values[var]
            if not fulfils(value, whole[i], of_var, present):
                found.append(f"{value} of {var} for {sizes}")
            for op in ops_of(value) if var in made else ():
                result = combined(op, of_var, present)
                scale = max(np.abs(part).max(initial=0) for part in [whole[i], *of_var])
                big = not np.isfinite(scale) or scale > 1e9
                if not big and not close(result, whole[i], scale * len(parts)):
                    found.append(f"{op} of {var} for {sizes}")
    return found


SPLITS = [[5], [3, 2], [1, 4], [4, 2, 1], [1, 0, 2], [3, 1, 2, 2, 1], [1, 0, 1, 0, 0]]


def seeded(seed: int, steps: int = 7) -> Graph:
    """Return a random graph that a seed determines."""
    graph = Graph(Choice(random.Random(seed).randrange))
    graph.grow(steps)
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
    graph.grow(data.draw(st.integers(1, 8)))
    sizes = data.draw(
        st.sampled_from([1, 2, 3, 5]).flatmap(
            lambda n: st.lists(st.integers(0, 4), min_size=n, max_size=n).filter(any)
        )
    )
    assert not wrongs(graph, [sizes])
