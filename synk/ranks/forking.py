"""`synk.fork`, `close` and `recover`, and functions that describe the session."""

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
    """Fork one process per core or GPU; this process becomes rank 0.

    Call it early, before threads are started. Each rank, this process included, is
    pinned to its share of the usable cores. Its BLAS, OpenMP and numba threads are
    capped to the number of these cores.

    A process that has computed with JAX cannot be forked. Ranks are then forked from a
    process of the session before, or from a new Python, which takes some seconds.

    Parameters
    ----------
    n : int, optional
        The number of ranks, the master included; by default one for each GPU, or for
        each usable core (CPU affinity and cgroup quota taken into account). With 1
        nothing is forked. If there are more ranks than cores, they share cores and work
        correctly, but slowly.
    devices : {"auto", "cpu", "cuda"} or sequence of int
        Whether ranks compute on CPU cores, or on NVIDIA GPUs, one rank on each. "auto"
        uses GPUs if there are any that JAX can use. A list has a GPU's number for each
        rank; ranks with the same number share that GPU and its memory. Numbers count
        the GPUs that ``CUDA_VISIBLE_DEVICES`` leaves, in its order.
    threads : int, optional
        Threads of each rank, by default as many as the rank has cores.
    timeout : float, optional
        How many seconds the master waits for the other ranks, in a meeting or after
        its own share of a command; by default for ever. If a rank takes longer, the
        call raises :class:`synk.RankTimeout`, which shows where that rank is, and the
        ranks are killed. A call may have a timeout of its own.
    on_death : {"report", "restore"}
        With "restore", scattered variables have their values again when the ranks are
        started again after a death. For that the master keeps a copy of the array that
        :func:`synk.scatter` was given, until a function or a collective gives the
        variable another value.
    restarts : int
        How often synk starts the ranks again by itself after one has died. The call in
        which it died raises :class:`synk.WorkerDied`. The next call first does what
        :func:`synk.recover` does, and warns of lost values.
    groups : int
        The number of groups, of equally many ranks, in which :func:`synk.groups`,
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
        If an argument makes no sense, there are fewer GPUs than ranks, or the number of
        ranks is no multiple of `groups`.

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
    """End all other ranks, and let this process use all cores again.

    This takes five seconds at the most, and is done at exit, too. A second call does
    nothing. ``synk.fork()`` works again afterwards, with functions and
    :class:`~synk.Data` made before.
    """
    SESSION.close()


@entry
def recover() -> list[SharedVariable]:
    """Start all ranks again after one has died, with the options of :func:`fork`.

    A variable that was equal on all ranks has the value from before the call that
    failed. If ranks held values or rows of their own of a variable, those of the other
    ranks are lost. The variable's state is then unknown (:func:`synk.state`), and
    functions that need it to be equal are refused until you set it.

    If no rank has died, this does nothing.

    Returns
    -------
    list of shared variable
        The variables that have lost values.

    Raises
    ------
    StateError
        If not forked.
    WorkerDied
        If a rank dies meanwhile. Then, and after Ctrl-C, you can call this again.

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
    """Return the rank of this process: 0 in the master, and if not forked."""
    return SESSION.rank


def size() -> int:
    """Return the number of ranks: 1 if not forked."""
    return SESSION.size


def nodes() -> list[Node]:
    """Return the machines that the ranks run on.

    Returns
    -------
    list of Node
        One for each machine. There are several only if a launcher of MPI has started
        several processes of ``python -m synk SCRIPT.py``.

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
    """Return whether :func:`fork` was called, and :func:`close` not since."""
    return SESSION.state in ("running", "broken", "worker")
