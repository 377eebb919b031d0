"""The table of Theano's names says what is there, and the page says the table."""

import contextlib
import importlib

import pytest
from places import DOCS

from synk.theano import names, names_page

SECTIONS = names.sections()
IDS = [f"{section.module}: {section.title}" for section in SECTIONS]


def owner(section):
    """Return the module or class of ours that a section is about."""
    try:
        return importlib.import_module(f"synk.{section.module}")
    except ImportError:
        place, _, name = section.module.rpartition(".")
        return getattr(importlib.import_module(f"synk.{place}"), name)


def of_pytensor(section):
    """Return what of `section.at` the installed PyTensor has."""
    found = []
    for place in section.at.split():
        try:
            found.append(importlib.import_module(place))
        except ImportError:
            where, _, name = place.rpartition(".")
            # An object (pytensor.config), or a module of another version.
            with contextlib.suppress(ImportError, AttributeError):
                found.append(getattr(importlib.import_module(where), name))
    assert found or not section.same
    return found


def _is(ours, theirs):
    """Tell whether two are one; options, which are plain values, by their value."""
    return ours is theirs or (isinstance(ours, int | str) and ours == theirs)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("section", SECTIONS, ids=IDS)
def test_names_are_as_the_table_says(section):
    ours, theirs = owner(section), of_pytensor(section)
    wrong = []
    for name, state, _ in section.rows():
        if hasattr(ours, name) == (state == "absent"):
            wrong.append((name, state))
        elif state == "same":
            found = [getattr(there, name) for there in theirs if hasattr(there, name)]
            if not any(_is(getattr(ours, name), one) for one in found):
                wrong.append((name, "not PyTensor's"))
    assert not wrong


def test_every_name_has_one_state():
    for module in {section.module for section in SECTIONS}:
        listed = [
            name
            for section in SECTIONS
            if section.module == module
            for name, _, _ in section.rows()
        ]
        assert sorted(set(listed)) == sorted(listed), module


def test_absent_names_say_what_to_use():
    for full_name, remark in names.absent().items():
        assert remark, full_name


def test_star_import_has_every_name_of_the_table():
    scope: dict = {}
    exec("from theano.tensor import *", scope)
    assert set(names.names_of("theano.tensor")) <= set(scope)
    assert "nonzero" in scope
    assert "dmatrix" in scope


def test_the_page_is_the_table():
    page = DOCS / "theano.rst"
    # python -m synk.theano.names_page docs/theano.rst
    assert page.read_text() == names_page.page()
