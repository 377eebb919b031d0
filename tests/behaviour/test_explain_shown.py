"""An explanation in notebooks and as a picture: both show what the dict says."""

from __future__ import annotations

import dataclasses
import sys
from xml.etree import ElementTree

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from reference import PY

import synk
from synk.report.bars import Bar, bars, label_with_rows, phases
from synk.report.explanation import Explanation
from synk.report.facts import (
    Calls,
    Exchanged,
    Facts,
    Inputs,
    NodeFacts,
    Output,
    RankTimes,
    Serial,
    SpeedUp,
)
from synk.report.words import milliseconds, number

LOSS = Output(
    "output 0 (loss)", "avg", False, "a mean", True, None, None, None, "in a stage"
)
TITLES = ["taking rows", "compute on rows", "compute on every rank", "wait", "reduce"]


def facts(**changed) -> Facts:
    """Return facts of a training step by three ranks, and of a serial run."""
    times = [
        RankTimes(rank, 4 - rank, 0.1, 5.0 + rank, 1.5, 3.0 - rank, 0.7)
        for rank in range(3)
    ]
    known = {
        "name": "train",
        "ranks": 3,
        "inputs": Inputs([], [], []),
        "outputs": [LOSS],
        "stages": [],
        "repeated": None,
        "own_statistics": [],
        "updates": [],
        "precision": None,
        "padding": None,
        "shapes_compiled": None,
        "calls": Calls(7, 1, True, 9, 72, 8, 10.0, times),
        "serial": Serial(20.0, 9, 2),
        "speed_up": SpeedUp(1.8, 2.0),
        "lost": None,
        "verdict": None,
    }
    return Facts(**known | changed)


def parsed(explanation: Explanation) -> ElementTree.Element:
    return ElementTree.fromstring(explanation._repr_html_())


def table(root: ElementTree.Element, label: str) -> list[list[str]]:
    (found,) = (t for t in root.iter("table") if t.get("aria-label") == label)
    rows = []
    for row in found.iter("tr"):
        rows.append(["".join(_texts(cell)).strip() for cell in row])
    return rows


def _texts(element: ElementTree.Element):
    if element.tag != "title":  # what a pointer shows of a bar's part
        yield element.text or ""
        for part in element:
            yield from _texts(part)
            yield part.tail or ""


# -- HTML ------------------------------------------------------------------------------


def test_html_has_the_sentences_of_the_text_and_a_row_of_times_for_each_rank():
    explanation = Explanation(facts(verdict="One rank would be faster: <of course>"))
    root = parsed(explanation)
    said = {row[0]: row[1] for row in table(root, "What it does")}
    assert said["output 0"] == "loss: avg; a mean; in a stage"
    assert said["speed-up"] == "1.80 predicted from the ranks' times, 2.00 measured"
    assert said["serial run"] == "20 ms for 9 rows on 2 cores"
    for sentence in said.values():
        assert " ".join(sentence.split()) in " ".join(str(explanation).split())
    titles, *rows = table(root, "Mean times in a call")
    assert titles == ["", "", "rows", *TITLES, "all"]
    assert [row[0] for row in rows] == ["rank 0", "rank 1", "rank 2", "serial run"]
    assert rows[1][2:8] == ["3", "100 us", "4.5 ms", "1.5 ms", "2 ms", "700 us"]
    assert rows[3][2:] == ["9", "", "", "", "", "", "20 ms"]
    assert "".join(root.itertext()).rstrip().endswith("faster: <of course>.")


def test_bars_of_html_are_as_long_as_the_times():
    explanation = Explanation(facts())
    pictures = [svg for svg in parsed(explanation).iter("svg") if svg.get("role")]
    assert len(pictures) == 4
    scale = float(pictures[0].get("width")) / 20.0  # the serial run is the longest
    for picture, bar in zip(pictures, bars(explanation._facts), strict=True):
        assert picture.get("aria-label") == f"{bar.label}: {milliseconds(bar.total)}"
        right = 0.0
        for part, phase in zip(picture, phases([bar]), strict=True):
            assert float(part.get("x")) == pytest.approx(right, abs=0.02)
            width = scale * bar.parts[phase.key]
            assert float(part.get("width")) == pytest.approx(width, abs=0.01)
            right += width


