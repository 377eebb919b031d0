"""A call that is made again, just as it was: what follows from its arguments is known.

A sampler's or an optimizer's step on little data is short, and to find out once more
what it is a call of took longer than to compute it. So what a call has found is kept.
What may have changed since is all that the next one asks; rows are read where they lie.

It is for calls that tell ranks the function and where its `Data` lies, and no values.
Ranks know theirs by the identity of what they are told: see `share.worker_call`.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import Any

from ..compiler.spec import FunctionSpec
from ..programs.programs import kind_of_call
from ..ranks.replication import Replicas
from ..ranks.session import SESSION
from ..variables.data import Data
from .engines import Engines
from .held import HeldVariables
from .last_rows import LastRows
from .outputs import Wanted, combine_outputs
from .repeats import FEW
from .rows import Rows
from .share import worker_call


def prepared(
    spec: FunctionSpec,
    engines: Engines,
    replicas: Replicas,
    held: HeldVariables,
    wanted: Wanted,
    rows: Rows,
    last_rows: LastRows,
    *call: Any,
) -> Again | None:
    """Return a call that was just made, to be made again; None if it cannot.

    The arguments are those of `Again`.
    """
    if not last_rows.are_again or rows.total >= FEW or 0 < rows.total < SESSION.size:
        return None  # of many rows `repeats` wants to know; idle ranks do another thing
    if spec.bcast_inputs or spec.sliceable or spec.parts or spec.streams:
        return None
    if engines.is_alone:
        return None  # but for this once
    programs = replicas.local()
    if programs.is_padded or programs.engine.ON_DEVICE:
        return None
    if programs.cut(kind_of_call(1, SESSION.size), wanted.subset).inputs_read:
        return None
    return Again(engines, replicas, held, wanted, rows, last_rows, *call)


class Again:
    """A call of one function on the ranks of one session, to be made again.

    Parameters
    ----------
    engines : Engines
    replicas : Replicas
        Of the engine that has made it.
    held : HeldVariables
    wanted : Wanted
        All outputs.
    rows : Rows
        The rows, of `Data` alone.
    last_rows : LastRows
        Which has described them to the ranks.
    args : sequence of Data
    batch : int, slice or None
    """

    def __init__(
        self,
        engines: Engines,
        replicas: Replicas,
        held: HeldVariables,
        wanted: Wanted,
        rows: Rows,
        last_rows: LastRows,
        args: Sequence[Data],
        batch: Any,
    ) -> None:
        self._wanted, self._held = wanted, held
        self._engines, self._replicas = engines, replicas
        self._generation = SESSION.generation
        self._programs = replicas.local()
        # Nothing that holds memory of the data, as in `last_rows`.
        self._known = [(value._described, value.minibatch) for value in args]
        self._batch = batch
        staged = last_rows.stage(rows, args, [], SESSION.stage)
        unsaid = rows._replace(sources=[(None, *source[1:]) for source in rows.sources])
        what_ranks_do = replicas.number, wanted.subset
        self._theirs = ((*what_ranks_do, *staged, None, 1, []),)
        self._mine: tuple = (*what_ranks_do, tuple(unsaid), [], None, 1, [])
        self._launch = held.launch(())
        assert held.rows is not None
        self._rows_of_ranks = held.rows

    def is_of(self, args: tuple, batch: Any) -> bool:
        """Tell whether a call with these arguments is this one."""
        known = self._known
        if len(args) != len(known):
            return False
        for value, (described, is_batch) in zip(args, known, strict=True):
            if (
                type(value) is not Data
                or value._described is not described
                or value.minibatch is not is_batch
            ):
                return False
        return batch is self._batch or (
            type(batch) is type(self._batch) and batch == self._batch
        )

    @property
    def is_known(self) -> bool:
        """Whether what was found holds still, but for the script's shared variables."""
        engines = self._engines
        return (
            self._generation == SESSION.generation
            and engines.present is self._replicas
            and not (engines.is_trying or engines.is_alone)
            and not self._programs.times.is_fresh
        )

    def call(self, what: object, args: Sequence[Data], start: float) -> Any:
        """Make the call, on all ranks or on none; return what it returns.

        Parameters
        ----------
        what : object
            What is called, for messages.
        args : sequence of Data
        start : float
            When the script called.
        """
        programs, context = self._programs, SESSION.context
        given = [value._held() for value in args]
        with self._launch:
            replies = SESSION.run_args(
                worker_call, self._theirs, (self._mine, given), None, programs.label
            )
            joined = perf_counter()
            wanted = self._wanted
            results = combine_outputs(
                programs.spec, wanted.subset, replies, context, what
            )
            self._held.note(self._rows_of_ranks)
        programs.times.returned(start, joined)
        return wanted.arrange(results)
