"""The stages of a call as drawings: text, SVG and matplotlib show the same."""

from __future__ import annotations

import dataclasses
import sys
from xml.etree import ElementTree

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from reference import PY
from test_explain_shown import LOSS, facts

import synk
from synk.report.blocks import blocks, lanes
from synk.report.explanation import Explanation
from synk.report.facts import Reduced, StageFacts, Update
from synk.report.shapes import COLOURS

two_and_three_ranks = pytest.mark.parametrize("ranks", [2, 3], indirect=True)

MEAN = Reduced(
    "mean", "avg", "float64", 24, "fit.py:3: `a`", "for Sub", "fit.py:4: `b`"
)
OWN = StageFacts("on rows", ["fit.py:3: `a`"], [], [], [], [MEAN], {"float64": 24})
ROWS = dataclasses.replace(
    LOSS, name="output 1 (z)", op="gather", combined="combined after the call"
)
LAST = StageFacts("on every rank", [], [], ["output 0 (loss)"], ["w"], [], {})


def drawn(**changed) -> Explanation:
    """Return a drawing of facts that are made up."""
    update = Update("w", "float64 ()", False)
    known = {"stages": [OWN, LAST], "updates": [update], "outputs": [LOSS, ROWS]}
    return Explanation(facts(**known | changed), graph=True)


def training():
    """Return a step with a level for a mean, one for its gradient, and an update."""
    x, y = pt.matrix("x"), pt.vector("y")
    w = pytensor.shared(np.ones(3), "w")
    centred = x - x.mean(axis=0)
    loss = ((centred @ w - y) ** 2).mean()
    loss.name, centred.name = "loss", "centred"
    updates = {w: w - 0.1 * pytensor.grad(loss, w)}
    f = synk.function([x, y], [loss, centred], updates=updates, name="step", mode=PY)
    return f, np.random.default_rng(0).normal(size=(7, 3)), np.ones(7)


# -- what is drawn ---------------------------------------------------------------------


@two_and_three_ranks
def test_a_drawing_has_the_stages_meetings_outputs_and_updates_in_their_order(ranks):
    f, *values = training()
    f(*values)
    text = str(f.explain(graph=True))
    assert max(map(len, text.splitlines())) <= 100
    head, numbers, *lines = text.splitlines()
    assert head == (
        f"step: {ranks} ranks; ranks meet 2 times in a call, over 3 values of 56 B"
    )
    assert numbers.split() == [str(rank) for rank in range(ranks)]
    marks = {line[2 : 1 + 2 * ranks] for line in lines}
    assert marks == {
        " ".join("o" * ranks),
        " ".join("*" * ranks),
        " ".join("|" * ranks),
        "=" * (2 * ranks - 1),
        "+" + "-+" * (ranks - 1),
        "|" + "  " * (ranks - 1),
    }
    said = [line[2 * ranks + 4 :].strip() for line in lines]
    order = [
        "stage 0, each rank on its own rows",
        "all-reduce 24 B of float64",
        "stage 1, each rank on its own rows",
        "gives output 1 (centred)",
        "all-reduce 32 B of float64",
        "stage 2, every rank the same",
        "gives output 0 (loss)",
        "gives the new value of w",
        "after the call",
        "output 1 (centred): gather",
    ]
    assert [line for line in said if line in order] == order
    one, two, three = (
        line for line in said if line.startswith(("avg of", "sum of", "gather of"))
    )
    assert "24 B, for Sub (centred) (test_explain_graph.py:" in one
    assert {two.split(", ", 1)[-1], three.split(", ", 1)[-1]} >= {
        "8 B, along with the others"
    }
    assert two.endswith("24 B, for the new value of w")


def test_a_function_that_meets_at_its_end_alone_says_so():
    x = pt.vector("x")
    f = synk.function([x], [x.sum(), x * 2], mode=PY, name="ends")
    head, _, *lines = str(f.explain(graph=True)).splitlines()
    assert head == "ends: not forked; ranks meet at the end of a call alone"
    assert not any("==" in line for line in lines)
    assert "(Sum{axes=None}(x)): sum" in lines[-2]
    assert lines[-1].endswith(": gather")


