"""Launchers of several processes, and synk without one; see `tests/whole/nodes`."""

import subprocess
import sys
import warnings

import pytest
from places import ROOT

import synk

VARIABLES = (
    *("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMI_RANK", "PMI_SIZE"),
    *("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "PMIX_RANK"),
    *("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
)
"""What launchers say to the processes that they start."""

OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}
WARNED = {
    "mpirun -n 2": OPEN_MPI,
    "mpiexec -n 4": {"PMI_RANK": "1", "PMI_SIZE": "4"},
    "srun -n 3": {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "3"},
    "mpirun -n ...": {"PMIX_RANK": "1"},
}
SILENT = (
    {},
    OPEN_MPI | {"OMPI_COMM_WORLD_RANK": "0"},  # one warning is enough
    {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "3"},
    {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"},
    {"PMI_RANK": "", "PMI_SIZE": ""},
    {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"},
    {"PMIX_RANK": "0"},
)


def warned(environment, monkeypatch) -> list:
    """Return the warnings of a fork in a process that a launcher has started."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "argv", ["train.py", "--epochs", "3"])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with synk.session(1):
            pass
    return caught


@pytest.mark.parametrize("command", WARNED)
def test_the_second_copy_of_a_script_says_what_to_write(command, monkeypatch):
    (warning,) = warned(WARNED[command], monkeypatch)
    assert warning.category is RuntimeWarning
    assert "runs this script" in str(warning.message)
    assert f"`{command} python -m synk train.py`" in str(warning.message)


def test_one_process_and_the_other_copies_say_nothing(monkeypatch):
    for environment in SILENT:
        assert not warned(environment, monkeypatch), environment


ALONE = """
import sys, synk
with synk.session(2):
    assert len(synk.nodes()) == 1 and synk.nodes()[0].ranks == 2
    assert not any(name.startswith("mpi4py") for name in sys.modules)
print("done")
"""


def test_without_a_launcher_there_is_no_mpi(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(ALONE)
    command = [sys.executable, "-m", "synk", str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["done"], done.stderr
