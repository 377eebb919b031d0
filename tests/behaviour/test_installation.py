"""Installation: extras, a look at the machine, and what a container need not give."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib

import numpy as np
from places import ROOT

INSTALLATION = (ROOT / "docs" / "installation.rst").read_text()


def test_the_extras_are_those_that_the_page_lists():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    table = INSTALLATION.split("===\n")[1]
    assert set(re.findall(r"``(\w+)``  ", table)) <= set(
        project["optional-dependencies"]
    )
    assert project["requires-python"] == ">=3.11"
    (pytensor,) = (d for d in project["dependencies"] if d.startswith("pytensor"))
    assert ">=2.38" in pytensor
    assert "<4" in pytensor


def info(*words: str) -> subprocess.CompletedProcess:
    core = min(os.sched_getaffinity(0))
    return subprocess.run(
        [sys.executable, "-m", "synk", "info", *words],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        preexec_fn=lambda: os.sched_setaffinity(0, [core]),
        capture_output=True,
        text=True,
        check=False,
    )


def test_info_shows_versions_cores_memory_and_the_plan_of_a_fork():
    done = info("-n", "3")
    assert done.returncode == 0, done.stderr
    text = " ".join(done.stdout.split())
    for word in ("synk", "pytensor", "RAM", "floatX", np.__version__):
        assert word in text
    core = min(os.sched_getaffinity(0))
    assert f"affinity {core} " in text
    assert f"usable 1: {core} " in text
    for rank in range(3):
        assert f"rank {rank} core {core}, 1 thread" in text
