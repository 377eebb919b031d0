"""A function with one placement of its graph: as it is made, or as it lies on ranks.

Most functions have one. Where a call finds that variables lie in parts, or that rows do
not fill the groups of a reshape, the graph is placed anew for that: see
`Function.variant_for`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pytensor.compile import SharedVariable

from ..choice.plan import Predicted
from ..compiler.spec import FunctionSpec
from ..errors import SplitError
from ..ranks.session import SESSION
from . import node_rows  # noqa: F401  which rows other nodes get
from .alone import Alone
from .groups import Groups
from .held import HeldVariables
from .inputs import check_arguments
from .outputs import Wanted
from .plans import Planned, Plans
from .rows import gather_rows
from .serial import SerialRun


class Variant:
    """A function with one placement of its graph.

    Parameters
    ----------
    what : str
        The function, for messages.

    Attributes
    ----------
    all : Wanted
        All outputs.
    """

    def __init__(self, spec: FunctionSpec, what: str) -> None:
        self.spec, self.what = spec, what
        self.all = Wanted(spec.returns, range(len(spec.outputs)))
        self.plans = Plans(spec)
        self.held = HeldVariables(spec)
        self.alone = Alone(spec, self.held, self.plans)
        self.serial = SerialRun(spec, what)
        self._groups = Groups(spec)

    def check_ranks(self) -> tuple[SharedVariable, ...]:
        """Raise unless there are ranks that can compute this, with what they hold.

        Returns
        -------
        tuple of SharedVariable
            What it reads that was scattered, and that it was not made to read so.
        """
        SESSION.enter()
        if self.spec.refused is not None and SESSION.size > 1:
            raise SplitError(self.spec.refused)
        if self.alone.was_last and self.alone.is_possible:
            return ()  # the ranks need not be given yet what was made alone
        return self.held.check()

    def train_as(self, workers: int | None, are_nodes: bool) -> None:
        """Have calls be steps of workers of a training rule; see `HeldVariables`."""
        if are_nodes:
            self.plans.forbid_alone()  # all ranks of a machine exchange
        self.held.train_as(workers, are_nodes)

    def may_split_groups(self, values: Sequence[Any], num_slices: int) -> bool:
        """Tell whether a cut through the rows may be one through a reshape's groups."""
        if SESSION.size == 1 and num_slices == 1:
            return False
        return not self._groups.are_filled(values)

    def planned(
        self, rows: int, arrays: Sequence[Any], may_be_alone: bool
    ) -> tuple[Planned, bool]:
        """Return what makes the next call, and whether rank 0 does so alone."""
        planned = self.plans.of(rows, arrays)
        is_alone = planned.plan.is_alone and may_be_alone and self.alone.is_possible
        if is_alone is not self.alone.was_last:
            self.alone.change(is_alone)
        return planned, is_alone

    def predicted(
        self, values: Sequence[Any], ranks: int, cores: int
    ) -> Predicted | None:
        """Return the seconds that a call is predicted to take; see `Predicted`."""
        spec = self.spec
        n = len(spec.inputs)
        rows = gather_rows(spec.inputs, values[:n], None, SESSION.size, spec.options)
        constants = check_arguments(spec.bcast_inputs, values[n:], spec.options)
        arrays = [*(source.array for source in rows.sources), *constants]
        return self.plans.predicted(rows.total, arrays, ranks, cores)
