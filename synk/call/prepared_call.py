"""What prepared calls share: whether the next call is this one again; see `again`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..ranks.session import SESSION
from ..variables.data import Data
from .outputs import Wanted
from .plans import Planned, Plans
from .rows import Rows


class PreparedCall:
    """A call of one function in one session, to be made again.

    Nothing here holds memory of the data, as in `last_rows`.

    Parameters
    ----------
    plans : Plans
    planned : Planned
        What has made it.
    wanted : Wanted
        All outputs.
    rows : Rows
        The rows, of `Data` alone.
    args : sequence
        Data, then the values of the broadcast inputs.
    batch : int, slice or None
    """

    def __init__(
        self,
        plans: Plans,
        planned: Planned,
        wanted: Wanted,
        rows: Rows,
        args: Sequence[Any],
        batch: Any,
    ) -> None:
        self._plans, self._planned, self._wanted = plans, planned, wanted
        self._generation = SESSION.generation
        self._programs = planned.replicas.local()
        self._rows = rows._replace(
            sources=[source._replace(array=None) for source in rows.sources]
        )
        data = args[: len(rows.sources)]
        self._known = [
            (value._window(), value.minibatch, source.state)
            for value, source in zip(data, rows.sources, strict=True)
        ]
        self._args, self._batch = len(args), batch

    def is_of(self, args: Sequence[Any], batch: Any) -> bool:
        """Tell whether a call with these arguments is this one."""
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
        return self._is_for(batch)

    def _is_for(self, batch: Any) -> bool:
        return batch is self._batch or (
            type(batch) is type(self._batch) and batch == self._batch
        )

    @property
    def is_known(self) -> bool:
        """Whether what was found holds still, but for the script's shared variables."""
        is_planned = self._plans.last is self._planned
        return is_planned and self._generation == SESSION.generation
