"""The launcher of this process, found from its environment, and the cores to use.

Ranks are forked before `MPI.Init`, and until then only the environment says whether
there are other processes.

Launchers bind the processes that they start to cores: mpirun binds each to one core if
they are two, srun to one unless more are asked for. A node's master forks a rank for
each of its cores, so it takes more than it is bound to, but none that may be another
job's: if the job has only a part of the host, the binding stays.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Mapping
from typing import NamedTuple

from ..workers.affinity import allowed_cores, share, why_not_pinned


class Node(NamedTuple):
    """One node of a session: a launched process on a machine, and its ranks.

    Attributes
    ----------
    host : str
        The machine's name.
    ranks : int
        The number of its ranks. Ranks are numbered node by node.
    cores : int
        The number of cores of these ranks together.
    gpus : int
        The number of its ranks that compute on GPUs: all or none.
    """

    host: str
    ranks: int
    cores: int
    gpus: int = 0


# -- the environment

_LAUNCHERS = (
    ("mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("mpiexec", "PMI_RANK", "PMI_SIZE"),
    ("mpirun", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
    ("srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
    ("mpirun", "PMIX_RANK", ""),
)
"""Launchers, and their variables for rank and size; MPICH's relatives use PMI_*."""

_LOCAL = (
    ("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
)
"""Launchers' variables for rank and size among the processes of one host."""


class Launched(NamedTuple):
    """The place of this process among those that were launched together."""

    rank: int
    size: int
    local_rank: int  # among the processes of this host
    local_size: int
    asked: int = 0  # cores that the user asked for each process; 0 if unknown
    of_job: int = 0  # cores of this host that the job has; 0 if unknown


def launched(environment: Mapping[str, str] = os.environ) -> Launched | None:
    """Return this process's place; None if it was not launched as one of several."""
    found = _first([names for _, *names in _LAUNCHERS], environment)
    if found is None or found[1] < 2:
        return None
    local, asked = _first(_LOCAL, environment), 0
    if local is None:  # started by srun, not by an mpirun in a job of Slurm
        local = _of_slurm(environment)
        asked = _number(environment, "SLURM_CPUS_PER_TASK") or 0
    # The job's cores by host, but not which host is this one: the least is taken.
    of_job = min(_counts(environment.get("SLURM_JOB_CPUS_PER_NODE", "")), default=0)
    return Launched(*found, *local, asked, of_job)


class Copies(NamedTuple):
    """The launcher of this copy of a program, its rank, and the copies, if known."""

    launcher: str
    rank: int
    size: int | None


def copies(environment: Mapping[str, str] = os.environ) -> Copies | None:
    """Return which copy of a program this process is, or None if it is the only one."""
    for launcher, rank_name, size_name in _LAUNCHERS:
        rank = _number(environment, rank_name)
        size = _number(environment, size_name)
        if rank is not None and (size or rank + 1) > 1:
            return Copies(launcher, rank, size)
    return None


def _first(pairs, environment: Mapping[str, str]) -> tuple[int, int] | None:
    for names in pairs:
        rank, size = (_number(environment, name) for name in names)
        if rank is not None and size is not None:
            return rank, size
    return None


def _number(environment: Mapping[str, str], name: str) -> int | None:
    """Return the number in an environment variable, or None if it has none."""
    text = environment.get(name, "").strip()
    return int(text) if text.isdecimal() else None


def _of_slurm(environment: Mapping[str, str]) -> tuple[int, int]:
    """Return rank and size on this host, from Slurm's variables."""
    rank = _number(environment, "SLURM_LOCALID") or 0
    counts = _counts(environment.get("SLURM_STEP_TASKS_PER_NODE", ""))
    node = _number(environment, "SLURM_NODEID") or 0
    return rank, max(counts[node] if node < len(counts) else 1, rank + 1)


def _counts(said: str) -> list[int]:
    """Return the numbers by host in a text such as Slurm's "2(x3),1"; [] if none."""
    counts: list[int] = []
    for part in said.split(","):
        found = re.fullmatch(r"\s*(\d+)(?:\(x(\d+)\))?\s*", part)
        if found is None:
            return []
        counts += [int(found[1])] * int(found[2] or "1")
    return counts


# -- cores


def take_cores(launched: Launched) -> list[int]:
    """Set this process's affinity to its share of its host's cores; return them."""
    # The processes of a host share its cores evenly, unless the launcher has bound each
    # to its share, or to as many as the user asked for.
    bound = allowed_cores()
    if (why_not := why_not_pinned()) is not None:
        text = f"node {launched.rank} keeps the cores that it was started on: {why_not}"
        warnings.warn(text, RuntimeWarning, stacklevel=2)
        return chosen(bound, bound, launched)
    os.sched_setaffinity(0, range(os.cpu_count() or 1))  # gives all of the cpuset's
    host = os.sched_getaffinity(0)
    cores = chosen(bound, host, launched)
    os.sched_setaffinity(0, cores)
    has = min(launched.of_job or len(host), len(host))  # the job's cores on this host
    is_less = len(bound) < has // launched.local_size
    is_meant = set(cores) == bound and (_is_asked(bound, launched) or not is_less)
    if bound != host and not is_meant:
        warnings.warn(
            f"the launcher has bound node {launched.rank} to {len(bound)} core"
            f"{'s' * (len(bound) != 1)} of {has}: synk takes {len(cores)}. Tell the"
            " launcher not to bind, as by `mpirun --bind-to none`, or to bind each"
            " process to more, as by `srun --cpus-per-task`",
            RuntimeWarning,
            stacklevel=2,
        )
    return cores


def chosen(bound: set[int], host: set[int], launched: Launched) -> list[int]:
    """Return a node's cores: those it is `bound` to, or its share of the host's.

    >>> one = Launched(1, 4, local_rank=1, local_size=2)
    >>> chosen({1}, {0, 1, 2, 3}, one)  # bound to a core, as mpirun does
    [2, 3]
    >>> chosen({0, 1}, {0, 1, 2, 3}, one)  # to a socket
    [0, 1]
    >>> chosen({1}, {0, 1, 2, 3}, one._replace(of_job=2))  # others may be another job's
    [1]
    """
    if bound != host:
        is_share = len(bound) * launched.local_size >= len(host)
        has_part = 0 < launched.of_job < len(host)
        if is_share or has_part or _is_asked(bound, launched):
            return sorted(bound)
    return share(sorted(host), launched.local_rank, launched.local_size)


def _is_asked(bound: set[int], launched: Launched) -> bool:
    """Return whether the process is bound to as many cores as the user asked for."""
    # In some versions of Slurm the environment of a step has the job's number, though
    # the step is bound to one core.
    return 0 < launched.asked <= len(bound)