def test_what_every_rank_computes_from_all_rows_is_marked_in_its_stage():
    x = pt.vector("x")
    with pytest.warns(synk.SplitWarning):
        f = synk.function([x], [pt.sort(x), pt.exp(x - x.mean())], mode=PY)
    first, second = f.explain().to_dict()["stages"]
    assert (first["repeats"], second["repeats"]) == ([], ["SortOp"])
    assert "of all rows, on every rank: SortOp" in str(f.explain(graph=True))


def test_one_rank_is_said_to_run_the_graph_in_one_piece():
    head = str(drawn(ranks=1)).splitlines()[0]
    assert "1 rank; it runs the graph in one piece, and several would meet" in head


def test_many_ranks_and_many_stages_are_cut_short():
    many = drawn(ranks=64, stages=[OWN] * 100)
    assert lanes(many._facts) == 8
    titles = [block.title for block in blocks(many._facts)]
    assert "and 84 more stages with their meetings" in titles
    assert "stage 99, each rank on its own rows" in titles
    assert len(titles) == 2 * 16 + 2
    assert "ranks meet 100 times" in str(many)
    assert len(many.to_dict()["stages"]) == 100
    text = str(Explanation(many._facts))
    assert "and 84 more" in text
    assert "stage 11 " in text
    assert "stage 12 " not in text
    assert "stage 96 " in text


# -- in a notebook and as a picture ----------------------------------------------------


def texts(explanation: Explanation) -> list[str]:
    """Return the titles and texts of all blocks."""
    return [
        text
        for block in blocks(explanation._facts)
        for text in (block.title, *block.texts)
    ]


def test_html_draws_a_box_for_each_rank_and_one_for_a_meeting():
    explanation = drawn()
    root = ElementTree.fromstring(explanation._repr_html_())
    (svg,) = root.iter("svg")
    fills = [box.get("fill") for box in svg.iter("rect")]
    assert fills.count(COLOURS["rows"]) == fills.count(COLOURS["common"]) == 3
    assert fills.count(COLOURS["meeting"]) == fills.count(COLOURS["end"]) == 1
    shown = [text.text for text in svg.iter("text")]
    assert shown == ["0", "1", "2", *texts(explanation)]
    assert svg.get("aria-label") == "; ".join(texts(explanation))
    wide, high = float(svg.get("width")), float(svg.get("height"))
    for box in svg.iter("rect"):
        assert float(box.get("x")) + float(box.get("width")) <= wide
        assert float(box.get("y")) + float(box.get("height")) <= high


def test_html_of_a_drawing_takes_its_colours_from_the_page_and_escapes_names():
    name = "<script>alert('&')</script>"
    stage = StageFacts("on rows", [name], [], [], [], [], {})
    html = drawn(stages=[stage], outputs=[LOSS])._repr_html_()
    assert "background" not in html
    assert html.count("color:inherit") == html.count("color:") > 0
    root = ElementTree.fromstring(html)
    assert "script" not in {element.tag for element in root.iter()}
    assert name in {text.text for text in root.iter("text")}


def test_the_picture_shows_what_the_text_does_without_any_times(tmp_path, monkeypatch):
    matplotlib = pytest.importorskip("matplotlib")
    monkeypatch.setitem(matplotlib.rcParams, "backend", "agg")
    explanation = drawn(calls=None, serial=None)
    ax = explanation.plot(tmp_path / "stages.svg")
    assert [text.get_text() for text in ax.texts] == [
        "0",
        "1",
        "2",
        *texts(explanation),
    ]
    assert len(ax.patches) == 3 + 1 + 3 + 1
    assert ax.get_title(loc="left") == str(explanation).splitlines()[0]
    root = ElementTree.parse(tmp_path / "stages.svg").getroot()
    assert root.tag.endswith("svg")
    mine = ax.figure.add_subplot()
    assert explanation.plot(ax=mine) is mine


def test_drawings_need_no_matplotlib_and_the_picture_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert "stage 0" in drawn()._repr_html_()
    with pytest.raises(ImportError, match=r"pip install 'synk\[plot\]'"):
        drawn().plot()
