"""A call that rank 0 has made alone, to be made again as in `again`.

What ranks would have to be told is nothing here, and so what is left is to look whether
all is as it was, to find the values, and to compute. That may be for other rows of the
same data, as many: the next step of training.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..compiler.spec import FunctionSpec
from ..memory.partition import count, select
from ..variables.data import Data
from .alone import Alone
from .inputs import check_arguments
from .last_rows import COMPARED
from .outputs import Wanted
from .plans import Planned, Plans
from .prepared_call import PreparedCall
from .rows import Rows


def prepared_alone(
    spec: FunctionSpec,
    plans: Plans,
    planned: Planned,
    alone: Alone,
    wanted: Wanted,
    rows: Rows,
    args: Sequence[Any],
    batch: Any,
) -> AgainAlone | None:
    """Return a call that was just made, to be made again; None if it cannot."""
    if spec.sliceable or spec.parts:
        return None
    data = args[: len(rows.sources)]
    known = *COMPARED, np.ndarray
    if type(batch) not in known or any(type(value) is not Data for value in data):
        return None
    return AgainAlone(alone, plans, planned, wanted, rows, args, batch)


class AgainAlone(PreparedCall):
    """A call that rank 0 makes alone, to be made again.

    Parameters
    ----------
    alone : Alone
    *call
        See `PreparedCall`.
    """

    def __init__(self, alone: Alone, *call: Any) -> None:
        super().__init__(*call)
        self._alone = alone
        *_, rows, _, _ = call
        # Of how many rows others may be chosen; a minibatch has those that it has.
        lengths = [0 if each.is_batch else len(each.array) for each in rows.sources]
        self._length = min(lengths, default=0)

    def _is_for(self, batch: Any) -> bool:
        is_array = type(batch) is np.ndarray  # and may hold other numbers by now
        if not is_array and super()._is_for(batch):
            return True
        if not (self._length and (is_array or type(batch) in COMPARED)):
            return False
        selection = select(batch, self._length)
        if count(selection) != self._rows.total:
            return False
        self._rows, self._batch = self._rows._replace(selection=selection), batch
        return True

    @property
    def is_known(self) -> bool:
        """See `PreparedCall`."""
        alone = self._alone
        return (
            super().is_known
            and alone.was_last
            and alone.is_possible
            and not alone.times.is_fresh
        )

    def call(self, what: object, args: Sequence[Any], start: float) -> Any:
        """Make the call, or none; return what it returns.

        Parameters
        ----------
        what : object
            What is called, for messages.
        args : sequence
        start : float
            When the script called.
        """
        spec, n = self._programs.spec, len(self._known)
        selection, bounds, known = self._rows
        sources = [(args[i]._held(), *known[i][1:]) for i in range(n)]
        constants = check_arguments(spec.bcast_inputs, args[n:], spec.options)
        rows = selection, bounds, sources
        subset = self._wanted.subset
        results, made = self._alone.call(self._planned, *rows, constants, subset)
        self._alone.times.returned(start, made)
        return self._wanted.arrange(results)
