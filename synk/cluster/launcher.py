"""What has launched this process, as it says in the environment; nothing of MPI itself.

Before `MPI.Init` only the environment tells whether there are others, and ranks are
forked before that.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import NamedTuple

_RANKS = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
)
"""Where Open MPI, MPICH (and what is made of it) and Slurm say rank and size."""

_LOCAL = (
    ("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
)
"""The same among the processes of one host."""


class Launched(NamedTuple):
    """Which process of how many this is.

    Attributes
    ----------
    rank, size : int
        Of all processes.
    local_rank, local_size : int
        Of those on this host.
    asked : int
        How many cores were asked for each process, of a launcher that binds them to
        these; 0 if it was not said.
    of_job : int
        How many cores of this host are the job's, if a scheduler has said so, else 0.
    """

    rank: int
    size: int
    local_rank: int
    local_size: int
    asked: int = 0
    of_job: int = 0


def launched(environment: Mapping[str, str] = os.environ) -> Launched | None:
    """Return which process this is, or None if it was not launched as one of several.

    >>> launched({"PMI_RANK": "1", "PMI_SIZE": "2"})[:4]
    (1, 2, 0, 1)
    >>> launched({"PMI_RANK": "0", "PMI_SIZE": "1"})
    """
    found = _first(_RANKS, environment)
    if found is None or found[1] < 2:
        return None
    local, asked = _first(_LOCAL, environment), 0
    if local is None:  # started by srun, not by an mpirun in a job of Slurm
        local = _of_slurm(environment)
        asked = _number(environment, "SLURM_CPUS_PER_TASK") or 0
    # By the job's hosts, of which this may be any: the least is taken.
    of_job = min(_counts(environment.get("SLURM_JOB_CPUS_PER_NODE", "")), default=0)
    return Launched(*found, *local, asked, of_job)


class Copies(NamedTuple):
    """How often a launcher has started this very program, and which one this is.

    Attributes
    ----------
    launcher : str
        Its command.
    rank : int
    size : int or None
        None if it does not say that.
    """

    launcher: str
    rank: int
    size: int | None


_LAUNCHERS = (
    ("mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("mpiexec", "PMI_RANK", "PMI_SIZE"),
    ("mpirun", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
    ("srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
    ("mpirun", "PMIX_RANK", ""),
)
"""The same as `_RANKS`, and what says less: what is set by whom."""


def copies(environment: Mapping[str, str] = os.environ) -> Copies | None:
    """Return which copy of a program this is, or None if there is one alone.

    >>> copies({"PMIX_RANK": "1"})
    Copies(launcher='mpirun', rank=1, size=None)
    >>> copies({"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"})
    """
    for launcher, rank_name, size_name in _LAUNCHERS:
        rank = _number(environment, rank_name)
        size = _number(environment, size_name)
        if rank is not None and (size or rank + 1) > 1:
            return Copies(launcher, rank, size)
    return None


def _first(
    pairs: tuple[tuple[str, str], ...], environment: Mapping[str, str]
) -> tuple[int, int] | None:
    for names in pairs:
        rank, size = (_number(environment, name) for name in names)
        if rank is not None and size is not None:
            return rank, size
    return None


def _number(environment: Mapping[str, str], name: str) -> int | None:
    """Return the number in a variable; None if there is none, as in an empty one."""
    text = environment.get(name, "").strip()
    return int(text) if text.isdecimal() else None


def _of_slurm(environment: Mapping[str, str]) -> tuple[int, int]:
    """Return rank and size on this host, by what Slurm says."""
    rank = _number(environment, "SLURM_LOCALID") or 0
    counts = _counts(environment.get("SLURM_STEP_TASKS_PER_NODE", ""))
    node = _number(environment, "SLURM_NODEID") or 0
    return rank, max(counts[node] if node < len(counts) else 1, rank + 1)


def _counts(said: str) -> list[int]:
    """Return numbers by host, which Slurm says in its own way; none if it says nothing.

    >>> _counts("2(x3),1")
    [2, 2, 2, 1]
    >>> _counts("")
    []
    """
    counts: list[int] = []
    for part in said.split(","):
        found = re.fullmatch(r"\s*(\d+)(?:\(x(\d+)\))?\s*", part)
        if found is None:
            return []
        counts += [int(found[1])] * int(found[2] or "1")
    return counts
