"""Many calls of a function in one launch: how the master makes them.

What ranks do in it is in `run_worker`. Where calls of other numbers of rows have other
plans, and where rank 0 goes on alone, there are several launches, or none.

Batches are taken ahead, and a generator of batches may set variables between them: a
rate that falls, say. Those taken before are run with the values from before. What is
called after each call comes too late for that: the other ranks are in the next one.
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
from .bound import Bound, How
from .outputs import Wanted
from .placement_check import PlacementCheck
from .plans import Planned
from .run_worker import PhaseTimer, Spent, combine_runs, stacked, worker_run
from .variant import Variant

AT_ONCE = 64
"""Batches that are taken from a generator for one launch."""


class RunTimes:
    """Where the time of a run went, in all of its launches.

    Calls that follow a compilation are left out. What a rank waits in the end for
    slower ones counts. Of calls that had to be launched one by one nothing is spent.
    """

    def __init__(self) -> None:
        # Seconds, the means of the ranks; by the names of `train.history`.
        self.spent = dict.fromkeys(("compute", "rows", "exchange", "wait"), 0.0)
        self.calls: list[float] = []  # the seconds of each call, on rank 0

    def add(self, by_rank: Sequence[Spent]) -> None:
        """Count a launch, of which all ranks have told that made it."""
        # How long it took: ranks of other nodes have other clocks.
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
        """Count what another one has counted."""
        for name, seconds in other.spent.items():
            self.spent[name] += seconds
        self.calls += other.calls


class FunctionRun(Bound):
    """A run: arguments checked once, batches one by one.

    `one_call` makes one call by itself, of a batch, and returns the wanted outputs.
    What the rows of a batch are, `rows_of` says if it does not say so itself. The time
    is counted in `ran`.
    """

    def __init__(
        self,
        variant: Variant,
        values: Sequence[Any],
        how: How,
        one_call: Callable[[Any], list],
        ran: RunTimes,
        rows_of: Callable[[Any], Any] = lambda batch: batch,
    ) -> None:
        inputs = values[: len(variant.spec.inputs)]
        if any(isinstance(value, Data) and value.minibatch for value in inputs):
            raise ValueError(
                "minibatch data holds the rows of one call: a run has many"
            )
        super().__init__(variant, values, how)
        self._one_call, self._ran, self._rows_of = one_call, ran, rows_of
        if self.has_parts:
            variant.plans.forbid_alone()  # rank 0 has not the rows of other machines

    def make(self, batches: Iterable, progress: bool | Callable[[int], object]) -> Any:
        """Make all calls; return what they return, see `Function.run`."""
        with _reporting(progress, batches, self.variant.placement) as report:
            return _joined(self.wanted, self._launched(batches, report))

    def _launched(self, batches: Iterable, report: Any) -> Iterator[list]:
        """Make the calls, launch by launch."""
        placement = self.variant.placement
        for some in _in_launches(batches, placement):
            calls = [self._call(batch) for batch in some]
            before = [call.bounds for call in calls[:-1]]
            if placement.changes_itself(before):
                # The next may be another variant's, or be refused.
                yield from _one_by_one(some, self._one_call, self._ran, report)
                continue
            for call in calls if self.variant.spec.parts else ():
                placement.check_parts(call.bounds)
            yield from self._by_plans(calls, report)

    def _call(self, batch: Any) -> CallRows:
        """Check one batch: of the scattered inputs or, without any, of shared rows."""
        spec, size = self.variant.spec, SESSION.size
        if spec.inputs:
            selection = select(self._rows_of(batch), self.rows.total)
            bounds = cuts(count(selection), size)
            return CallRows(selection, bounds, *self.rows[2:])
        if batch is None:
            return self.rows
        batch_s = check_shared_rows(batch, spec.sliceable, size)
        return self.rows._replace(batch_s=batch_s)

    def _by_plans(self, calls: list[CallRows], report: Any) -> Iterator[list]:
        """Launch at once what calls one after the other have the same plan."""
        variant, plans, arrays = self.variant, self.variant.plans, self.given.arrays
        while calls:
            rows = calls[0].total
            planned, is_alone = variant.planned(rows, arrays, self.is_usual)
            kind = self._kind(planned, rows)
            alike = itertools.takewhile(partial(self._is_alike, planned, kind), calls)
            many = sum(1 for _ in alike) if plans.are_proven(planned) else 1
            launch = self._alone if is_alone else self._on_ranks
            start = perf_counter()
            try:
                results, joined = launch(planned, calls[:many], report)
            except Exception as error:
                if not plans.gives_up(planned, error):
                    raise
                continue
            plans.has_made_calls(planned)
            yield results
            calls = calls[many:]
            times = planned.replicas.local().times
            if is_alone:
                times = variant.alone.times
            times.returned(start, joined, "Function run", many)

    def _is_alike(self, planned: Planned, kind: CallKind, call: CallRows) -> bool:
        """Tell whether a call is made as another one is."""
        other = self.variant.plans.of(call.total, self.given.arrays)
        return planned.is_alike(other) and self._kind(other, call.total) == kind

    def _on_ranks(
        self, planned: Planned, calls: list[CallRows], report: Any
    ) -> tuple[list, float]:
        """Make several calls in one launch, on all ranks or on none.

        Returns for each output its values in the calls, and when all ranks had done
        their shares.
        """
        variant, subset, given = self.variant, self.wanted.subset, self.given
        placement, replicas = variant.placement, planned.replicas
        # Workers of a rule have rows evenly, and machines those that they have read.
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
                block, _ = planned.way(subset, self.num_slices)
                what = replicas.number, subset, kind, self.num_slices, block
                rest = launched.states, launched.number, placement.workers
                sources = [tuple(InputSource(array, 0, False)) for array in given[1]]
                own = [(c.selection, c.bounds, sources, c.batch_s) for c in calls]
                told: tuple[list, list] = own, given.constants
                if SESSION.size > 1:
                    told = stage_all(calls, given, SESSION.pool.stage)
                replies = SESSION.run_args(
                    worker_run,
                    ((what, *told, *rest), None),
                    ((what, own, given.constants, *rest), report),
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
        """Return how a call of so many rows is run."""
        programs, subset = planned.replicas.local(), self.wanted.subset
        block, kind = planned.way(subset, self.num_slices)
        if not block:
            return kind  # nothing is kept from one batch to the next
        return self.variant.plans.keeping(programs, kind, subset, rows, self.given)[0]

    def _alone(
        self, planned: Planned, calls: list[CallRows], report: Any
    ) -> tuple[list, float]:
        """Make several calls in rank 0, up to one that fails; see `_on_ranks`."""
        alone, subset = self.variant.alone, self.wanted.subset
        made: list[list] = [[] for _ in subset]
        timer = PhaseTimer(alone.times)
        for call in calls:
            results = alone.call(planned, call, self.given, subset)
            for of_output, value in zip(made, results, strict=True):
                of_output.append(value)
            timer.call_ended()
            if report is not None:
                report()
        self._ran.add([timer.spent(0)])
        return made, perf_counter()


def run_one_by_one(
    batches: Iterable,
    one_call: Callable[[Any], list],
    wanted: Wanted,
    progress: Any,
    ran: RunTimes,
) -> Any:
    """Make calls that have no launch in common; see `FunctionRun`."""
    with _reporting(progress, batches) as report:
        return _joined(wanted, _one_by_one(batches, one_call, ran, report))


def _one_by_one(
    batches: Iterable, one_call: Callable[[Any], list], ran: RunTimes, report: Any
) -> Iterator[list]:
    for batch in batches:
        start = perf_counter()
        results = one_call(batch)
        ran.calls.append(perf_counter() - start)  # not divided into phases
        yield [[value] for value in results]
        if report is not None:
            report()


def _joined(wanted: Wanted, found: Iterable[list]) -> Any:
    """Return what a run returns, of the values of each output in some calls."""
    made: list[list] = [[] for _ in wanted.subset]
    for results in found:
        for of_output, more in zip(made, results, strict=True):
            of_output.extend(more)
    return wanted.arrange([stacked(of_output) for of_output in made])


# -- batches and launches

_END = object()


def _in_launches(batches: Iterable, placement: PlacementCheck) -> Iterator[list]:
    """Return the batches of each launch: all of a sequence, some of a generator.

    A launch ends where the generator sets a variable of the function.
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
                with _as_before(newly_set):
                    yield taken
                taken = []
        if not taken:
            placement.check()  # so that what is set from now on is told from this
        taken.append(batch)


