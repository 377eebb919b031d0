"""The README keeps its word, and `.ci/run` runs the README's own words."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from places import ROOT

import synk

README = (ROOT / "README.rst").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def blocks(language: str) -> list[str]:
    """Return the README's code blocks in a language, without their indentation."""
    found = re.findall(
        rf"^\.\. code-block:: {language}\n\n((?:(?: {{4}}.*)?\n)+)", README, re.M
    )
    return [re.sub(r"^ {4}", "", block, flags=re.M).strip() for block in found]


def test_the_example_has_ten_lines():
    """The run of continuous integration compares what it prints, by the wheel."""
    (example,) = blocks("python")
    assert len([line for line in example.splitlines() if line]) <= 10
    assert len(re.findall(r"^It prints ``.+?``", README, re.M)) == 1


def test_the_two_commands_make_an_environment_install_an_extra_and_run():
    extras = {"demos": "demos/mnist.py", "tests": "-m pytest"}
    for command, (extra, run) in zip(blocks("sh"), extras.items(), strict=True):
        assert command.split(" && ") == [
            "python3 -m venv .venv",
            f".venv/bin/pip install -e '.[{extra}]'",
            f".venv/bin/python {run}",
        ]
        assert extra in PROJECT["optional-dependencies"]
    assert (ROOT / "demos/mnist.py").is_file()


def test_every_link_leads_to_a_file_of_the_repository():
    links = re.findall(r"<([^>\s]+)>`_", README)
    pages = {path.relative_to(ROOT) for path in (ROOT / "docs").glob("**/*.rst")}
    pages -= {Path("docs/index.rst")}
    assert {Path(link) for link in links if "docs/" in link} == pages
    for link in links:
        assert (ROOT / link).exists(), link


def test_the_versions_named_are_those_of_the_package():
    table = dict(re.findall(r"^(\w+) {3,}(.+)$", README, re.M))
    wanted = dict(
        re.match(r"([\w.]+)(.*)", entry).groups() for entry in PROJECT["dependencies"]
    )
    assert PROJECT["requires-python"] == ">=" + table["Python"].split()[0]
    least, most = re.fullmatch(
        r"(\S+) or newer, below (\S+)", table["PyTensor"]
    ).groups()
    assert wanted["pytensor"] == f">={least},<{most}"
    assert wanted["numpy"] == ">=" + table["NumPy"].split()[0]
    assert f"Version {synk.__version__} " in README
    assert f"version: {synk.__version__}\n" in (ROOT / "CITATION.cff").read_text()


# -- .ci/run ---------------------------------------------------------------------------

# In the place of a virtual environment: a program that notes how it was called, and
# fails when it was called with words of a line of $FAILING.
STUB = """#!/bin/sh
echo "$(basename "$0") $*" >> "$NOTES"
echo "$*" | grep -qF -e "$FAILING" && exit 3
exit 0
"""
COMMAND = (
    "mkdir -p .venv/bin && cp stub .venv/bin/python && cp stub .venv/bin/pip"
    " && .venv/bin/python 'two  words' -m pytest"
    " && echo '===== 7 passed in 0.01s ====='"
)


# In the place of Python: makes environments of stubs.
PYTHON = f"""#!/bin/sh
test "$1" = -c && exec '{sys.executable}' "$@"
mkdir -p "$3/bin" && cp stub "$3/bin/pip" && cp stub "$3/bin/python"
"""
BESIDE = "pip install -q . hypothesis mpmath psutil pytest pytest-timeout pytest-xdist "


