"""What takes the arguments of one function, and where to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .device_rows import DeviceTaker
from .partition import Selection
from .rows import RowTaker, arrived, take_rows
from .to_device import ToDevice


class Takers:
    """Takers of a function's arguments, whose memory is used again in every call.

    Parameters
    ----------
    rows, constants : int
        How many arguments it has that rows are taken of, and that are taken whole.

    Attributes
    ----------
    rows : list of two lists of RowTaker
        A run of many calls fills one set while the other is in use.
    """

    def __init__(self, rows: int, constants: int) -> None:
        self._counts = rows, constants
        self._to_device: ToDevice | None = None
        self.renew()

    @property
    def are_on_device(self) -> bool:
        """Whether arguments are taken to a device."""
        return self._to_device is not None

    def use(self, to_device: ToDevice | None) -> None:
        """Take arguments to a device, or leave them in the host's memory."""
        if to_device is not self._to_device:
            self._to_device = to_device
            self.renew()

    def renew(self) -> None:
        """Take the next rows into other memory, as the last ones may yet be read."""
        rows, constants = self._counts
        self.rows = [[self._new() for _ in range(rows)] for _ in range(2)]
        self._constants = [self._new() for _ in range(constants)]

    def _new(self) -> RowTaker:
        to_device = self._to_device
        return RowTaker() if to_device is None else DeviceTaker(to_device)

    def take(
        self, sources: Sequence[Any], selections: Sequence[Selection]
    ) -> list[Any]:
        """Return selected rows; valid until the next call."""
        return arrived(take_rows(self.rows[0], sources, selections))

    def broadcast(self, constants: Sequence[np.ndarray]) -> list[Any]:
        """Return whole arrays, where a function computes with them."""
        return arrived(
            [
                taker.take_whole(array)
                for taker, array in zip(self._constants, constants, strict=True)
            ]
        )
