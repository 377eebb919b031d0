"""The documentation: examples, names, docstrings, pictures, figures, notebooks."""

import doctest
import importlib
import inspect
import os
import re
import runpy
import shlex
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator

import pytensor
import pytest
from children import in_a_child
from places import DOCS, ROOT, SUPPORT, TESTS
from processes import is_alive, wait_until

import synk
from synk import compat

PAGES = sorted(DOCS.glob("*.rst"))
TUTORIALS = sorted(DOCS.glob("start/*.rst"))
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
    "models",
    "nn",
    "moving",
)
BY_JAX = ("precision",)
"""In a child: where JAX has computed something, ranks are forked from elsewhere."""

COMPILED = ("same_numbers",)
"""Of which the engine is what they are about."""


@pytest.mark.parametrize("name", BY_JAX)
@in_a_child
def test_the_examples_of_a_page_in_jax_mode_run_and_give_what_it_shows(name):
    test_the_examples_of_a_page_run_and_give_what_it_shows(name)


@pytest.mark.parametrize("name", [*NARRATIVE, *COMPILED, "../CONTRIBUTING"])
def test_the_examples_of_a_page_run_and_give_what_it_shows(name):
    flags = {} if name in COMPILED else {"mode": "FAST_COMPILE", "cxx": ""}
    try:
        with pytensor.config.change_flags(**flags):
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
    """Return what is in ``synk.__all__``, and in that of its public modules."""
    found = {f"compat.{name}": getattr(compat, name) for name in compat.__all__}
    for name in synk.__all__:
        thing = getattr(synk, name)
        if inspect.ismodule(thing):
            found |= {f"{name}.{part}": getattr(thing, part) for part in thing.__all__}
        else:
            found[name] = thing
    return found


PUBLIC = public_names()


WITH_LIBRARIES = ("keras.Callbacks", "keras.step", "torch.step")
"""What is public in modules that only those can import who have the library."""


def test_all_pages_with_examples_are_run():
    with_examples = {page.stem for page in PAGES if ">>> " in page.read_text()}
    assert with_examples == {*NARRATIVE, *BY_JAX, *COMPILED}


def test_the_api_page_has_every_public_name_and_no_other():
    directive = r"^\.\. auto(?:function|class|exception):: (?:synk\.)?([\w.]+)"
    documented = re.findall(directive, (DOCS / "api.rst").read_text(), re.M)
    assert sorted(documented) == sorted([*PUBLIC, *WITH_LIBRARIES])


def test_the_newest_section_of_the_changes_is_this_version():
    first = re.search(
        r"^(\d+\.\d+\.\d+)\n-+$", (DOCS / "changes.rst").read_text(), re.M
    )
    assert first[1] == synk.__version__


def test_files_that_pages_name_exist():
    missing = []
    for page in PAGES:
        for name in set(re.findall(r"[\w/]+\.py\b", page.read_text())):
            is_of_synk = page.stem == "design" and not name.startswith("tests/")
            root = ROOT / "synk" if is_of_synk else ROOT
            # Sphinx takes what begins with / from the folder of the pages.
            path = (DOCS if name[0] == "/" else root) / name.lstrip("/")
            missing += [] if path.exists() else [(page.name, name)]
    assert missing == []


def test_the_design_notes_tell_ways_in_files_that_define_their_steps():
    text = (DOCS / "design.rst").read_text()
    ways = text.partition("The way of one call")[2].partition("Rows in files")[0]
    drawn = [line for line in ways.splitlines() if line.startswith("    ")]
    steps = re.findall(r"([\w.]+(?:, \w+)?) +([\w/]+\.py)", "\n".join(drawn))
    names = {name for name, _ in steps}
    assert {"Function.__call__", "SESSION.run_args", "combine_outputs"} <= names
    assert {"place", "master_bring", "worker_undo", "entry_of"} <= names
    for step, file in steps:
        source = (ROOT / "synk" / file).read_text()
        for name in step.split(", "):
            defined = rf"(def|class) {name.split('.')[-1]}\b"
            assert re.search(defined, source), (name, file)


# -- docstrings ------------------------------------------------------------------------


