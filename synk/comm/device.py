"""Flat buffers on devices: a stage's values, packed by JAX and combined by a transport.

The ranks first agree through shared memory that their values fit, as for `flat`: so a
rank that has failed, or has other shapes, is known before anything is sent. What the
transport cannot combine goes through the host.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from ..reduce_ops import ReduceOp
from ..times.timing import REDUCE, UNCOUNTED, WAIT, Times
from .flat import ONE_RANK, FlatBuffers, agree_on_kinds, is_of_variable
from .flat_layout import Kind
from .packing import make_group
from .shm import SharedMemoryComm


class Transport(Protocol):
    """What combines and moves flat arrays of JAX's across the ranks' devices.

    The arrays that it is given are nobody else's: their memory may be used for results.
    None is empty.
    """

    def supports(self, dtype: str) -> bool:
        """Tell whether it takes arrays of a dtype."""

    def all_reduce(self, array: Any, op: ReduceOp) -> Any:
        """Return the ranks' arrays combined by "sum", "prod", "min" or "max"."""

    def reduce(self, array: Any, op: ReduceOp, root: int) -> Any:
        """Return the ranks' arrays combined on one rank, and None on the others."""

    def broadcast(self, array: Any, root: int) -> Any:
        """Return what the array is on one rank."""

    def all_gather(self, array: Any, into: Any) -> Any:
        """Return the ranks' arrays one after the other."""

    def check(self) -> None:
        """Raise if what is under way has failed."""

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
        ops: Sequence[ReduceOp],
        weights: Sequence[float],
        times: Times = UNCOUNTED,
        *,
        to_all: bool = True,
        names: Sequence[object] | None = None,
    ) -> list[Any]:
        """Combine the ranks' values; see `FlatBuffers.reduce`.

        Parameters
        ----------
        key, values, ops, weights, times
            As there.
        to_all : bool
            Whether all ranks need the results, or rank 0 only.
        names : sequence, optional
            What the values are called in messages.

        Returns
        -------
        list
            Arrays of JAX's, which may be under way, or of numpy's where the host has
            combined them; None for results that this rank does not get.
        """
        comm = self._comm
        if comm.size == 1:
            return ONE_RANK.reduce(key, values, ops, weights)
        buffer = self._buffers.get(key)
        fits = buffer is not None and buffer.fits(values)
        serials = comm.agree(buffer.serial if buffer is not None and fits else -1)
        if serials[0] < 0 or any(serial != serials[0] for serial in serials):
            buffer = self._buffers[key] = self._renew(values, ops, names)
        assert buffer is not None
        assert self._transport is not None
        times.spent(WAIT)
        results: dict[int, Any] = {}
        share = comm.fractions(weights)[comm.rank]
        for group, total in zip(buffer.groups, buffer.pack(values, share), strict=True):
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

    def forget(self, function: int) -> None:
        """Drop the buffers of a function that is gone."""
        for key in [key for key in self._buffers if key[0] == function]:
            del self._buffers[key]

    def forget_variable(self, number: int) -> None:
        """Drop the buffers of lists of variables that one is gone of."""
        for key in [key for key in self._buffers if is_of_variable(key, number)]:
            del self._buffers[key]

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
    ) -> _Buffer:
        kinds = agree_on_kinds(self._comm, values, ops, names)
        # Ranks may have made different numbers of buffers, and some may have given up
        # the transport, when a call was aborted.
        self._made = max(self._comm.agree(self._made)) + 1
        return _Buffer(self._made, kinds, ops, self.transport())

    def transport(self) -> Transport:
        """Return the transport, after connecting the ranks if one of them is not."""
        connected = self._comm.agree(self._transport is not None)
        if self._transport is None or not all(connected):
            self.abort()
            self._transport = self._connect_all()
        return self._transport

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

    def supports(self, dtype: str) -> bool:
        """Return False."""
        return False

    def all_reduce(self, array: Any, op: ReduceOp) -> Any:
        """Do nothing of the kind."""
        raise NotImplementedError

    def reduce(self, array: Any, op: ReduceOp, root: int) -> Any:
        """Do nothing of the kind."""
        raise NotImplementedError

    def broadcast(self, array: Any, root: int) -> Any:
        """Do nothing of the kind."""
        raise NotImplementedError

    def all_gather(self, array: Any, into: Any) -> Any:
        """Do nothing of the kind."""
        raise NotImplementedError

    def check(self) -> None:
        """Do nothing: nothing is ever under way."""

    def abort(self) -> None:
        """Do nothing: nothing is ever under way."""


class _Buffer:
    """How the values of one stage are packed, for their present shapes."""

    def __init__(
        self,
        serial: int,
        kinds: Sequence[Kind],
        ops: Sequence[ReduceOp],
        transport: Transport,
    ) -> None:
        self.serial = serial
        self._kinds = [(np.dtype(dtype), shape) for dtype, shape in kinds]
        self.nbytes = sum(
            dtype.itemsize * int(np.prod(shape, dtype=np.int64))
            for dtype, shape in self._kinds
        )
        self.rest: list[int] = []
        groups: dict[tuple[str, ReduceOp], list[int]] = {}
        for i, ((dtype, _), op) in enumerate(zip(self._kinds, ops, strict=True)):
            is_mean = op == "avg"
            if is_mean and dtype.kind != "f":
                self.rest.append(i)  # rounded once, at the end
            elif transport.supports(dtype.name):
                groups.setdefault((dtype.name, op), []).append(i)
            else:
                self.rest.append(i)
        self.groups = [
            make_group(
                np.dtype(dtype), op, members, [self._kinds[i][1] for i in members]
            )
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
