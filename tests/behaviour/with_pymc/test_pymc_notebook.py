"""The notebook on PyMC runs from its first cell to its last, on ranks."""

from __future__ import annotations

import re

import pytest
from places import DEMOS

pytest.importorskip("pymc", reason="these tests are of synk with PyMC")
nbformat = pytest.importorskip("nbformat", reason="nbclient is not installed")
nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed")
pytest.importorskip("ipykernel", reason="ipykernel is not installed")

NOTEBOOK = DEMOS / "pymc.ipynb"
SMALL = """
rows, columns = 301, 2
draws, tune = 20, 30
serial, progressbar = False, False
"""


@pytest.fixture
def notebook():
    return nbformat.read(NOTEBOOK, as_version=4)


def test_it_is_stored_without_outputs_and_is_short(notebook):
    nbformat.validate(notebook)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert len(notebook.cells) <= 15
    assert not any(cell.outputs or cell.execution_count for cell in cells)


def test_it_runs_on_ranks(notebook, monkeypatch):
    monkeypatch.setenv("PYTENSOR_FLAGS", "mode=FAST_COMPILE,cxx=")
    monkeypatch.setenv("JUPYTER_PLATFORM_DIRS", "1")
    (parameters,) = [
        cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", ())
    ]
    parameters.source = SMALL
    nbclient.NotebookClient(notebook, timeout=120).execute()
    outputs = [out for cell in notebook.cells for out in cell.get("outputs", ())]
    said = "".join(out.get("text", "") for out in outputs)
    assert re.search(r"^synk: 301 rows, \d+ ranks, \d+\.\d+ times as fast", said, re.M)
    assert re.search(r"^301 rows, \d+ ranks, serially: False$", said, re.M)
    assert "synk: 2 chains one after the other, each on all cores" in said
    shown = [out.get("data", {}).get("text/plain", "") for out in outputs]
    assert any("slopes[1]" in table for table in shown)
