"""A Slurm of two nodes on this machine, in a folder of its own.

As a program, it runs a command in one that it sets up and ends again::

    python tests/whole/nodes/slurm.py srun --nodes=2 --ntasks-per-node=1 \
        --cpus-per-task=2 --mpi=pmix python -m synk SCRIPT.py

It takes the Debian packages slurmctld, slurmd, slurm-client and munge (and libpmix-dev
for ``--mpi=pmix``), or the like: a Slurm that was built for several slurmd on a host,
and the rights of root. There, each slurmd is in namespaces of its own: its processes
end with it, and its ``/dev/shm`` goes.
"""

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

PROGRAMS = "munged", "slurmctld", "slurmd", "srun", "sbatch", "scancel", "sinfo"
OWN_MACHINE = Path(__file__).parent / "own_machine.sh"
NODES = 2

CONF = """
ClusterName=synk
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
# Where PMIx's servers lie, which would meet in /tmp.
TmpFS={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n/pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/affinity
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
KillWait={kill_wait}
SchedulerParameters=sched_min_interval=100000
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""

KILL_WAIT = 3
"""Seconds between SIGTERM and SIGKILL; elsewhere they are 30."""

SECONDS = 20
"""Most that anything takes to start or to end."""


def missing() -> str:
    """Return what is missing for a Slurm here, or nothing."""
    lacking = [name for name in PROGRAMS if _which(name) is None]
    if lacking:
        return f"no {', '.join(lacking)} here"
    return "" if os.geteuid() == 0 else "slurmd takes the rights of root"


@contextlib.contextmanager
def cluster() -> Iterator[dict[str, str]]:
    """Set up a Slurm; yield the environment in which its programs find it."""
    # Not pytest's folder: names of sockets must be short.
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))
    environment = dict(os.environ, SLURM_CONF=str(folder / "slurm.conf"))
    for name in os.environ:  # of a job that this may run in
        if name.startswith(("SLURM_", "PMI")) and name != "SLURM_CONF":
            del environment[name]
    with contextlib.ExitStack() as ends:
        ends.callback(shutil.rmtree, folder, ignore_errors=True)
        names = _configure(folder)
        output = ends.enter_context((folder / "output.log").open("a"))

        def start(*words: object, patience: float = SECONDS) -> None:
            process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *map(str, words)],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
            ends.callback(_end, process, patience)

        socket_path = folder / "munge.socket"
        files = "key", "pid", "log", "seed"
        options = [f"--{what}-file={folder}/munge.{what}" for what in files]
        options += [f"--socket={socket_path}", "--foreground"]
        options += ["--force"]  # folders in /tmp are not as munged wants them
        start(_which("munged"), *options)
        _wait_for(socket_path.exists, folder)
        start(_which("slurmctld"), "-D", "-c")
        probe = [OWN_MACHINE, "true"]
        apart = subprocess.run(probe, capture_output=True, check=False).returncode == 0
        for name in names:
            slurmd = _which("slurmd"), "-D", "-N", name
            if apart:  # to kill this ends all that is in it
                start(OWN_MACHINE, *slurmd, patience=0)
            else:
                start(*slurmd)
        _wait_for(lambda: _idle(environment) == NODES, folder)
        yield environment


def _configure(folder: Path) -> list[str]:
    """Write what the daemons read; return the nodes' names."""
    host = socket.gethostname().partition(".")[0]
    first, *ports = _free(1 + NODES)
    lines = [CONF.format(host=host, port=first, folder=folder, kill_wait=KILL_WAIT)]
    names = [f"node{i}" for i in range(NODES)]
    for name, port in zip(names, ports, strict=True):
        (folder / name).mkdir()
        where = f"NodeHostname={host} NodeAddr=127.0.0.1 Port={port}"
        lines.append(f"NodeName={name} {where} CPUs={os.cpu_count()}\n")
    (folder / "state").mkdir()
    (folder / "slurm.conf").write_text("".join(lines))
    key = folder / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o600)
    return names


def _which(name: str) -> str | None:
    """Find a program; daemons lie where only root's shell looks."""
    return shutil.which(name, path=os.environ["PATH"] + ":/usr/local/sbin:/usr/sbin")


def _idle(environment: dict[str, str]) -> int:
    """Return how many nodes wait for a job."""
    command = ["sinfo", "--noheader", "--Node", "--format=%N %t"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    return done.stdout.count(" idle\n")


def _wait_for(is_so: Callable[[], bool], folder: Path) -> None:
    deadline = time.monotonic() + SECONDS
    while not is_so():
        if time.monotonic() > deadline:
            logs = [path.read_text()[-2000:] for path in folder.glob("*.log")]
            raise TimeoutError("\n".join(["Slurm does not start", *logs]))
        time.sleep(0.05)


def _end(process: subprocess.Popen, patience: float) -> None:
    process.terminate()
    try:
        process.wait(patience)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _free(count: int) -> list[int]:
    """Return free ports."""
    with contextlib.ExitStack() as ends:
        sockets = [ends.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def main() -> int:
    if missing():
        print(missing(), file=sys.stderr)
        return 2
    with cluster() as environment:
        return subprocess.run(sys.argv[1:], env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
