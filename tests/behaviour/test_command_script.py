"""``python -m synk script.py`` against ``python script.py``."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

FAST = {"PYTENSOR_FLAGS": "mode=FAST_COMPILE"}


def run(*args: object, cwd: Path, **environment: str) -> subprocess.CompletedProcess:
    """Run Python in a folder."""
    return subprocess.run(
        [sys.executable, *map(str, args)],
        env=os.environ | FAST | environment,
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=120,
    )


def write(body: str, path: Path) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(textwrap.dedent(body))
    return path


@pytest.fixture
def folder(tmp_path):
    """A folder with the script in another folder of it, not a package."""
    write("from_beside = 'found'\n", tmp_path / "scripts" / "beside.py")
    return tmp_path


def assert_same_as_python(body: str, folder: Path, *args: str):
    script = write(body, folder / "scripts" / "script.py").relative_to(folder)
    # Without them where Python comes after; all else is to be equal.
    plain = run(script, *args, cwd=folder)
    ours = run("-m", "synk", script, *args, cwd=folder)
    assert ours.stdout == plain.stdout
    assert ours.stderr == plain.stderr
    assert ours.returncode == plain.returncode
    return ours


def test_a_script_sees_what_it_sees_in_python(folder):
    body = """
    '''A docstring.'''
    import atexit
    import sys
    import beside
    print(sys.argv, sys.path[0], beside.from_beside, __doc__)
    print(sorted(globals()))
    print(__name__, __file__, __package__, __spec__, __cached__, __builtins__)
    print(type(__loader__).__name__, __loader__.path, __annotations__)
    print(vars(sys.modules["__main__"]) is globals())
    atexit.register(lambda: print("at exit:", late))
    class A: pass
    print(A, A.__module__)
    late = 5
    print("to stderr", file=sys.stderr)
    """
    done = assert_same_as_python(body, folder, "-n", "2", "--help", "info")
    assert done.returncode == 0
    assert "['scripts/script.py', '-n', '2', '--help', 'info']" in done.stdout
    assert done.stdout.endswith("at exit: 5\n")


ENDS = {
    "an exit status": "import sys; sys.exit(3)",
    "a message": "raise SystemExit('that was all')",
    "a syntax error": "x = 1\nif x print(x)",
    "its own hook": (
        "import sys, traceback\n"
        "sys.excepthook = lambda k, v, t: print(traceback.format_exception(k, v, t))\n"
        "raise ValueError(1)"
    ),
    "Ctrl-C": "def wait():\n    raise KeyboardInterrupt\nwait()",
    "an error with a cause": """
def inner():
    return {}["missing"]
def outer():
    try:
        inner()
    except KeyError as error:
        raise ValueError("what the user did") from error
outer()
""",
}


@pytest.mark.parametrize("end", ENDS)
def test_a_script_ends_as_in_python(end, folder):
    done = assert_same_as_python(ENDS[end], folder)
    assert done.returncode != 0
    assert "synk" not in done.stderr
    if end == "Ctrl-C":
        assert done.returncode == -signal.SIGINT


def test_names_are_there_from_the_first_line_on(folder):
    body = """
    import theano, theano.tensor as T, synkhronos as synk
    import numpy as np

    class Twice(theano.Op):  # ranks get it by value, as it is defined in __main__
        __props__ = ()
        def make_node(self, x):
            return theano.Apply(self, [x], [x.type()])
        def perform(self, node, inputs, outputs):
            outputs[0][0] = times * inputs[0]

    times = 2
    x = T.matrix("x")
    f = synk.function([x], (Twice()(x).sum(axis=1), "gather"))
    print(synk.fork(2), f(np.eye(3)))
    """
    script = write(body, folder / "script.py")
    done = run("-m", "synk", script, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "2 [2. 2. 2.]\n"


def test_programs_and_processes_that_it_starts_find_the_names(folder):
    body = """
    import multiprocessing, subprocess, sys
    import theano.tensor, synkhronos
    def of(name):
        return sys.modules[name].__spec__.name
    if __name__ == "__main__":
        child = "import synkhronos, theano.tensor as T; print(T.__name__, synkhronos)"
        subprocess.run([sys.executable, "-c", child], check=True)
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            print(pool.map(of, ["theano.tensor", "synkhronos"]))
    """
    script = write(body, folder / "script.py")
    done = run("-m", "synk", script, cwd=folder)
    assert done.returncode == 0, done.stderr
    child, pool = done.stdout.splitlines()
    assert child.startswith("synk.theano.tensor <module 'synk.synkhronos'")
    assert pool == "['synk.theano.tensor', 'synk.synkhronos']"


def test_a_package_that_is_there_comes_first(folder):
    write("whose = 'theirs'", folder / "elsewhere" / "synkhronos.py")
    child = "import synkhronos, theano; print(synkhronos.whose, theano.__name__)"
    body = f"""
    import subprocess, sys
    {child}
    subprocess.run([sys.executable, "-c", {child!r}], check=True)
    """
    script = write(body, folder / "script.py")
    paths = [str(folder / "elsewhere"), os.environ.get("PYTHONPATH", "")]
    done = run("-m", "synk", script, cwd=folder, PYTHONPATH=os.pathsep.join(paths))
    assert done.returncode == 0, done.stderr
    assert done.stdout == "theirs synk.theano\n" * 2


def test_a_script_that_is_not_there(folder):
    done = run("-m", "synk", "missing.py", cwd=folder)
    assert done.returncode == 2
    assert done.stdout == ""
    assert f"can't open file '{folder}/missing.py': [Errno 2]" in done.stderr
