"""Peers: starting them, asking them, ending them."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import psutil

from .serve import Link, ProtocolError
from .work import Options

TICK = 0.2
"""Seconds between two looks at whether a peer is alive."""

LINE = 2
"""Seconds that a line may take to come, once it has begun."""

THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMBA_NUM_THREADS",
)


class Spec(NamedTuple):
    """An implementation.

    Attributes
    ----------
    module : str
        Its name, one of `peers`, and after a colon that of a function in it.
    needs : tuple of str
        Distributions; without them it is skipped.
    programs : tuple of str
        Likewise.
    processes : {"one", "each", "mpi"}
        One, or one for each rank, started here or by mpirun.
    environment : tuple of pairs of str
    caches : tuple of str
        Environment variables that name a folder for what it has compiled; PyTensor's
        is known.
    options : dict
        Values in place of those in the options.
    """

    module: str
    needs: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()
    processes: str = "one"
    environment: tuple[tuple[str, str], ...] = ()
    caches: tuple[str, ...] = ()
    options: Mapping[str, Any] = MappingProxyType({})

    def caching_in(self, folder: str) -> Spec:
        """Return the same, with a folder of its own for what it has compiled."""
        flags = os.environ.get("PYTENSOR_FLAGS", "")
        pytensor = {
            "PYTENSOR_FLAGS": ",".join(
                filter(None, [flags, f"base_compiledir={folder}"])
            ),
            "XDG_CACHE_HOME": folder,
        }
        variables = {**pytensor, **dict.fromkeys(self.caches, folder)}
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


class Memory(NamedTuple):
    """What a peer takes, in bytes.

    Attributes
    ----------
    peak : int
        Of its largest process: all resident pages, shared ones included.
    together : int
        Of all its processes now, each shared page once.
    """

    peak: int
    together: int


class PeerError(Exception):
    """A peer failed, died, was silent for too long, or spoke nonsense."""


class Peer:
    """A peer that runs: some processes that answer every question together.

    Parameters
    ----------
    name : str
        Used in messages.
    spec : Spec
    options : Options
    """

    def __init__(self, name: str, spec: Spec, options: Options) -> None:
        self.name = name
        options = dataclasses.replace(options, **spec.options)
        self.versions: dict[str, str] = {}
        self._options = options
        self._size = 1 if spec.processes == "one" else options.ranks
        self._folder = tempfile.TemporaryDirectory(prefix="bench-")
        self._links: dict[int, Link] = {}
        self._processes: list[subprocess.Popen] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._log = Path(self._folder.name, "log")
        try:
            path = str(Path(self._folder.name, "socket"))
            self._listener.bind(path)
            self._listener.listen(self._size)
            self._start(path, spec, options)
        except BaseException:
            self.end()
            raise

    def _start(self, path: str, spec: Spec, options: Options) -> None:
        command = [sys.executable, "-P", "-m", "bench.serve", path, spec.module]
        command += [json.dumps(dataclasses.asdict(options)), str(self._size)]
        environment = self._environment(spec, options)
        if spec.processes == "mpi":
            command = [*mpirun(options), *command]
        count = self._size if spec.processes == "each" else 1
        with self._log.open("wb") as log:
            for rank in range(count):
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

    def _environment(self, spec: Spec, options: Options) -> dict[str, str]:
        threads = max(1, options.cores // self._size)
        environment = {**os.environ, **dict.fromkeys(THREAD_VARIABLES, str(threads))}
        folders = [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH")]
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, folders))
        if spec.processes == "mpi" and os.geteuid() == 0:
            # mpirun refuses to work for root unless told twice that this is meant.
            environment["OMPI_ALLOW_RUN_AS_ROOT"] = "1"
            environment["OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] = "1"
        environment.update(spec.environment)
        return environment

    # -- talking

    def wait_until_ready(self) -> None:
        """Return when all processes have said that they are ready."""
        deadline = time.monotonic() + self._options.start_limit
        strangers: list[Link] = []
        while len(self._links) < self._size:
            readable, _, _ = select.select([self._listener, *strangers], [], [], TICK)
            for ready in readable:
                if ready is self._listener:
                    strangers.append(Link(self._listener.accept()[0]))
                else:
                    strangers.remove(ready)
                    self._welcome(ready)
            if not readable:
                self._check_alive()
            if time.monotonic() > deadline:
                raise self._error(f"not ready after {self._options.start_limit:g} s")

    def _welcome(self, link: Link) -> None:
        message = self._receive(link)
        try:
            self._links[message["rank"]] = link
            self.versions.update(message["versions"])
        except (KeyError, TypeError) as error:
            raise self._error(f"no greeting: {str(message)[:80]}") from error

    def ask(self, question: str, number: float) -> list[Any]:
        """Return the answers of all processes, by rank."""
        for link in self._links.values():
            try:
                link.send(ask=question, number=number)
            except OSError as error:
                raise self._error(f"cannot be asked: {error}") from error
        limit = self._options.ask_limit
        deadline = time.monotonic() + limit
        answers: dict[int, Any] = {}
        while len(answers) < self._size:
            waiting = {self._links[r]: r for r in self._links if r not in answers}
            readable, _, _ = select.select(list(waiting), [], [], TICK)
            for link in readable:
                message = self._receive(link)
                if "answer" not in message:
                    raise self._error(f"no answer: {str(message)[:80]}")
                answers[waiting[link]] = message["answer"]
            if not readable:
                self._check_alive()
            if time.monotonic() > deadline and len(answers) < self._size:
                raise self._error(f"no answer to {question!r} in {limit:g} s")
        return [answers[rank] for rank in range(self._size)]

    def _receive(self, link: Link) -> dict[str, Any]:
        try:
            message = link.receive(LINE)
        except (OSError, ProtocolError) as error:
            raise self._error(f"{type(error).__name__}: {error}") from error
        if message is None:
            raise self._error("hung up", wait=True)
        if "error" in message:
            lines = str(message["error"]).strip().splitlines()
            raise PeerError(f"{self.name}: {lines[-1]}\n" + "\n".join(lines))
        return message

    def _check_alive(self) -> None:
        for process in self._processes:
            if process.poll() is not None:
                raise self._error(f"ended with status {process.returncode}")

    def _error(self, what: str, wait: bool = False) -> PeerError:
        if wait:
            try:
                status = self._processes[0].wait(2)
                what = f"{what}, ended with status {status}"
            except subprocess.TimeoutExpired:
                pass
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
            try:
                process.wait(max(0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                pass
        for member in family:
            try:
                member.kill()
            except psutil.NoSuchProcess:
                pass
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
            try:
                parent = psutil.Process(process.pid)
                family += [parent, *parent.children(recursive=True)]
            except psutil.NoSuchProcess:
                pass
        return family

    def forget_peaks(self) -> None:
        """Have the kernel count peaks of memory from now on."""
        for member in self._family():
            try:
                Path(f"/proc/{member.pid}/clear_refs").write_text("5")
            except OSError:
                pass  # it has ended, or this is not allowed: peaks since its start

    def memory(self) -> Memory:
        """Return what its processes take, and the largest one took."""
        peaks, shares = [0], [0]
        for member in self._family():
            try:
                status = Path(f"/proc/{member.pid}/status").read_text()
                rollup = Path(f"/proc/{member.pid}/smaps_rollup").read_text()
            except OSError:
                continue  # it has ended
            peaks += map(int, re.findall(r"^VmHWM:\s+(\d+) kB", status, re.M))
            shares += map(int, re.findall(r"^Pss:\s+(\d+) kB", rollup, re.M))
        return Memory(1024 * max(peaks), 1024 * sum(shares))

    def cpu_seconds(self) -> float:
        """Return the processor time that all its processes have taken so far."""
        total = 0.0
        for member in self._family():
            try:
                times = member.cpu_times()
                total += times.user + times.system
            except psutil.NoSuchProcess:
                pass
        return total


def mpirun(options: Options) -> list[str]:
    """Return how mpirun is called."""
    program = find_program("mpirun")
    assert program is not None
    command = [program, "-n", str(options.ranks)]
    if options.oversubscribe:
        command.append("--oversubscribe")
    return command
