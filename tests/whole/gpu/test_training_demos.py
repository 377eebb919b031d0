"""The training demos on a GPU, beside their serial runs on the CPU."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from places import DEMOS

# With as many ranks on one GPU as the demo asks for.
ON_ONE_GPU = """
import runpy, sys, synk
real = synk.fork
synk.fork = lambda n: real(devices=[0] * n)
script, *sys.argv[1:] = sys.argv[1:]
sys.path.insert(0, script.rpartition("/")[0])
sys.argv[0] = script
runpy.run_path(script, run_name="__main__")
"""

RUNS = {
    "mnist, mlp": (
        *("mnist.py", "--digits", "--hidden", "64", "32", "--epochs", "2"),
        *("--dropout", "0", "--batch-size", "479"),
    ),
    "mnist, cnn": (
        *("mnist.py", "--digits", "--model", "cnn", "--hidden", "32", "--epochs", "2"),
        *("--dropout", "0", "--batch-size", "479"),
    ),
    "lstm": (
        *("lstm.py", "--letters", "400", "--length", "8", "--units", "6"),
        *("--epochs", "2", "--batch-size", "17", "--sample", "0"),
    ),
    "resnet50": (
        *("resnet50.py", "--image-size", "32", "--width", "8", "--blocks", "1", "1"),
        *("--classes", "10", "--rows", "64", "--batch", "16", "--epochs", "2"),
        *("--warm-up", "0", "--sync-bn", "--floatX", "float64"),
    ),
}
LIMIT = 240  # seconds


def number(command: list[str], folder: Path, **environment: str) -> float:
    """Return the last run's loss, which the demo's last line tells."""
    done = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    last = done.stdout.splitlines()[-1]
    found = re.match(r"final: (?:\w+ loss )?(\d+\.\d+)", last)
    assert found, done.stdout
    return float(found[1])


@pytest.mark.parametrize("name", RUNS)
def test_ranks_on_a_gpu_end_where_the_serial_run_on_the_cpu_does(name, tmp_path):
    pytest.importorskip("lasagne", reason="Lasagne, of synk[demos], is not installed")
    script, *options = RUNS[name]
    demo = [str(DEMOS / script), *options, "--mode", "JAX"]
    expected = number([*demo, "--serial"], tmp_path, JAX_PLATFORMS="cpu")
    for ranks in (1, 2):
        found = number(["-c", ON_ONE_GPU, *demo, "--ranks", str(ranks)], tmp_path)
        assert found == pytest.approx(expected, rel=1e-5, abs=1e-6)
