"""Many calls of a function in one launch: how the master makes them.

What ranks do in it is in `run_worker`. Where calls of other numbers of rows have other
plans, and where rank 0 goes on alone, there are several launches, or none.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np

from ..memory.partition import count, cuts, part_lengths, select
from ..programs.programs import CallKind, kind_of_call
from ..ranks.session import SESSION
from ..variables.data import Data, any_partial
from .bound import How
from .inputs import check_arguments, check_num_slices, check_shared_rows
from .launches import in_launches, watched
from .plans import Planned
from .progress import Bar, count_calls
from .rows import Given, Rows, Source, describe_selection, gather_rows, windows_of
from .run_worker import Call, combine_runs, stacked, worker_run
from .spent import Ran, Watch
from .variant import Variant


class Run:
    """A run: arguments checked once, batches one by one.

    Parameters
    ----------
    variant : Variant
        Of the function.
    values : sequence of Data or array_like
        The arguments, scattered inputs first.
    how : How
        The same for all calls.
    one_call : callable
        The function itself.
    ran : Ran
        Where its time is counted.

    Raises
    ------
    TypeError, ValueError
        If an argument does not fit.
    """

    def __init__(
        self,
        variant: Variant,
        values: Sequence[Any],
        how: How,
        one_call: Callable[..., Any],
        ran: Ran,
    ) -> None:
        self._variant, self._how, self._one_call = variant, how, one_call
        self._ran = ran
        spec, size = variant.spec, SESSION.size
        n = len(spec.inputs)
        data = [value for value in values[:n] if isinstance(value, Data)]
        constants = check_arguments(spec.bcast_inputs, values[n:], spec.options)
        self._num_slices = check_num_slices(how.num_slices, spec)
        self._wanted = variant.all.of(how.output_subset)
        if any(value.minibatch for value in data):
            raise ValueError(
                "minibatch data holds the rows of one call: a run has many"
            )
        whole = gather_rows(spec.inputs, values[:n], None, size, spec.options)
        self._length = whole.total
        arrays = [source.array for source in whole.sources]
        self._given = Given(values, arrays, constants)
        self._batch_s = check_shared_rows(how.batch_s, spec.sliceable, size)
        self._has_parts = any_partial(data)
        if self._has_parts:
            variant.plans.forbid_alone()  # rank 0 has not the rows of other machines

    def make(self, batches: Iterable, progress: bool | Callable[[int], object]) -> Any:
        """Make all calls; return what they return, see `Function.run`."""
        variant = self._variant
        made: list[list] = [[] for _ in self._wanted.subset]
        with count_calls(progress, batches) as report:
            if report is not None and not isinstance(report, Bar):
                report = watched(report, variant.held.entries)
            for some in in_launches(batches, variant.held):
                calls = [self._call(batch) for batch in some]
                if variant.held.changes_itself([call.bounds for call in calls[:-1]]):
                    found = self._one_by_one(some, report)
                else:
                    for call in calls if variant.spec.parts else ():
                        variant.held.check_parts(call.bounds)
                    found = self._by_plans(calls, report)
                for results in found:
                    for of_output, more in zip(made, results, strict=True):
                        of_output.extend(more)
        return self._wanted.arrange([stacked(of_output) for of_output in made])

    def _call(self, batch: Any) -> Call:
        """Check one batch: of the scattered inputs or, without any, of shared rows."""
        spec, size = self._variant.spec, SESSION.size
        if spec.inputs:
            selection = select(batch, self._length)
            return Call(selection, cuts(count(selection), size), self._batch_s)
        batch_s = self._batch_s
        if batch is not None:
            batch_s = check_shared_rows(batch, spec.sliceable, size)
        return Call(slice(0, 0), [0] * (size + 1), batch_s)

    def _by_plans(self, calls: list[Call], report: Any) -> Iterator[list]:
        """Launch at once what calls one after the other have the same plan."""
        variant, arrays = self._variant, self._given.arrays
        plans = variant.plans
        is_usual = self._num_slices == 1 and self._wanted is variant.all
        while calls:
            rows = calls[0].bounds[-1]
            planned, is_alone = variant.planned(rows, arrays, is_usual)
            kind = self._kind(planned, rows)
            of_each = (call.bounds[-1] for call in calls)
            alike = itertools.takewhile(partial(self._is_alike, planned, kind), of_each)
            many = sum(1 for _ in alike) if plans.are_proven(planned) else 1
            some = calls[:many]
            launch = self._alone if is_alone else self._on_ranks
            start = perf_counter()
            try:
                results, joined = launch(planned, some, report)
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
            times.returned(start, joined, "Function run", len(some))

    def _is_alike(self, planned: Planned, kind: CallKind, rows: int) -> bool:
        """Tell whether a call of so many rows is made as another one is."""
        other = self._variant.plans.of(rows, self._given.arrays)
        return planned.is_alike(other) and self._kind(other, rows) == kind

    def _on_ranks(
        self, planned: Planned, calls: list[Call], report: Any
    ) -> tuple[list, float]:
        """Make several calls in one launch, on all ranks or on none.

        Returns
        -------
        results : list of list
            For each output, its values in the calls.
        joined : float
            When all ranks had done their shares.
        """
        variant, subset = self._variant, self._wanted.subset
        held, size = variant.held, SESSION.size
        plan, replicas = planned
        # Workers of a rule have rows evenly, and machines those that they have read.
        if held.workers is None and not self._has_parts:
            cut = planned.bounds
            calls = [c._replace(bounds=cut(c.bounds[-1], size)) for c in calls]
        bounds = [call.bounds for call in calls]
        kind = self._kind(planned, bounds[0][-1])
        with replicas.notice:
            programs = replicas.prepare(kind, subset)
            if any(0 in part_lengths(of_call) for of_call in bounds if of_call[-1]):
                replicas.prepare("idle", subset)
            if isinstance(report, Bar) and not programs.times.is_fresh:
                report.show()
            with held.launch(programs.streams(kind), bounds) as launched:
                block = programs.block(subset, plan.block)
                what = replicas.number, subset, kind, self._num_slices, block
                rest = launched.states, launched.number, held.workers
                mine = (what, *self._own(calls), *rest), report
                theirs = (what, *self._described(calls), *rest), None
                how = self._how.timeout, programs.label
                replies = SESSION.run_args(worker_run, theirs, mine, *how)
                joined = perf_counter()
                self._ran.add([reply.spent for reply in replies])
                context, of_nodes = SESSION.context, held.are_nodes
                told = replies, context, variant.what, of_nodes
                results = combine_runs(variant.spec, subset, *told)
                rows_of_last = tuple(replies[0].rows_by_call[-1])
                held.note(rows_of_last, calls[-1].batch_s)
        return results, joined

    def _kind(self, planned: Planned, rows: int) -> CallKind:
        """Return how a call of so many rows is run."""
        programs, subset = planned.replicas.local(), self._wanted.subset
        block = programs.block(subset, planned.plan.block)
        kind = kind_of_call(self._num_slices, SESSION.size, block)
        if not block:
            return kind  # nothing is kept from one batch to the next
        return self._variant.plans.keeping(programs, kind, subset, rows, self._given)[0]

    def _own(self, calls: list[Call]) -> tuple[list, list, list]:
        """Return calls, sources and broadcast inputs as they are for the master."""
        _, arrays, constants = self._given
        sources = [tuple(Source(array, 0, False)) for array in arrays]
        return calls, sources, constants

    def _described(self, calls: list[Call]) -> tuple[list, list, list]:
        """Describe calls, sources and broadcast inputs to ranks 1 and up.

        `Data` is described where it lies; other arrays are copied to the stage.
        """
        if SESSION.size == 1:
            return self._own(calls)
        values, stage = self._given.values, SESSION.stage
        copies = [
            array
            for array, value in zip(self._given.arrays, values, strict=True)
            if not isinstance(value, Data)
        ]
        copies += [c.selection for c in calls if isinstance(c.selection, np.ndarray)]
        staged = iter(stage.put(copies) if copies else stage.put_nothing())
        windows = windows_of(values, staged)
        described = [
            call._replace(selection=describe_selection(call.selection, staged))
            for call in calls
        ]
        n = len(self._given.sources)
        sources = [tuple(Source(window, 0, False)) for window in windows[:n]]
        return described, sources, windows[n:]

    def _alone(
        self, planned: Planned, calls: list[Call], report: Any
    ) -> tuple[list, float]:
        """Make several calls in rank 0, up to one that fails; see `_on_ranks`."""
        alone, subset = self._variant.alone, self._wanted.subset
        _, sources, _ = self._own(calls)
        made: list[list] = [[] for _ in subset]
        watch = Watch(alone.times)
        for call in calls:
            rows = Rows(call.selection, call.bounds, sources)
            results = alone.call(planned, rows, self._given, subset)
            for of_output, value in zip(made, results, strict=True):
                of_output.append(value)
            watch.call_ended()
            if report is not None:
                report()
        self._ran.add([watch.told(0)])
        return made, perf_counter()

    def _one_by_one(self, batches: list, report: Any) -> Iterator[list]:
        """Make the calls each by itself: the next may be another, or be refused."""
        what = "batch" if self._variant.spec.inputs else "batch_s"
        how = self._how
        options: dict[str, Any] = {"batch_s": how.batch_s, "timeout": how.timeout}
        options |= {"num_slices": how.num_slices}
        options |= {"output_subset": self._wanted.subset}
        for batch in batches:
            start = perf_counter()
            results = self._one_call(*self._given.values, **options | {what: batch})
            self._ran.calls.append(perf_counter() - start)  # not divided into phases
            yield [[value] for value in results]
            if report is not None:
                report()
