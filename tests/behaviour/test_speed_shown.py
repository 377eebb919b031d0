"""An explanation in notebooks, as a drawing, a picture: all show what the dict says."""

import operator
import sys
from xml.etree import ElementTree

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from on_ranks import three_ranks
from reference import PY

import synk

html_of = operator.methodcaller("_repr_html_")
"""What a notebook asks an object for."""

TITLES = ["taking rows", "compute on rows", "compute on every rank", "wait", "reduce"]

NAME = "<script>alert('&')</script> \"x\""


def training(name="step"):
    """Return a step with a level for a mean, one for its gradient, and an update."""
    x, y = pt.matrix("x"), pt.vector("y")
    w = pytensor.shared(np.ones(3), "w")
    centred = x - x.mean(axis=0)
    loss = ((centred @ w - y) ** 2).mean()
    loss.name, centred.name = "loss", "centred"
    updates = {w: w - 0.1 * pytensor.grad(loss, w)}
    f = synk.function([x, y], [loss, centred], updates=updates, name=name, mode=PY)
    return f, np.random.default_rng(0).normal(size=(7, 3)), np.ones(7)


def parsed(explanation) -> ElementTree.Element:
    return ElementTree.fromstring(html_of(explanation))


def table(root: ElementTree.Element, label: str) -> list[list[str]]:
    (found,) = (t for t in root.iter("table") if t.get("aria-label") == label)
    return [["".join(_texts(cell)).strip() for cell in row] for row in found.iter("tr")]


def _texts(element: ElementTree.Element):
    if element.tag != "title":  # what a pointer shows of a bar's part
        yield element.text or ""
        for part in element:
            yield from _texts(part)
            yield part.tail or ""


def in_milliseconds(text: str) -> float:
    """Return what a time of three digits says."""
    number, unit = text.split()
    return float(number) * {"us": 1e-3, "ms": 1, "s": 1e3}[unit]


@pytest.fixture
def pyplot(monkeypatch):
    matplotlib = pytest.importorskip("matplotlib")
    monkeypatch.setitem(matplotlib.rcParams, "backend", "agg")
    from matplotlib import pyplot

    yield pyplot
    pyplot.close("all")


def bars(content: dict) -> list[list[float]]:
    """Return the parts of each rank's bar, as long as its times in a dict."""
    return [
        [t["rows"], t["compute"] - t["common"], t["common"], t["wait"], t["reduce"]]
        for t in content["calls"]["ranks"]
    ]


# -- times -----------------------------------------------------------------------------


def assert_html_shows(explanation) -> None:
    """Assert that HTML has the sentences of the text, and the times of the dict."""
    content, text = explanation.to_dict(), " ".join(str(explanation).split())
    root = parsed(explanation)
    assert "script" not in {element.tag for element in root.iter()}
    assert next(root.iter("b")).text == f"{NAME}: 2 ranks"
    said = table(root, "What it does")
    assert ["output 0", "loss: avg; a mean over the rows; combined in a stage"] in said
    for _, sentence in said:
        assert " ".join(sentence.split()) in text
    titles, *rows = table(root, "Mean times in a call")
    assert titles == ["", "", "rows", *TITLES, "all"]
    assert [row[0] for row in rows] == ["rank 0", "rank 1", "serial run"]
    assert [row[2] for row in rows] == ["4", "3", "7"]
    took = content["serial"]["milliseconds"]
    assert in_milliseconds(rows[2][8]) == pytest.approx(took, rel=0.01)
    pictures = [svg.get("aria-label") for svg in root.iter("svg") if svg.get("role")]
    assert pictures == [f"{row[0]}: {row[8]}" for row in rows]
    for row, parts in zip(rows, bars(content), strict=False):
        found = [in_milliseconds(cell) for cell in row[3:8]]
        assert found == pytest.approx(parts, rel=0.01, abs=6e-4)
        assert in_milliseconds(row[8]) == pytest.approx(sum(parts), rel=0.01)


