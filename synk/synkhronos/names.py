"""What of Synkhronos took other arguments than synk does."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence, Sized
from typing import Any

import synk

from ..user_frames import entry


@entry
def fork(
    n_parallel: int | None = None,
    use_gpu: bool = True,
    master_rank: int = 0,
    profile_workers: bool = False,
    max_n_var: int | None = None,
    max_dim: int | None = None,
) -> int:
    """Fork ranks, with the arguments of Synkhronos; see :func:`synk.fork`.

    Parameters
    ----------
    n_parallel : int, optional
        The number of ranks; by default one for each GPU, or else for each core.
    use_gpu : bool
        Whether to use GPUs where there are any that JAX can use.
    master_rank : {0}
        synk's master is rank 0.
    profile_workers, max_n_var, max_dim
        Have no meaning any more: see :func:`synk.trace`, and there are no limits.

    Returns
    -------
    int
        The number of ranks.
    """
    if master_rank != 0:
        raise ValueError(
            f"master_rank={master_rank}: synk's master is rank 0; to choose its GPU,"
            " order them in CUDA_VISIBLE_DEVICES"
        )
    return synk.fork(n_parallel, devices="auto" if use_gpu else "cpu")


@entry
def function(
    inputs: Sequence, outputs: Any = None, *args: Any, **kwargs: Any
) -> synk.Function:
    """Make a function, with the ops of Synkhronos; see :func:`synk.function`.

    Parameters
    ----------
    inputs, outputs, *args, **kwargs
        As there. An op may begin with ``"c_"``, which had arrays go through the CPU's
        memory; synk chooses the way by itself.

    Returns
    -------
    synk.Function
    """
    if isinstance(outputs, list):
        outputs = [_without_way(output) for output in outputs]
    else:
        outputs = _without_way(outputs)
    if isinstance(kwargs.get("updates"), list):
        kwargs["updates"] = [_without_way(update) for update in kwargs["updates"]]
    return synk.function(inputs, outputs, *args, **kwargs)


def _without_way(named: Any) -> Any:
    """Return ``(..., "c_avg")`` as ``(..., "avg")``, and all else as it is."""
    if isinstance(named, tuple) and isinstance(named[-1], str):
        return (*named[:-1], named[-1].removeprefix("c_"))
    return named


def make_slices(data_collection: Sequence[Sized]) -> tuple[slice, ...]:
    """Return a slice for each array: where it lies when they are concatenated.

    Parameters
    ----------
    data_collection : list of array_like

    Returns
    -------
    tuple of slice

    Examples
    --------
    >>> from synk.synkhronos import make_slices
    >>> make_slices([[0, 1, 2], [10, 11]])
    (slice(0, 3, None), slice(3, 5, None))
    """
    if not isinstance(data_collection, (list, tuple)):
        raise TypeError(f"expected a list of arrays, got {data_collection!r}")
    ends = itertools.accumulate(map(len, data_collection), initial=0)
    return tuple(slice(start, stop) for start, stop in itertools.pairwise(ends))


def _with_nccl(collective: Callable) -> Callable:
    """Let a collective take `nccl`: synk reduces by NCCL where values lie on GPUs."""

    @entry
    @functools.wraps(collective)
    def theirs(*args: Any, nccl: bool = True, **kwargs: Any) -> Any:
        return collective(*args, **kwargs)

    return theirs


all_gather = _with_nccl(synk.all_gather)
all_reduce = _with_nccl(synk.all_reduce)
broadcast = _with_nccl(synk.broadcast)
gather = _with_nccl(synk.gather)
get_value = _with_nccl(synk.get_value)
reduce = _with_nccl(synk.reduce)
scatter = _with_nccl(synk.scatter)
set_value = _with_nccl(synk.set_value)
