"""Lasagne 0.1 is imported with setuptools of any version, or without.

The tests have a package of that name that imports `pkg_resources` as it does; the last
one imports Lasagne itself.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

HIDDEN = """
import sys

class Without:
    def __init__(self, finder):
        self.finder = finder
    def __getattr__(self, name):
        return getattr(self.finder, name)
    def find_spec(self, name, path=None, target=None):
        if name != "pkg_resources":
            return self.finder.find_spec(name, path, target)

sys.meta_path[:] = map(Without, sys.meta_path)  # as where setuptools is not, or new
"""
IMPORTS = """
import importlib.util, sys
import synk
import lasagne
print(lasagne.__version__, hasattr(lasagne, "pkg_resources"), end=" ")
print("pkg_resources" in sys.modules, end=" ")
try:
    import pkg_resources
    print(pkg_resources.__file__)
except ModuleNotFoundError as error:
    print(error)
"""


@pytest.fixture
def lasagne(tmp_path):
    """Make a Lasagne of version 0.1.7; the folder that it is in."""
    (tmp_path / "lasagne").mkdir()
    (tmp_path / "lasagne/__init__.py").write_text(
        "import pkg_resources\n"
        '__version__ = pkg_resources.get_distribution("Lasagne").version\n'
        "del pkg_resources\n"
    )
    (tmp_path / "Lasagne-0.1.7.dist-info").mkdir()
    (tmp_path / "Lasagne-0.1.7.dist-info/METADATA").write_text(
        "Metadata-Version: 2.1\nName: Lasagne\nVersion: 0.1.7\n"
    )
    return tmp_path


def run(code, folder=None, **environment):
    """Run a program in which every warning is an error; what it prints, or its end."""
    if folder is not None:
        environment["PYTHONPATH"] = os.pathsep.join(
            filter(None, (str(folder), os.environ.get("PYTHONPATH")))
        )
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return (done.stdout + done.stderr[-2000:]).strip()


def test_where_it_is_missing_lasagne_gets_an_answer_and_nobody_else_does(lasagne):
    assert (
        run(HIDDEN + IMPORTS, lasagne)
        == "0.1.7 False False No module named 'pkg_resources'"
    )


def test_nobody_else_gets_one_before(lasagne):
    code = (
        "import synk\ntry:\n    import pkg_resources\nexcept ImportError:\n"
        "    import lasagne\n    print(lasagne.__version__)"
    )
    assert run(HIDDEN + code, lasagne) == "0.1.7"


def test_one_that_is_installed_is_asked_and_its_warning_is_not_shown(lasagne):
    real = lasagne / "pkg_resources.py"
    real.write_text(
        "import warnings\n"
        "warnings.warn('pkg_resources is deprecated as an API.', UserWarning, 2)\n"
        "class get_distribution:\n"
        "    version = 'the real one'\n"
        "    def __init__(self, name): assert name == 'Lasagne'\n"
    )
    assert run(IMPORTS, lasagne) == f"the real one False True {real}"


def test_it_warns_others_as_ever(lasagne):
    (lasagne / "pkg_resources.py").write_text(
        "import warnings\n"
        "warnings.warn('pkg_resources is deprecated as an API.', UserWarning, 2)\n"
    )
    assert "UserWarning" in run("import synk, pkg_resources", lasagne)


def test_it_is_off_where_theanos_names_are(lasagne):
    found = run(HIDDEN + IMPORTS, lasagne, SYNK_THEANO="0")
    assert "No module named 'pkg_resources'" in found.splitlines()[-1]


def test_lasagne_itself_is_imported_without_it():
    code = "import synk, lasagne; print(lasagne.__version__)"
    lasagne = pytest.importorskip("lasagne", reason="Lasagne is not installed")
    assert run(HIDDEN + code) == lasagne.__version__