def test_names_are_escaped():
    name = "<script>alert('&')</script> \"x\""
    output = dataclasses.replace(LOSS, name=f"output 0 ({name})")
    explanation = Explanation(facts(name=name, outputs=[output]))
    root = parsed(explanation)
    assert "script" not in {element.tag for element in root.iter()}
    assert name in next(row[1] for row in table(root, "What it does"))
    assert next(root.iter("b")).text == f"{name}: 3 ranks"


def test_ranks_of_several_nodes_are_shown_with_their_node():
    times = [
        RankTimes(rank, 1, 0.1, 2.0, 0.5, 3.0 - rank, 0.7, 1.25 + rank // 2, rank // 2)
        for rank in range(4)
    ]
    nodes = [
        NodeFacts("first", 2, Exchanged(2, 480_000, 0.5, 1.25)),
        NodeFacts("a" * 60, 2, Exchanged(0, 0, 0.0, 0.0)),
    ]
    made = facts(ranks=4, calls=Calls(7, 1, True, 4, 72, 8, 10.0, times), nodes=nodes)
    explanation = Explanation(made)
    lines = str(explanation).splitlines()
    assert lines[0] == "train: 4 ranks on 2 nodes"
    assert max(map(len, lines)) <= 100
    (title,) = (i for i, line in enumerate(lines) if "taking rows" in line)
    found = [line.split() for line in lines[title : title + 7]]
    assert found[0][-1] == "nodes"
    assert found[1] == ["node", "0", "(first)"]
    assert found[4][:2] == ["node", "1"]
    for rank, line in enumerate([*found[2:4], *found[5:7]]):
        assert line[:2] == ["rank", str(rank)]
        assert line[-4:] == ["700", "us", f"{1.25 + rank // 2}", "ms"]
    said = " ".join(str(explanation).split())
    assert (
        "exchanged node 0 (first): 2 times in a call; 500 us until all nodes had met,"
        " then 480 kB sent in 1.25 ms"
    ) in said
    assert "): nothing" in said
    titles, *rows = table(parsed(explanation), "Mean times in a call")
    assert titles == ["", "", "rows", *TITLES, "between nodes", "all"]
    assert [row[0] for row in rows[:4]] == [
        f"rank {rank} (node {rank // 2})" for rank in range(4)
    ]
    assert [row[8] for row in rows[:4]] == ["1.25 ms"] * 2 + ["2.25 ms"] * 2
    labels = [label_with_rows(bar, bars(made)) for bar in bars(made)]
    assert labels[2] == "rank 2\n(node 1)"


def test_html_sets_no_colour_of_text_or_background():
    html = Explanation(facts())._repr_html_()
    assert "background" not in html
    assert html.count("color:inherit") == html.count("color:") > 0


def test_html_of_a_function_that_was_not_called_is_its_plan():
    root = parsed(Explanation(facts(calls=None, serial=None, speed_up=SpeedUp())))
    said = {row[0]: row[1] for row in table(root, "What it does")}
    assert said == {"output 0": "loss: avg; a mean; in a stage", "calls": "none yet"}
    assert not list(root.iter("svg"))


def test_html_needs_no_matplotlib(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert "rank 2" in Explanation(facts())._repr_html_()


# -- bars ------------------------------------------------------------------------------


def test_a_bar_has_all_of_a_ranks_time_and_nothing_twice():
    *ranks, serial = bars(facts())
    for bar, times in zip(ranks, facts().calls.ranks, strict=True):
        phases_of_rank = times.rows + times.compute + times.wait + times.reduce
        assert bar.total == pytest.approx(phases_of_rank)
    assert serial.total == 20.0


def test_computing_is_one_part_where_nothing_is_common():
    parts = {"rows": 1.0, "compute": 2.0, "common": 0.0, "wait": 1.0, "reduce": 0.0}
    labels = [phase.label for phase in phases([Bar("rank 0", 3, parts)])]
    assert labels == ["taking rows", "compute", "wait", "reduce"]


# -- the picture -----------------------------------------------------------------------


@pytest.fixture
def pyplot(monkeypatch):
    matplotlib = pytest.importorskip("matplotlib")
    monkeypatch.setitem(matplotlib.rcParams, "backend", "agg")
    from matplotlib import pyplot

    yield pyplot
    pyplot.close("all")


def heights(ax) -> dict[str, list[float]]:
    return {
        container.get_label(): [bar.get_height() for bar in container]
        for container in ax.containers
    }


def test_the_picture_has_the_bars_stacked(pyplot):
    explanation = Explanation(facts())
    ax = explanation.plot()
    expected = bars(explanation._facts)
    assert [label.get_text() for label in ax.get_xticklabels()] == [
        bar.label for bar in expected
    ]
    drawn = heights(ax)
    assert list(drawn) == [*TITLES, "serial run"]
    for phase in phases(expected):
        in_bars = [bar.parts.get(phase.key, 0.0) for bar in expected]
        assert drawn[phase.label] == pytest.approx(in_bars)
    tops = [0.0] * len(expected)
    for container in ax.containers:
        for i, patch in enumerate(container):
            assert patch.get_y() == pytest.approx(tops[i])
            tops[i] += patch.get_height()
    assert tops == pytest.approx([bar.total for bar in expected])
    assert ax.get_title() == "train: 3 ranks"
    legend = [text.get_text() for text in ax.get_legend().get_texts()]
    assert sorted(legend) == sorted(drawn)
    assert pyplot.get_fignums() == [ax.figure.number]


def test_the_picture_is_saved_or_drawn_where_asked(pyplot, tmp_path):
    explanation = Explanation(facts())
    ax = explanation.plot(tmp_path / "train.svg")
    assert pyplot.get_fignums() == []
    root = ElementTree.parse(tmp_path / "train.svg").getroot()
    assert root.tag.endswith("svg")
    assert ax.figure is not None
    explanation.plot(str(tmp_path / "train.pdf"))
    assert (tmp_path / "train.pdf").read_bytes().startswith(b"%PDF")
    _, mine = pyplot.subplots()
    assert explanation.plot(ax=mine) is mine
    assert len(pyplot.get_fignums()) == 1
    assert len(heights(mine)) == 6
    part = pyplot.figure().subfigures(1, 2)[1]
    explanation.plot(tmp_path / "part.svg", ax=part.subplots())
    assert "svg" in ElementTree.parse(tmp_path / "part.svg").getroot().tag


def test_a_serial_run_of_other_rows_says_so(pyplot):
    ax = Explanation(facts(serial=Serial(20.0, 1000, 2))).plot()
    assert ax.get_xticklabels()[-1].get_text() == "serial run,\n1,000 rows"
    ax = Explanation(facts(calls=None)).plot()
    assert [label.get_text() for label in ax.get_xticklabels()] == ["serial run"]


def test_without_times_there_is_no_picture(pyplot):
    nothing = facts(calls=None, serial=None)
    with pytest.raises(ValueError, match=r"no times of train to draw: call it twice"):
        Explanation(nothing).plot()
    assert pyplot.get_fignums() == []


def test_without_matplotlib_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"pip install 'synk\[plot\]'"):
        Explanation(facts()).plot()


# -- of a function ---------------------------------------------------------------------


def test_a_training_step_is_shown_with_what_its_dict_says(pyplot, two_ranks):
    x = pt.matrix("x")
    w = pytensor.shared(np.zeros(3), "w")
    rule = synk.updates.sgd(((x @ w - 1) ** 2).mean(), [w], learning_rate=0.1)
    f = synk.function([x], [], updates=rule, name="step", mode=PY)
    rows = np.ones((11, 3))
    for _ in range(3):
        f(rows)
    explanation = f.explain(rows, measure=True)
    content = explanation.to_dict()
    titles, *shown = table(parsed(explanation), "Mean times in a call")
    drawn = heights(explanation.plot())
    assert [*titles[3:8], "serial run"] == list(drawn) == [*TITLES, "serial run"]
    for i, times in enumerate(content["calls"]["ranks"]):
        assert shown[i][:3] == [f"rank {i}", "", number(times["share"])]
        parts = [times["rows"], times["compute"] - times["common"], times["common"]]
        parts += [times["wait"], times["reduce"]]
        assert shown[i][3:8] == [milliseconds(part) for part in parts]
        assert [drawn[title][i] for title in TITLES] == pytest.approx(parts)
    took = content["serial"]["milliseconds"]
    assert shown[2][:3] == ["serial run", "", "11"]
    assert shown[2][8] == milliseconds(took)
    assert drawn["serial run"] == pytest.approx([0, 0, took])