def public_callables() -> dict[str, object]:
    """Return the public functions, and the public methods of the public classes."""
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
    first, *pieces = re.split(r"^(\w[\w ]*)\n(-+)$", docstring, flags=re.M)
    found = {"": first}
    for title, ruler, text in zip(pieces[::3], pieces[1::3], pieces[2::3], strict=True):
        assert len(title) == len(ruler), f"ruler of {title}"
        found[title] = text
    return found


def documented(section: str) -> list[str]:
    """Return the names that a Parameters section explains."""
    entries = re.findall(r"^(\S[^:\n]*?)(?: : .+)?\n {4}\S", section + "\n", re.M)
    bare = re.findall(r"^(\w+) : .+$", section, re.M)  # the type says it all
    names = [name.strip() for entry in [*entries, *bare] for name in entry.split(",")]
    return sorted({name.lstrip("*") for name in names})


def test_every_public_name_has_a_docstring_with_a_one_line_summary():
    for name, thing in PUBLIC.items():
        summary, *rest = inspect.getdoc(thing).splitlines()
        assert summary.endswith("."), name
        assert not rest or rest[0] == "", name


def test_docstrings_have_numpydocs_sections_and_every_parameter():
    order = ["", "Parameters", "Returns", "Yields", "Raises", "Notes", "Examples"]
    for name, function in CALLABLES.items():
        text = inspect.getdoc(function)
        parts, signature = sections(text), inspect.signature(function)
        parameters = set(signature.parameters) - {"self"}
        assert documented(parts.get("Parameters", "")) == sorted(parameters), name
        assert list(parts) == [title for title in order if title in parts], name
        if signature.return_annotation not in ("None", None):
            returns = {"Returns", "Yields"} & set(parts)
            assert returns or text.startswith(("Return ", "Tell ")), name


# -- pictures


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
    return importlib.import_module(f"pictures.{name}")


def test_every_picture_is_on_a_page_with_a_text_for_those_who_do_not_see_it(pictures):
    shown = []
    for page in [*PAGES, *TUTORIALS]:
        text = page.read_text()
        with_text = re.findall(r"^\.\. picture:: (\w+)\n   :alt: \w+", text, re.M)
        assert len(with_text) == text.count(".. picture::"), page.name
        shown += with_text
    drawn = [*pictures.names(), *(page.stem for page in TUTORIALS)]
    assert sorted(shown) == sorted(drawn)
    kept = {path.name for path in DOCS.glob("start/*.svg")}
    themes = pictures.THEMES
    assert kept == {
        f"{page.stem}-{theme}.svg" for page in TUTORIALS for theme in themes
    }


@pytest.mark.parametrize("name", ["networks", "theano", "clusters"])
def test_a_tutorial_prints_what_it_shows_and_ends_with_a_picture(
    pictures, name, tmp_path, monkeypatch
):
    """That of PyMC is in test_pymc_demos; numba's code is compiled for one only."""
    if name != "clusters":
        flags = os.environ.get("PYTENSOR_FLAGS", "")
        monkeypatch.setenv("PYTENSOR_FLAGS", f"{flags},mode=FAST_COMPILE".lstrip(","))
    module("tutorials").run(name, tmp_path)
    assert [drawn.suffix for drawn in tmp_path.glob("*.svg")] == [".svg"]


def test_speed_ups_are_those_that_the_pages_state(pictures):
    found = dict(module("of_speed_up").gather())
    text = (DOCS / "performance.rst").read_text() + (DOCS / "engines.inc").read_text()
    assert len(found) == 5
    for by_ranks in found.values():
        assert 2 in by_ranks
        for ratio in by_ranks.values():
            assert f"{ratio:.2f}x" in text or f"({ratio:.2f})" in text


def test_the_readmes_picture_has_the_figures_of_the_page(pictures):
    of_front = module("of_front")
    readme, drawn = (ROOT / "README.rst").read_text(), (DOCS / "front.svg").read_text()
    assert "<svg" in drawn
    for gain in of_front.gather():
        assert of_front.shown(gain.synk) in readme
        assert of_front.shown(gain.other).split()[0] in readme


# -- the model of scaling that docs/performance.rst shows


