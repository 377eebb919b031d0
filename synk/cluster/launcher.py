"""What has launched this process, as it says in the environment; nothing of MPI itself.

Before `MPI.Init` only the environment tells whether there are others, and ranks are
forked before that.
"""

from __future__ import annotations

import os
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
    """

    rank: int
    size: int
    local_rank: int
    local_size: int


def launched(environment: Mapping[str, str] = os.environ) -> Launched | None:
    """Return which process this is, or None if it was not launched as one of several.

    >>> launched({"PMI_RANK": "1", "PMI_SIZE": "2"})
    Launched(rank=1, size=2, local_rank=0, local_size=1)
    >>> launched({"PMI_RANK": "0", "PMI_SIZE": "1"})
    """
    found = _first(_RANKS, environment)
    if found is None or found[1] < 2:
        return None
    return Launched(*found, *(_first(_LOCAL, environment) or _of_slurm(environment)))


def _first(
    pairs: tuple[tuple[str, str], ...], environment: Mapping[str, str]
) -> tuple[int, int] | None:
    for rank, size in pairs:
        if rank in environment and size in environment:
            return int(environment[rank]), int(environment[size])
    return None


def _of_slurm(environment: Mapping[str, str]) -> tuple[int, int]:
    """Return rank and size on this host, which Slurm says in its own way: "2(x3),1"."""
    rank = int(environment.get("SLURM_LOCALID", "0"))
    of_nodes = environment.get("SLURM_STEP_TASKS_PER_NODE", "1")
    counts: list[int] = []
    for part in of_nodes.split(","):
        count, _, times = part.partition("(x")
        counts += [int(count)] * int(times.rstrip(")") or "1")
    node = int(environment.get("SLURM_NODEID", "0"))
    return rank, max(counts[node] if node < len(counts) else 1, rank + 1)
