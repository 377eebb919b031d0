"""Buffers on GPUs: JAX packs a stage's values, and a transport combines them.

As in `flat`, ranks first agree through shared memory that their values fit. So a rank
that has failed, or has other shapes, is known before any rank sends values. Values that
the transport cannot combine go through the host.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..reduce_ops import ReduceOp, identity
from ..times.timing import REDUCE, UNCOUNTED, WAIT, Times
from .buffers import KeyedBuffers, Kind, agree_on_kinds
from .flat import ONE_RANK, FlatBuffers
from .shm import SharedMemoryComm


class NoTransport:
    """In place of a `NcclTransport` without NCCL: all values go through the host."""

    def supports(self, dtype: str) -> bool:
        """Return whether this combines arrays of a dtype."""
        return False

    def check(self) -> None:
        """Raise if a collective that was started has failed."""

    def abort(self) -> None:
        """End collectives that were started; the object is not used again."""


class DeviceBuffers(KeyedBuffers["DeviceBuffer"]):
    """One rank's buffers on its GPU, by key.

    ``connect(comm)`` makes a transport, on all ranks at the same time, or raises
    ImportError on all. `host` reduces values that the transport does not support.
    """

    def __init__(
        self,
        comm: SharedMemoryComm,
        connect: Callable[[SharedMemoryComm], Any],
        host: FlatBuffers,
    ) -> None:
        super().__init__(comm)
        self._connect, self._host = connect, host
        self._transport: Any = None
        self._made = 0

    def reduce(
        self,
        key: tuple,
        values: Sequence[Any] | None,
        ops: Sequence[ReduceOp],
        weights: Sequence[float],
        times: Times = UNCOUNTED,
        *,
        to_all: bool = True,
        names: Sequence[object] | None = None,
    ) -> list[Any]:
        """Combine the ranks' values, for all ranks or, if not `to_all`, for rank 0.

        See `FlatBuffers.reduce`. Results are arrays of JAX, maybe not computed yet, or
        of numpy from the host, and None if this rank does not get them.
        """
        comm = self._comm
        if comm.size == 1:
            return ONE_RANK.reduce(key, values, ops, weights)
        buffer = self._buffers.get(key)
        fits = buffer is not None and buffer.fits(values)
        # No rank sends anything before all have agreed here that their values fit.
        serials = comm.agree(buffer.serial if buffer is not None and fits else -1)
        if serials[0] < 0 or any(serial != serials[0] for serial in serials):
            buffer = self._buffers[key] = self._renew(values, ops, names)
        assert buffer is not None
        times.spent(WAIT)
        results: dict[int, Any] = {}
        share = comm.fractions(weights)[comm.rank]
        # All are packed before the first collective: see `_load_unpack`.
        packed = [
            group.neutral_array()
            if values is None
            else group.pack([values[i] for i in group.members], share)
            for group in buffer.groups
        ]
        for group, total in zip(buffer.groups, packed, strict=True):
            if group.elements:
                if to_all:
                    total = self._transport.all_reduce(total, group.op)
                else:
                    total = self._transport.reduce(total, group.op, 0)
            if total is not None:
                results.update(zip(group.members, group.unpack(total), strict=True))
        if rest := buffer.rest:
            given = None if values is None else [values[i] for i in rest]
            found = self._host.reduce(
                (*key, "rest"), given, [ops[i] for i in rest], weights
            )
            results.update(zip(rest, found, strict=True))
        times.spent(REDUCE, buffer.nbytes)
        return [results.get(i) for i in range(len(ops))]

    def look_about(self) -> None:
        """Raise if a collective that was started cannot end, as a rank has failed."""
        self._comm.look_about()
        if self._transport is not None:
            self._transport.check()

    def abort(self) -> None:
        """Give up the transport, as some rank will not take part in its collectives."""
        if self._transport is not None:
            self._transport.abort()
            self._transport = None
        self._buffers.clear()

    def _renew(
        self,
        values: Sequence[Any] | None,
        ops: Sequence[ReduceOp],
        names: Sequence[object] | None,
    ) -> DeviceBuffer:
        kinds = agree_on_kinds(self._comm, values, ops, names)
        # After an aborted call, ranks may have made different numbers of buffers, and
        # some may have given up the transport.
        self._made = max(self._comm.agree(self._made)) + 1
        return DeviceBuffer(self._made, kinds, ops, self.transport())

    def transport(self) -> Any:
        """Return the transport; if some rank has none, first connect all ranks anew."""
        connected = self._comm.agree(self._transport is not None)
        if self._transport is not None and all(connected):
            return self._transport
        # No rank can use a communicator that one of its ranks has given up.
        self.abort()
        try:
            self._transport = self._connect(self._comm)
        except ImportError as error:
            self._transport = NoTransport()
            if self._comm.rank == 0:
                warnings.warn(
                    f"values of GPUs are all-reduced through the host, slowly: {error};"
                    " pip install 'synk[cuda13]'",
                    RuntimeWarning,
                    stacklevel=2,
                )
        return self._transport


class DeviceBuffer:
    """The packing of one stage's values, for their present dtypes and shapes."""

    def __init__(
        self,
        serial: int,
        kinds: Sequence[Kind],
        ops: Sequence[ReduceOp],
        transport: Any,
    ) -> None:
        self.serial = serial
        self._kinds = [(np.dtype(dtype), shape) for dtype, shape in kinds]
        self.nbytes = sum(
            dtype.itemsize * int(np.prod(shape, dtype=np.int64))
            for dtype, shape in self._kinds
        )
        self.rest: list[int] = []
        groups: dict[tuple[np.dtype, ReduceOp], list[int]] = {}
        for i, ((dtype, _), op) in enumerate(zip(self._kinds, ops, strict=True)):
            # Averages of integers are rounded once, at the end, on the host.
            is_rounded = op == "avg" and dtype.kind != "f"
            if transport.supports(dtype.name) and not is_rounded:
                groups.setdefault((dtype, op), []).append(i)
            else:
                self.rest.append(i)
        self.groups = [
            make_group(dtype, op, members, [self._kinds[i][1] for i in members])
            for (dtype, op), members in groups.items()
        ]

    def fits(self, values: Sequence[Any] | None) -> bool:
        """Return whether the values have this buffer's dtypes and shapes; None does."""
        return values is None or [(v.dtype, v.shape) for v in values] == self._kinds


