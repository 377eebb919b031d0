"""Calls that rank 0 makes alone, with all cores.

For few rows, or if much is reduced for each row, ranks would take longer to meet than
to compute. Then the master makes the call on all rows. It runs the parts that all ranks
run or, with JAX, which compiles fast, the graph as a whole. In blocks it uses one core,
and gets the same bits as all ranks. The updated variables count as set by the script:
the workers get the new values before they next need them.
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
from ..reduce_tree import block_cut, merge_trees
from ..times.timing import Times
from .arguments import CallRows, CallValues
from .call_worker import timed
from .placement_check import PlacementCheck
from .plans import Planned, Plans


class Alone:
    """Makes calls of one function on rank 0 alone, with the same results."""

    def __init__(
        self, spec: FunctionSpec, placement: PlacementCheck, plans: Plans
    ) -> None:
        self._spec, self._placement, self._plans = spec, placement, plans
        self.was_last = False  # whether rank 0 made the last call alone
        self.times = Times()
        self._last: tuple[int, CallKind, Subset] = -1, "step", ()

    def prepare(self, is_alone: bool) -> None:
        """Prepare for a next call by rank 0 alone, or by all ranks."""
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
        """Make one call, undone if it fails; for `then` see `BoundCall.attempt`."""
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
        """Compute, make the updates, and return the outputs."""
        plan, replicas = planned
        programs, context = replicas.local(), SESSION.context
        block = programs.block(subset, plan.block)
        # Other engines than JAX would compile long, and the graph as a whole would make
        # updates in place, which could not be undone.
        kind: CallKind = "uncut" if programs.engine.ON_DEVICE else "step"
        if block:  # the same parts as on all ranks, for the same bits
            kind, _ = self._plans.kept_kind(programs, kind, subset, rows.total, given)
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
        results = merge_trees(timed(context, task, perf_counter(), run))
        if then is not None:
            then(replicas.number, results)
        return results
