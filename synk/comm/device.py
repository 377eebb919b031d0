"""Flat buffers on devices: a stage's values, packed by JAX and combined by a transport.

The ranks first agree through shared memory that their values fit, as for `flat`: so a
rank that has failed, or has other shapes, is known before anything is sent. What the
transport cannot combine goes through the host.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from ..timing import REDUCE, UNCOUNTED, WAIT, Times
from .flat import ALONE, FlatBuffers, Kind, agree_on_kinds
from .shm import SharedMemoryComm


class Transport(Protocol):
    """What combines flat arrays of JAX's across the ranks' devices."""

    def supports(self, dtype: str, op: str) -> bool:
        """Tell whether arrays of a dtype can be combined by an op."""

    def all_reduce(self, array: Any, op: str, into: Any) -> Any:
        """Return the ranks' arrays combined by "sum", "prod", "min" or "max".

        The memory of the array `into` may be used for it.
        """

    def abort(self) -> None:
        """Give up what is under way; this is never used again."""


class DeviceBuffers:
    """The buffers of one rank, by a key that all ranks use for the same one.

    Parameters
    ----------
    comm : SharedMemoryComm
    connect : callable
        Makes a transport from `comm`, on all ranks at the same time; raises ImportError
        on all if there is none.
    host : FlatBuffers
        For what the transport does not support.
    """

    def __init__(
        self,
        comm: SharedMemoryComm,
        connect: Callable[[SharedMemoryComm], Transport],
        host: FlatBuffers,
    ) -> None:
        self._comm, self._connect, self._host = comm, connect, host
        self._transport: Transport | None = None
        self._buffers: dict[tuple, _Buffer] = {}
        self._made = 0

    def reduce(
        self,
        key: tuple,
        values: Sequence[Any] | None,
        ops: Sequence[str],
        weights: Sequence[float],
        times: Times = UNCOUNTED,
    ) -> list[Any]:
        """Combine the ranks' values; see `FlatBuffers.reduce`.

        The results are arrays of JAX's, or of numpy's where the host has combined them.
        """
        comm = self._comm
        if comm.size == 1:
            return ALONE.reduce(key, values, ops, weights)
        buffer = self._buffers.get(key)
        fits = buffer is not None and buffer.fits(values)
        serials = comm.agree(buffer.serial if buffer is not None and fits else -1)
        if serials[0] < 0 or any(serial != serials[0] for serial in serials):
            buffer = self._buffers[key] = self._renew(values, ops)
        assert buffer is not None
        assert self._transport is not None
        times.spent(WAIT)
        results: dict[int, Any] = {}
        share = comm.fractions(weights)[comm.rank]
        for group, flat in zip(buffer.groups, buffer.pack(values, share), strict=True):
            total = self._transport.all_reduce(flat, group.op, group.room)
            results.update(zip(group.members, group.unpack(total), strict=True))
        if rest := buffer.rest:
            given = None if values is None else [values[i] for i in rest]
            found = self._host.reduce(
                (*key, "rest"), given, [ops[i] for i in rest], weights
            )
            results.update(zip(rest, found, strict=True))
        times.spent(REDUCE, buffer.nbytes)
        return [results[i] for i in range(len(ops))]

    def forget(self, function: int) -> None:
        """Drop the buffers of a function that is gone."""
        for key in [key for key in self._buffers if key[0] == function]:
            del self._buffers[key]

    def abort(self) -> None:
        """Give up the transport, as some rank will not come to what is under way."""
        if self._transport is not None:
            self._transport.abort()
            self._transport = None
        self._buffers.clear()

    def _renew(self, values: Sequence[Any] | None, ops: Sequence[str]) -> _Buffer:
        kinds = agree_on_kinds(self._comm, values, ops)
        # Ranks may have made different numbers of buffers, and some may have given up
        # the transport, when a call was aborted.
        told = self._comm.exchange((self._made, self._transport is not None))
        self._made = max(made for made, _ in told) + 1
        if self._transport is None or not all(connected for _, connected in told):
            self.abort()
            self._transport = self._connect_all()
        return _Buffer(self._made, kinds, ops, self._transport)

    def _connect_all(self) -> Transport:
        try:
            return self._connect(self._comm)
        except ImportError as error:
            if self._comm.rank == 0:
                warnings.warn(
                    f"values of GPUs are all-reduced through the host, slowly: {error};"
                    " pip install 'synk[cuda13]'",
                    RuntimeWarning,
                    stacklevel=2,
                )
            return HostOnly()


class HostOnly:
    """No transport: all goes through the host."""

    def supports(self, dtype: str, op: str) -> bool:
        """Return False."""
        return False

    def all_reduce(self, array: Any, op: str, into: Any) -> Any:
        """Do nothing of the kind."""
        raise NotImplementedError

    def abort(self) -> None:
        """Do nothing: nothing is ever under way."""


class _Group(NamedTuple):
    """Values of one dtype and op, which travel as one array."""

    op: str  # the transport's: an average is a sum of weighted values
    members: list[int]
    pack: Callable[..., Any]
    unpack: Callable[[Any], list[Any]]
    nothing: Callable[[], Any]  # what a rank without rows gives
    room: Any  # for the result


class _Buffer:
    """How the values of one stage are packed, for their present shapes."""

    def __init__(
        self,
        serial: int,
        kinds: Sequence[Kind],
        ops: Sequence[str],
        transport: Transport,
    ) -> None:
        self.serial = serial
        self._kinds = [(np.dtype(dtype), shape) for dtype, shape in kinds]
        self.nbytes = sum(
            dtype.itemsize * int(np.prod(shape, dtype=np.int64))
            for dtype, shape in self._kinds
        )
        self.rest: list[int] = []
        groups: dict[tuple[str, str], list[int]] = {}
        for i, ((dtype, _), op) in enumerate(zip(self._kinds, ops, strict=True)):
            is_mean = op == "avg"
            if is_mean and dtype.kind != "f":
                self.rest.append(i)  # rounded once, at the end
            elif transport.supports(dtype.name, "sum" if is_mean else op):
                groups.setdefault((dtype.name, op), []).append(i)
            else:
                self.rest.append(i)
        self.groups = [
            _group(np.dtype(dtype), op, members, [self._kinds[i][1] for i in members])
            for (dtype, op), members in groups.items()
        ]

    def fits(self, values: Sequence[Any] | None) -> bool:
        """Tell whether values of these shapes belong here; no values always do."""
        return values is None or [(v.dtype, v.shape) for v in values] == self._kinds

    def pack(self, values: Sequence[Any] | None, share: float) -> list[Any]:
        """Return the array of each group."""
        if values is None:
            return [group.nothing() for group in self.groups]
        return [
            group.pack([values[i] for i in group.members], share)
            for group in self.groups
        ]


def _group(dtype: np.dtype, op: str, members: list[int], shapes: list) -> _Group:
    import jax
    import jax.numpy as jnp

    sizes = [int(np.prod(shape, dtype=np.int64)) for shape in shapes]
    ends = np.cumsum(sizes)

    def pack(values: list[Any], share: Any) -> Any:
        flat = jnp.concatenate([jnp.ravel(value) for value in values])
        return flat * share.astype(dtype) if op == "avg" else flat

    def unpack(flat: Any) -> list[Any]:
        parts = jnp.split(flat, ends[:-1])
        return [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]

    def nothing() -> Any:
        return jnp.full(int(ends[-1]), _identity(op, dtype), dtype)

    return _Group(
        "sum" if op == "avg" else op,
        members,
        jax.jit(pack),
        jax.jit(unpack),
        nothing,
        jax.block_until_ready(nothing()),
    )


def _identity(op: str, dtype: np.dtype) -> Any:
    """Return what changes nothing when it is combined with other values."""
    if op in ("avg", "sum", "prod"):
        return int(op == "prod")
    if dtype.kind == "f":
        return np.inf if op == "min" else -np.inf
    limits = np.iinfo(dtype)
    return limits.max if op == "min" else limits.min