def assert_picture_shows(explanation, pyplot, folder) -> None:
    """Assert that bars are as high as the dict's times; and where a picture goes."""
    content = explanation.to_dict()
    ax = explanation.plot(folder / "train.svg")
    assert pyplot.get_fignums() == []
    assert ElementTree.parse(folder / "train.svg").getroot().tag.endswith("svg")
    heights = {
        container.get_label(): [bar.get_height() for bar in container]
        for container in ax.containers
    }
    assert list(heights) == [*TITLES, "serial run"]
    for rank, parts in enumerate(bars(content)):
        assert [heights[title][rank] for title in TITLES] == pytest.approx(parts)
    took = content["serial"]["milliseconds"]
    assert heights["serial run"] == pytest.approx([0, 0, took])
    assert ax.get_title() == f"{NAME}: 2 ranks"
    explanation.plot(str(folder / "train.pdf"))
    assert (folder / "train.pdf").read_bytes().startswith(b"%PDF")
    _, mine = pyplot.subplots()
    assert explanation.plot(ax=mine) is mine


def test_a_training_step_is_shown_with_what_its_dict_says(pyplot, tmp_path):
    f, *values = training(NAME)
    with synk.session(2):
        for _ in range(3):
            f(*values)
        explanation = f.explain(*values, measure=True)
        assert_html_shows(explanation)
        assert_picture_shows(explanation, pyplot, tmp_path)
        stages = f.explain(graph=True)
    root = parsed(stages)
    assert "script" not in {element.tag for element in root.iter()}
    assert next(root.iter("b")).text.startswith(f"{NAME}: 2 ranks")
    ax = stages.plot(tmp_path / "stages.svg")
    (svg,) = root.iter("svg")
    assert [t.get_text() for t in ax.texts] == [t.text for t in svg.iter("text")]
    assert len(ax.patches) == len(list(svg.iter("rect")))
    assert ax.get_title(loc="left") == str(stages).splitlines()[0]


def test_without_times_html_is_the_plan_and_there_is_no_picture(pyplot):
    f, *_ = training()
    root = parsed(f.explain())
    assert ["calls", "none yet"] in table(root, "What it does")
    assert not list(root.iter("svg"))
    with pytest.raises(ValueError, match=r"no times of step to draw: call it twice"):
        f.explain().plot()
    assert pyplot.get_fignums() == []


def test_only_pictures_need_matplotlib_and_say_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    f, *values = training()
    for _ in range(2):
        f.as_theano(*values)
    for explanation in (f.explain(), f.explain(graph=True)):
        assert "stage 0" in html_of(explanation)
        with pytest.raises(ImportError, match=r"pip install 'synk\[plot\]'"):
            explanation.plot()


# -- stages ----------------------------------------------------------------------------


@three_ranks
def test_a_drawing_has_the_stages_meetings_outputs_and_updates_in_their_order(ranks):
    f, *values = training()
    f(*values)
    explanation = f.explain(graph=True)
    text = str(explanation)
    assert max(map(len, text.splitlines())) <= 100
    head, numbers, *lines = text.splitlines()
    assert head == "step: 3 ranks; ranks meet 2 times in a call, over 3 values of 56 B"
    assert numbers.split() == ["0", "1", "2"]
    marks = {line[2:7] for line in lines}
    assert marks == {"o o o", "* * *", "| | |", "=====", "+-+-+", "|    "}
    said = [line[10:].strip() for line in lines]
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
    assert "24 B, for Sub (centred) (test_speed_shown.py:" in one
    assert three.endswith(", 8 B, along with the others")
    assert two.endswith("24 B, for the new value of w")
    # In a notebook it is the same.
    (svg,) = parsed(explanation).iter("svg")
    in_svg = [text.text for text in svg.iter("text")]
    assert in_svg[:ranks] == numbers.split()
    written = " ".join(" ".join(said).split())
    assert " ".join(" ".join(in_svg[ranks:]).split()) == written
    assert len(list(svg.iter("rect"))) == 3 * ranks + 3  # stages, and meetings


def test_what_is_of_all_rows_is_marked_in_its_stage_and_one_rank_has_one_piece():
    x = pt.vector("x")
    f = synk.function([x], [x.sum(), x * 2], mode=PY, name="ends")
    head, *lines = str(f.explain(graph=True)).splitlines()
    assert head == "ends: not forked; ranks meet at the end of a call alone"
    assert not any("==" in line for line in lines)
    with pytest.warns(synk.SplitWarning):
        f = synk.function([x], [pt.sort(x), pt.exp(x - x.mean())], mode=PY)
    first, second = f.explain().to_dict()["stages"]
    assert (first["repeats"], second["repeats"]) == ([], ["SortOp"])
    assert "of all rows, on every rank: SortOp" in str(f.explain(graph=True))
    f, *values = training()
    with synk.session(1):
        f(*values)
        head = str(f.explain(graph=True)).splitlines()[0]
    assert "1 rank; it runs the graph in one piece, and several would meet" in head
