"""A call that is made again, just as it was: what follows from its arguments is known.

A sampler's or an optimizer's step on little data is short, and to find out once more
what it is a call of took longer than to compute it. So what a call has found is kept.
What may have changed since is all that the next one asks; rows are read where they lie.

It is for calls whose rows are of `Data`; values of broadcast inputs are copied to where
the last ones were. So ranks are told that it is the same command again, and know what
they have found by the identity of what they were told: see `share.worker_call`.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import Any

import numpy as np

from ..compiler.spec import FunctionSpec
from ..memory.segment import Window
from ..programs.programs import kind_of_call
from ..ranks.session import SESSION
from ..variables.data import Data
from .held import HeldVariables
from .inputs import check_arguments
from .last_rows import LastRows
from .outputs import Wanted, combine_outputs
from .plans import Planned, Plans
from .prepared_call import PreparedCall
from .rows import Rows
from .share import worker_call


def prepared(
    spec: FunctionSpec,
    plans: Plans,
    planned: Planned,
    held: HeldVariables,
    wanted: Wanted,
    rows: Rows,
    values: Sequence[Any],
    constants: Sequence[np.ndarray],
    last_rows: LastRows,
    *call: Any,
) -> Again | None:
    """Return a call that was just made, to be made again; None if it cannot.

    The arguments are those of `Again`, and the arguments of the call.
    """
    if not last_rows.are_again:
        return None
    if 0 < rows.total < SESSION.size:
        return None  # some rank is idle
    if spec.sliceable or spec.parts or spec.streams:
        return None  # which tell ranks more
    programs = planned.replicas.local()
    if programs.is_padded or programs.engine.ON_DEVICE:
        return None
    kind, subset = kind_of_call(1, SESSION.size), wanted.subset
    given = programs, kind, subset, values, rows, constants
    kind, rows = plans.with_kept(*given)
    if programs.cut(kind, subset).inputs_read:
        return None
    return Again(plans, planned, held, wanted, rows, last_rows, *call)


class Again(PreparedCall):
    """A call on all ranks, to be made again.

    Parameters
    ----------
    plans, planned, wanted, rows, args, batch
        See `PreparedCall`.
    held : HeldVariables
    last_rows : LastRows
        Which has described the rows to the ranks.
    """

    def __init__(
        self,
        plans: Plans,
        planned: Planned,
        held: HeldVariables,
        wanted: Wanted,
        rows: Rows,
        last_rows: LastRows,
        args: Sequence[Any],
        batch: Any,
    ) -> None:
        super().__init__(plans, planned, wanted, rows, args, batch)
        self._held = held
        data = args[: len(rows.sources)]
        staged, _ = last_rows.stage(rows, data, [], SESSION.stage)
        self._what = planned.replicas.number, wanted.subset, staged
        self._rest: tuple = [], None, 1, [], planned.plan.block
        self._windows: list[Window] = []
        self._theirs: tuple = ((*self._what, *self._rest),)
        unsaid = self._rows._replace(sources=list(map(tuple, self._rows.sources)))
        self._mine: tuple = (*self._what[:2], tuple(unsaid), *self._rest)
        self._launch = held.launch(())
        assert held.rows is not None
        self._rows_of_ranks = held.rows

    @property
    def is_known(self) -> bool:
        """See `PreparedCall`."""
        return super().is_known and not self._programs.times.is_fresh

    def call(self, what: object, args: Sequence[Data], start: float) -> Any:
        """Make the call, on all ranks or on none; return what it returns.

        Parameters
        ----------
        what : object
            What is called, for messages.
        args : sequence
        start : float
            When the script called.
        """
        programs, context, n = self._programs, SESSION.context, len(self._known)
        spec = programs.spec
        given = [value._held() for value in args[:n]]
        constants = check_arguments(spec.bcast_inputs, args[n:], spec.options)
        if constants:
            self._put(constants)
        else:
            SESSION.stage.put_nothing()
        mine = self._mine, given, constants
        with self._launch:
            replies = SESSION.run_args(
                worker_call, self._theirs, mine, None, programs.label
            )
            joined = perf_counter()
            wanted = self._wanted
            results = combine_outputs(spec, wanted.subset, replies, context, what)
            self._held.note(self._rows_of_ranks)
        programs.times.returned(start, joined)
        return wanted.arrange(results)

    def _put(self, constants: list[np.ndarray]) -> None:
        """Copy values to where ranks read them; tell them where, if it is elsewhere."""
        if SESSION.size == 1:
            return
        windows = SESSION.stage.put(constants)
        if windows != self._windows:
            self._theirs = ((*self._what, windows, *self._rest[1:]),)
            self._windows = windows
