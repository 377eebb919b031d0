"""Calls that rank 0 makes alone, with all cores.

Of few rows, or where much is reduced for each, ranks take longer to meet than to
compute. Then one of them makes the call, in the master, as if it had all the rows. It
runs the same compiled parts or, with JAX, which compiles fast, the graph as a whole;
and where these go in blocks it comes to the same bits, on one core, as they have it.
The variables that it updates are as if the script had set them: the other ranks get the
new values before they next need them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from time import perf_counter

from ..comm.flat import ONE_RANK
from ..compiler.spec import FunctionSpec
from ..programs import running
from ..programs.one_call import Task
from ..programs.programs import CallKind, Subset
from ..programs.transaction import Transaction
from ..ranks.session import SESSION
from ..reduce_tree import block_cut, settled
from ..times.timing import Times
from .arguments import CallRows, CallValues
from .call_worker import timed
from .placement_check import PlacementCheck
from .plans import Planned, Plans


class Alone:
    """How rank 0 makes the calls of one function alone, which gives the same."""

    def __init__(
        self, spec: FunctionSpec, placement: PlacementCheck, plans: Plans
    ) -> None:
        self._spec, self._placement, self._plans = spec, placement, plans
        self.was_last = False  # whether the last call was made so
        self.times = Times()
        self._last: tuple[int, CallKind, Subset] = -1, "step", ()

    def change(self, is_alone: bool) -> None:
        """Make the next call so, or on all ranks."""
        self.was_last = is_alone
        if not is_alone:
            self._placement.check()
            SESSION.context.confinement.narrow()

    def call(
        self,
        planned: Planned,
        rows: CallRows,
        given: CallValues,
        subset: Subset,
        then: Callable[[int, list], object] | None = None,
    ) -> list:
        """Make one call, or none; for `then` see `BoundCall.once`."""
        run = partial(self._run, planned, rows, given, subset, then)
        with planned.replicas.notice:
            return self._placement.in_master(run)

    def _run(
        self,
        planned: Planned,
        rows: CallRows,
        given: CallValues,
        subset: Subset,
        then: Callable[[int, list], object] | None,
        transaction: Transaction,
    ) -> list:
        """Compute, and make the updates."""
        plan, replicas = planned
        programs, context = replicas.local(), SESSION.context
        block = programs.block(subset, plan.block)
        # What is compiled as a whole makes its updates faster. Those that it makes in
        # place could not be undone, after an error; and to compile takes long.
        kind: CallKind = "uncut" if programs.engine.ON_DEVICE else "step"
        if block:  # as on all ranks
            kind, _ = self._plans.keeping(programs, kind, subset, rows.total, given)
            context.confinement.compute_with(one_thread=True)
        else:
            context.confinement.widen()
        if self._last != (replicas.number, kind, subset):
            if not programs.has(kind, subset):
                replicas.notice.begin()
                programs.compile(kind, subset)
            self.times.is_fresh = True
            self._last = replicas.number, kind, subset
        by_rank = [rows.total if self._spec.inputs else 1]
        how = given.constants, ONE_RANK, by_rank
        task = Task(programs, kind, subset, given.sources, rows.of_all, *how)
        task.block, task.transaction, task.times = block, transaction, self.times
        task.tree = block_cut((0, rows.total), block)
        transaction.begin_call()
        run = partial(running.run, task)
        results = settled(timed(context, task, perf_counter(), run))
        if then is not None:
            then(replicas.number, results)
        return results
