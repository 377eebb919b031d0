"""`import synkhronos`: scripts of synk's ancestor, unmodified.

The names of Synkhronos (https://github.com/astooke/Synkhronos, 2017), which ran Theano
functions on several GPUs, for what synk does. `synk.finders` makes
``synkhronos.x`` and `synk.synkhronos.x` one module.

Most names are synk's own; those that took other arguments are written here. An output
without an op gets the one that gives the serial result, where Synkhronos averaged
whatever it was.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence, Sized
from typing import Any

import synk

from .. import Data, Function, close, data, distribute, get_lengths, get_shapes
from ..user_frames import entry

__all__ = [
    "Data",
    "Function",
    "all_gather",
    "all_reduce",
    "broadcast",
    "close",
    "data",
    "distribute",
    "fork",
    "function",
    "gather",
    "get_lengths",
    "get_shapes",
    "get_value",
    "make_slices",
    "reduce",
    "scatter",
    "set_value",
]


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

    By default one for each GPU that JAX can use, or else for each core. The last three
    have no meaning any more: see :func:`synk.trace`, and there are no limits.
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

    An op may begin with ``"c_"``, which had arrays go through the CPU's memory; synk
    chooses the way by itself.
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
