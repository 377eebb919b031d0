"""The demo with PyMC."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from places import DEMOS

pytest.importorskip("pymc", reason="these tests are of synk with PyMC")

DEMO = DEMOS / "pymc_logistic.py"


@pytest.mark.slow
def test_the_demo_samples_serially_and_by_ranks_to_the_same_means():
    sizes = ["--rows", "3000", "--columns", "3", "--draws", "20", "--tune", "50"]
    command = [sys.executable, str(DEMO), *sizes, "--ranks", "2", "--compare"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    assert re.search(
        r"^serial: [\d.]+ s, \d+ leapfrog steps in 20 draws$", done.stdout, re.M
    )
    assert re.search(r"^2 ranks: [\d.]+ s", done.stdout, re.M)
    apart = re.search(r"^the means of both runs ([\d.]+) at most$", done.stdout, re.M)
    assert apart is not None
    assert float(apart[1]) < 0.01
