"""The table of Ops: what has one word of an Op has the others, and wrong ones show."""

from __future__ import annotations

import random
from dataclasses import replace

import pytensor
import pytensor.tensor as pt
import pytest
import test_padding_random
import test_proof_property
from pytensor.tensor.elemwise import CAReduce, DimShuffle, Elemwise
from pytensor.tensor.math import Dot
from pytensor.tensor.shape import Reshape
from pytensor.tensor.subtensor import Subtensor
from random_graphs import Choice, Graph
from random_loops import COUNTED, LOOPS
from random_productions import PRODUCTIONS
from reference import PY

from synk.compiler import table
from synk.compiler.domain import Replicated, Unknown
from synk.compiler.lengths import Length, remembered, size
from synk.compiler.padded import CannotPad, Padder, padder
from synk.compiler.proof import examine
from synk.compiler.rules import index_arrays, reductions, shapes
from synk.compiler.table import entry_of


@pytest.fixture(autouse=True, scope="module")
def python_linker():
    with pytensor.config.change_flags(mode=PY, cxx="", traceback__limit=0):
        yield


X = pt.matrix("x")


def test_what_is_padded_or_measured_is_placed():
    """A padded form, or lengths, of an Op whose placement was left out."""
    for cls in table.known_classes():
        assert table._with_bases(cls).placement, cls


def test_entries_hold_for_derived_classes_word_by_word(monkeypatch):
    monkeypatch.setattr(table, "_table", dict(table._table))
    monkeypatch.setattr(table, "_inherited", {})

    class OtherDot(Dot):
        pass

    def mine(node, values):
        return Replicated()

    before = entry_of(Dot())
    assert entry_of(OtherDot()) == before
    table.placement(OtherDot, takes_unknown=True)(mine)
    expected = replace(
        before, placement=mine, takes_unknown=True, takes_some_rows=False
    )
    assert entry_of(OtherDot()) == expected
    assert entry_of(Dot()) == before


# -- rules that fail


def fails(*args):
    raise AttributeError("no such attribute in this version")


def test_a_padded_form_that_fails_says_so_and_the_graph_is_not_padded(monkeypatch):
    graph = X.sum()
    monkeypatch.setattr(entry_of(graph.owner.op), "padded", fails)
    with pytest.raises(CannotPad, match="could not be examined: AttributeError"):
        Padder([X], pt.lscalar()).walk([graph])
    Padder([X], pt.lscalar()).walk([X + 1])


@pytest.mark.parametrize("word", ["length", "value", "entries"])
def test_lengths_of_which_the_rule_fails_are_not_known(monkeypatch, word):
    shape = pt.stack([X.shape[0], X.shape[1] * 2, 1])
    graph = pt.zeros((X.T.shape[0],)) if word == "length" else X.T.reshape(shape)
    shown = graph.owner.inputs[1 if word == "entries" else 0]
    with remembered():
        right = size(graph, 0)
    for var in pytensor.graph.traversal.ancestors([shown, graph]):
        if var.owner is not None:
            monkeypatch.setattr(entry_of(var.owner.op), word, fails)
    with remembered():
        assert size(graph, 0) != right
        assert size(graph, 0) == Length(1, size(graph, 0).symbols)
    found = examine([X], [], [graph])[graph]
    assert not (isinstance(found, Unknown) and "examined" in found.why)


# -- rules that are wrong


def seeded(seed: int, productions: list) -> Graph:
    graph = Graph(Choice(random.Random(seed).randrange))
    graph.grow(8, productions)
    return graph


def kept_as_exact(self, node, given):
    return padder.Made(
        self.made(node, [self.new[var] for var in node.inputs]),
        [Replicated()] * len(node.outputs),
    )


WRONG_PADDED = {
    "copies count": (
        Padder,
        "masked",
        lambda self, var, instead, layout=None: self.new[var],
    ),
    "nothing is zero": (reductions, "_nothing", lambda kind, dtype: 0),
    "copies add": (
        index_arrays,
        "_zero_in_copies",
        lambda padder, node, index, other: padder.new[node.inputs[1]],
    ),
    "n is N": (shapes, "_real_length", lambda padder, new, axis: new.shape[axis]),
    "what is known of rows is exact": (Padder, "kept", kept_as_exact),
}
WRONG_OF_BLOCKS = {
    "blocks are rows in order": (
        Padder,
        "_lies",
        lambda self, rows: padder.Padded(rows.axis, 1, None),
    ),
}
CASES = [
    *(pytest.param(*case, PRODUCTIONS, id=name) for name, case in WRONG_PADDED.items()),
    *(pytest.param(*case, LOOPS, id=name) for name, case in WRONG_OF_BLOCKS.items()),
]


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize(("owner", "attribute", "wrong", "productions"), CASES)
def test_a_wrong_padded_form_would_be_noticed(
    monkeypatch, owner, attribute, wrong, productions
):
    monkeypatch.setattr(owner, attribute, wrong)
    for seed in range(300):
        graph = seeded(seed, productions)
        made, known, _ = test_padding_random.padded(graph)
        try:
            found = test_padding_random.wrongs(graph, made, known)
        except (ValueError, IndexError, TypeError):
            return  # shapes that do not fit
        if found:
            return
    pytest.fail("no graph has shown that the form is wrong")


WRONG_LENGTHS = {
    "reductions keep the first axes": (
        CAReduce,
        lambda node, var, axis: size(node.inputs[0], axis),
    ),
    "axes stay where they were": (
        DimShuffle,
        lambda node, var, axis: size(node.inputs[0], min(axis, 1)),
    ),
    "reshapes keep the first axes": (
        Reshape,
        lambda node, var, axis: size(node.inputs[0], 0),
    ),
    "slices are as long as what they are of": (
        Subtensor,
        lambda node, var, axis: size(node.inputs[0], axis),
    ),
    "everything has as many elements as there are rows": (
        Elemwise,
        lambda node, var, axis: size(node.inputs[0], 0),
    ),
}


@pytest.mark.parametrize("name", WRONG_LENGTHS)
def test_a_wrong_length_would_be_noticed(monkeypatch, name):
    cls, wrong = WRONG_LENGTHS[name]
    monkeypatch.setattr(table, "_table", dict(table._table))
    monkeypatch.setattr(table, "_inherited", {})
    table.length(cls)(wrong)
    for seed in range(300):
        for productions in (COUNTED, LOOPS):
            graph = test_proof_property.seeded(seed, 10, productions)
            if test_proof_property.wrongs(graph, test_proof_property.SPLITS[1:3]):
                return
    pytest.fail("no graph has shown that the lengths are wrong")
