"""Whether the arguments of a call are those of another one: the same data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..variables.data import Data
from .rows import Rows

COMPARED = (type(None), int, slice)
"""Batches that can be compared in no time."""


class KnownArguments:
    """The arguments of a call, of which the scattered inputs are `Data`.

    Nothing here holds memory of the data, as in `last_rows`.

    Parameters
    ----------
    rows : Rows
    args : sequence
        Data, then the values of the broadcast inputs.
    batch : int, slice or None

    Attributes
    ----------
    inputs : int
        How many are `Data`.
    """

    def __init__(self, rows: Rows, args: Sequence[Any], batch: Any) -> None:
        data = args[: len(rows.sources)]
        self._known = [
            (value._window(), value.minibatch, source.state)
            for value, source in zip(data, rows.sources, strict=True)
        ]
        self.inputs, self._args, self._batch = len(data), len(args), batch

    def are(self, args: Sequence[Any], batch: Any) -> bool:
        """Tell whether a call with these arguments is the same again."""
        if len(args) != self._args:
            return False
        for value, known in zip(args, self._known, strict=False):
            described, is_batch, state = known
            if (
                type(value) is not Data
                or value._described is not described
                or value.minibatch is not is_batch
                or (state is not None and value._state != state)
            ):
                return False
        return batch is self._batch or (
            type(batch) is type(self._batch) and batch == self._batch
        )
