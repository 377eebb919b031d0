"""The documentation: its examples run, and it has every public name."""

from __future__ import annotations

import doctest
import inspect
import re

import pytensor
import pytest
from children import in_a_child
from places import ROOT

import synk
from synk import compat

DOCS = ROOT / "docs"
PAGES = sorted(DOCS.glob("*.rst"))
NARRATIVE = (
    "index",
    "introduction",
    "shared_variables",
    "data",
    "reliability",
    "troubleshooting",
    "training",
    "rules",
    "reducing",
    "own_ops",
    "speed",
    "theano",
    "nn",
    "moving",
)
BY_JAX = ("precision",)
"""In a child: where JAX has computed something, ranks are forked from elsewhere."""
COMPILED = ("index",)
"""In the default mode, as users run all; for the others numba takes a minute."""


@pytest.mark.parametrize("name", NARRATIVE)
def test_the_examples_of_a_page_run_and_give_what_it_shows(name):
    run_examples(name)


@pytest.mark.parametrize("name", BY_JAX)
@in_a_child
def test_the_examples_of_a_page_in_jax_mode_run_and_give_what_it_shows(name):
    run_examples(name)


def run_examples(name: str) -> None:
    quick = {} if name in COMPILED else {"mode": "FAST_COMPILE", "cxx": ""}
    try:
        with pytensor.config.change_flags(**quick):
            results = doctest.testfile(
                str(DOCS / f"{name}.rst"),
                module_relative=False,
                optionflags=doctest.ELLIPSIS,
                verbose=False,
            )
    finally:
        left_open = synk.is_forked()
        synk.close()
    assert results.failed == 0
    assert results.attempted > 10
    assert not left_open, "the page does not close its session"


def public_names() -> dict[str, object]:
    """Return what is in ``synk.__all__``, and in that of its public modules.

    ``synk.compat`` is one of these, though it isn't imported with the package.
    """
    found = {f"compat.{name}": getattr(compat, name) for name in compat.__all__}
    for name in synk.__all__:
        thing = getattr(synk, name)
        if inspect.ismodule(thing):
            found |= {f"{name}.{part}": getattr(thing, part) for part in thing.__all__}
        else:
            found[name] = thing
    return found


PUBLIC = public_names()


def test_all_pages_with_examples_are_run():
    with_examples = {page.stem for page in PAGES if ">>> " in page.read_text()}
    assert with_examples == {*NARRATIVE, *BY_JAX}


def test_the_api_page_has_every_public_name_and_no_other():
    directive = r"^\.\. auto(?:function|class|exception):: (?:synk\.)?([\w.]+)"
    documented = re.findall(directive, (DOCS / "api.rst").read_text(), re.M)
    assert sorted(documented) == sorted(PUBLIC)


def test_the_newest_section_of_the_changes_is_this_version():
    first = re.search(
        r"^(\d+\.\d+\.\d+)\n-+$", (DOCS / "changes.rst").read_text(), re.M
    )
    assert first[1] == synk.__version__


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_files_that_a_page_names_exist(page):
    """Of the package in the design notes, of the repository elsewhere."""
    root = ROOT / "synk" if page.stem == "design" else ROOT
    names = set(re.findall(r"[\w/]+\.py\b", page.read_text()))
    # Sphinx takes what begins with / from the folder of the pages.
    paths = {(DOCS if name[0] == "/" else root) / name.lstrip("/") for name in names}
    assert [path for path in sorted(paths) if not path.exists()] == []


def test_the_design_notes_tell_the_way_of_a_call_in_files_that_define_its_steps():
    text = (DOCS / "design.rst").read_text()
    drawing = text.partition("without going back::")[2].partition("A command is")[0]
    steps = re.findall(r"([\w.]+(?:, \w+)?) {2,}([\w/]+\.py)", drawing)
    names = {name for name, _ in steps}
    assert {"Calls.__call__", "SESSION.run", "combine_outputs"} <= names
    for step, file in steps:
        source = (ROOT / "synk" / file).read_text()
        for name in step.split(", "):
            assert re.search(rf"def {name.split('.')[-1]}\b", source), (name, file)


# -- docstrings ------------------------------------------------------------------------


def public_callables() -> dict[str, object]:
    """Return the public functions, and the public methods of the public classes.

    Users do not construct the classes: they are made by functions, or raised.
    """
    found: dict[str, object] = {}
    for name, thing in PUBLIC.items():
        if not inspect.isclass(thing):
            found[name] = thing
            continue
        for attribute, method in vars(thing).items():
            if inspect.isfunction(method) and (
                attribute == "__call__" or not attribute.startswith("_")
            ):
                found[f"{name}.{attribute}"] = method
    return found


CALLABLES = public_callables()


def sections(docstring: str) -> dict[str, str]:
    """Return a numpydoc docstring's sections by title; "" is what comes before."""
    pieces = re.split(r"^(\w[\w ]*)\n(-+)$", docstring, flags=re.M)
    titles, rulers, texts = pieces[1::3], pieces[2::3], pieces[3::3]
    for title, ruler in zip(titles, rulers, strict=True):
        assert len(title) == len(ruler), f"ruler of {title}"
    return {"": pieces[0], **dict(zip(titles, texts, strict=True))}


def documented(section: str) -> list[str]:
    """Return the names that a Parameters section explains."""
    entries = re.findall(r"^(\S[^:\n]*?)(?: : .+)?\n {4}\S", section + "\n", re.M)
    bare = re.findall(r"^(\w+) : .+$", section, re.M)  # the type says it all
    names = [name.strip() for entry in [*entries, *bare] for name in entry.split(",")]
    return sorted({name.lstrip("*") for name in names})


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_has_a_docstring_with_a_one_line_summary(name):
    summary, *rest = inspect.getdoc(PUBLIC[name]).splitlines()
    assert summary.endswith(".")
    assert not rest or rest[0] == ""


@pytest.mark.parametrize("name", CALLABLES)
def test_every_parameter_is_documented_and_no_other(name):
    parts = sections(inspect.getdoc(CALLABLES[name]))
    parameters = set(inspect.signature(CALLABLES[name]).parameters) - {"self"}
    assert documented(parts.get("Parameters", "")) == sorted(parameters)


@pytest.mark.parametrize("name", CALLABLES)
def test_sections_are_those_of_numpydoc_in_its_order(name):
    order = ["", "Parameters", "Returns", "Yields", "Raises", "Notes", "Examples"]
    titles = list(sections(inspect.getdoc(CALLABLES[name])))
    assert titles == [title for title in order if title in titles]


@pytest.mark.parametrize("name", CALLABLES)
def test_what_returns_a_value_says_which(name):
    returns = inspect.signature(CALLABLES[name], eval_str=False).return_annotation
    if returns in ("None", None):
        return
    text = inspect.getdoc(CALLABLES[name])
    parts = sections(text)
    assert {"Returns", "Yields"} & set(parts) or text.startswith(("Return ", "Tell "))
