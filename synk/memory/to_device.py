"""A rank's way to its GPU: memory of the host that the GPU reads by itself.

It does so at its full rate from memory that is pinned, which the driver is told of. A
rank has its own mapping of a segment pinned when it first takes rows from that, and
undoes it before the mapping goes. What cannot be pinned goes through a buffer that is;
where there is none either, rows are left to JAX's own copy.

How copies are made is a `Copier`'s matter: CUDA's is in `cuda`.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import numpy as np

from .mapping import Mapping, address, mapping_of

WORTHWHILE = 1 << 18
"""Bytes from which on rows are copied by this. JAX copies fewer with less ado: an array
that comes to it by DLPack takes it some 40 us."""


class Writing(Protocol):
    """Copies into one array of JAX's, which wait for no others."""

    def copy(self, at: int, source: int, nbytes: int) -> None:
        """Start to copy from an address of the host to byte `at` of the array."""

    def end(self) -> None:
        """Say that all copies have been started."""

    def array(self) -> Any:
        """Return the array. JAX reads it after the copies; the host need not wait."""

    def wait(self) -> None:
        """Wait until the copies that were started have been made."""


class Copier(Protocol):
    """What copies from the host to a device, beside what JAX does there."""

    def register(self, start: int, nbytes: int) -> None:
        """Pin memory of the host; raises OSError where that cannot be done."""

    def unregister(self, start: int) -> None:
        """Undo that, after all copies that were started; raises nothing."""

    def writing(self, array: Any) -> Writing:
        """Begin to write to an array, after what JAX has done to its memory."""


class ToDevice:
    """One rank's way to its device.

    Parameters
    ----------
    connect : callable
        Makes the copier, when one is first needed; raises ImportError, RuntimeError or
        OSError if there is none.
    warns : bool
        Whether to warn of what fails: once, and not on every rank.
    """

    def __init__(self, connect: Callable[[], Copier], warns: bool = True) -> None:
        self._connect: Callable[[], Copier] | None = connect
        self._warns = warns
        self._copier: Copier | None = None
        self._has_given_up = False
        self._pinned: set[int] = set()  # where pinned mappings begin
        self._pid = os.getpid()

    def takes(self, nbytes: int, dtype: np.dtype) -> bool:
        """Tell whether rows of so many bytes are to be copied by this."""
        if nbytes < WORTHWHILE or dtype.kind not in "biufc" or not dtype.isnative:
            return False
        if self._connect is not None:
            try:
                self._copier = self._connect()
            except (ImportError, RuntimeError, OSError) as error:
                self._has_given_up = True
                self.warn(f"rows go to GPUs by JAX's own copies, slowly: {error}")
            self._connect = None
        return self._copier is not None and not self._has_given_up

    @property
    def is_open(self) -> bool:
        """Whether copies may be under way: not in a child that the user has forked."""
        return self._copier is not None and os.getpid() == self._pid

    def writing(self, array: Any) -> Writing:
        """Begin to write to an array of JAX's."""
        assert self._copier is not None
        return self._copier.writing(array)

    def is_pinned(self, array: np.ndarray) -> bool:
        """Tell whether an array lies in pinned memory; pins a segment if it can be."""
        mapping = mapping_of(array)
        if mapping is None:
            return False
        if mapping.asked_by is not self:
            mapping.asked_by = self
            try:
                self._pin(mapping)
            except OSError as error:
                self.warn(
                    f"{len(mapping):,} bytes of shared memory were not pinned, so that"
                    f" rows go to GPUs in two steps: {error}"
                )
        return mapping.before_unmapping is not None

    def buffer(self, nbytes: int) -> Mapping | None:
        """Return pinned memory for rows to be gathered in, if there can be any."""
        mapping = Mapping(-1, nbytes)
        mapping.asked_by = self
        try:
            self._pin(mapping)
        except OSError as error:
            self.warn(f"rows go to GPUs by JAX's own copies, slowly: {error}")
            self._has_given_up = True
            return None
        return mapping

    def close(self) -> None:
        """Undo what was pinned; from now on nothing is taken."""
        for start in list(self._pinned):
            self._unpin(start)
        self._connect = self._copier = None

    def _pin(self, mapping: Mapping) -> None:
        mapping.before_unmapping = None
        start = address(np.frombuffer(mapping, np.uint8))
        assert self._copier is not None
        self._copier.register(start, len(mapping))
        self._pinned.add(start)
        mapping.before_unmapping = partial(self._unpin, start)

    def _unpin(self, start: int) -> None:
        if start in self._pinned and self.is_open:
            self._pinned.discard(start)
            assert self._copier is not None
            self._copier.unregister(start)

    def warn(self, text: str) -> None:
        """Warn of what has failed, if nothing has before."""
        if self._warns:
            self._warns = False
            warnings.warn(text, RuntimeWarning, stacklevel=2)
