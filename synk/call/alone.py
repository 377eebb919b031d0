"""Calls that rank 0 makes alone, with all cores.

Of few rows, or where much is reduced for each, ranks take longer to meet than to
compute. Then one of them makes the call, in the master, as if it had all the rows. It
runs the same compiled parts or, with JAX, which compiles fast, the graph as a whole.
The variables that it updates are as if the script had set them: the other ranks get the
new values before they next need them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter
from typing import Any

from ..comm.flat import ONE_RANK
from ..compiler.spec import FunctionSpec
from ..engines import Engine
from ..garbage import without_collection
from ..programs import running
from ..programs.programs import CallKind, Subset
from ..programs.transaction import Transaction
from ..ranks.ledger import Entry
from ..ranks.session import SESSION
from ..times.timing import Times
from .held import HeldVariables
from .plans import Planned
from .rows import take_share
from .runs import Call, Plan
from .spent import Ran, Watch


def kind_alone(engine: Engine) -> CallKind:
    """Return what of a function rank 0 runs alone.

    What is compiled as a whole makes its updates faster. Those that it makes in place
    could not be undone, in a trial and after an error; and to compile takes long.
    """
    return "uncut" if engine.ON_DEVICE else "step"


class Alone:
    """How rank 0 makes the calls of one function alone, which gives the same.

    Parameters
    ----------
    spec : FunctionSpec
    held : HeldVariables

    Attributes
    ----------
    was_last : bool
        Whether the last call was made so.
    times : Times
        Of these calls.
    """

    def __init__(self, spec: FunctionSpec, held: HeldVariables) -> None:
        self._spec, self._held = spec, held
        self.was_last = False
        self.times = Times()
        self._last: tuple[int, Subset] = -1, ()
        self._known: tuple[int, int] | None = None
        self._is_whole = False
        self._entries: list[Entry] = []

    @property
    def is_possible(self) -> bool:
        """Whether the master has all that a call reads."""
        known = SESSION.generation, SESSION.ledger.version
        if known != self._known:
            of, variables = SESSION.ledger.of, self._held.variables
            self._is_whole = all(of(var).kind == "equal" for var in variables)
            self._entries = SESSION.ledger.entries(variables)
            self._known = known
        return self._is_whole

    def change(self, is_alone: bool) -> None:
        """Make the next call so, or on all ranks."""
        self.was_last = is_alone
        if is_alone:
            SESSION.context.widen()
        else:
            self._held.check()
            SESSION.context.narrow()

    def call(
        self,
        planned: Planned,
        selection: Any,
        bounds: Sequence[int],
        sources: list,
        constants: list,
        subset: Subset,
        then: Callable[[int, list], object] | None = None,
    ) -> tuple[list, float]:
        """Make one call, or none.

        Parameters
        ----------
        planned : Planned
        selection, bounds, sources
            See `Rows`.
        constants, subset, then
            See `Calls._launch`.

        Returns
        -------
        results : list
            The outputs of the subset.
        made : float
            When that was done.
        """
        SESSION.context.widen()
        rows = selection, bounds[-1], sources
        run = partial(self._run, planned, *rows, constants, subset, then)
        with planned.replicas.notice:
            results = self._held.in_master(run, known=self._entries)
        return results, perf_counter()

    def _run(
        self,
        planned: Planned,
        selection: Any,
        total: int,
        sources: list,
        constants: list,
        subset: Subset,
        then: Callable[[int, list], object] | None,
        transaction: Transaction,
    ) -> list:
        """Compute, and make the updates."""
        plan, replicas = planned
        programs = replicas.local()
        what = kind_alone(programs.engine)
        if self._last != (replicas.number, subset):
            if not programs.has(what, subset):
                replicas.notice.begin()
                programs.compile(what, subset)
            self.times.is_fresh = True
            self._last = replicas.number, subset
        mine = take_share(0, SESSION.context.array, selection, [0, total], sources)
        shapes = (
            [array.shape[1:] for array in mine[0]],
            [a.shape for a in constants],
        )
        kind = "alone", subset, *map(tuple, shapes)
        if programs.engine.PER_SHAPE and programs.shapes_met.are_new(
            kind, [total], is_padded=False
        ):
            self.times.is_fresh = True
        self.times.begin(perf_counter(), total, None)
        if self.times.is_fresh:
            self.times.set_aside()
        run = partial(
            running.run,
            *(programs, 1, subset, *mine, constants, ONE_RANK),
            [total if self._spec.inputs else 1],
            times=self.times,
            transaction=transaction,
            kind=what,
            block=plan.block,
        )
        if self.times.is_fresh and programs.engine.PER_SHAPE:
            with without_collection():
                results = run()
        else:
            results = run()
        if then is not None:
            then(replicas.number, results)
        return results

    def run(
        self,
        planned: Planned,
        calls: Sequence[Call],
        plan: Plan,
        constants: list,
        num_slices: int,
        subset: Subset,
        timeout: float | None,
        report: Callable[[], object] | None,
        ran: Ran,
    ) -> tuple[list, float]:
        """Make several calls, those before one that fails; see `Calls._launch_run`."""
        made: list[list] = [[] for _ in subset]
        watch = Watch(self.times)
        for call in calls:
            given = call.selection, call.bounds, plan.sources, constants, subset
            results, _ = self.call(planned, *given)
            for of_output, value in zip(made, results, strict=True):
                of_output.append(value)
            watch.call_ended()
            if report is not None:
                report()
        ran.add([watch.told(0)])
        return made, perf_counter()
