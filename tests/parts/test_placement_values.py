"""What placing says of the values that it places: the proof takes it as it is."""

from __future__ import annotations

import placement_cases as cases
import pytest
from placement_cases import INPUTS
from pytensor.graph.traversal import ancestors
from random_productions import PRODUCTIONS
from random_statistics import STATISTICS
from reference import PY
from test_proof_property import seeded

import synk
from synk.compiler import walk
from synk.compiler.domain import REPLICATED, Unknown
from synk.compiler.placement.function import place
from synk.compiler.placement.nodes import Nodes
from synk.compiler.proof import examine


def differences(inputs, graph, own_statistics):
    """Return of what the rules say something else than was known when it was placed."""
    placed = place(inputs, [], graph, [], own_statistics)
    found = examine(inputs, [], placed.outputs, placed.asserted)
    return [
        (var, placed.values[var], found[var])
        for var in ancestors(placed.outputs)
        if var in placed.values
        and placed.values[var] != found[var]
        and not isinstance(found[var], Unknown)
    ]


def graphs():
    """Return inputs and outputs of many functions."""
    found = [(INPUTS, [graph]) for _, graph in cases.statistics()]
    found += [(INPUTS, [graph]) for _, graph in cases.gradients()]
    for seed in range(15):
        for productions in (PRODUCTIONS, STATISTICS):
            graph = seeded(seed, 8, productions)
            found.append((graph.inputs, [term.var for term in graph.made]))
    return found


@pytest.mark.parametrize("own_statistics", [False, True], ids=["exact", "own"])
def test_the_rules_say_of_a_placed_graph_what_was_known_when_it_was_placed(
    own_statistics,
):
    for inputs, graph in graphs():
        assert differences(inputs, graph, own_statistics) == []


def test_it_would_be_noticed_if_they_did_not(monkeypatch):
    def as_if_alike(self, node, right=Nodes.add):
        found = right(self, node)
        self.values.update(dict.fromkeys(found.outputs, REPLICATED))
        return found

    monkeypatch.setattr(Nodes, "add", as_if_alike)
    assert any(differences(inputs, graph, False) for inputs, graph in graphs())


def test_the_rules_are_asked_of_no_placed_value_again(monkeypatch):
    asked = []

    def noted(node, values, rule=walk.apply_rule):
        asked.append(node)
        return rule(node, values)

    monkeypatch.setattr(walk, "apply_rule", noted)
    loss = cases.posterior()
    f = synk.function(INPUTS, loss, mode=PY, on_unused_input="ignore")
    assert f._spec.findings[0].agrees
    assert asked == []
    synk.function(INPUTS, (loss, "sum"), mode=PY, on_unused_input="ignore")
    assert asked