@pytest.fixture
def ci(tmp_path, monkeypatch):
    """Return a function that runs `.ci/run` in a checkout with a README of ours."""
    checkout = tmp_path / "checkout"
    (checkout / ".ci").mkdir(parents=True)
    shutil.copy(ROOT / ".ci/run", checkout / ".ci/run")
    (checkout / "stub").write_text(STUB)
    (checkout / "stub").chmod(0o755)
    (checkout / ".venv").mkdir()
    (checkout / ".venv/mine").touch()
    monkeypatch.setenv("NOTES", str(tmp_path / "notes"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    pythons = checkout / "pythons"
    pythons.mkdir()
    monkeypatch.setenv("PATH", str(pythons), prepend=os.pathsep)

    def run(readme: str, *failing: str, newer: str = "#!/bin/sh\nexit 1\n"):
        monkeypatch.setenv("FAILING", "\n".join(failing or ["nothing fails"]))
        programs = {"python3": PYTHON, "python3.12": newer, "python3.13": newer}
        for name, text in programs.items():
            (pythons / name).write_text(text)
            (pythons / name).chmod(0o755)
        (checkout / "README.rst").write_text(readme)
        done = subprocess.run(
            [checkout / ".ci/run"], capture_output=True, text=True, timeout=60
        )
        notes = tmp_path / "notes"
        called = notes.read_text().splitlines() if notes.exists() else []
        assert {path.name for path in tmp_path.iterdir()} <= {"checkout", "notes"}
        assert [path.name for path in (checkout / ".venv").iterdir()] == ["mine"]
        return done, called

    return run


def test_ci_runs_the_readmes_command_then_lint_types_and_docs(ci):
    done, called = ci(f"Run it\n\n    {COMMAND}\n\nand no more.\n")
    assert done.returncode == 0, done.stderr
    ways = [  # each beside the others
        [
            "python two  words -m pytest",
            "pip install -q -e .[lint,docs]",
            "python -m ruff check",
            "python -m ruff format --check",
            "python -m mypy",
            "python tests/floors.py",
            "python -m sphinx -q -W --keep-going -n -b html docs docs/_build/html",
        ],
        [
            "pip install -q --no-deps --prefix .mpich mpich",
            "python -m pytest -q -n0 -k mpich tests/whole/nodes",
            "python -m build --outdir .dist .",
            "pip install -q .dist/*.whl",
            "python example.py",
        ],
        [
            f"{BESIDE}pymc==5.28.* torch==2.13.0 keras scikit-learn",
            "python -c import pymc",
            "python -m pip list",
            *(call for call in called if call.startswith(OLDEST)),
        ],
    ]
    for way in ways:
        assert [call for call in called if call in way] == way
    assert len(called) == sum(map(len, ways))
    lines = done.stdout.splitlines()
    assert f"== {COMMAND}" in lines
    assert lines[-1] == "===== 7 passed in 0.01s ====="
    assert len(re.findall(r"^== .+: \d+ s, exit 0$", done.stdout, re.M)) == 11


OLDEST = "python -m pytest -q -m not slow -W ignore -k "
"""How tests with the oldest PyMC are begun."""

PHASES = {
    "words -m pytest": COMMAND,
    "-k mpich": "MPICH",
    "-m build": "wheel",
    "-k numba": "oldest PyMC",
    "install -q -e": "install lint and docs",
    "ruff check": "ruff check",
    "ruff format": "ruff format",
    "mypy": "mypy",
    "floors": "floors of the tests",
    "sphinx": "docs",
}
"""What is in the call of each phase, and its title."""

NOT_INSTALLED = "install other versions", "oldest PyMC"
FAILING = [
    ([*PHASES], tuple(PHASES.values()), 14),
    (["hypothesis"], NOT_INSTALLED, 13),
    (["import pymc"], NOT_INSTALLED, 14),
    (["example.py"], ("wheel",), 16),
]


@pytest.mark.parametrize(("failing", "titles", "calls"), FAILING)
def test_ci_fails_when_any_phase_fails_and_runs_the_others_too(
    ci, failing, titles, calls
):
    done, called = ci(f"    {COMMAND}\n", *failing)
    assert done.returncode == 1
    assert len(called) == calls
    failed = re.findall(r"^FAILED: (.+)$", done.stdout, re.M)
    assert sorted(failed) == sorted(titles)


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="there are newer ones for 3.11")
@pytest.mark.parametrize("failing", ["nothing fails", "-m not slow"])
def test_ci_has_the_newest_pytensor_where_there_is_a_newer_python(ci, failing):
    done, called = ci(f"    {COMMAND}\n", failing, newer=PYTHON)
    title = re.escape("newest PyTensor")
    status = 0 if failing == "nothing fails" else 3
    assert re.search(rf"^== {title}: \d+ s, exit {status}$", done.stdout, re.M)
    assert any(call.endswith("tests/behaviour/with_pymc") for call in called)
    assert len([call for call in called if "ruff" in call or "sphinx" in call]) == 3
    assert done.returncode == bool(status)


@pytest.mark.parametrize("commands", [[], [COMMAND, COMMAND]], ids=["none", "two"])
def test_ci_refuses_a_readme_without_exactly_one_test_command(ci, commands):
    done, called = ci("".join(f"    {command}\n\n" for command in commands))
    assert done.returncode != 0
    assert f"README.rst has {len(commands)} commands that run pytest" in done.stderr
    assert called == []