@contextlib.contextmanager
def _as_before(entries: Sequence[LedgerEntry]) -> Iterator[None]:
    """Give variables the values from before they were set, in a ``with`` block."""
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
) -> Iterator[Callable[[], object] | None]:
    """Return what is to be called after every call, if anything.

    In the midst of a launch it is not to set variables whose placement was checked.
    """
    if callable(progress):
        yield partial(_report, progress, itertools.count(1), placement)
    elif progress:
        many = len(batches) if isinstance(batches, Sized) else None
        with contextlib.closing(ProgressBar(many)) as bar:
            yield bar
    else:
        yield None


def _report(
    progress: Callable[[int], object],
    numbers: Iterator[int],
    placement: PlacementCheck | None,
) -> None:
    """Report a call by its number; raise if that sets a shared variable."""
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
    """A progress bar that begins when everything has been compiled.

    Its rate would be far too low otherwise, and the time left far too long. How many
    calls there will be may not be known.
    """

    def __init__(self, total: int | None) -> None:
        try:
            from tqdm import tqdm
        except ImportError:
            raise ImportError("progress=True needs tqdm: pip install tqdm") from None
        self._make = partial(tqdm, total=total)
        self._bar: Any = None

    def show(self, counted: int = 0) -> None:
        """Show the bar, if it is not there yet, from so many calls on."""
        if self._bar is None:
            self._bar = self._make(initial=counted)

    def __call__(self) -> None:
        """Count a call; the first, if the bar is not there, has compiled."""
        if self._bar is None:
            self.show(1)
        else:
            self._bar.update()

    def close(self) -> None:
        """End the bar's line."""
        if self._bar is not None:
            self._bar.close()
