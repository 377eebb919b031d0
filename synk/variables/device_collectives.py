"""Collectives on shared variables whose values lie on the ranks' GPUs.

They go from device to device, and the results stay there; what the transport does not
take, booleans for one, makes a way through the host. Values that go to the user, or
come from there, pass through the host in any case: `collectives` moves those.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from pytensor.compile import SharedVariable

from ..comm.device import DeviceBuffers
from ..comm.packing import Group, make_group, make_rows
from ..engines import jax
from ..ranks.context import RankContext
from ..ranks.session import SESSION
from ..reduce_ops import ReduceOp, check_shapes
from .lists import in_call

Shapes = tuple[tuple[int, ...], ...]


def lie_on_devices(variables: Sequence[SharedVariable]) -> bool:
    """Tell whether a list is to be moved from device to device.

    It is if one of the master's values lies on a GPU; the others are brought there.
    """
    has_buffers = SESSION.context.device_buffers is not None
    return has_buffers and any(map(jax.has_value, variables))


# -- reductions


def reduce(
    context: RankContext,
    numbers: list[int],
    op: ReduceOp,
    weights: tuple[int, ...],
    to_all: bool,
) -> list[Any]:
    """Combine this rank's values with the others', all of the same weights."""
    buffers, variables = _prepare(context), _variables(context, numbers)
    found = buffers.reduce(
        (tuple(numbers), op, to_all),
        list(_values(context, numbers).values()),
        [op] * len(numbers),
        weights,
        to_all=to_all,
        names=list(variables.values()),
    )
    return list(map(_own, found))


# -- one value for all


def master_broadcast(
    launch: int, numbers: list[int], variables: list[SharedVariable]
) -> None:
    """Give every rank the master's values."""
    kinds = [(v.dtype.name, v.shape) for v in map(jax.get_value, variables)]
    SESSION.run(worker_broadcast, launch, numbers, kinds)


def worker_broadcast(
    context: RankContext,
    launch: int,
    numbers: list[int],
    kinds: list[tuple[str, tuple[int, ...]]],
) -> None:
    """Take the master's values; they are of these dtypes and shapes."""
    buffers = _prepare(context)
    values = {} if context.rank else _values(context, numbers)
    transport = buffers.transport()
    results: dict[int, Any] = {}
    of_host: list[int] = []
    for dtype, places in _by_dtype([dtype for dtype, _ in kinds]).items():
        some = [numbers[i] for i in places]
        if not transport.supports(dtype):
            of_host += some
            continue
        group = _as_one(dtype, tuple(kinds[i][1] for i in places))
        if context.rank:
            flat = group.nothing()
        else:
            flat = group.pack([values[number] for number in some], np.float64(1))
        if group.elements:
            flat = transport.broadcast(flat, 0)
        results.update(zip(some, group.unpack(flat), strict=True))
    if of_host:
        left = _left(context, {number: values[number] for number in of_host if values})
        windows = context.comm.exchange(left)[0]
        if context.rank:
            found = [_own(context.array(windows[number])) for number in of_host]
            results.update(zip(of_host, found, strict=True))
    jax.wait(list(results.values()))
    if context.rank:
        _store(context, launch, results)


@lru_cache(maxsize=16)
def _as_one(dtype: str, shapes: Shapes) -> Group:
    return make_group(np.dtype(dtype), "sum", [], shapes)


# -- the values of all ranks


def master_all_gather(launch: int, numbers: list[int]) -> list[np.ndarray]:
    """Give every rank the values of all, along the first axis; return copies."""
    results = SESSION.run(worker_all_gather, launch, numbers)[0]
    return [np.array(result) for result in results]


def worker_all_gather(
    context: RankContext, launch: int, numbers: list[int]
) -> list[Any] | None:
    """Take the other ranks' values, and give them this rank's."""
    buffers = _prepare(context)
    values, variables = _values(context, numbers), _variables(context, numbers)
    mine = {number: value.shape for number, value in values.items()}
    by_rank = context.comm.exchange(mine)
    shapes = {number: [of_rank[number] for of_rank in by_rank] for number in numbers}
    for number in numbers:
        if len({shape[1:] for shape in shapes[number]}) > 1:
            check_shapes("gather", variables[number], shapes[number])
    transport = buffers.transport()
    results: dict[int, Any] = {}
    of_host: list[int] = []
    dtypes = [values[number].dtype.name for number in numbers]
    for dtype, places in _by_dtype(dtypes).items():
        some = [numbers[i] for i in places]
        if not transport.supports(dtype):
            of_host += some
            continue
        rows = _as_rows(dtype, tuple(tuple(shapes[number]) for number in some))
        flat = rows.pack([values[number] for number in some])
        whole = rows.room()
        if whole.size:
            whole = transport.all_gather(flat, whole)
        results.update(zip(some, rows.unpack(whole), strict=True))
    if of_host:
        left = _left(context, {number: values[number] for number in of_host})
        for number, windows in zip(
            of_host,
            zip(*(w.values() for w in context.comm.exchange(left)), strict=True),
            strict=True,
        ):
            results[number] = _own(np.concatenate(list(map(context.array, windows))))
    jax.wait(list(results.values()))
    _store(context, launch, results)
    return None if context.rank else [results[number] for number in numbers]


_as_rows = lru_cache(maxsize=16)(make_rows)


def _left(context: RankContext, values: dict[int, Any]) -> dict[int, Any]:
    """Return arrays as all ranks can get them; other machines take them whole."""
    if context.comm is context.local:
        return context.leave(values)
    return {number: np.asarray(value) for number, value in values.items()}


# -- variables of a rank


def _prepare(context: RankContext) -> DeviceBuffers:
    """Return the rank's buffers, with JAX ready for values of 64 bits."""
    import jax

    config: Any = jax.config
    if not config.jax_enable_x64:  # no function may have needed it on this rank
        config.update("jax_enable_x64", True)
    assert context.device_buffers is not None
    return context.device_buffers


def _variables(context: RankContext, numbers: list[int]) -> dict[int, SharedVariable]:
    return {number: context.registry.variables[number] for number in numbers}


def _values(context: RankContext, numbers: list[int]) -> dict[int, Any]:
    """Return values by number, on this rank's device."""
    variables = _variables(context, numbers)
    return {number: jax.get_value(var) for number, var in variables.items()}


def _by_dtype(dtypes: Sequence[str]) -> dict[str, list[int]]:
    """Return positions by dtype."""
    places = defaultdict(list)
    for i, dtype in enumerate(dtypes):
        places[dtype].append(i)
    return places


def _own(value: Any) -> Any:
    """Return a result on the device; the host's lies in memory that is used again."""
    if isinstance(value, np.ndarray):
        import jax.numpy as jnp

        return jnp.array(value, copy=True)
    return value


def _store(context: RankContext, launch: int, results: dict[int, Any]) -> None:
    """Make results the values of variables."""
    with in_call(context, launch) as transaction:
        for number, value in results.items():
            transaction.store(jax, context.registry.variables[number], value)
