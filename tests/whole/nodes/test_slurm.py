"""Under srun and sbatch, with two slurmd on this machine; skipped where there is none.

CI has no Slurm; see `slurm` for what it takes.
"""

import os
import re
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
import pytest
import slurm
from launching import MPICH, ROOT, finished
from test_node_faults import FAULTS, STOPPED
from test_on_nodes import FUNCTIONS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(slurm.missing()), reason=slurm.missing()),
]

STEP = "--nodes=2", "--ntasks-per-node=1", "--kill-on-bad-exit"


@pytest.fixture(autouse=True)
def world():
    """Assert that no script is left. Slurm itself is a child of this process here."""
    yield
    deadline = time.monotonic() + 5
    while (left := _processes()) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not left


@pytest.fixture(scope="module")
def environment():
    """Of programs that find a Slurm, and synk."""
    with slurm.cluster() as found:
        pythons = Path(sys.executable).parent
        found["PATH"] = f"{pythons}:{found['PATH']}"
        flags = "mode=FAST_COMPILE,cxx="  # numba takes seconds
        found |= {"PYTHONPATH": str(ROOT), "PYTENSOR_FLAGS": flags}
        yield found | {"PYTHONUNBUFFERED": "1"}


@pytest.fixture(scope="module", params=["pmix", "pmi2"])
def mpi(request, environment) -> dict[str, str]:
    """Return an environment in which srun starts what an MPI understands."""
    found = environment | {"SLURM_MPI_TYPE": request.param}
    if request.param == "pmix":
        pytest.importorskip("mpi4py", reason="mpi4py, of synk[mpi], is missing")
        done = finished(["srun", "true"], found)
        if done.returncode:
            pytest.skip(f"this Slurm starts no PMIx: {done.stderr.strip()[-200:]}")
        return found
    if not MPICH:
        pytest.skip("SYNK_MPICH does not say where MPICH lies")
    # The package index' MPICH by UCX has puts that are too long for Slurm's pmi2.
    found |= {"MPI4PY_MPIABI": "mpich", "MPIR_CVAR_CH4_NETMOD": "ofi"}
    return found | {"LD_LIBRARY_PATH": f"{MPICH}/lib"}


def srun(script: str, folder: Path, *args: object, options=("--cpus-per-task=2",)):
    """Return the words that run a script on both nodes."""
    path = folder / "script.py"
    path.write_text(script)
    command = "srun", *STEP, *options, sys.executable, "-m", "synk", path, *args
    return list(map(str, command))


@pytest.mark.parametrize(
    ("script", "args"),
    [(FUNCTIONS, (2, 2)), (FAULTS, (20,))],
    ids=["functions", "faults"],
)
def test_what_mpirun_runs_srun_runs(script, args, mpi, tmp_path):
    done = finished(srun(script, tmp_path, *args), mpi)
    assert done.stdout.split()[-1:] == ["done"], done.stdout + done.stderr
    assert done.returncode == 0


STREAMS = """
import sys, synk
synk.fork(2)
print("read", sys.stdin.read(), [node.cores for node in synk.nodes()])
print("said", file=sys.stderr)
{ending}
"""


@pytest.mark.parametrize("ending", ["", "sys.exit(3)", "raise KeyError('x')"])
def test_input_output_and_status_are_the_scripts(ending, mpi, tmp_path):
    script = STREAMS.format(ending=ending)
    cores = f"--cpus-per-task={os.cpu_count()}"
    done = finished(srun(script, tmp_path, options=[cores]), mpi, input="a word")
    assert done.stdout == f"read a word {[os.cpu_count()] * 2}\n", done.stderr
    assert done.returncode == {"": 0, "sys.exit(3)": 3}.get(ending, 1)
    assert "said\n" in done.stderr
    assert ("KeyError: 'x'" in done.stderr) is ("KeyError" in ending)
    assert "Warning" not in done.stderr


@pytest.mark.skipif(os.cpu_count() < 2, reason="one core cannot be bound to less")
@pytest.mark.parametrize(
    ("options", "ranks"),
    [
        (["--cpus-per-task=1"], 1),  # others are not this job's
        (["--cpus-per-task=1", "--exclusive"], 1),  # it was asked for
        (["--cpus-per-task=2", "--exclusive"], 2),
        (["--exclusive"], os.cpu_count()),  # bound to one that nobody has asked for
        ([], 1),
    ],
    ids=lambda options: " ".join(options) if type(options) is list else "",
)
def test_cores_are_those_that_were_asked_for(options, ranks, mpi):
    words = ["srun", *STEP, *options, sys.executable, "-m", "synk", "info"]
    done = finished(words, mpi)
    taken = re.findall(r"node \d .*: (\d+) ranks? on", done.stdout)
    assert taken == [str(ranks)] * 2, done.stdout + done.stderr


