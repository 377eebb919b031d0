"""A launcher of MPI that runs the script itself, once in each of its processes."""

from __future__ import annotations

import subprocess
import sys
import warnings

import pytest
from launching import launcher

import synk
from synk.cluster.launcher import _LAUNCHERS

VARIABLES = [name for _, *names in _LAUNCHERS for name in names if name]


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    """Take away what a launcher of the tests themselves has said."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "argv", ["train.py", "--epochs", "3"])


OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}
LAUNCHED = {
    "mpirun -n 2": OPEN_MPI,
    "mpiexec -n 4": {"PMI_RANK": "1", "PMI_SIZE": "4"},
    "srun -n 3": {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "3"},
    "mpirun -n ...": {"PMIX_RANK": "1"},
}


@pytest.mark.parametrize("command", LAUNCHED)
def test_the_second_copy_of_a_script_says_what_to_write(command, monkeypatch):
    for name, value in LAUNCHED[command].items():
        monkeypatch.setenv(name, value)
    expected = f"`{command} python -m synk train.py`"
    match = "runs this script"
    with pytest.warns(RuntimeWarning, match=match) as caught, synk.session(1):
        pass
    (warning,) = caught
    assert expected in str(warning.message)
    assert warning.filename == __file__


@pytest.mark.parametrize(
    "environment",
    [
        {},
        OPEN_MPI | {"OMPI_COMM_WORLD_RANK": "0"},  # one warning is enough
        OPEN_MPI | {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "3"},
        {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"},
        {"PMI_RANK": "", "PMI_SIZE": ""},
        {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"},
        {"PMIX_RANK": "0"},
    ],
)
def test_others_say_nothing(environment, monkeypatch):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with synk.session(1):
            pass


@pytest.mark.slow
@pytest.mark.parametrize(("how", "times"), [([], 1), (["-m", "synk"], 0)])
def test_mpirun_itself(how, times, tmp_path):
    script = tmp_path / "train.py"
    script.write_text("import synk\nsynk.fork(1)\nsynk.close()\n")
    words, environment = launcher("openmpi", 2)
    done = subprocess.run(
        [*words, sys.executable, *how, str(script)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("mpirun runs this script 2 times") == times
