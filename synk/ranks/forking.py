"""Starting and ending a session, and what a script may ask about it."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from pytensor.compile import SharedVariable

from ..cluster.launcher import Node
from ..errors import StateError
from ..user_frames import entry
from ..workers.affinity import usable_cores
from .groups import check_can_be_groups
from .session import SESSION


@entry
def fork(
    n: int | None = None,
    *,
    devices: str | Sequence[int] = "auto",
    threads: int | None = None,
    timeout: float | None = None,
    on_death: Literal["report", "restore"] = "report",
    restarts: int = 0,
    groups: int = 1,
) -> int:
    """Fork one process per device; this process becomes rank 0.

    Call it early, before threads are started. Each rank is pinned to its share of the
    usable cores, the calling process too, and its BLAS, OpenMP and numba threads are
    capped to their number.

    A process that has computed with JAX cannot be forked. Ranks then come from one that
    was kept from the session before, or from a new Python, which takes some seconds.

    Parameters
    ----------
    n : int, optional
        The number of ranks, the master included; by default one for each device: for
        each GPU, or for each usable core (CPU affinity and cgroup quota taken into
        account). With 1 nothing is forked. More ranks than cores share them and work
        correctly, but slowly.
    devices : {"auto", "cpu", "cuda"} or sequence of int
        Where ranks compute: on CPU cores, or on NVIDIA GPUs, one rank on each.
        "auto" takes GPUs where there are any that JAX can use. A list has a GPU's
        number for each rank; ranks that name the same one share it and its memory.
        Numbers count the GPUs that ``CUDA_VISIBLE_DEVICES`` leaves, in its order.
    threads : int, optional
        Threads a rank may use, by default as many as it has cores.
    timeout : float, optional
        Seconds that the other ranks may keep the master waiting, in a meeting or
        after it has done its own share of a command; by default they may take for
        ever. A rank that takes longer raises :class:`synk.RankTimeout`, which shows
        where it is, and the ranks are killed. A call may say otherwise.
    on_death : {"report", "restore"}
        Whether variables that were scattered have their values again when a rank has
        died and the ranks come back. The copy that the master keeps for that is of what
        :func:`synk.scatter` was given, and is dropped when a function or a collective
        gives the variable another value.
    restarts : int
        How often the ranks come back by themselves after one has died. The call in
        which it did raises :class:`synk.WorkerDied`; the next begins with what
        :func:`synk.recover` does, and a warning that says what is lost.
    groups : int
        In how many groups of as many ranks each :func:`synk.groups`,
        :func:`synk.sweep` and :func:`synk.cross_validate` compute side by side. All
        other calls of the script are made by all ranks.

    Returns
    -------
    int
        The number of ranks.

    Raises
    ------
    StateError
        If synk is forked already or in a worker; if GPUs are asked for and cannot be
        used; or if there can be no groups, as on GPUs or several machines.
    SynkError
        If a limit of this user or the machine does not allow so many processes.
    ValueError, TypeError
        If an argument makes no sense, there are fewer GPUs than ranks, or the ranks
        cannot be so many groups of one size.

    Examples
    --------
    >>> import synk
    >>> synk.fork(2)
    2
    >>> synk.close()
    """
    count = SESSION.fork(n, devices, threads, timeout, on_death, restarts, groups)
    if groups > 1:
        try:
            check_can_be_groups()
        except StateError:
            SESSION.close()
            raise
    return count


@entry
def close() -> None:
    """End all other ranks and lift the master's confinement to its cores.

    Done at exit too; twice is fine. Takes five seconds at the most. ``synk.fork()``
    works again afterwards, with functions and :class:`~synk.Data` made before.
    """
    SESSION.close()


@entry
def recover() -> list[SharedVariable]:
    """Start all ranks again after one has died, as the last :func:`fork` did.

    Each variable that was equal on all ranks has the value from before the call that
    failed. Of variables that the ranks held each its own value, or its part, the other
    ranks' are lost. They count as unknown then, see :func:`synk.state`, and functions
    that take them for equal are refused until they are given a value.

    While no rank has died this does nothing.

    Returns
    -------
    list of shared variable
        Those of which values are lost.

    Raises
    ------
    StateError
        If not forked.
    WorkerDied
        If a rank dies meanwhile. It can be called again then, and also after Ctrl-C.

    Examples
    --------
    >>> import synk
    >>> synk.fork(2)
    2
    >>> synk.recover()  # all is well
    []
    >>> synk.close()
    """
    return SESSION.recover()


@contextlib.contextmanager
def session(n: int | None = None, **options: Any) -> Iterator[int]:
    """Fork on entry and close on exit of a ``with`` block.

    Parameters
    ----------
    n, **options
        As for :func:`fork`.

    Yields
    ------
    int
        The number of ranks.

    Examples
    --------
    >>> import synk
    >>> with synk.session(2) as n:
    ...     print(n, synk.is_forked())
    2 True
    >>> synk.is_forked()
    False
    """
    count = fork(n, **options)
    try:
        yield count
    finally:
        close()


def rank() -> int:
    """Return the rank of this process; the master, and a process alone, is 0."""
    return SESSION.rank


def size() -> int:
    """Return the number of ranks; 1 when not forked."""
    return SESSION.size


def nodes() -> list[Node]:
    """Return the machines that the ranks run on.

    Returns
    -------
    list of Node
        One, unless a launcher of MPI has started several processes of
        ``python -m synk SCRIPT.py``.

    Examples
    --------
    >>> import synk
    >>> with synk.session(2):
    ...     [node.ranks for node in synk.nodes()]
    [2]
    """
    cluster = SESSION.cluster
    if cluster is not None and cluster.nodes:
        return list(cluster.nodes)
    cores, gpus = usable_cores(), 0
    if SESSION.state in ("running", "broken"):
        cores = SESSION.cores
        gpus = sum(place.device.is_gpu for place in SESSION.asked.places)
    return [Node(socket.gethostname(), SESSION.size, len(cores), gpus)]


def is_forked() -> bool:
    """Tell whether :func:`fork` was called and :func:`close` was not."""
    return SESSION.state in ("running", "broken", "worker")
