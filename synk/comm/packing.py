"""Values side by side in one array of JAX's: how they travel between devices.

Compiled by JAX for the shapes of the values. What packs them always makes a new array,
which a transport may write to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..reduce_ops import ReduceOp, identity


class Group(NamedTuple):
    """Values of one dtype and op, which travel as one array.

    Attributes
    ----------
    op : str
        The transport's: an average is a sum of weighted values.
    members : list of int
        The values' positions.
    pack : callable
        ``pack(values, share)`` returns the array. `share` is the rank's, as a number of
        numpy's: of the average, and otherwise 0 if its values are to be left out.
    unpack : callable
        Returns the values of the array that the ranks' have been combined to.
    nothing : callable
        Returns what a rank without values gives.
    elements : int
    """

    op: ReduceOp
    members: list[int]
    pack: Callable[..., Any]
    unpack: Callable[[Any], list[Any]]
    nothing: Callable[[], Any]
    elements: int


def make_group(
    dtype: np.dtype, op: ReduceOp, members: list[int], shapes: Sequence[tuple[int, ...]]
) -> Group:
    """Return how values of these shapes are packed."""
    import jax
    import jax.numpy as jnp

    in_order = op in ("min", "max") and dtype.kind == "f"
    neutral = identity(op, dtype)
    # Numbers of 16 bits are rounded once, at the end, as on the host.
    wide = np.dtype("float32") if dtype == np.float16 else dtype

    def pack(values: list[Any], share: Any) -> Any:
        flat = _flat(values).astype(wide)
        weighted = flat * share.astype(wide) if op == "avg" else flat
        # Nothing times NaN is NaN: a rank without rows is left out, not weighed.
        whole = jnp.where(share > 0, weighted, jnp.asarray(neutral, wide))
        return _as_integers(whole, op) if in_order else whole

    def unpack(flat: Any) -> list[Any]:
        whole = _as_floats(flat) if in_order else flat
        return split(whole.astype(dtype), shapes)

    def nothing() -> Any:
        flat = jnp.full(elements, neutral, wide)
        return _as_integers(flat, op) if in_order else flat

    elements = sum(_sizes(shapes))
    made = Group(
        "sum" if op == "avg" else op,
        members,
        jax.jit(pack),
        jax.jit(unpack),
        jax.jit(nothing),
        elements,
    )
    _load(made.unpack, made.nothing)
    return made


def _load(unpack: Callable[[Any], list[Any]], room: Callable[[], Any]) -> None:
    """Have what unpacks compiled and loaded, before a collective is under way.

    A GPU loads programs when nothing runs on it, so while NCCL waits there for a rank
    that has failed, whoever loads one waits with it, and cannot give up.
    """
    import jax

    # What comes of a transport is bound to its device, which JAX compiles for.
    bound = jax.device_put(room(), jax.devices()[0])
    jax.block_until_ready(unpack(bound))


def split(flat: Any, shapes: Sequence[tuple[int, ...]]) -> list[Any]:
    """Return arrays of some shapes that lie one after the other in a flat one."""
    import jax.numpy as jnp

    parts = jnp.split(flat, np.cumsum(_sizes(shapes))[:-1])
    return [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]


def _flat(values: Sequence[Any]) -> Any:
    import jax.numpy as jnp

    return jnp.concatenate([jnp.ravel(value) for value in values])


def _sizes(shapes: Sequence[tuple[int, ...]]) -> list[int]:
    return [int(np.prod(shape, dtype=np.int64)) for shape in shapes]


# -- a NaN wins a comparison, as in numpy

# NCCL's own minimum and maximum of floats pass over NaN. As integers of the same order
# floats have it at the end: the bits of a float are its sign and magnitude, and those
# of negative ones are turned round. NCCL has no 16-bit integers.


def _as_integers(flat: Any, op: ReduceOp) -> Any:
    import jax.numpy as jnp
    from jax import lax

    dtype = np.dtype(f"int{8 * flat.dtype.itemsize}")
    limits = np.iinfo(dtype)
    ordered = _turned(lax.bitcast_convert_type(flat, dtype))
    end = limits.min if op == "min" else limits.max
    return jnp.where(jnp.isnan(flat), jnp.asarray(end, dtype), ordered)


def _as_floats(flat: Any) -> Any:
    from jax import lax

    dtype = np.dtype(f"float{8 * flat.dtype.itemsize}")
    return lax.bitcast_convert_type(_turned(flat), dtype)


def _turned(bits: Any) -> Any:
    import jax.numpy as jnp

    return jnp.where(bits < 0, bits ^ np.iinfo(bits.dtype).max, bits)


# -- the ranks' values after one another, which may have different lengths


class Rows(NamedTuple):
    """Values of one dtype that are gathered: a row for each rank, as long as any needs.

    Attributes
    ----------
    pack : callable
        Returns this rank's row for its values.
    room : callable
        Returns an array for the rows of all ranks.
    unpack : callable
        Returns each value's rows, of all ranks together.
    """

    pack: Callable[[list[Any]], Any]
    room: Callable[[], Any]
    unpack: Callable[[Any], list[Any]]


def make_rows(dtype: str, shapes: tuple[tuple[tuple[int, ...], ...], ...]) -> Rows:
    """Return how values are gathered that have these shapes, by value and rank."""
    import jax
    import jax.numpy as jnp

    sizes = [_sizes(of_value) for of_value in shapes]
    longest = [max(of_value) for of_value in sizes]
    starts = np.cumsum([0, *longest])
    ranks = len(shapes[0])

    def pack(values: list[Any]) -> Any:
        padded = [
            jnp.pad(jnp.ravel(value), (0, length - value.size))
            for value, length in zip(values, longest, strict=True)
        ]
        return jnp.concatenate(padded)

    def room() -> Any:
        return jnp.zeros(ranks * int(starts[-1]), dtype)

    def unpack(whole: Any) -> list[Any]:
        rows = whole.reshape(ranks, -1)
        return [
            jnp.concatenate(
                [
                    rows[rank, start : start + size].reshape(shape)
                    for rank, (size, shape) in enumerate(zip(*of_value, strict=True))
                ]
            )
            for start, of_value in zip(
                starts, zip(sizes, shapes, strict=True), strict=False
            )
        ]

    made = Rows(jax.jit(pack), jax.jit(room), jax.jit(unpack))
    _load(made.unpack, made.room)
    return made
