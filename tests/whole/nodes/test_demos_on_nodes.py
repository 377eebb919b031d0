"""The demos, unchanged, on several nodes: they print what they print on one machine."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from launching import ROOT, launcher, run

# One after the other, each as `python demos/NAME.py` runs it: processes start once.
SCRIPT = """
import runpy, sys
_, ranks, demos, *names = sys.argv
sys.path.insert(0, demos)
small = "--digits --hidden 32 16 --epochs 1 --batch-size 90 --dropout 0"
options = {"mnist": [*small.split(), "--mode", "FAST_COMPILE"]}
for name in names:
    sys.argv = [f"{demos}/{name}.py", "--ranks", ranks, *options.get(name, [])]
    runpy.run_path(sys.argv[0], run_name="__main__")
"""

ENDINGS = {
    "shared_variables": "shared_variables: every result equals",
    "functions": "functions: every result equals",
    "data": "data: every result equals",
    "mnist": "final: train loss",
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("nodes", "names"),
    [(2, ["shared_variables", "functions"]), (3, ["data", "mnist"])],
)
def test_demos_print_what_they_print_on_one_machine(
    nodes, names, tmp_path, monkeypatch
):
    monkeypatch.setenv("PYTENSOR_FLAGS", "mode=FAST_COMPILE,cxx=")
    args = [ROOT / "demos", *names]
    status, out, error = run(SCRIPT, tmp_path, nodes, 2, *args, timeout=150)
    assert status == 0, out + error
    alone = subprocess.run(
        [sys.executable, "script.py", str(2 * nodes), *map(str, args)],
        env=launcher("openmpi", 1)[1],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert alone.returncode == 0, alone.stderr
    ours, right = map(_lines, (out, alone.stdout))
    assert ours == right
    for name in names:
        assert any(line.startswith(ENDINGS[name]) for line in ours), ours


def _lines(output: str) -> list[str]:
    """Return the lines, without times and speeds."""
    return re.sub(r"[\d.,]+ (rows/)?s\b", "", output).splitlines()
