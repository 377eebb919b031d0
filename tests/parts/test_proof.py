"""Whatever the splitting proof says of a random graph is true of it, for any split.

The equations of the proof's domain are checked for every variable of a graph, by
computing it from all rows, and from the rows of each part. What each op then makes of
the parts is compared with the whole.

The graphs are few and the same in every run. Those who change a rule look at ten times
as many, others each time, by ``--hypothesis-profile=long``.
"""

import itertools
from collections import Counter

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pytensor.compile import SharedVariable
from pytensor.graph.traversal import ancestors
from pytensor.scan.op import Scan
from pytensor.tensor.subtensor import Subtensor
from pytensor.tensor.type import DenseTensorType
from random_equations import (
    as_graph,
    blocks_of,
    claimed_size,
    examine,
    is_true,
    largest,
)
from random_graphs import Choice, Graph, is_empty
from random_loops import COUNTED, LOOPS, seeded
from random_productions import PRODUCTIONS
from reference import PY

import synk
from synk.compiler.domain import Listed, Unknown
from synk.compiler.lengths import ONE
from synk.compiler.proof import ops_of
from synk.compiler.sizes import sizes_from_inputs

LONG = settings.get_current_profile_name() == "long"
TIMES = 10 if LONG else 1


@pytest.fixture(autouse=True, scope="module")
def python_linker():
    """Have graphs inside of Ops run by Python too: compiling takes far longer.

    Scans compile theirs to C, in any mode, if there is a compiler. And nobody asks
    in which line a variable was made.
    """
    with pytensor.config.change_flags(mode=PY, cxx="", traceback__limit=0):
        yield


def wrongs(graph: Graph, splits) -> list[str]:
    """Return what the proof says of a graph that is not so."""
    made = {term.var for term in graph.made}
    values = examine(graph.inputs, made)
    known = [
        var
        for var in ancestors(made)
        if isinstance(var.type, DenseTensorType)
        and not isinstance(var, SharedVariable)
        and not isinstance(values[var], (Unknown, Listed))
        and not is_empty(var)
    ]
    earlier = {var: set(ancestors([var])) for var in known}
    blocks = {length: as_graph(length) for length in map(blocks_of, values.values())}
    errors = [claimed_size(var, values[var]) for var in known]
    computes = [*known, *blocks.values(), *errors]
    f = pytensor.function(graph.inputs, computes, mode=PY, on_unused_input="ignore")
    found = []
    for sizes in splits:
        try:
            results = iter(computed(f, graph.values(sum(sizes), 1), sizes))
        except (ValueError, IndexError, TypeError) as error:
            found.append(f"{error!r} for {sizes}")
            continue
        present, counts = [size for size in sizes if size], {}
        of_known = list(itertools.islice(results, len(known)))
        for length in blocks:
            counts[length], *others = map(int, next(results))
            if any(other != counts[length] for other in others):
                found.append(f"{length} is not the same for {sizes}")
        for var, wrong in zip(known, results, strict=True):
            if any(wrong):
                found.append(f"{values[var]} has another length, {var} for {sizes}")
        results = of_known
        scales = {var: largest(of) for var, of in zip(known, results, strict=True)}
        for var, (whole, *parts) in zip(known, results, strict=True):
            before = max(s for v, s in scales.items() if v in earlier[var])
            claims = [values[var], *(ops_of(values[var]) if var in made else ())]
            for claim in claims:
                if not is_true(claim, whole, parts, present, before, counts):
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


SPLITS = [[5], [3, 2], [1, 4], [4, 2, 1], [1, 0, 2], [3, 1, 2, 2, 1], [1, 0, 1, 0, 0]]


def made_by_scan(var) -> str:
    """Tell whether a variable is what a scan gives, or the last entry of that."""
    for what in "all states", "last state":
        if var.owner is None or not isinstance(var.owner.op, Subtensor):
            break
        var = var.owner.inputs[0]
        if var.owner is not None and isinstance(var.owner.op, Scan):
            return what
    return "something else"


def values_of(graph: Graph) -> dict:
    """Return what the proof says; no rule may fail."""
    values = examine(graph.inputs, [term.var for term in graph.made])
    for value in values.values():
        assert not isinstance(value, Unknown) or "examined" not in value.why
    return values


SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]
FEW = {"max_examples": 15 * TIMES, "derandomize": not LONG, "deadline": None}


@settings(**FEW, suppress_health_check=SLOW)
@given(st.data())
def test_what_the_proof_says_is_true(data):
    choice = Choice(lambda n: data.draw(st.integers(0, n - 1)))
    graph = Graph(choice)
    productions = data.draw(st.sampled_from([PRODUCTIONS, PRODUCTIONS, LOOPS, COUNTED]))
    graph.grow(data.draw(st.integers(1, 8)), productions)
    sizes = data.draw(
        st.sampled_from([1, 2, 3, 5]).flatmap(
            lambda n: st.lists(st.integers(0, 4), min_size=n, max_size=n).filter(any)
        )
    )
    assert not wrongs(graph, [sizes])


def test_what_the_proof_says_of_loops_and_merged_axes_is_true():
    kinds: Counter = Counter()
    for seed in range(30 * TIMES):
        graph = seeded(seed, 8, "loops")
        assert seed % 3 or not wrongs(graph, SPLITS)
        values = values_of(graph)
        for var in (term.var for term in graph.made):
            kinds["blocks"] += blocks_of(values[var]) != ONE
            kinds["reverse"] += "reverse=True" in str(values[var])
            kinds[made_by_scan(var), type(values[var]).__name__] += 1
    states = ("all states", "Sharded"), ("last state", "Unknown")
    for kind in ("blocks", "reverse", *states):
        assert kinds[kind] > 2, kinds


def test_lengths_and_sizes_are_followed_through_deep_graphs():
    x3 = pt.tensor3("x3")
    h, w = x3.transpose(1, 0, 2), pytensor.shared(np.ones((3, 3)))
    for _ in range(1200):
        h = h + 1.0
    (size,) = sizes_from_inputs([h.shape]).values()
    f = pytensor.function([x3], size, mode=PY)
    np.testing.assert_array_equal(f(np.zeros((2, 3, 1))), [3, 2, 1])
    for _ in range(20):
        h = (h.reshape((-1, h.shape[2])) @ w).reshape(h.shape)
    rows = h.transpose(1, 0, 2)
    values = examine([x3], [h, rows])
    assert ops_of(values[h]) == []
    assert ops_of(values[rows]) == ["gather"]


# -- sizes of what another part computes, from the shapes of inputs --------------------


def test_sizes_follow_from_the_shapes_of_inputs():
    x, w = pt.tensor4("x"), pytensor.shared(np.zeros((5, 3, 2, 2)))
    hidden = synk.nn.pool_2d(synk.nn.conv2d(x, w, border_mode="half"), (2, 2))
    reduced = synk.ops.all_reduce(hidden.mean(axis=0))
    both = pt.concatenate([hidden.flatten(2), reduced.flatten(1)[None]], axis=0)
    sizes = [
        hidden.shape,
        hidden.shape[2:].prod(),
        pt.stack([x.shape[0] * hidden.shape[2], pt.constant(-1)]),
        both.shape[0] + 1,
        pt.constant(3) + 4,
        reduced.shape[1],
        pt.scalar_from_tensor(hidden.shape[0]),  # as scans take them
    ]
    found = sizes_from_inputs(sizes)
    assert list(found) == sizes
    images = np.ones((4, 3, 6, 8))
    # What is computed of the values is not needed any more.
    plain = pytensor.function([x], sizes, mode=PY)
    alone = pytensor.function([x], list(found.values()), mode=PY)
    ops = {type(node.op).__name__ for node in alone.maker.fgraph.apply_nodes}
    assert not ops & {"Conv", "Pool", "AllReduce"}
    for length, expected in zip(alone(images), plain(images), strict=True):
        np.testing.assert_array_equal(length, expected)


def test_what_values_enter_and_the_rows_of_all_ranks_are_no_size():
    x, n = pt.vector("x"), pt.lscalar("n")
    kept, rows = x[x > 0], synk.ops.all_reduce(x.shape[0], "sum")
    values = [n + x.shape[0], x.argmax(), x * 2, kept.shape[0], pt.arange(n).shape[0]]
    values += [rows, rows * x.shape[0], pt.ones((rows,)).shape]
    assert sizes_from_inputs(values) == {}