# -- values side by side in one array of JAX, as they are sent between GPUs

# JAX compiles these functions for the shapes of the values. `pack` always makes a new
# array, which a transport may overwrite.


class PackedGroup(NamedTuple):
    """Functions that pack values of one dtype and op into one array."""

    op: ReduceOp  # for the transport: "sum" for an average, of weighted values
    members: list[int]  # the values' positions among the stage's
    # ``pack(values, share)`` returns the array. `share`, a scalar of numpy, is the
    # rank's weight in an average; with other ops, 0 leaves its values out.
    pack: Callable[..., Any]
    # ``unpack(array)`` returns the values in a combined array.
    unpack: Callable[[Any], list[Any]]
    neutral_array: Callable[[], Any]  # the array of a rank without values
    elements: int  # of the array


def make_group(
    dtype: np.dtype, op: ReduceOp, members: list[int], shapes: Sequence[tuple[int, ...]]
) -> PackedGroup:
    """Return functions that pack values of these shapes."""
    import jax
    import jax.numpy as jnp

    in_order = op in ("min", "max") and dtype.kind == "f"
    neutral = identity(op, dtype)
    # Numbers of 16 bits are combined in 32, and rounded once, as on the host.
    wide = np.dtype("float32") if dtype == np.float16 else dtype

    def pack(values: list[Any], share: Any) -> Any:
        flat = jnp.concatenate([jnp.ravel(value) for value in values]).astype(wide)
        weighted = flat * share.astype(wide) if op == "avg" else flat
        # A rank without rows is left out and not multiplied by 0, as 0 * NaN is NaN.
        whole = jnp.where(share > 0, weighted, jnp.asarray(neutral, wide))
        return _as_integers(whole, op) if in_order else whole

    def unpack(flat: Any) -> list[Any]:
        whole = (_as_floats(flat) if in_order else flat).astype(dtype)
        parts = jnp.split(whole, np.cumsum(_sizes(shapes))[:-1])
        return [part.reshape(s) for part, s in zip(parts, shapes, strict=True)]

    def neutral_array() -> Any:
        flat = jnp.full(elements, neutral, wide)
        return _as_integers(flat, op) if in_order else flat

    elements = sum(_sizes(shapes))
    made = PackedGroup(
        "sum" if op == "avg" else op,
        members,
        jax.jit(pack),
        jax.jit(unpack),
        jax.jit(neutral_array),
        elements,
    )
    _load_unpack(made.unpack, made.neutral_array)
    return made


def _load_unpack(unpack: Callable[[Any], list[Any]], room: Callable[[], Any]) -> None:
    """Compile and load `unpack` on the GPU, before a collective is started."""
    # A GPU loads programs only when nothing runs on it. While NCCL waits there for a
    # rank that has failed, loading would wait, too, and could not be given up.
    import jax

    # An array of a transport is committed to its device, for which JAX compiles anew.
    bound = jax.device_put(room(), jax.devices()[0])
    jax.block_until_ready(unpack(bound))


def _sizes(shapes: Sequence[tuple[int, ...]]) -> list[int]:
    return [int(np.prod(shape, dtype=np.int64)) for shape in shapes]


# -- a NaN wins a comparison, as in numpy

# NCCL's minimum and maximum of floats ignore NaN. So floats are sent as integers of the
# same order, with NaN as the least or largest. The bits of a float are its sign and
# magnitude; of negative ones, the magnitude's bits are inverted. NCCL has no 16-bit
# integers.


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


# -- gathering the ranks' values, which may have different lengths


class GatheredRows(NamedTuple):
    """Functions that gather values of one dtype, in a row for each rank."""

    pack: Callable[[list[Any]], Any]  # returns this rank's row, padded
    room: Callable[[], Any]  # returns an array for the rows of all ranks
    unpack: Callable[[Any], list[Any]]  # returns each value's rows of all ranks


def make_rows(
    dtype: str, shapes: tuple[tuple[tuple[int, ...], ...], ...]
) -> GatheredRows:
    """Return functions that gather values of these shapes, by value and rank."""
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
        found = []
        for i, start in enumerate(starts[:-1]):
            of_ranks = zip(rows, sizes[i], shapes[i], strict=True)
            parts = [r[start : start + n].reshape(shape) for r, n, shape in of_ranks]
            found.append(jnp.concatenate(parts))
        return found

    made = GatheredRows(jax.jit(pack), jax.jit(room), jax.jit(unpack))
    _load_unpack(made.unpack, made.room)
    return made
