"""Many calls of a function in one launch: the master's side of `Function.run`.

The ranks' side is in `run_worker`. Calls with other plans, as for other numbers of
rows, get launches of their own. Calls by rank 0 alone need none.

The master takes batches of a generator in advance. A generator may set variables, such
as a learning rate; then the batches before are run with the former values first. A
`progress` callback may not: the workers are in the next call already.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from functools import partial
from time import perf_counter
from typing import Any

from ..errors import StateError
from ..memory.partition import count, cuts, part_lengths, select
from ..programs.programs import CallKind
from ..ranks.ledger import NOTHING, LedgerEntry, set_by_script
from ..ranks.session import SESSION
from ..times.timing import COMMON, COMPUTE, NODES, REDUCE, ROWS, WAIT
from ..variables.data import Data
from .arguments import CallRows, InputSource, check_shared_rows, stage_all
from .bound import Bound, Options
from .outputs import Wanted
from .placement_check import PlacementCheck
from .plans import Planned
from .run_worker import Spent, combine_runs, stacked, worker_run
from .variant import Variant

AT_ONCE = 64
"""The most batches of a generator that one launch takes."""


class RunTimes:
    """Where the time of a run went, summed over its launches.

    `spent` leaves out calls that follow a compilation, and calls launched one by one.
    It includes the time that a rank waits, at the end of a launch, for slower ranks.
    """

    def __init__(self) -> None:
        # Seconds, as means over ranks, by the names of `train.history`.
        self.spent = dict.fromkeys(("compute", "rows", "exchange", "wait"), 0.0)
        self.calls: list[float] = []  # the seconds of each call, on rank 0

    def add(self, by_rank: Sequence[Spent]) -> None:
        """Add a launch; `by_rank` has one entry for each rank that made it."""
        # Only durations are compared: ranks of other nodes have other clocks.
        longest = max(spent.ended[-1] - spent.began for spent in by_rank)
        for phases, began, ended in by_rank:
            rest = longest - (ended[-1] - began)
            of_rank = {
                "compute": phases[COMPUTE] + phases[COMMON],
                "rows": phases[ROWS],
                "exchange": phases[REDUCE] + phases[NODES],
                "wait": phases[WAIT] + rest,
            }
            for name, seconds in of_rank.items():
                self.spent[name] += seconds / len(by_rank)
        ends = [by_rank[0].began, *by_rank[0].ended]
        self.calls += [end - before for before, end in itertools.pairwise(ends)]

    def include(self, other: RunTimes) -> None:
        """Add the times of another run."""
        for name, seconds in other.spent.items():
            self.spent[name] += seconds
        self.calls += other.calls


class FunctionRun(Bound):
    """A run: its arguments are checked once, and each batch when it is taken.

    ``one_call(batch)`` makes a call outside the run, and returns the wanted outputs.
    ``rows_of(batch)`` returns the rows that a batch selects; None: it needs `one_call`.
    Without `rows_of` a batch is the rows itself. Times are added to `ran`.
    """

    def __init__(
        self,
        variant: Variant,
        values: Sequence[Any],
        how: Options,
        one_call: Callable[[Any], list],
        ran: RunTimes,
        rows_of: Callable[[Any], Any] | None = None,
    ) -> None:
        inputs = values[: len(variant.spec.inputs)]
        if any(isinstance(value, Data) and value.minibatch for value in inputs):
            raise ValueError(
                "minibatch data holds the rows of one call: a run has many"
            )
        super().__init__(variant, values, how)
        self._one_call, self._ran, self._rows_of = one_call, ran, rows_of
        if self.has_parts:
            variant.plans.forbid_alone()  # rank 0 lacks the rows of other machines

    def make(self, batches: Iterable, progress: bool | Callable[[int], object]) -> Any:
        """Make all calls; return the outputs of `Function.run`."""
        with _reporting(progress, batches, self.variant.placement) as report:
            return _joined(self.wanted, self._launched(batches, report))

    def _launched(self, batches: Iterable, report: Any) -> Iterator[list]:
        """Make the calls; yield for each launch the values of each output."""
        placement = self.variant.placement
        for some in _in_launches(batches, placement):
            calls = [call for call in map(self._call, some) if call is not None]
            before = [call.bounds for call in calls[:-1]]
            if len(calls) < len(some) or placement.changes_what_it_reads(before):
                # The next call may need another variant, or be refused.
                yield from _one_by_one(some, self._one_call, self._ran, report)
                continue
            for call in calls if self.variant.spec.parts else ():
                placement.check_parts(call.bounds)
            yield from self._by_plans(calls, report)

    def _call(self, batch: Any) -> CallRows | None:
        """Check a batch, or a `batch_s` without scattered inputs; return its rows."""
        spec, size = self.variant.spec, SESSION.size
        if self._rows_of is not None and (batch := self._rows_of(batch)) is None:
            return None
        if spec.inputs:
            selection = select(batch, self.rows.total)
            bounds = cuts(count(selection), size)
            return CallRows(selection, bounds, *self.rows[2:])
        if batch is None:
            return self.rows
        batch_s = check_shared_rows(batch, spec.sliceable, size)
        return self.rows._replace(batch_s=batch_s)

    def _by_plans(self, calls: list[CallRows], report: Any) -> Iterator[list]:
        """Make each series of consecutive calls with the same plan in one launch."""
        variant, plans, arrays = self.variant, self.variant.plans, self.given.arrays
        while calls:
            rows = calls[0].total
            planned, is_alone = variant.planned(rows, arrays, self.is_usual)
            kind = self._kind(planned, rows)
            alike = itertools.takewhile(partial(self._can_join, planned, kind), calls)
            many = sum(1 for _ in alike) if plans.is_proven(planned) else 1
            launch = self._alone if is_alone else self._on_ranks
            start = perf_counter()
            try:
                results, joined = launch(planned, calls[:many], report)
            except Exception as error:
                if not plans.gives_up(planned, error):
                    raise
                continue
            plans.note_success(planned)
            yield results
            calls = calls[many:]
            times = planned.replicas.local().times
            if is_alone:
                times = variant.times_alone
            times.returned(start, joined, "Function run", many)

    def _can_join(self, planned: Planned, kind: CallKind, call: CallRows) -> bool:
        """Return whether `call` can be in a launch by this plan and kind."""
        other = self.variant.plans.plan_for(call.total, self.given.arrays)
        mine, its = planned.plan, other.plan
        how = mine.engine, mine.is_alone, mine.block
        if how != (its.engine, its.is_alone, its.block):
            return False
        return self._kind(other, call.total) == kind

    def _on_ranks(
        self, planned: Planned, calls: list[CallRows], report: Any
    ) -> tuple[list, float]:
        """Make several calls in one launch; a call that fails is undone on all ranks.

        Return for each output its values in the calls, and the time at which all ranks
        had replied.
        """
        variant, subset, given = self.variant, self.wanted.subset, self.given
        placement, replicas = variant.placement, planned.replicas
        # Not for workers of a training rule, who share rows evenly, nor for rows that
        # each machine has read for its own ranks.
        if placement.workers is None and not self.has_parts:
            calls = [planned.cut(call) for call in calls]
        kind = self._kind(planned, calls[0].total)
        with replicas.notice:
            programs = replicas.prepare(kind, subset)
            if any(0 in part_lengths(call.bounds) for call in calls if call.total):
                replicas.prepare("idle", subset)
            if isinstance(report, ProgressBar) and not programs.times.is_fresh:
                report.show()
            bounds = [call.bounds for call in calls]
            with placement.launch(programs.streams(kind), bounds) as launched:
                block, _ = planned.block_and_kind(subset, self.num_slices)
                job = replicas.number, subset, kind, self.num_slices, block
                rest = launched.states, launched.number, placement.workers
                sources = [tuple(InputSource(array, 0, False)) for array in given[1]]
                own = [(c.selection, c.bounds, sources, c.batch_s) for c in calls]
                sent: tuple[list, list] = own, given.constants
                if SESSION.size > 1:
                    sent = stage_all(calls, given, SESSION.pool.stage)
                replies = SESSION.run_args(
                    worker_run,
                    ((job, *sent, *rest), None),
                    ((job, own, given.constants, *rest), report),
                    self.how.timeout,
                    programs.label,
                )
                joined = perf_counter()
                self._ran.add([reply.spent for reply in replies])
                context, of_nodes = SESSION.context, placement.are_nodes
                by_rank = replies, context, variant.what, of_nodes
                results = combine_runs(variant.spec, subset, *by_rank)
                rows_of_last = tuple(replies[0].rows_by_call[-1])
                placement.note(rows_of_last, calls[-1].batch_s)
        return results, joined

    def _kind(self, planned: Planned, rows: int) -> CallKind:
        """Return the kind of a call of `rows` rows."""
        programs, subset = planned.replicas.local(), self.wanted.subset
        block, kind = planned.block_and_kind(subset, self.num_slices)
        if not block:
            return kind  # batches differ, so there are no terms to keep
        return self.variant.plans.kept_kind(programs, kind, subset, rows, self.given)[0]

    def _alone(
        self, planned: Planned, calls: list[CallRows], report: Any
    ) -> tuple[list, float]:
        """Make several calls on rank 0 alone, one by one; see `_on_ranks`."""
        variant, subset = self.variant, self.wanted.subset
        made: list[list] = [[] for _ in subset]
        before, began, ended = variant.times_alone.so_far(), perf_counter(), []
        for call in calls:
            results = variant.call_alone(planned, call, self.given, subset)
            for of_output, value in zip(made, results, strict=True):
                of_output.append(value)
            ended.append(perf_counter())
            report()
        self._ran.add([Spent(variant.times_alone.since(before), began, ended)])
        return made, perf_counter()


def run_one_by_one(
    batches: Iterable,
    one_call: Callable[[Any], list],
    wanted: Wanted,
    progress: Any,
    ran: RunTimes,
) -> Any:
    """Make a run whose calls are launched one by one; see `FunctionRun`."""
    with _reporting(progress, batches) as report:
        return _joined(wanted, _one_by_one(batches, one_call, ran, report))


def _one_by_one(
    batches: Iterable, one_call: Callable[[Any], list], ran: RunTimes, report: Any
) -> Iterator[list]:
    for batch in batches:
        start = perf_counter()
        results = one_call(batch)
        ran.calls.append(perf_counter() - start)  # without the phases, see `RunTimes`
        yield [[value] for value in results]
        report()


def _joined(wanted: Wanted, found: Iterable[list]) -> Any:
    """Stack each output's values of all launches; return them as the run returns them.

    Each item of `found` has, for each output, a list of its values in some calls.
    """
    made: list[list] = [[] for _ in wanted.subset]
    for results in found:
        for of_output, more in zip(made, results, strict=True):
            of_output.extend(more)
    return wanted.arrange([stacked(of_output) for of_output in made])


# -- batches and launches

_END = object()


def _in_launches(batches: Iterable, placement: PlacementCheck) -> Iterator[list]:
    """Yield the batches of each launch: all of a sequence, some of a generator.

    If the generator sets a variable, the batches before are a launch by themselves,
    with the variable's former value.
    """
    if isinstance(batches, Sized):
        if len(batches):
            yield list(batches)
        return
    taken: list = []
    for batch in itertools.chain(batches, [_END]):
        if taken:
            newly_set = set_by_script(placement.entries)
            if newly_set or len(taken) == AT_ONCE or batch is _END:
                with _with_former_values(newly_set):
                    yield taken
                taken = []
        if not taken:
            placement.check()  # brings the values set so far to the ranks
        taken.append(batch)


@contextlib.contextmanager
def _with_former_values(entries: Sequence[LedgerEntry]) -> Iterator[None]:
    """In a ``with`` block, give variables the values that the ranks know."""
    values = [entry.storage[0] for entry in entries]
    for entry in entries:
        if entry.known is NOTHING:
            raise StateError(
                "a generator of batches has called a function that updates a shared"
                " variable in place, which the batches before are to be computed with:"
                " run these first"
            )
        entry.storage[0] = entry.known
    try:
        yield
    finally:
        for entry, value in zip(entries, values, strict=True):
            entry.storage[0] = value


# -- progress


@contextlib.contextmanager
def _reporting(
    progress: bool | Callable[[int], object],
    batches: Iterable,
    placement: PlacementCheck | None = None,
) -> Iterator[Callable[[], object]]:
    """Yield a function to be called after every call.

    If `progress` is a callback, it may not set the variables of `placement`.
    """
    if callable(progress):
        yield partial(_report, progress, itertools.count(1), placement)
    elif progress:
        many = len(batches) if isinstance(batches, Sized) else None
        with contextlib.closing(ProgressBar(many)) as bar:
            yield bar
    else:
        yield lambda: None


def _report(
    progress: Callable[[int], object],
    numbers: Iterator[int],
    placement: PlacementCheck | None,
) -> None:
    """Call `progress` with the next number; raise if that sets a shared variable."""
    entries = [] if placement is None else placement.entries
    before = [entry.storage[0] for entry in entries]
    progress(next(numbers))
    after = [entry.storage[0] for entry in entries]
    if any(new is not old for new, old in zip(after, before, strict=True)):
        raise StateError(
            "a progress callback has set a shared variable that the function reads,"
            " in the midst of a run: the other ranks are in the next call already."
            " Set it between runs, or in a generator of batches"
        )


class ProgressBar:
    """A progress bar that begins after compilation, so that its rate is that of calls.

    `total` is the number of calls, or None if that is not known.
    """

    def __init__(self, total: int | None) -> None:
        try:
            from tqdm import tqdm
        except ImportError:
            raise ImportError("progress=True needs tqdm: pip install tqdm") from None
        self._make = partial(tqdm, total=total)
        self._bar: Any = None

    def show(self, counted: int = 0) -> None:
        """Show the bar, if it is not shown yet, with this number of calls counted."""
        if self._bar is None:
            self._bar = self._make(initial=counted)

    def __call__(self) -> None:
        """Count a call. Show the bar, if it waited for this call to compile."""
        if self._bar is None:
            self.show(1)
        else:
            self._bar.update()

    def close(self) -> None:
        """End the bar's line."""
        if self._bar is not None:
            self._bar.close()
