"""Flat buffers on devices: a stage's values, packed by JAX and combined by a transport.

The ranks first agree through shared memory that their values fit, as for `flat`: so a
rank that has failed, or has other shapes, is known before anything is sent. What the
transport cannot combine goes through the host.
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
    """Has the place of a `NcclTransport` where there is none: all go by the host."""

    def supports(self, dtype: str) -> bool:
        """Tell whether it takes arrays of a dtype."""
        return False

    def check(self) -> None:
        """Raise if what is under way has failed."""

    def abort(self) -> None:
        """Give up what is under way; this is never used again."""


class DeviceBuffers(KeyedBuffers["DeviceBuffer"]):
    """The buffers of one rank, by a key that all ranks use for the same one.

    `connect` makes a transport, on all ranks at the same time; it raises ImportError on
    all if there is none. What the transport does not support `host` reduces.
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
        """Combine the ranks' values; see `FlatBuffers.reduce`."""
        # All ranks need the results, or rank 0 only. Returned are arrays of JAX's,
        # which may be under way, or of numpy's where the host has combined them; None
        # for what this rank does not get.
        comm = self._comm
        if comm.size == 1:
            return ONE_RANK.reduce(key, values, ops, weights)
        buffer = self._buffers.get(key)
        fits = buffer is not None and buffer.fits(values)
        # No rank sends anything before all have said here that they will.
        serials = comm.agree(buffer.serial if buffer is not None and fits else -1)
        if serials[0] < 0 or any(serial != serials[0] for serial in serials):
            buffer = self._buffers[key] = self._renew(values, ops, names)
        assert buffer is not None
        times.spent(WAIT)
        results: dict[int, Any] = {}
        share = comm.fractions(weights)[comm.rank]
        # All before the first collective: see `_load`.
        packed = [
            group.nothing()
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
        """Raise if what is under way will not come to its end."""
        self._comm.look_about()
        if self._transport is not None:
            self._transport.check()

    def abort(self) -> None:
        """Give up the transport, as some rank will not come to what is under way."""
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
        # Ranks may have made different numbers of buffers, and some may have given up
        # the transport, when a call was aborted.
        self._made = max(self._comm.agree(self._made)) + 1
        return DeviceBuffer(self._made, kinds, ops, self.transport())

    def transport(self) -> Any:
        """Return the transport, after connecting the ranks if one of them is not."""
        connected = self._comm.agree(self._transport is not None)
        if self._transport is not None and all(connected):
            return self._transport
        # A communicator is of use to nobody if one of its ranks has given it up.
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
    """How the values of one stage are packed, for their present shapes."""

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
            # Means of whole numbers are rounded once, at the end.
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
        """Tell whether values of these shapes belong here; no values always do."""
        return values is None or [(v.dtype, v.shape) for v in values] == self._kinds


# -- values side by side in one array of JAX's: how they travel between devices

# Compiled by JAX for the shapes of the values. What packs them always makes a new
# array, which a transport may write to.


class PackedGroup(NamedTuple):
    """Values of one dtype and op, which travel as one array of so many elements."""

    op: ReduceOp  # the transport's: an average is a sum of weighted values
    members: list[int]  # the values' positions
    # ``pack(values, share)`` returns the array; `share` is the rank's, as a number of
    # numpy's: of the average, and otherwise 0 if its values are to be left out.
    pack: Callable[..., Any]
    # The values of the array that the ranks' have been combined to.
    unpack: Callable[[Any], list[Any]]
    nothing: Callable[[], Any]  # what a rank without values gives
    elements: int


def make_group(
    dtype: np.dtype, op: ReduceOp, members: list[int], shapes: Sequence[tuple[int, ...]]
) -> PackedGroup:
    """Return how values of these shapes are packed."""
    import jax
    import jax.numpy as jnp

    in_order = op in ("min", "max") and dtype.kind == "f"
    neutral = identity(op, dtype)
    # Numbers of 16 bits are rounded once, at the end, as on the host.
    wide = np.dtype("float32") if dtype == np.float16 else dtype

    def pack(values: list[Any], share: Any) -> Any:
        flat = jnp.concatenate([jnp.ravel(value) for value in values]).astype(wide)
        weighted = flat * share.astype(wide) if op == "avg" else flat
        # Nothing times NaN is NaN: a rank without rows is left out, not weighed.
        whole = jnp.where(share > 0, weighted, jnp.asarray(neutral, wide))
        return _as_integers(whole, op) if in_order else whole

    def unpack(flat: Any) -> list[Any]:
        whole = (_as_floats(flat) if in_order else flat).astype(dtype)
        parts = jnp.split(whole, np.cumsum(_sizes(shapes))[:-1])
        return [part.reshape(s) for part, s in zip(parts, shapes, strict=True)]

    def nothing() -> Any:
        flat = jnp.full(elements, neutral, wide)
        return _as_integers(flat, op) if in_order else flat

    elements = sum(_sizes(shapes))
    made = PackedGroup(
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
    """Have what unpacks compiled and loaded, before a collective is under way."""
    # A GPU loads programs when nothing runs on it, so while NCCL waits there for a rank
    # that has failed, whoever loads one waits with it, and cannot give up.
    import jax

    # What comes of a transport is bound to its device, which JAX compiles for.
    bound = jax.device_put(room(), jax.devices()[0])
    jax.block_until_ready(unpack(bound))


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


class GatheredRows(NamedTuple):
    """Values of one dtype that are gathered: a row for each rank, as long as any's."""

    pack: Callable[[list[Any]], Any]  # this rank's row, of its values
    room: Callable[[], Any]  # an array for the rows of all ranks
    unpack: Callable[[Any], list[Any]]  # each value's rows, of all ranks together


def make_rows(
    dtype: str, shapes: tuple[tuple[tuple[int, ...], ...], ...]
) -> GatheredRows:
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
        found = []
        for i, start in enumerate(starts[:-1]):
            of_ranks = zip(rows, sizes[i], shapes[i], strict=True)
            parts = [r[start : start + n].reshape(shape) for r, n, shape in of_ranks]
            found.append(jnp.concatenate(parts))
        return found

    made = GatheredRows(jax.jit(pack), jax.jit(room), jax.jit(unpack))
    _load(made.unpack, made.room)
    return made
