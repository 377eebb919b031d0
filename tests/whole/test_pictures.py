"""The pictures of the documentation: of what pages say, and used by them."""

from __future__ import annotations

import re
import shutil
import sys

import pytest
from places import DOCS

PAGES = sorted(DOCS.glob("*.rst"))


@pytest.fixture
def pictures(monkeypatch):
    """Import docs/pictures as the build of the pages does."""
    pytest.importorskip("matplotlib")
    monkeypatch.syspath_prepend(str(DOCS))
    import pictures
    import pictures.style

    yield pictures
    for name in [name for name in sys.modules if name.split(".")[0] == "pictures"]:
        del sys.modules[name]


def module(name: str):
    import importlib

    return importlib.import_module(f"pictures.{name}")


def test_every_picture_is_on_a_page_with_a_text_for_those_who_do_not_see_it(pictures):
    shown = []
    for page in PAGES:
        text = page.read_text()
        with_text = re.findall(r"^\.\. picture:: (\w+)\n   :alt: \w+", text, re.M)
        assert len(with_text) == text.count(".. picture::"), page.name
        shown += with_text
    assert sorted(shown) == pictures.names()


def test_speed_ups_are_those_that_the_pages_state(pictures):
    found = dict(module("of_speed_up").gather())
    text = (DOCS / "performance.rst").read_text() + (DOCS / "engines.inc").read_text()
    assert len(found) == 5
    for by_ranks in found.values():
        assert 2 in by_ranks
        for ratio in by_ranks.values():
            assert f"{ratio:.2f}x" in text or f"({ratio:.2f})" in text


def test_a_page_without_the_figures_is_an_error_that_says_so(
    pictures, tmp_path, monkeypatch
):
    of_speed_up = module("of_speed_up")
    monkeypatch.setattr(of_speed_up, "DOCS", tmp_path)
    (tmp_path / "performance.rst").write_text("nothing measured\n")
    with pytest.raises(RuntimeError, match="has no line like"):
        of_speed_up.gather()
    shutil.copy(DOCS / "performance.rst", tmp_path)
    (tmp_path / "engines.inc").write_text("nothing measured\n")
    with pytest.raises(RuntimeError, match=r"engines.inc has no time of"):
        of_speed_up.gather()


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("name", ["of_call", "of_engines", "of_stages", "of_speed_up"])
def test_drawings_are_the_same_files_in_every_build(pictures, tmp_path, name, theme):
    drawn = []
    for i in range(2):
        path = tmp_path / f"{i}.svg"
        with pictures.style.of(theme):
            data = module(name).gather()
            module(name).draw(data).savefig(path, metadata={"Date": None})
        drawn.append(path.read_text())
    assert drawn[0] == drawn[1]
    assert pictures.style.INKS[theme] in drawn[0]


def test_a_timeline_has_all_phases_of_both_ranks(pictures):
    of_timeline = module("of_timeline")
    events = of_timeline.gather()
    for rank in (0, 1):
        of_rank = [event for event in events if event["tid"] == rank]
        names = {event["name"] for event in of_rank}
        assert {"compute, stage 0", "compute, stage 1", "wait", "reduce"} <= names
        first = [event for event in of_rank if event["name"] == "compute, stage 0"]
        assert len(first) == of_timeline.SHOWN
    with pictures.style.of("light"):
        (ax,) = of_timeline.draw(events).axes
    assert [text.get_text() for text in ax.get_yticklabels()] == ["rank 0", "rank 1"]
