"""Wrong rules, lengths, padded forms and placements would be noticed by random graphs.

Each is put in the place of the right one, and a graph must show that: what the tests of
the proof, of padding and of placement would find, in `test_proof` and the others.
"""

from __future__ import annotations

import functools
import itertools
from dataclasses import replace

import pytensor
import pytensor.tensor as pt
import pytest
import test_padding
import test_placement
from pytensor.tensor.elemwise import CAReduce, DimShuffle, Elemwise
from pytensor.tensor.math import Dot
from pytensor.tensor.shape import Reshape
from pytensor.tensor.subtensor import Subtensor
from random_graphs import Graph
from reference import PY
from test_proof import SPLITS, seeded, wrongs

import synk
from synk.compiler import domain, table
from synk.compiler.domain import REPLICATED, Partial, Replicated, Sharded, Unknown
from synk.compiler.lengths import Length, remembered, size
from synk.compiler.padded import CannotPad, Padder, padder
from synk.compiler.placement.gathered import Gathered
from synk.compiler.placement.nodes import Nodes
from synk.compiler.placement.whole import Whole
from synk.compiler.proof import examine, ops_of
from synk.compiler.rules import (
    along,
    elementwise,
    index_arrays,
    indexing,
    products,
    reductions,
    reshape,
    rowscans,
    shapes,
)
from synk.compiler.table import entry_of

pytestmark = pytest.mark.filterwarnings("ignore::synk.SplitWarning")


@pytest.fixture(autouse=True, scope="module")
def in_python():
    """Have scans, and Ops that are graphs, run in Python."""
    flags = {"mode": PY, "linker": "py", "cxx": "", "traceback__limit": 0}
    with pytensor.config.change_flags(**flags):
        yield


# -- rules of the proof, and lengths ---------------------------------------------------


def flattery(rule, *found):
    """Return a rule that says what is found, where the right one refuses."""

    def wrong(*args):
        try:
            return rule(*args)
        except domain.Refused:
            return next(value(*args) for value in found)

    return wrong


def first_rows(values):
    rows = [value for value in values if isinstance(value, Sharded)]
    return rows[0] if rows else None


RULES = {
    "rows along any axis go together": (domain, "align", first_rows),
    "a sum and a constant make a sum": (
        domain,
        "common_power",
        lambda powers: max((p for p in powers if p is not None), default=None),
    ),
    "minus leaves a maximum a maximum": (elementwise, "negated", lambda value: value),
    "factors leave a maximum a maximum": (domain, "negated", lambda value: value),
    "a product's power is that of one factor": (
        domain,
        "times",
        lambda *powers: powers[0],
    ),
    "one over n is n": (elementwise, "inverse", lambda value: domain.unlisted(value)),
    "functions of folds are folds": (
        elementwise,
        "independent",
        flattery(
            domain.independent,
            lambda values: next(v for v in values if isinstance(v, Partial)),
        ),
    ),
    "any rows are all rows": (indexing.Index, "is_all", lambda *args: True),
    "reductions forget the power": (
        reductions,
        "fold",
        lambda op, rows: Partial(op, 0),
    ),
    "any axis that is gone was before the rows'": (
        reductions,
        "shifted",
        lambda rows, axes: replace(rows, axis=max(rows.axis - len(axes), 0)),
    ),
    "sorts go along the rows": (
        along,
        "_along",
        lambda axes, value: domain.unlisted(value),
    ),
    "the first axis has n entries": (
        shapes,
        "length",
        lambda value, axis: Replicated(int(axis == 0), exact=axis == 0),
    ),
    "products over the rows are rows": (
        products,
        "fold",
        lambda op, rows: Sharded(0, rows.power),
    ),
}


def in_one_layout(values):
    """Take rows in any order and blocks for the same."""
    rows = first_rows([value for value in values if not getattr(value, "layout", 0)])
    return rows or first_rows(values)