def test_the_documents_show_what_the_program_prints(monkeypatch, capsys):
    page = (DOCS / "performance.rst").read_text()
    command, *shown = [
        line.strip() for line in page.split("$ python tests/whole/gpu/scaling.py")
    ][1].splitlines()[: 1 + 2 * 5]
    monkeypatch.setattr(sys, "argv", ["scaling.py", *shlex.split(command)])
    runpy.run_path(str(TESTS / "whole/gpu/scaling.py"), run_name="__main__")
    printed = capsys.readouterr().out.splitlines()
    assert [line.strip() for line in shown] == [line.strip() for line in printed]


# -- notebooks, as docs/troubleshooting.rst tells of them

FORK = """
    import processes, synk
    import pytensor.tensor as pt
    from processes import PY, ROWS, TOTAL, acting, summing
    print(synk.fork(2), *processes.all_pids())
"""
CALL = """
    f = summing()
    print(f(ROWS) == TOTAL)
"""
STAY = """
    import pathlib, threading
    def tell():
        processes.await_arrivals(2)
        pathlib.Path({path!r}).touch()
    processes.reset()
    threading.Thread(target=tell).start()
    acting(None, processes.arrive_and_stay)(ROWS)
"""
RUN = """
    f.run([1] * 7, ROWS, progress=True)
"""
CLOSE = """
    synk.close()
    print(*map(processes.is_alive, [{pids}]))
    synk.fork(2)
    print(f(ROWS) == TOTAL, *processes.all_pids())
"""


class Notebook:
    """A kernel, and what its cells print."""

    def __init__(self, client, new_cell: Callable, run_sync: Callable) -> None:
        self._client, self._new_cell, self._run_sync = client, new_cell, run_sync

    def cell(self, source: str) -> str:
        """Run a cell; return what it printed, and the name of what it raised."""
        cells = self._client.nb.cells
        cells.append(self._new_cell(textwrap.dedent(source)))
        cell = self._client.execute_cell(cells[-1], len(cells) - 1)
        return "".join(out.get("text", out.get("ename", "")) for out in cell.outputs)

    def interrupt(self) -> None:
        self._run_sync(self._client.km.interrupt_kernel)()

    def restart(self) -> None:
        self._run_sync(self._client.km.restart_kernel)(now=True)
        self._run_sync(self._client.kc.wait_for_ready)(timeout=60)


@pytest.fixture
def notebook(tmp_path, monkeypatch) -> Iterator[Notebook]:
    needed = "nbformat", "nbclient", "jupyter_core.utils", "ipykernel"
    nbformat, nbclient, utils, _ = map(pytest.importorskip, needed)
    path = os.pathsep.join([str(SUPPORT), os.environ.get("PYTHONPATH", "")])
    monkeypatch.setenv("PYTHONPATH", path)
    monkeypatch.setenv("JUPYTER_PLATFORM_DIRS", "1")
    client = nbclient.NotebookClient(
        nbformat.v4.new_notebook(), timeout=60, allow_errors=True
    )
    with client.setup_kernel(cwd=str(tmp_path)):
        yield Notebook(client, nbformat.v4.new_code_cell, utils.run_sync)


def test_a_session_in_a_notebook(notebook, tmp_path):
    size, *first = map(int, notebook.cell(FORK).split())
    assert size == 2
    assert notebook.cell(CALL) == "True\n"
    there = tmp_path / "there"

    def interrupt() -> None:
        wait_until(there.exists, 30, f"{there}")
        notebook.interrupt()

    threading.Thread(target=interrupt, daemon=True).start()
    assert notebook.cell(STAY.format(path=str(there))) == "KeyboardInterrupt"
    assert notebook.cell(CALL) == "True\n"
    assert "7/7" in notebook.cell(RUN)
    said = notebook.cell(CLOSE.format(pids=",".join(map(str, first)))).split()
    assert said[:3] == ["False", "False", "True"]
    second = list(map(int, said[3:]))
    assert all(map(is_alive, second))
    notebook.restart()
    wait_until(lambda: not any(map(is_alive, second)), 5, "end of the ranks")
    assert notebook.cell(FORK).startswith("2 ")
    assert notebook.cell(CALL) == "True\n"
