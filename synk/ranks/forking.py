"""Starting and ending a session, and what a script may ask about it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from ..user_frames import entry
from .session import SESSION


@entry
def fork(
    n: int | None = None,
    *,
    devices: str | Sequence[int] = "auto",
    threads: int | None = None,
    timeout: float | None = None,
) -> int:
    """Fork one process per device; this process becomes rank 0.

    Call it early: before threads are started and before a CUDA context or an XLA
    backend exists. Each rank is pinned to its share of the usable cores, the calling
    process too, and its BLAS, OpenMP and numba threads are capped to their number.

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
        Seconds that the other ranks may take for one command after the master has
        done its own share; by default they may take for ever. A rank that takes
        longer raises :class:`synk.RankTimeout`, and the ranks are killed.

    Returns
    -------
    int
        The number of ranks.

    Raises
    ------
    StateError
        If synk is forked already, in a worker, or when a CUDA context or an XLA
        backend is up; or if GPUs are asked for and cannot be used.
    ValueError, TypeError
        If an argument makes no sense, or there are fewer GPUs than ranks.

    Examples
    --------
    >>> import synk
    >>> synk.fork(2)
    2
    >>> synk.close()
    """
    return SESSION.fork(n, devices, threads, timeout)


@entry
def close() -> None:
    """End all other ranks and lift the master's confinement to its cores.

    Done at exit too; twice is fine. Takes five seconds at the most, whatever the ranks
    are doing. ``synk.fork()`` works again afterwards, with functions and
    :class:`~synk.Data` made before.
    """
    SESSION.close()


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


def is_forked() -> bool:
    """Tell whether :func:`fork` was called and :func:`close` was not."""
    return SESSION.state in ("running", "broken", "worker")
