"""A notebook: cells fork, call and are interrupted; a restart leaves no orphan."""

from __future__ import annotations

import os
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from places import SUPPORT
from processes import is_alive, wait_until

nbformat = pytest.importorskip("nbformat", reason="nbclient is not installed")
nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed")
pytest.importorskip("ipykernel", reason="ipykernel is not installed")
run_sync = pytest.importorskip("jupyter_core.utils").run_sync

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

    def __init__(self, client: nbclient.NotebookClient) -> None:
        self._client = client

    def cell(self, source: str) -> str:
        """Run a cell; return what it printed, and the name of what it raised."""
        cells = self._client.nb.cells
        cells.append(nbformat.v4.new_code_cell(textwrap.dedent(source)))
        cell = self._client.execute_cell(cells[-1], len(cells) - 1)
        return "".join(out.get("text", out.get("ename", "")) for out in cell.outputs)

    def interrupt(self) -> None:
        run_sync(self._client.km.interrupt_kernel)()

    def restart(self) -> None:
        run_sync(self._client.km.restart_kernel)(now=True)
        run_sync(self._client.kc.wait_for_ready)(timeout=60)


@pytest.fixture
def notebook(tmp_path, monkeypatch):
    here = str(SUPPORT)
    path = os.pathsep.join([here, os.environ.get("PYTHONPATH", "")])
    monkeypatch.setenv("PYTHONPATH", path)
    monkeypatch.setenv("JUPYTER_PLATFORM_DIRS", "1")
    client = nbclient.NotebookClient(
        nbformat.v4.new_notebook(), timeout=60, allow_errors=True
    )
    with client.setup_kernel(cwd=str(tmp_path)):
        yield Notebook(client)


def when_there(path: Path, act: Callable[[], object]) -> None:
    """Do something once there is a file, from a thread."""

    def wait() -> None:
        wait_until(path.exists, 30, f"{path}")
        act()

    threading.Thread(target=wait, daemon=True).start()


def test_a_session_in_a_notebook(notebook, tmp_path):
    size, *first = map(int, notebook.cell(FORK).split())
    assert size == 2
    assert notebook.cell(CALL) == "True\n"
    there = tmp_path / "there"
    when_there(there, notebook.interrupt)
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
