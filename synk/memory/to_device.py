"""A rank's way to its GPU and back: memory of the host that the GPU reads by itself.

It does so at its full rate from memory that is pinned, which the driver is told of. A
rank has its own mapping of a segment pinned when it first takes rows from that, and
undoes it before the mapping goes. What cannot be pinned goes through a buffer that is;
where there is none either, rows are left to JAX's own copy.

How copies are made is a `Copier`'s matter: CUDA's is in `cuda`.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from typing import Any, NamedTuple, Protocol

import numpy as np

from .mapping import Mapping, address, mapping_of

WORTHWHILE = 1 << 18
"""Bytes from which on the host does not wait until rows have been copied. For fewer, to
have JAX wait in its place takes longer than the copy."""

_THREADS = 8
"""That gather rows, at most."""


def is_worthwhile(nbytes: int) -> bool:
    """Tell whether the host goes on while so many bytes are copied."""
    return nbytes >= WORTHWHILE


class Piece(NamedTuple):
    """Bytes that are copied to an array: to which, from what address, how many."""

    at: int
    source: int
    nbytes: int


class Writing(Protocol):
    """Copies into one array of JAX's, which wait for no others."""

    def copy(self, pieces: Sequence[Piece]) -> None:
        """Start to copy from the host's memory to the array."""

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

    def write(self, array: Any, source: int, nbytes: int) -> None:
        """Copy to an array that nobody uses, and wait for it."""

    def read(self, array: Any, target: int, nbytes: int) -> None:
        """Copy an array that is there to the host, and wait for it."""


class ToDevice:
    """One rank's way to its device.

    Parameters
    ----------
    connect : callable
        Makes the copier, when one is first needed; raises ImportError, RuntimeError or
        OSError if there is none.
    warns : bool
        Whether to warn of what fails: once, and not on every rank.
    threads : int
        How many the rank may use.

    Attributes
    ----------
    threads : int
        How many gather rows.
    """

    def __init__(
        self, connect: Callable[[], Copier], warns: bool = True, threads: int = 1
    ) -> None:
        self._connect: Callable[[], Copier] | None = connect
        self._warns = warns
        self.threads = min(threads, _THREADS)
        self._copier: Copier | None = None
        self._has_given_up = False
        self._pinned: set[int] = set()  # where pinned mappings begin
        self._pid = os.getpid()

    def takes(self, dtype: np.dtype) -> bool:
        """Tell whether arrays of a dtype are copied by this."""
        if dtype.kind not in "biufc" or not dtype.isnative:
            return False
        if self._connect is not None:
            try:
                self._copier = self._connect()
            except (ImportError, RuntimeError, OSError) as error:
                self._has_given_up = True
                self.warn(f"rows go to GPUs by JAX's own copies, slowly: {error}")
            self._connect = None
        return self._copier is not None and not self._has_given_up

    def read(self, array: Any) -> np.ndarray:
        """Return a copy of an array of JAX's that is there.

        JAX's own takes several times as long: it has a thread of its own do it.
        """
        if not array.nbytes or not self.takes(array.dtype):
            return np.array(array)
        assert self._copier is not None
        out = np.empty(array.shape, array.dtype)
        self._copier.read(array, address(out), out.nbytes)
        return out

    def write(self, array: Any, values: np.ndarray) -> None:
        """Change an array of JAX's that nobody uses."""
        assert self._copier is not None
        self._copier.write(array, address(values), values.nbytes)

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

    @cached_property
    def gatherers(self) -> ThreadPoolExecutor | None:
        """Threads that gather rows; None where this one does it as well.

        One core copies rows at a tenth of the rate at which a GPU reads them.
        """
        if self.threads == 1:
            return None
        return ThreadPoolExecutor(self.threads, thread_name_prefix="synk-gather")

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
        if pool := self.__dict__.pop("gatherers", None):
            pool.shutdown()

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
