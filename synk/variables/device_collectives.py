"""Collectives on shared variables whose values lie on the ranks' GPUs.

Values go from device to device, and the results stay there. Dtypes that the transport
does not support, such as booleans, go through host memory. Values from the script, or
for it, pass through the host in any case: `collectives` moves those.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from pytensor.compile import SharedVariable

from ..comm.device import DeviceBuffers, PackedGroup, make_group, make_rows
from ..engines import JAX, jax
from ..ranks.context import RankContext
from ..ranks.session import SESSION
from ..reduce_ops import ReduceOp, check_shapes
from .lists import keep

Shapes = tuple[tuple[int, ...], ...]


def lie_on_devices(variables: Sequence[SharedVariable]) -> bool:
    """Return whether a collective of `variables` goes from device to device.

    It does if one of the master's values lies on a GPU; the others are moved there.
    """
    has_buffers = SESSION.context.device_buffers is not None
    return has_buffers and any(map(jax.has_value, variables))


def reduce(
    context: RankContext,
    numbers: list[int],
    op: ReduceOp,
    weights: tuple[int, ...],
    to_all: bool,
) -> list[Any]:
    """Reduce values on devices; `weights`, by rank, apply to all of them."""
    variables = [context.variables[number] for number in numbers]
    found = _buffers(context).reduce(
        (tuple(numbers), op, to_all),
        [jax.get_value(var) for var in variables],
        [op] * len(numbers),
        weights,
        to_all=to_all,
        names=variables,
    )
    return list(map(_own, found))


def worker_broadcast(
    context: RankContext, launch: int, kinds: dict[int, tuple[str, tuple[int, ...]]]
) -> None:
    """Receive the master's values; `kinds` has their dtypes and shapes, by number."""
    values = {} if context.rank else _values(context, kinds)

    def by_transport(transport: Any, dtype: str, some: list[int]) -> list[Any]:
        group = _as_one(dtype, tuple(kinds[number][1] for number in some))
        if context.rank:
            flat = group.neutral_array()
        else:
            flat = group.pack([values[number] for number in some], np.float64(1))
        if group.elements:
            flat = transport.broadcast(flat, 0)
        return group.unpack(flat)

    def by_host(some: list[int]) -> list[Any]:
        left = _left(context, {number: values[number] for number in some if values})
        windows = context.comm.exchange(left)[0]
        return [_own(context.array(windows[number])) for number in some]

    dtypes = {number: dtype for number, (dtype, _) in kinds.items()}
    results = _moved(context, dtypes, by_transport, by_host)
    if context.rank:
        keep(context, launch, JAX, results)


def worker_all_gather(
    context: RankContext, launch: int, numbers: list[int]
) -> list[np.ndarray] | None:
    """Concatenate all ranks' values along the first axis; rank 0 returns copies."""
    values = _values(context, numbers)
    mine = {number: value.shape for number, value in values.items()}
    by_rank = context.comm.exchange(mine)
    shapes = {number: [of_rank[number] for of_rank in by_rank] for number in numbers}
    for number in numbers:
        if len({shape[1:] for shape in shapes[number]}) > 1:
            var = context.variables[number]
            check_shapes("gather", var, shapes[number])

    def by_transport(transport: Any, dtype: str, some: list[int]) -> list[Any]:
        rows = _as_rows(dtype, tuple(tuple(shapes[number]) for number in some))
        flat = rows.pack([values[number] for number in some])
        whole = rows.room()
        if whole.size:
            whole = transport.all_gather(flat, whole)
        return rows.unpack(whole)

    def by_host(some: list[int]) -> list[Any]:
        left = _left(context, {number: values[number] for number in some})
        of_ranks = context.comm.exchange(left)
        return [
            _own(np.concatenate([context.array(w[number]) for w in of_ranks]))
            for number in some
        ]

    dtypes = {number: value.dtype.name for number, value in values.items()}
    results = _moved(context, dtypes, by_transport, by_host)
    keep(context, launch, JAX, results)
    return None if context.rank else [np.array(results[number]) for number in numbers]


def _moved(
    context: RankContext,
    dtypes: dict[int, str],
    by_transport: Callable[[Any, str, list[int]], list[Any]],
    by_host: Callable[[list[int]], list[Any]],
) -> dict[int, Any]:
    """Exchange values, those of one dtype together; return them by variable number.

    `by_host` exchanges values of dtypes that the transport does not support.
    """
    by_dtype, transport = defaultdict(list), _buffers(context).transport()
    for number, dtype in dtypes.items():
        by_dtype[dtype].append(number)
    results: dict[int, Any] = {}
    of_host: list[int] = []
    for dtype, some in by_dtype.items():
        if transport.supports(dtype):
            found = by_transport(transport, dtype, some)
            results.update(zip(some, found, strict=True))
        else:
            of_host += some
    if of_host:
        results.update(zip(of_host, by_host(of_host), strict=True))
    jax.wait(list(results.values()))  # all, before any variable is changed
    return results


@lru_cache(maxsize=16)
def _as_one(dtype: str, shapes: Shapes) -> PackedGroup:
    return make_group(np.dtype(dtype), "sum", [], shapes)


_as_rows = lru_cache(maxsize=16)(make_rows)


def _left(context: RankContext, values: dict[int, Any]) -> dict[int, Any]:
    """Return windows of values for other ranks, or arrays if machines are several."""
    if context.comm is context.local:
        return context.publish(values)
    return {number: np.asarray(value) for number, value in values.items()}


def _buffers(context: RankContext) -> DeviceBuffers:
    """Return the rank's buffers, with JAX ready for values of 64 bits."""
    import jax

    config: Any = jax.config
    if not config.jax_enable_x64:  # no function may have needed it on this rank
        config.update("jax_enable_x64", True)
    assert context.device_buffers is not None
    return context.device_buffers


def _values(context: RankContext, numbers: Iterable[int]) -> dict[int, Any]:
    """Return values by number, on this rank's device."""
    _buffers(context)
    known = context.variables
    return {number: jax.get_value(known[number]) for number in numbers}


def _own(value: Any) -> Any:
    """Return a result on the device; one on the host is copied from a buffer."""
    if isinstance(value, np.ndarray):
        import jax.numpy as jnp

        return jnp.array(value, copy=True)
    return value
