"""The demo with PyMC, and the notebook on it."""

import importlib
import re
import subprocess
import sys

import pytest
from places import DEMOS, DOCS

pytest.importorskip("pymc", reason="these tests are of synk with PyMC")


@pytest.mark.slow
def test_the_demo_samples_serially_and_by_ranks_to_the_same_means(monkeypatch):
    monkeypatch.setenv("PYTENSOR_FLAGS", "mode=FAST_COMPILE,cxx=")
    sizes = ["--rows", "20000", "--columns", "2", "--draws", "9", "--tune", "9"]
    demo = str(DEMOS / "pymc_logistic.py")
    command = [sys.executable, demo, *sizes, "--ranks", "2", "--compare"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    steps = r"^serial: [\d.]+ s, \d+ leapfrog steps in 9 draws$"
    assert re.search(steps, done.stdout, re.M)
    assert "synk: 20,000 rows, 2 ranks, " in done.stdout
    assert re.search(r"^2 ranks: [\d.]+ s", done.stdout, re.M)
    apart = re.search(r"^the means of both runs ([\d.]+) at most$", done.stdout, re.M)
    assert apart is not None
    assert float(apart[1]) < 0.01


def test_the_tutorial_prints_what_it_shows_and_ends_with_a_picture(
    monkeypatch, tmp_path
):
    pytest.importorskip("matplotlib")
    monkeypatch.syspath_prepend(str(DOCS))
    tutorials = importlib.import_module("pictures.tutorials")
    files, commands = tutorials.blocks("pymc")
    short = {"model.py": files["model.py"].replace('"tune": 100', '"tune": 10')}
    assert short != files
    monkeypatch.setattr(tutorials, "blocks", lambda _: (short, commands))
    tutorials.run("pymc", tmp_path)
    assert [drawn.suffix for drawn in tmp_path.glob("*.svg")] == [".svg"]


SMALL = """
rows, columns = 301, 2
draws, tune = 20, 30
serial, progressbar = False, False
"""


def test_the_notebook_runs_on_ranks_from_its_first_cell_to_its_last(monkeypatch):
    """It is stored without outputs, and is short."""
    needed = "nbformat", "nbclient", "ipykernel"
    nbformat, nbclient, _ = map(pytest.importorskip, needed)
    notebook = nbformat.read(DEMOS / "pymc.ipynb", as_version=4)
    nbformat.validate(notebook)
    assert len(notebook.cells) <= 15
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert not any(cell.outputs or cell.execution_count for cell in code)
    monkeypatch.setenv("PYTENSOR_FLAGS", "mode=FAST_COMPILE,cxx=")
    monkeypatch.setenv("JUPYTER_PLATFORM_DIRS", "1")
    (parameters,) = [
        cell for cell in code if "parameters" in cell.metadata.get("tags", ())
    ]
    parameters.source = SMALL
    nbclient.NotebookClient(notebook, timeout=120).execute()
    outputs = [out for cell in notebook.cells for out in cell.get("outputs", ())]
    said = "".join(out.get("text", "") for out in outputs)
    assert re.search(r"^synk: 301 rows, \d+ ranks, \d+\.\d+ times as fast", said, re.M)
    assert re.search(r"^301 rows, \d+ ranks, serially: False$", said, re.M)
    assert re.search(r"^synk: 2 chains at once, each on \d+ ranks?$", said, re.M)
    shown = [out.get("data", {}).get("text/plain", "") for out in outputs]
    assert any("slopes[1]" in table for table in shown)
