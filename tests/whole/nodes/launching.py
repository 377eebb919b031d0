"""Scripts on several nodes: MPI processes of this machine, each a node of its own."""

import functools
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from places import ROOT

MPICH = os.environ.get("SYNK_MPICH")
"""Where MPICH lies: both MPIs of the package index have the same names."""

MPIS = ["openmpi", *(["mpich"] if MPICH else [])]

OWN_MACHINE = Path(__file__).parent / "own_machine.sh"
APART = "openmpi, apart"
"""Each node in namespaces of its own, and TCP between them."""


STOPS = """
import signal

class Stop(BaseException):  # PyTensor may lose an Exception that comes as it begins
    pass

def stop(*_):
    raise Stop

signal.signal(signal.SIGALRM, stop)

def is_stopped(seconds, work):
    '''Tell whether a signal handler's exception ends some work, seconds after now.'''
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        work()
        signal.setitimer(signal.ITIMER_REAL, 0)
    except Stop:
        return True
    return False
"""
"""For scripts whose work may be interrupted at any point."""


def launcher(mpi: str, nodes: int) -> tuple[list[str], dict[str, str]]:
    """Return the words that launch so many processes, and their environment."""
    environment = dict(os.environ, PYTHONPATH=str(ROOT), PYTHONUNBUFFERED="1")
    if mpi == "mpich":
        assert MPICH is not None
        environment |= {"MPI4PY_MPIABI": "mpich", "LD_LIBRARY_PATH": f"{MPICH}/lib"}
        return [f"{MPICH}/bin/mpiexec", "-n", str(nodes)], environment
    if mpi == APART:
        _skip_without_namespaces()
        words, environment = launcher("openmpi", nodes)
        # Memory is all that processes of one host would share otherwise.
        tcp = ["--mca", "pml", "ob1", "--mca", "btl", "self,tcp"]
        return [*words, *tcp, str(OWN_MACHINE)], environment
    here = Path(sys.executable).parent / "mpirun"
    found = str(here) if here.exists() else shutil.which("mpirun")
    if found is None:
        pytest.skip("no mpirun here")
    pytest.importorskip("mpi4py", reason="mpi4py, of the extra synk[mpi], is missing")
    words = ["--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]
    return [found, *words, "-n", str(nodes)], environment


@functools.cache
def _skip_without_namespaces() -> None:
    done = subprocess.run([OWN_MACHINE, "true"], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no namespaces here: {done.stderr.strip()}")


def finished(words: list, environment: dict[str, str], cwd: Any = None, **options: Any):
    """Run a command to its end; return what `subprocess.run` does."""
    options |= {"capture_output": True, "text": True, "timeout": 180}
    return subprocess.run(list(map(str, words)), env=environment, cwd=cwd, **options)


def run(
    script: str,
    folder: Path,
    nodes: int,
    *args: Any,
    mpi: str = "openmpi",
    timeout: float = 240,
    then: Callable[[subprocess.Popen, list[str]], object] | None = None,
) -> tuple[int, str, str]:
    """Run a script on nodes, to its end; return its status and what it printed.

    `then` is called with the process and its lines so far when it prints "ready".
    Nothing that it started is there afterwards.
    """
    words, environment = launcher(mpi, nodes)
    path = folder / "script.py"
    path.write_text(script)
    words += [sys.executable, "-X", "faulthandler", "-m", "synk", str(path)]
    process = subprocess.Popen(
        [*words, *map(str, args)],
        env=environment,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    family: list[psutil.Process] = []
    try:
        lines: list[str] = []
        if then is not None:
            for line in process.stdout:
                lines.append(line)
                if "ready" in line:
                    break
            family = psutil.Process(process.pid).children(recursive=True)
            then(process, lines)
        out, error = process.communicate(timeout=timeout)
    except BaseException:
        for each in psutil.Process(process.pid).children(recursive=True):
            each.kill()
        process.kill()
        process.communicate()
        raise
    deadline = time.monotonic() + 5
    while any(map(_is_there, family)) and time.monotonic() < deadline:
        time.sleep(0.02)
    left = list(filter(_is_there, family))
    for each in left:
        each.kill()
    assert not left, left
    return process.returncode, "".join(lines) + out, error


def _is_there(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def masters(process: subprocess.Popen) -> list[psutil.Process]:
    """Return the nodes' masters: Python processes that are no child of one."""
    found = []
    for each in psutil.Process(process.pid).children(recursive=True):
        above = each.parent()
        if "python" in each.name() and (above is None or "python" not in above.name()):
            found.append(each)
    return found
