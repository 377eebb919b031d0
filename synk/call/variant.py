"""A function with one placement of its graph.

Most functions have one variant. If a call finds that variables are sharded, or that
rows do not fill the groups of a reshape, `Function._variant_for` makes another one.

For few rows, or if much is reduced for each row, ranks would take longer to meet than
to compute. Then rank 0 makes the call *alone*, on all rows and with all cores. It runs
the parts that all ranks run or, with JAX, which compiles fast, the graph as a whole. In
blocks it uses one core, and gets the same bits as all ranks. The updated variables
count as set by the script: the workers get the new values before they next need them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np
from pytensor.compile import SharedVariable
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import graph_inputs

from ..choice.work import KnownShapes
from ..comm.flat import ONE_RANK
from ..compiler.spec import FunctionSpec
from ..errors import SplitError
from ..programs import running
from ..programs.one_call import Task
from ..programs.programs import CallKind, Subset
from ..programs.transaction import Transaction
from ..ranks.session import SESSION
from ..reduce_tree import block_cut, merge_trees
from ..times.timing import Times
from . import nodes  # noqa: F401  which rows other nodes get
from .arguments import CallRows, CallValues
from .arrangement import Arrangement
from .call_worker import timed
from .outputs import Wanted
from .placement_check import PlacementCheck
from .plans import Planned, Plans
from .serial import SerialRun


class Variant:
    """A function with one placement of its graph; `what` names it in messages."""

    def __init__(self, spec: FunctionSpec, what: str) -> None:
        self.spec, self.what = spec, what
        self.all = Wanted(spec.returns, range(len(spec.outputs)))
        self.plans = Plans(spec)
        self.placement = PlacementCheck(spec)
        self._was_alone = False  # whether rank 0 made the last call alone
        self.times_alone = Times()  # of the calls by rank 0 alone
        self._last_alone: tuple[int, CallKind, Subset] = -1, "step", ()
        self.serial = SerialRun(spec, what)
        self.arrangement = Arrangement(spec)
        self._groups = Groups(spec)

    def check_ranks(self) -> tuple[SharedVariable, ...]:
        """Raise if the ranks cannot compute this variant with the values they hold.

        Restart dead ranks, and bring ranks the variables that the script has set.
        Return the variables that are sharded, and that this variant reads whole.
        """
        SESSION.enter()
        if self.spec.refused is not None and SESSION.size > 1:
            raise SplitError(self.spec.refused)
        if self._was_alone and self.placement.is_replicated:
            return ()  # rank 0 goes on alone: the others need not get its updates yet
        return self.placement.check()

    def train_as(self, workers: int | None, are_nodes: bool) -> None:
        """Make calls steps of a training rule's workers; see `PlacementCheck`."""
        if are_nodes:
            self.plans.forbid_alone()  # all ranks of a machine exchange
        self.placement.train_as(workers, are_nodes)

    def may_split_groups(self, values: Sequence[Any], num_slices: int) -> bool:
        """Return whether ranks or slices may divide the groups of rows of a reshape."""
        if SESSION.size == 1 and num_slices == 1:
            return False
        return not self._groups.are_filled(values)

    def planned(
        self, rows: int, arrays: Sequence[Any], may_be_alone: bool
    ) -> tuple[Planned, bool]:
        """Return the plan of the next call, and whether rank 0 makes it alone."""
        planned = self.plans.plan_for(rows, arrays)
        is_alone = (
            planned.plan.is_alone and may_be_alone and self.placement.is_replicated
        )
        if is_alone is not self._was_alone:
            self.prepare(is_alone)
        return planned, is_alone

    def prepare(self, is_alone: bool) -> None:
        """Prepare for a next call by rank 0 alone, or by all ranks."""
        self._was_alone = is_alone
        if not is_alone:
            self.placement.check()
            SESSION.context.confinement.narrow()

    def call_alone(
        self,
        planned: Planned,
        rows: CallRows,
        given: CallValues,
        subset: Subset,
        then: Callable[[int, list], object] | None = None,
    ) -> list:
        """Make a call on rank 0 alone, undone if it fails; return the outputs.

        For `then` see `BoundCall.attempt`.
        """
        plan, replicas = planned
        programs, context = replicas.local(), SESSION.context
        block = programs.block(subset, plan.block)
        # Other engines than JAX would compile long, and the graph as a whole would make
        # updates in place, which could not be undone.
        kind: CallKind = "uncut" if programs.engine.ON_DEVICE else "step"
        if block:  # the same parts as on all ranks, for the same bits
            kind, _ = self.plans.kept_kind(programs, kind, subset, rows.total, given)

        def run(transaction: Transaction) -> list:
            if block:
                context.confinement.compute_with(one_thread=True)
            else:
                context.confinement.widen()
            if self._last_alone != (replicas.number, kind, subset):
                if not programs.has(kind, subset):
                    replicas.notice.begin()
                    programs.compile(kind, subset)
                self.times_alone.is_fresh = True
                self._last_alone = replicas.number, kind, subset
            by_rank = [rows.total if self.spec.inputs else 1]
            how = given.constants, ONE_RANK, by_rank
            task = Task(programs, kind, subset, given.sources, rows.of_all, *how)
            task.tree = block_cut((0, rows.total), block)
            task.transaction, task.times = transaction, self.times_alone
            transaction.begin_call()
            compute = partial(running.run, task)
            results = merge_trees(timed(context, task, perf_counter(), compute))
            if then is not None:
                then(replicas.number, results)
            return results

        with replicas.notice:
            return self.placement.in_master(run)


class Groups:
    """Checks that a call's rows fill the groups of reshapes; see `compiler.sizes`."""

    def __init__(self, spec: FunctionSpec) -> None:
        self._filled = spec.filled
        roots = set(graph_inputs([size for sizes in spec.filled for size in sizes]))
        inputs = [*spec.inputs, *spec.bcast_inputs]
        self._inputs = [(i, var) for i, var in enumerate(inputs) if var in roots]
        stand_ins = zip(spec.stand_ins, spec.sliceable, strict=True)
        self._shared: dict[Variable, SharedVariable] = {
            **{var: var for var in roots if isinstance(var, SharedVariable)},
            **{stand_in: var for stand_in, var in stand_ins if stand_in in roots},
        }
        self._of_rows = {*spec.inputs, *spec.stand_ins}
        self._shapes: dict[Variable, tuple[int, ...]] = {}
        self._are_filled = True

    def are_filled(self, values: Sequence[Any]) -> bool:
        """Return whether each row by itself fills groups, so that any cut is right."""
        if not self._filled:
            return True
        shapes = {var: np.shape(values[i]) for i, var in self._inputs}
        for var, shared in self._shared.items():
            value = shared.get_value(borrow=True, return_internal_type=True)
            shapes[var] = np.shape(value)
        for var in self._of_rows & shapes.keys():
            shapes[var] = 1, *shapes[var][1:]
        if shapes != self._shapes:
            self._shapes, self._are_filled = shapes, self._check(KnownShapes(shapes))
        return self._are_filled

    def _check(self, sizes: KnownShapes) -> bool:
        for elements, group in self._filled:
            try:
                many, of_each = sizes.number(elements), sizes.number(group)
            except IndexError:
                return True  # wrong arguments: the call raises a better error
            if many is not None and of_each is not None and many % max(of_each, 1):
                return False
        return True