def long_blocks(node, rows, axis, kind, right=reshape._blocks):
    """Take the length of the axis for that of a block."""
    found = right(node, rows, axis, kind)
    return found and replace(found, block=reshape.reshaped(node)[axis])


def any_terms(new, tap, kinds, right=rowscans._terms):
    """Take whatever a step computes for something that it adds."""
    found = right(new, tap, kinds)
    return [] if found is None else found


RULES_OF_LOOPS = {
    "blocks are rows in order": (reshape, "_blocks", lambda *args: domain.IN_ORDER),
    "all layouts go together": (domain, "align", in_one_layout),
    "reversed rows are in order": (indexing, "reversed_rows", lambda rows: rows),
    "reversed rows are gathered": (Sharded, "in_order", True),
    "merged rows are alike": (reshape, "_blocks", lambda *args: None),
    "states never change": (rowscans, "_stays", lambda state, known: True),
    "steps add to the state": (rowscans, "_terms", any_terms),
    "sums start with zeros": (rowscans, "total", lambda values: values[-1]),
    "products start with one": (rowscans, "product", lambda values: values[-1]),
    "what a step carries is a row's": (
        rowscans,
        "_for_each",
        lambda value, layout: Sharded(0, 0, "n", layout),
    ),
}
RULES_OF_COUNTS = {
    "blocks of any length are equal": (
        domain.Layout,
        "agrees",
        lambda self, other: self.reverse == other.reverse,
    ),
    "any direction is the same": (
        domain.Layout,
        "agrees",
        lambda self, other: self.blocks == other.blocks,
    ),
    "blocks are as long as their axis": (reshape, "_blocks", long_blocks),
    "labels take all entries": (index_arrays, "_takes_all", lambda *args: True),
    "row numbers are a rank's own": (
        index_arrays,
        "_refuse_numbers",
        lambda index: None,
    ),
}
WRONG_RULES = [
    *(pytest.param(*case, "rows", id=name) for name, case in RULES.items()),
    *(pytest.param(*case, "loops", id=name) for name, case in RULES_OF_LOOPS.items()),
    *(
        pytest.param(*case, "counted", id=name)
        for name, case in RULES_OF_COUNTS.items()
    ),
]


def said(graph: Graph) -> dict:
    """Return what the proof says of a graph, and by which ops."""
    values = examine(graph.inputs, [], [term.var for term in graph.made])
    return {var: (str(value), ops_of(value)) for var, value in values.items()}


@functools.cache
def said_by_right_rules(seed: int, of: str) -> dict:
    return said(seeded(seed, 10, of))


def is_noticed(break_a_rule, *of: str) -> bool:
    """Tell whether a random graph shows that a rule is wrong."""
    for seed, kind in itertools.product(range(1000), of):
        graph, right = seeded(seed, 10, kind), said_by_right_rules(seed, kind)
        with pytest.MonkeyPatch.context() as patch:
            break_a_rule(patch)
            if said(graph) != right and wrongs(graph, SPLITS[1:3]):
                return True
    return False


@pytest.mark.parametrize(("module", "attribute", "wrong", "of"), WRONG_RULES)
def test_a_wrong_rule_would_be_noticed(module, attribute, wrong, of):
    assert is_noticed(lambda patch: patch.setattr(module, attribute, wrong), of)


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
def test_a_wrong_length_would_be_noticed(name):
    def break_it(patch):
        cls, wrong = WRONG_LENGTHS[name]
        of_its_own(patch)
        table.length(cls)(wrong)

    assert is_noticed(break_it, "counted", "loops")


