"""Many calls of a function in one launch: how `Function.run` makes them.

What ranks do in it is in `runs`. Where calls of other numbers of rows have other plans,
and where rank 0 goes on alone, there are several launches, or none.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from time import perf_counter
from typing import Any

from ..programs.programs import Subset, kind_of_call
from ..ranks.session import SESSION
from ..user_frames import entry
from .calling import Calls
from .inputs import bind, check_arguments, check_num_slices
from .launches import in_launches, watched
from .plans import Planned
from .progress import Bar, count_calls
from .rows import arrays_of
from .runs import Call, Plan, combine_runs, stacked, worker_run
from .spent import Ran


class Runs(Calls):
    """How many calls of a function are made together."""

    @entry
    def run(
        self,
        /,
        batches: Iterable,
        *args: Any,
        progress: bool | Callable[[int], object] = False,
        batch_s: Any = None,
        num_slices: int = 1,
        output_subset: Sequence[int] | None = None,
        timeout: float | None = None,
        **kwargs: Any,
    ) -> Any:
        """Run many calls in one launch: an epoch of training, say.

        The ranks go through the batches by themselves, and wait for each other where
        the graph reduces something, or once in each call that makes updates. A rank
        that has more than one core takes the rows of the next call while it computes.

        Parameters
        ----------
        batches : iterable
            For each call, what `batch` is in a call; in a function without scattered
            inputs what `batch_s` is, or None. Of a generator, which need not end,
            up to 64 are taken ahead for a launch.
        *args, **kwargs : Data or array_like
            The inputs, as in a call; the same for all calls.
        progress : bool or callable
            True shows a progress bar, for which tqdm must be installed; it begins
            when everything has been compiled, after the first call. Something to
            call is called in the master after each of its calls, with their number.
        batch_s, num_slices, output_subset, timeout
            As in a call; the same for all calls.

        Returns
        -------
        numpy.ndarray or list of numpy.ndarray or None
            As a call returns, with a first axis for the calls: shape (calls, ...). An
            output whose shape changes from call to call is a list of arrays.

        Raises
        ------
        StateError
            If not forked.
        TypeError, ValueError, IndexError
            If an argument does not fit; no rank has been told anything then. (A
            generator's batches are checked launch by launch.)
        ImportError
            If a progress bar is asked for and tqdm is missing.
        WorkerDied
            If a rank's process ended.
        RankTimeout
            If a rank has taken longer than the timeout.

        Notes
        -----
        An error or an interrupt ends the run as it ends a call: updates stay of the
        calls that all ranks have made.

        Examples
        --------
        >>> import numpy as np, pytensor, pytensor.tensor as pt, synk
        >>> x, w = pt.vector("x"), pytensor.shared(0.0, name="w")
        >>> loss = ((x - w) ** 2).mean()
        >>> step = synk.function([x], loss, updates={w: w - pt.grad(loss, w) / 4})
        >>> with synk.session(2):
        ...     losses = step.run([slice(0, 2), slice(2, 4)], np.array([1.0, 1, 2, 2]))
        >>> losses, w.get_value()
        (array([1.  , 2.25]), array(1.25))
        """
        if timeout is not None:
            timeout = self._seconds(timeout, kwargs)
        parts = self._check_ranks()
        if parts and (num_slices != 1 or SESSION.size > 1):  # one rank has it all
            how: Any = {"num_slices": num_slices, "output_subset": output_subset}
            how |= {"progress": progress, "timeout": timeout}
            sharded = self._sharded(parts, batch_s)
            made_so = sharded.run(batches, *args, **how | kwargs)
            self.ran = sharded.ran
            return made_so
        spec = self._spec
        values = bind(self, self._inputs, args, kwargs)
        if self._may_split_groups(values, num_slices):
            options: Any = {"num_slices": num_slices, "output_subset": output_subset}
            options |= {"progress": progress, "timeout": timeout, "batch_s": batch_s}
            careful = self._with_groups()
            results = careful.run(batches, *values, **options)
            self.ran = careful.ran
            return results
        constants = check_arguments(
            spec.bcast_inputs, values[len(spec.inputs) :], spec.options
        )
        num_slices = check_num_slices(num_slices, spec)
        wanted = self._all.of(output_subset)
        subset = wanted.subset
        plan = Plan(spec, values, constants, batch_s, SESSION.size, SESSION.stage)
        if plan.is_partial:  # rank 0 has not the rows of other machines
            self._plans.forbid_alone()
        made: list[list] = [[] for _ in subset]
        self.ran = ran = Ran()
        alone: Any = {"batch_s": batch_s, "num_slices": num_slices}
        alone |= {"output_subset": subset, "timeout": timeout, **kwargs}
        with count_calls(progress, batches) as report:
            if report is not None and not isinstance(report, Bar):
                report = watched(report, self._held.entries)
            for some in in_launches(batches, self._held):
                calls = [plan.call(batch) for batch in some]
                if self._held.changes_itself([call.bounds for call in calls[:-1]]):
                    found = self._one_by_one(some, args, alone, report)
                else:
                    for call in calls if spec.parts else ():
                        self._held.check_parts(call.bounds)
                    given = plan, constants, num_slices, subset, timeout, report, ran
                    is_usual = num_slices == 1 and subset is self._all.subset
                    found = self._by_plans(calls, is_usual, given)
                for results in found:
                    for of_output, more in zip(made, results, strict=True):
                        of_output.extend(more)
        return wanted.arrange([stacked(of_output) for of_output in made])

    def run_as_workers(
        self, workers: int, *args: Any, are_nodes: bool = False, **options: Any
    ) -> Any:
        """Run calls that are steps of the ranks as workers of a training rule.

        Parameters
        ----------
        workers : int
            Their number in `RankContext.workers`.
        *args, **options
            As for `run`.
        are_nodes : bool
            Whether the ranks of a machine are one worker, and make a step together.
        """
        if are_nodes:
            self._plans.forbid_alone()  # all ranks of a machine exchange
        self._held.train_as(workers, are_nodes)
        try:
            return self.run(*args, **options)
        finally:
            self._held.train_as(None)

    def takes_own_rows(
        self, num_slices: int = 1, output_subset: Sequence[int] | None = None
    ) -> bool:
        """Tell whether ranks read no rows of scattered inputs but their own."""
        if any(SESSION.ledger.of(var).kind == "parts" for var in self._held.variables):
            return False  # then another function, of further inputs, makes the calls
        kind = kind_of_call(num_slices, SESSION.size)
        subset = self._all.of(output_subset).subset
        return not self._plans.last.replicas.local().cut(kind, subset).inputs_read

    def _by_plans(
        self, calls: list[Call], is_usual: bool, given: tuple
    ) -> Iterator[list]:
        """Launch at once what calls one after the other have the same plan."""
        plan, constants, *_ = given
        arrays = arrays_of(plan.sources, constants)
        while calls:
            planned, is_alone = self._planned(calls[0].bounds[-1], arrays, is_usual)
            of_each = (self._plans.of(call.bounds[-1], arrays) for call in calls)
            alike = itertools.takewhile(planned.is_alike, of_each)
            many = sum(1 for _ in alike) if self._plans.are_proven(planned) else 1
            some = calls[:many]
            launch = self._alone.run if is_alone else self._launch_run
            start = perf_counter()
            try:
                results, joined = launch(planned, some, *given)
            except Exception as error:
                if not self._plans.gives_up(planned, error):
                    raise
                continue
            self._plans.has_made_calls(planned)
            yield results
            calls = calls[many:]
            times = self._alone.times if is_alone else planned.replicas.local().times
            times.returned(start, joined, "Function run", len(some))

    def _launch_run(
        self,
        planned: Planned,
        calls: list[Call],
        plan: Plan,
        constants: list,
        num_slices: int,
        subset: Subset,
        timeout: float | None,
        report: Any,
        ran: Ran,
    ) -> tuple[list, float]:
        """Make several calls in one launch; see `_launch`."""
        spec, kind = self._spec, kind_of_call(num_slices, SESSION.size)
        how, replicas = planned
        bounds = [call.bounds for call in calls]
        with replicas.notice:
            programs = replicas.prepare(kind, subset)
            if any(0 < of_call[-1] < SESSION.size for of_call in bounds):
                replicas.prepare("idle", subset)
            if isinstance(report, Bar) and not programs.times.is_fresh:
                report.show()
            with self._held.launch(programs.streams(kind), bounds) as launched:
                number = launched.number, replicas.number, subset
                told = num_slices, launched.states, self._held.workers, how.block
                mine = *number, calls, plan.sources, constants, *told, report
                theirs = *number, *plan.describe(calls), *told, None
                doing = programs.label
                replies = SESSION.run(
                    worker_run, *theirs, mine=mine, timeout=timeout, doing=doing
                )
                joined = perf_counter()
                ran.add([reply.spent for reply in replies])
                context, of_nodes = SESSION.context, self._held.are_nodes
                results = combine_runs(spec, subset, replies, context, self, of_nodes)
                rows_of_last = tuple(replies[0].rows_by_call[-1])
                self._held.note(rows_of_last, calls[-1].batch_s)
        return results, joined

    def _one_by_one(
        self, batches: list, args: tuple, options: dict[str, Any], report: Any
    ) -> Iterator[list]:
        """Make a run's calls each by itself: the next may be another, or be refused."""
        what = "batch" if self._spec.inputs else "batch_s"
        for batch in batches:
            start = perf_counter()
            results = (self._of or self)(*args, **options | {what: batch})
            self.ran.calls.append(perf_counter() - start)  # not divided into phases
            yield [[value] for value in results]
            if report is not None:
                report()
