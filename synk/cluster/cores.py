"""Which cores of its host a node has.

Launchers bind the processes that they start, mpirun each to one core if they are two,
srun each to one if nobody has asked for more. A node's master forks a rank for each of
its cores: bound to one it would have one rank. So it takes more, but none that may be
another job's: where a job has a part of a host alone, what it is bound to stays.
"""

from __future__ import annotations

import os
import warnings

from ..workers.affinity import allowed_cores, share, why_not_pinned
from .launcher import Launched


def take_cores(launched: Launched) -> list[int]:
    """Let this process have its share of its host's cores; return them.

    The processes of a host share its cores evenly, unless the launcher has bound each
    to as many, or to those that were asked for it.
    """
    bound = allowed_cores()
    if (why_not := why_not_pinned()) is not None:
        text = f"node {launched.rank} keeps the cores that it was started on: {why_not}"
        warnings.warn(text, RuntimeWarning, stacklevel=2)
        return chosen(bound, bound, launched)
    os.sched_setaffinity(0, range(os.cpu_count() or 1))  # those of the cpuset are given
    host = os.sched_getaffinity(0)
    cores = chosen(bound, host, launched)
    os.sched_setaffinity(0, cores)
    has = min(launched.of_job or len(host), len(host))  # the job, here
    is_less = len(bound) < has // launched.local_size
    is_meant = set(cores) == bound and (_is_asked(bound, launched) or not is_less)
    if bound != host and not is_meant:
        warnings.warn(
            f"the launcher has bound node {launched.rank} to {_cores(len(bound))} of"
            f" {has}: synk takes {len(cores)}. Tell the launcher not to bind, as by"
            " `mpirun --bind-to none`, or to bind each process to more, as by"
            " `srun --cpus-per-task`",
            RuntimeWarning,
            stacklevel=2,
        )
    return cores


def chosen(bound: set[int], host: set[int], launched: Launched) -> list[int]:
    """Return a node's cores.

    Parameters
    ----------
    bound : set of int
        Those that the launcher has left it.
    host : set of int
        Those that it could have.
    launched : Launched

    Examples
    --------
    >>> one = Launched(1, 4, local_rank=1, local_size=2)
    >>> chosen({0, 1, 2, 3}, {0, 1, 2, 3}, one)  # not bound
    [2, 3]
    >>> chosen({1}, {0, 1, 2, 3}, one)  # to a core, as mpirun does
    [2, 3]
    >>> chosen({0, 1}, {0, 1, 2, 3}, one)  # to a socket
    [0, 1]
    >>> chosen({1}, {0, 1, 2, 3}, one._replace(asked=1))  # to what was asked for
    [1]
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
    """Tell whether it is bound to as many as were asked for.

    A step of Slurm has in its environment what was asked for the job, in some versions,
    and is bound to one core all the same.
    """
    return 0 < launched.asked <= len(bound)


def _cores(count: int) -> str:
    return f"{count} core{'s' * (count != 1)}"
