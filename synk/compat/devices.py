"""Theano's names of devices, for the places of ranks."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from ..ranks.forking import session
from ..workers.affinity import allowed_cores, usable_cores, why_not_pinned

_NAME = re.compile(r"(cpu|cuda|gpu)(\d*)")


class Places(NamedTuple):
    """Where ranks are to run: `devices` as `synk.fork` takes them.

    `cores` says which of the usable cores; none for all of them.
    """

    n: int
    devices: Any
    cores: list[int]

    @contextlib.contextmanager
    def session(self) -> Iterator[int]:
        """Have ranks there in a ``with`` block."""
        if not self.cores:
            with session(self.n, devices=self.devices) as size:
                yield size
            return
        before, usable = allowed_cores(), usable_cores()
        if max(self.cores) >= len(usable):
            raise ValueError(
                f"there is no device cpu{max(self.cores)}: this process may use"
                f" {len(usable)} cores, from cpu0 on"
            )
        if why_not_pinned() is not None:  # which the session warns of
            with session(self.n, devices=self.devices) as size:
                yield size
            return
        try:
            os.sched_setaffinity(0, {usable[number] for number in self.cores})
            with session(self.n, devices=self.devices) as size:
                yield size
        finally:
            os.sched_setaffinity(0, before)


def parse(devices: Sequence[str]) -> Places:
    """Return what the names of devices stand for."""
    if isinstance(devices, str) or not all(isinstance(name, str) for name in devices):
        raise TypeError(
            f"devices must be a list of names, as ['cpu0', 'cpu1'], got {devices!r}"
        )
    if not devices:
        raise ValueError("devices is empty: it has a name for each worker")
    if hosts := [name for name in devices if ":" in name]:
        raise ValueError(f"{hosts[0]!r} names a host, and ranks run on one machine")
    found = [_NAME.fullmatch(name) for name in devices]
    wrong = [name for name, match in zip(devices, found, strict=True) if not match]
    if wrong:
        raise ValueError(f"a device is cpu0, cuda0 and the like, got {wrong[0]!r}")
    kinds = {match[1] == "cpu" for match in found if match}
    numbers = [int(match[2]) for match in found if match and match[2]]
    if len(kinds) > 1 or len(numbers) not in (0, len(devices)):
        raise ValueError(
            f"devices are either cores or GPUs, all with numbers or none, got {devices}"
        )
    if kinds == {True}:
        return Places(len(devices), "cpu", numbers)
    return Places(len(devices), numbers or "cuda", [])
