"""Peers: starting them, asking them, ending them."""

import contextlib
import dataclasses
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from importlib import metadata
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import psutil

from .work import Options

TICK = 0.2
"""Seconds between two looks at whether a peer is alive."""

THREAD_VARIABLES = (
    *("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"),
    *("MKL_NUM_THREADS", "NUMBA_NUM_THREADS"),
)


class Spec(NamedTuple):
    """An implementation, and what it is run with."""

    module: str  # its name, one of `peers`, and after a colon a function in it
    needs: tuple[str, ...] = ()  # distributions; without them it is skipped
    programs: tuple[str, ...] = ()  # likewise
    processes: str = "one"  # or for each rank, started here ("each") or by mpirun
    environment: tuple[tuple[str, str], ...] = ()
    # Variables that name a folder for what it has compiled, beside PyTensor's.
    caches: tuple[str, ...] = ()
    options: Mapping[str, Any] = MappingProxyType({})

    def caching_in(self, folder: str) -> "Spec":
        """Return the same, with a folder of its own for what it has compiled."""
        flags = [os.environ.get("PYTENSOR_FLAGS", ""), f"base_compiledir={folder}"]
        variables = {
            "PYTENSOR_FLAGS": ",".join(filter(None, flags)),
            "XDG_CACHE_HOME": folder,
            **dict.fromkeys(self.caches, folder),
        }
        return self._replace(environment=(*self.environment, *variables.items()))

    def missing(self) -> list[str]:
        """Return what is not installed."""
        absent = [program for program in self.programs if not find_program(program)]
        for name in self.needs:
            try:
                metadata.version(name)
            except metadata.PackageNotFoundError:
                absent.append(name)
        return absent


def find_program(name: str) -> str | None:
    """Return the path of a program, from this interpreter's environment or PATH."""
    folder = str(Path(sys.executable).parent)
    return shutil.which(name, path=folder) or shutil.which(name)


class PeerError(Exception):
    """A peer failed, died, or was silent for too long."""


class Peer:
    """A peer that runs: some processes that answer every question together."""

    def __init__(self, name: str, spec: Spec, options: Options) -> None:
        self.name = name
        self.versions: dict[str, str] = {}
        self._options = dataclasses.replace(options, **spec.options)
        self._size = 1 if spec.processes == "one" else self._options.ranks
        self._folder = tempfile.TemporaryDirectory(prefix="bench-")
        self._links: dict[int, Connection] = {}
        self._processes: list[subprocess.Popen] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._log = Path(self._folder.name, "log")
        try:
            path = str(Path(self._folder.name, "socket"))
            self._listener.bind(path)
            self._listener.listen(self._size)
            self._start(path, spec)
        except BaseException:
            self.end()
            raise

    def _start(self, path: str, spec: Spec) -> None:
        options = self._options
        command = [sys.executable, "-P", "-m", "bench.serve", path, spec.module]
        command += [json.dumps(dataclasses.asdict(options)), str(self._size)]
        environment = self._environment(spec)
        if spec.processes == "mpi":
            more = ["--oversubscribe"] * (options.ranks > options.cores)
            program = find_program("mpirun") or "mpirun"
            command = [program, "-n", str(options.ranks), *more, *command]
        with self._log.open("wb") as log:
            for rank in range(self._size if spec.processes == "each" else 1):
                if spec.processes != "mpi":
                    environment["BENCH_RANK"] = str(rank)
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=environment,
                    start_new_session=True,  # Ctrl-C is for the driver alone
                )
                self._processes.append(process)

    def _environment(self, spec: Spec) -> dict[str, str]:
        threads = max(1, self._options.cores // self._size)
        environment = {**os.environ, **dict.fromkeys(THREAD_VARIABLES, str(threads))}
        folders = [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH")]
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, folders))
        if spec.processes == "mpi" and os.geteuid() == 0:
            # mpirun refuses to work for root unless told twice that this is meant.
            environment["OMPI_ALLOW_RUN_AS_ROOT"] = "1"
            environment["OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] = "1"
        return environment | dict(spec.environment)

    # -- talking

    def wait_until_ready(self) -> None:
        """Return when all processes have said that they are ready."""
        limit = self._options.start_limit
        deadline = time.monotonic() + limit
        strangers: list[Connection] = []
        while len(self._links) < self._size:
            places = [self._listener, *strangers]
            for ready in self._wait(places, deadline, f"not ready after {limit:g} s"):
                if ready is self._listener:
                    connected, _ = self._listener.accept()
                    strangers.append(Connection(connected.detach()))
                else:
                    strangers.remove(ready)
                    message = self._receive(ready)
                    self._links[message["rank"]] = ready
                    self.versions.update(message["versions"])

    def ask(self, question: str, number: int) -> list[Any]:
        """Return the answers of all processes, by rank."""
        try:
            for link in self._links.values():
                link.send((question, number))
        except OSError as error:
            raise self._error(f"cannot be asked: {error}") from error
        limit = self._options.ask_limit
        deadline, silent = time.monotonic() + limit, f"no answer to {question!r} in"
        answers: dict[int, Any] = {}
        while len(answers) < self._size:
            waiting = {self._links[r]: r for r in self._links if r not in answers}
            for link in self._wait(list(waiting), deadline, f"{silent} {limit:g} s"):
                answers[waiting[link]] = self._receive(link)["answer"]
        return [answers[rank] for rank in range(self._size)]

    def _wait(self, places: list, deadline: float, late: str) -> list:
        """Return who has something to say, if anybody has in a while."""
        ready = wait(places, TICK)
        if not ready:
            for process in self._processes:
                if process.poll() is not None:
                    raise self._error(f"ended with status {process.returncode}")
            if time.monotonic() > deadline:
                raise self._error(late)
        return ready

    def _receive(self, link: Connection) -> dict[str, Any]:
        try:
            message = link.recv()
        except (OSError, EOFError) as error:
            status = ""
            with contextlib.suppress(subprocess.TimeoutExpired):
                status = f", ended with status {self._processes[0].wait(2)}"
            raise self._error(f"hung up{status}") from error
        if "error" in message:
            lines = message["error"].strip().splitlines()
            raise PeerError(f"{self.name}: {lines[-1]}\n" + "\n".join(lines))
        return message

    def _error(self, what: str) -> PeerError:
        log = self._log.read_text(errors="replace").replace("\0", "")
        lines = log.rstrip().splitlines()[-25:]
        return PeerError("\n".join([f"{self.name}: {what}", *lines]))

    # -- ending

    def end(self) -> None:
        """Hang up, and kill what is still there after a while."""
        family = self._family()
        for link in self._links.values():
            link.close()
        self._listener.close()
        deadline = time.monotonic() + (self._options.end_limit if self._links else 0)
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0, deadline - time.monotonic()))
        for member in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                member.kill()
        for process in self._processes:
            process.wait(10)
        psutil.wait_procs(family, 10)
        self._processes.clear()
        self._links.clear()
        self._folder.cleanup()

    def _family(self) -> list[psutil.Process]:
        """Return this peer's processes and theirs."""
        family = []
        for process in self._processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                parent = psutil.Process(process.pid)
                family += [parent, *parent.children(recursive=True)]
        return family

    def memory(self) -> int:
        """Return the bytes that its processes have together, shared pages once."""
        found = 0
        for member in self._family():
            with contextlib.suppress(OSError):  # it has ended
                rollup = Path(f"/proc/{member.pid}/smaps_rollup").read_text()
                found += sum(map(int, re.findall(r"^Pss:\s+(\d+) kB", rollup, re.M)))
        return 1024 * found
