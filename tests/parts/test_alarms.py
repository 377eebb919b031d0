"""Wrong rules would be noticed by random graphs, and rules that fail are told of.

A wrong rule is put in the place of the right one, and a graph must show that: what the
tests of the proof would find, in `test_proof`.
"""

import functools
from dataclasses import replace

import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.tensor.math import Dot
from random_equations import examine
from random_graphs import Graph
from random_loops import seeded
from reference import PY
from test_proof import SPLITS, wrongs

import synk
from synk.compiler import domain, table
from synk.compiler.domain import Replicated, Sharded, Unknown
from synk.compiler.lengths import Length, cached_lengths, size
from synk.compiler.padded import CannotPad, Padder
from synk.compiler.proof import ops_of
from synk.compiler.rules import elementwise, index, inner, reductions, shapes
from synk.compiler.table import entry_of

pytestmark = pytest.mark.filterwarnings("ignore::synk.SplitWarning")


@pytest.fixture(autouse=True, scope="module")
def in_python():
    """Have scans, and Ops that are graphs, run in Python."""
    flags = {"mode": PY, "linker": "py", "cxx": "", "traceback__limit": 0}
    with pytensor.config.change_flags(**flags):
        yield


# -- rules of the proof ---------------------------------------------------


def first_rows(values):
    rows = [value for value in values if isinstance(value, Sharded)]
    return rows[0] if rows else None


def largest_power(powers):
    return max((power for power in powers if power is not None), default=None)


def in_one_layout(values):
    """Take rows in any order and blocks for the same."""
    rows = first_rows([value for value in values if not getattr(value, "layout", 0)])
    return rows or first_rows(values)


def not_summed(node, right=reductions.labels_of):
    """Take a product's sum over the rows for a value of each."""
    labels, result = right(node)
    return labels, [labels[-1][0], *result[1:]] if result else result


def same_direction(self, other):
    """Take blocks of any length for equal."""
    return self.reverse == other.reverse


RULES = [
    (domain, "align", first_rows, "rows"),
    (domain, "common_power", largest_power, "rows"),
    (domain, "negated", lambda value: value, "rows"),
    (elementwise, "inverse", domain.unlisted, "rows"),
    (index.Index, "is_all", lambda *args: True, "rows"),
    (reductions, "labels_of", not_summed, "rows"),
    (shapes, "_blocks", lambda *args: domain.IN_ORDER, "loops"),
    (domain, "align", in_one_layout, "loops"),
    (inner, "_for_each", lambda *args: Sharded(0, 0, "n", None), "loops"),
    (domain.Layout, "agrees", same_direction, "counted"),
    (index, "_takes_all", lambda *args: True, "counted"),
]


def said(graph: Graph) -> dict:
    """Return what the proof says of a graph, and by which ops."""
    values = examine(graph.inputs, [term.var for term in graph.made])
    return {var: (str(value), ops_of(value)) for var, value in values.items()}


@functools.cache
def said_by_right_rules(seed: int, of: str) -> dict:
    return said(seeded(seed, 10, of))


@pytest.mark.parametrize(("module", "attribute", "wrong", "of"), RULES)
def test_a_wrong_rule_would_be_noticed(module, attribute, wrong, of):
    for seed in range(1000):
        graph, right = seeded(seed, 10, of), said_by_right_rules(seed, of)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, attribute, wrong)
            if said(graph) != right and wrongs(graph, SPLITS[1:3]):
                return
    pytest.fail("no graph has shown that the rule is wrong")


# -- the table of Ops, and rules that fail ---------------------------------------------

X = pt.matrix("x")


def test_what_is_padded_or_measured_is_placed():
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
    others = {"takes_unknown": True, "takes_some_rows": False}
    assert entry_of(OtherDot()) == replace(before, placement=mine, **others)
    assert entry_of(Dot()) == before


def fails(*args):
    raise AttributeError("no such attribute in this version")


def test_an_error_in_a_rule_does_not_keep_a_function_from_being_made(monkeypatch):
    x, y = pt.matrix("x"), pt.vector("y")
    monkeypatch.setattr(entry_of(Dot()), "placement", fails)
    with pytest.warns(synk.SplitWarning, match="could not be examined: AttributeError"):
        synk.function([x, y], pt.dot(y, x), mode=PY, local=True)
    synk.function([x, y], (pt.dot(y, x), "sum"), mode=PY, local=True)


def test_lengths_of_which_the_rule_fails_are_not_known(monkeypatch):
    graph = pt.zeros((X.T.shape[0],))
    with cached_lengths():
        right = size(graph, 0)
    for var in pytensor.graph.traversal.ancestors([graph]):
        if var.owner is not None:
            monkeypatch.setattr(entry_of(var.owner.op), "length", fails)
    with cached_lengths():
        assert size(graph, 0) != right
        assert size(graph, 0) == Length(1, size(graph, 0).symbols)
    found = examine([X], [graph])[graph]
    assert not (isinstance(found, Unknown) and "examined" in found.why)


def test_a_padded_form_that_fails_says_so_and_the_graph_is_not_padded(monkeypatch):
    graph = X.sum()
    monkeypatch.setattr(entry_of(graph.owner.op), "padded", fails)
    with pytest.raises(CannotPad, match="could not be examined: AttributeError"):
        Padder([X], pt.lscalar()).walk([graph])
    Padder([X], pt.lscalar()).walk([X + 1])