PAGE = (ROOT / "docs/slurm.rst").read_text()


def _block(first: str) -> str:
    """Return the literal block of the page that begins with so."""
    (found,) = re.findall(rf"^    {re.escape(first)}.*?(?=^\S)", PAGE, re.M | re.S)
    return textwrap.dedent(found)


def test_the_pages_batch_file_and_script_stop_and_go_on(mpi, tmp_path):
    batch = _block("#!/bin/bash").replace("--mpi=pmix", "")  # by the environment
    (tmp_path / "batch.sh").write_text(batch.replace("scontrol requeue", "echo again"))
    script, checkpoint = _block("import signal"), tmp_path / "train.npz"
    script = script.replace("train(X, Y)\n", "train(X, Y), Path('begun').touch()\n")

    def submit(steps: int) -> str:
        (tmp_path / "train.py").write_text(script.replace("100_000", str(steps)))
        words = ["sbatch", "--parsable", "--nodes=2", "--cpus-per-task=2"]
        done = finished([*words, "batch.sh", "train.py"], mpi, cwd=tmp_path)
        return done.stdout.strip()

    def wait_for(is_so: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 120
        while not is_so():
            assert time.monotonic() < deadline, output()
            time.sleep(0.1)

    def has_ended(job: str) -> bool:
        told = finished(["scontrol", "show", "job", job], mpi).stdout
        assert "JobState=FAILED" not in told, output()
        return "JobState=COMPLETED" in told

    def steps() -> int:
        with np.load(checkpoint) as saved:
            return int(saved["steps"])

    def output() -> str:
        return "".join(path.read_text() for path in tmp_path.glob("slurm-*.out"))

    job = submit(10**9)
    wait_for((tmp_path / "begun").exists)
    finished(["scancel", "--signal=USR1", job], mpi)
    wait_for(lambda: has_ended(job))
    assert output().splitlines()[-1] == f"again {job}"
    before = steps()
    assert before > 0
    job = submit(before + 10)
    wait_for(lambda: has_ended(job))
    assert steps() == before + 10


def _ends(command: list[str], environment: dict[str, str], do: Callable[[], object]):
    """Do something to a script that is ready; return its status and what it printed.

    It is over in 15 seconds, and none of its processes is left.
    """
    pipes = dict.fromkeys(("stdout", "stderr"), subprocess.PIPE)
    process = subprocess.Popen(command, env=environment, text=True, **pipes)
    try:
        assert process.stdout.readline() == "ready\n", process.communicate()
        began = time.monotonic()
        do()
        out, _ = process.communicate(timeout=60)
        while _processes(command[-1]):
            assert time.monotonic() - began < 15
            time.sleep(0.1)
        assert time.monotonic() - began < 15
        return process.returncode, out
    finally:
        process.kill()
        process.communicate()


def _processes(script: str = "") -> list[psutil.Process]:
    """Return the processes of Slurm's that run a script."""
    found = []
    for each in psutil.process_iter(["name", "cmdline", "environ"]):
        words, variables = each.info["cmdline"] or [], each.info["environ"] or {}
        if "python" not in each.info["name"] or "SLURM_STEP_ID" not in variables:
            continue
        if "synk" in words and script in ("", *words):
            found.append(each)
    return found


def _master(script: str, node: int) -> psutil.Process:
    (found,) = (
        each
        for each in _processes(script)
        if each.environ()["SLURM_PROCID"] == str(node)
        and each.parent().name() == "slurmstepd"
    )
    return found


@pytest.mark.parametrize("node", [0, 1])
def test_the_job_ends_with_a_nodes_master(node, mpi, tmp_path):
    command = srun(STOPPED, tmp_path)
    assert _ends(command, mpi, lambda: _master(command[-1], node).kill())[0] != 0


def test_the_job_ends_when_it_is_cancelled(mpi, tmp_path):
    command = srun(STOPPED, tmp_path, options=["--job-name=endless"])
    cancel = ["scancel", "--name=endless"]
    assert _ends(command, mpi, lambda: finished(cancel, mpi))[0] != 0


def test_a_signal_before_the_end_is_the_scripts(mpi, tmp_path):
    command = srun(STOPPED, tmp_path, options=["--job-name=endless"])
    signal = ["scancel", "--signal=USR1", "--name=endless"]
    status, out = _ends(command, mpi, lambda: finished(signal, mpi))
    assert out == "stopped by SIGUSR1\n"
    assert status == 7
