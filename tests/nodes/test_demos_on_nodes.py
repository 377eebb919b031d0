"""The demos, unchanged, on several nodes: they print what they print on one machine."""

from __future__ import annotations

import subprocess
import sys

import pytest
from launching import ROOT, launcher, run

# One after the other, each as `python demos/NAME.py` runs it: processes start once.
SCRIPT = """
import runpy, sys
ranks, demos = sys.argv[1], sys.argv[2]
sys.path.insert(0, demos)
small = "--digits --hidden 32 16 --epochs 2 --batch-size 90 --dropout 0"
for name, *options in (
    ["shared_variables"], ["data"], ["functions"],
    ["mnist", *small.split(), "--mode", "FAST_COMPILE"],
):
    sys.argv = [f"{demos}/{name}.py", "--ranks", ranks, *options]
    runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [2, 3])
def test_demos_print_what_they_print_on_one_machine(nodes, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTENSOR_FLAGS", "mode=FAST_COMPILE,cxx=")
    status, out, error = run(SCRIPT, tmp_path, nodes, 2, ROOT / "demos", timeout=200)
    assert status == 0, out + error
    _, environment = launcher("openmpi", 1)
    alone = subprocess.run(
        [sys.executable, "script.py", str(2 * nodes), str(ROOT / "demos")],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert alone.returncode == 0, alone.stderr
    ours, right = map(_numbers, (out, alone.stdout))
    assert ours == right
    for ending in ("shared_variables:", "data:", "functions:", "final: train loss"):
        assert any(line.startswith(ending) for line in ours), ours


def _numbers(output: str) -> list[str]:
    """Return the lines, without those that say how long something took."""
    return [line for line in output.splitlines() if " s" not in line]