# -- padded forms ----------------------------------------------------------------------


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
WRONG = [
    *(pytest.param(*case, "rows", id=name) for name, case in WRONG_PADDED.items()),
    *(pytest.param(*case, "loops", id=name) for name, case in WRONG_OF_BLOCKS.items()),
]


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize(("owner", "attribute", "wrong", "of"), WRONG)
def test_a_wrong_padded_form_would_be_noticed(monkeypatch, owner, attribute, wrong, of):
    monkeypatch.setattr(owner, attribute, wrong)
    for seed in range(300):
        graph = test_padding.seeded(seed, of)
        made, known, _ = test_padding.padded(graph)
        try:
            found = test_padding.wrongs(graph, made, known)
        except (ValueError, IndexError, TypeError):
            return  # shapes that do not fit
        if found:
            return
    pytest.fail("no graph has shown that the form is wrong")


# -- placements ------------------------------------------------------------------------


def op_for_means(op):
    """Return an insertion of reductions that takes another op for means."""

    def inserted(self, var, right, by=None, insert=Whole._inserted):
        return insert(self, var, op if right == "avg" else right, by)

    return inserted


PLACEMENTS = {
    "means are added": (Whole, "_inserted", op_for_means("sum")),
    "means are maxima": (Whole, "_inserted", op_for_means("max")),
    "powers of n stay": (Whole, "scaled", lambda self, var, power: var),
    "a rank's rows are the first": (
        Gathered,
        "local",
        lambda self, var, axis: self.known_as(
            pt.take(var, pt.arange(self.n), axis=axis), Sharded(axis)
        ),
    ),
    "numbers of rows start anew": (
        Gathered,
        "numbered",
        lambda self, var, value: self.known_as(var + 0, Sharded(value.axis)),
    ),
}


@pytest.mark.parametrize("broken", PLACEMENTS)
def test_a_wrong_placement_would_be_noticed(monkeypatch, broken):
    monkeypatch.setattr(*PLACEMENTS[broken])
    for seed in range(200):
        _, _, ranks = test_placement.placed(seed, "numbered")
        if ranks is not None and any(
            test_placement.wrongs(seed, "numbered", ranks, (2,), [5])
        ):
            return
    pytest.fail("no graph has shown that the placement is wrong")


def test_it_would_be_noticed_if_they_did_not(monkeypatch):
    def as_if_alike(self, node, right=Nodes.add):
        found = right(self, node)
        self.values.update(dict.fromkeys(found.outputs, REPLICATED))
        return found

    monkeypatch.setattr(Nodes, "add", as_if_alike)
    assert any(
        test_placement.differences(inputs, graph)
        for inputs, graph in test_placement.graphs()
    )


# -- the table of Ops, and rules that fail ---------------------------------------------

X = pt.matrix("x")


def test_what_is_padded_or_measured_is_placed():
    """A padded form, or lengths, of an Op whose placement was left out."""
    for cls in table.known_classes():
        assert table._with_bases(cls).placement, cls


def of_its_own(monkeypatch):
    """Let a test change the table."""
    monkeypatch.setattr(table, "_table", dict(table._table))
    monkeypatch.setattr(table, "_inherited", {})


def test_entries_hold_for_derived_classes_word_by_word(monkeypatch):
    of_its_own(monkeypatch)

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


def fails(*args):
    raise AttributeError("no such attribute in this version")


def test_an_error_in_a_rule_does_not_keep_a_function_from_being_made(monkeypatch):
    x, y = pt.matrix("x"), pt.vector("y")
    monkeypatch.setattr(entry_of(Dot()), "placement", fails)
    with pytest.warns(synk.SplitWarning, match="could not be examined: AttributeError"):
        synk.function([x, y], pt.dot(y, x), mode=PY, local=True)
    synk.function([x, y], (pt.dot(y, x), "sum"), mode=PY, local=True)


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


def test_a_padded_form_that_fails_says_so_and_the_graph_is_not_padded(monkeypatch):
    graph = X.sum()
    monkeypatch.setattr(entry_of(graph.owner.op), "padded", fails)
    with pytest.raises(CannotPad, match="could not be examined: AttributeError"):
        Padder([X], pt.lscalar()).walk([graph])
    Padder([X], pt.lscalar()).walk([X + 1])
