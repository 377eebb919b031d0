"""Whatever is padded of a random graph has the numbers that it has without."""

from __future__ import annotations

import contextlib
import random
from collections import Counter

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from proof_corpus import INPUTS, accepted, values_of
from pytensor.graph.traversal import ancestors
from pytensor.tensor.basic import AllocEmpty
from pytensor.tensor.subtensor import IncSubtensor
from pytensor.tensor.type import DenseTensorType
from random_equations import close
from random_graphs import Choice, Graph
from random_loops import COUNTED, LOOPS
from random_productions import PRODUCTIONS
from reference import PY

from synk.compiler.padded import CannotPad, Padder
from synk.programs.padding import PaddedSize, cut

ROOMS = [PaddedSize(5, 5), PaddedSize(5, 4), PaddedSize(6, 3), PaddedSize(2, 1)]


@pytest.fixture(autouse=True, scope="module")
def python_linker():
    """Have graphs inside of Ops run by Python too: compiling takes far longer.

    Scans compile theirs to C, in any mode, if there is a compiler.
    """
    with pytensor.config.change_flags(linker="py", cxx=""):
        yield


def seeded(seed: int, steps: int, productions: list) -> Graph:
    graph = Graph(Choice(random.Random(seed).randrange))
    graph.grow(steps, productions)
    return graph


def padded(graph: Graph) -> tuple[Padder, list, Counter]:
    """Rewrite what can be rewritten; return it, and how often what was in the way."""
    real = pt.lscalar("real")
    padder = Padder(graph.inputs, real)
    why: Counter = Counter()
    for term in graph.made:
        try:
            padder.walk([term.var])
        except CannotPad as error:
            why["could not be examined" in str(error)] += 1
    known = [
        var
        for var in ancestors([term.var for term in graph.made])
        if var in padder.new
        and var.owner is not None
        and isinstance(var.type, DenseTensorType)
        and not is_empty(var)
    ]
    return padder, known, why


def is_empty(var) -> bool:
    """Tell whether a variable holds what has not been computed yet."""
    if isinstance(getattr(var.owner, "op", None), IncSubtensor):
        return is_empty(var.owner.inputs[0])
    return isinstance(getattr(var.owner, "op", None), AllocEmpty)


def wrongs(graph: Graph, padder: Padder, known: list) -> list[str]:
    """Return which variables have other values for any numbers of rows."""
    options = {"mode": PY, "on_unused_input": "ignore"}
    plain = pytensor.function(graph.inputs, known, **options)
    wide = pytensor.function(
        [*graph.inputs, padder.real], [padder.new[var] for var in known], **options
    )
    found = []
    for room in ROOMS:
        arrays = graph.values(room.real, 1)
        with np.errstate(all="ignore"):
            right = plain(*arrays)
            made = wide(*map(widened, arrays, [room] * len(arrays)), room.real)
        before = max(map(magnitude, right), default=0.0)
        for var, value, expected in zip(known, made, right, strict=True):
            state = padder.padded(var)
            if state is not None:
                value = cut(value, state, room)
            if not close(value, expected, magnitude(expected), before):
                found.append(f"{var} for {room}: {value} is not {expected}")
    return found


def magnitude(array: np.ndarray) -> float:
    """Return the largest finite magnitude."""
    array = np.abs(np.asarray(array, dtype="float64"))
    return float(array[np.isfinite(array)].max(initial=0))


def widened(array: np.ndarray, room: PaddedSize) -> np.ndarray:
    """Fill up with what is not to be seen; with the last row, where it is an index."""
    rubbish = 777.0 if array.dtype.kind == "f" else array[-1]
    more = np.full((room.rows - room.real, *array.shape[1:]), rubbish, array.dtype)
    return np.concatenate([array, more])


@pytest.mark.parametrize(
    ("productions", "seeds", "share"),
    [(PRODUCTIONS, 60, 0.5), (LOOPS, 20, 0.3), (COUNTED, 20, 0.3)],
    ids=["rows", "loops", "counted"],
)
def test_what_is_padded_of_a_random_graph_is_what_it_was(productions, seeds, share):
    made = done = 0
    for seed in range(seeds):
        graph = seeded(seed, 8, productions)
        padder, known, why = padded(graph)
        assert not why[True], seed
        assert not wrongs(graph, padder, known), seed
        made += len(graph.made)
        done += sum(term.var in padder.new for term in graph.made)
    assert done > share * made


def test_what_people_write_is_padded_to_the_plain_numbers():
    """All that the proof is shown to accept, but for random numbers."""
    cases = [(name, var) for name, var, _ in accepted() if "draw" not in name]
    padder, kept = Padder(INPUTS, pt.lscalar("real")), []
    for name, var in cases:
        with contextlib.suppress(CannotPad):
            padder.walk([var])
            kept.append((name, var))
    assert len(kept) > 0.8 * len(cases)
    options = {"mode": PY, "on_unused_input": "ignore"}
    plain = pytensor.function(INPUTS, [var for _, var in kept], **options)
    news = [padder.new[var] for _, var in kept]
    wide = pytensor.function([*INPUTS, padder.real], news, **options)
    for room in (PaddedSize(8, 5), PaddedSize(6, 6)):
        arrays = values_of(room.real)
        right = plain(*arrays)
        with np.errstate(all="ignore"):
            made = wide(*map(widened, arrays, [room] * len(arrays)), room.real)
        for (name, var), value, expected in zip(kept, made, right, strict=True):
            state = padder.padded(var)
            value = value if state is None else cut(value, state, room)
            assert close(value, expected, magnitude(expected), 1), name
