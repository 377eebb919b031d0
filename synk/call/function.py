"""`synk.function`: compiled graphs that run on every rank.

What a call does (`Function.__call__`):

1. `inputs.bind` puts positional and keyword arguments in order.
2. `inputs.gather_rows` checks them, and resolves `batch` to a selection of rows; all
   inputs share it, and one cut of it into a part for each rank.
3. `Replicas.prepare` compiles, on rank 0 first, whatever has not been used before.
4. ``SESSION.run(calls.worker_call, ...)`` launches the ranks, does the master's own
   share and joins them. Every rank takes its rows (`programs`), computes, updates its
   shared variables, and leaves its outputs in its outbox.
5. `calls.combine_outputs` reduces the ranks' outputs, each by its op.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from time import perf_counter
from typing import Any

from pytensor.compile import SharedVariable

from ..compiler.spec import FunctionSpec
from ..errors import NotFinite, SplitError
from ..programs.programs import kind_of_call
from ..ranks.replication import Replicas
from ..ranks.session import SESSION
from ..reduce_ops import OutputOp
from ..report.explain import explain
from ..report.explanation import Explanation
from ..user_frames import entry
from ..workers.preconditions import check_timeout
from .finite import FiniteCheck
from .held import HeldVariables
from .inputs import (
    bind,
    build,
    check_arguments,
    check_num_slices,
    check_shared_rows,
)
from .launches import in_launches, watched
from .outputs import Wanted, combine_outputs, rows_of
from .progress import Bar, count_calls
from .rows import gather_rows, stage
from .runs import Plan, combine_runs, stacked, worker_run
from .serial import SerialRun
from .share import worker_call

_numbers = itertools.count()


class Function:
    """A graph that runs on every rank; made by :func:`synk.function`."""

    def __init__(
        self,
        make: Callable[..., FunctionSpec],
        parts: Sequence[SharedVariable] = (),
        of: Function | None = None,
    ) -> None:
        self._make = make
        self._of = of or self  # which becomes this one where `parts` were scattered
        self._spec = spec = make(parts=parts)
        self._with_parts: dict[tuple[SharedVariable, ...], Function] = {}
        self._number = next(_numbers)
        self._inputs = [*spec.inputs, *spec.bcast_inputs]
        self._all = Wanted(spec.returns, range(len(spec.outputs)))
        self._replicas = Replicas(self._number, spec)
        self._held = HeldVariables(spec)
        self._serial = SerialRun(spec, repr(self))

    @property
    def name(self) -> str | None:
        """The name given, if any."""
        return self._spec.name

    @property
    def output_modes(self) -> list[OutputOp]:
        """How each output is combined: the ops, in the order of the outputs."""
        return list(self._spec.output_ops)

    @property
    def update_modes(self) -> list[OutputOp]:
        """How each update is combined over slices, in the order of the updates."""
        return list(self._spec.update_ops[: len(self._spec.plain_updates)])

    @property
    def updated(self) -> list[SharedVariable]:
        """The shared variables that a call updates, in the order of the updates."""
        return [var for var, _ in self._spec.plain_updates]

    def __repr__(self) -> str:
        inputs = ", ".join(map(str, self._inputs))
        return f"<synk.Function {self.name or self._number}({inputs})>"

    # -- calling

    @entry
    def __call__(
        self,
        *args: Any,
        batch: Any = None,
        batch_s: Any = None,
        num_slices: int = 1,
        output_subset: Sequence[int] | None = None,
        check: str | None = None,
        timeout: float | None = None,
        **kwargs: Any,
    ) -> Any:
        """Run on all ranks.

        Parameters
        ----------
        *args, **kwargs : Data or array_like
            The scattered inputs, then the broadcast ones, in order or by name. Arrays
            are copied to shared memory; :class:`~synk.Data` lies there already.
        batch : int, slice, array of int, or array of bool, optional
            Which rows of the scattered inputs to use: an int means the first so many.
            By default all.
        batch_s : slice, int, array, or list of one of these for each rank, optional
            Which rows of its own sliceable shared variables each rank uses. A list of
            ints holds row numbers.
        num_slices : int
            Compute in so many slices, one after the other, each from the original
            values of the shared variables; results are accumulated and variables
            updated once. The same numbers with less memory.
        output_subset : list of int, optional
            Return these outputs only, in this order, and compute no other.
        check : {None, "serial", "finite"}
            "serial": before that, run the plain function on all rows in the master as
            well, without a change to anything, and compare: the outputs, and on every
            rank the variables whose updates follow from what was reduced. Floats may
            differ by 1e-5 (float32) or 1e-9 (float64) of the largest value, more behind
            products of another `precision`, or by what rounding errors explain,
            integers not. Takes a compilation at the first time, and all cores.

            "finite": look for NaN and infinity in the outputs, and in the new values of
            variables on all ranks. The call is undone if there is any, and the error
            names the value, the first row with which it is so, and its rank.
        timeout : float, optional
            Seconds that the other ranks may keep rank 0 waiting, each time that it
            meets them and at the end; by default as given to :func:`synk.fork`. (The
            value for an input of that name, in a function that has one.)

        Returns
        -------
        numpy.ndarray or list of numpy.ndarray or None
            As the outputs were given: one, a list, or none; with `output_subset` a
            list.

        Raises
        ------
        StateError
            If not forked.
        TypeError, ValueError, IndexError
            If an argument does not fit; no rank has been told anything then.
        SplitError
            If an output cannot be that of the serial run on more than one rank.
        SerialMismatch
            With ``check="serial"``, if a result differs; the updates have been made.
        NotFinite
            With ``check="finite"``; no update has been made.
        WorkerDied
            If a rank's process ended.
        RankTimeout
            If a rank has taken longer than the timeout.
        """
        start = perf_counter()
        if timeout is not None:
            timeout = self._seconds(timeout, kwargs)
        parts = self._check_ranks()
        if parts and (num_slices != 1 or SESSION.size > 1):  # one rank has it all
            how: Any = {"num_slices": num_slices, "output_subset": output_subset}
            how |= {"batch": batch, "check": check, "timeout": timeout}
            return self._sharded(parts, batch_s)(*args, **how | kwargs)
        spec = self._spec
        values = bind(self, self._inputs, args, kwargs)
        n = len(spec.inputs)
        rows = gather_rows(spec.inputs, values[:n], batch, SESSION.size, spec.options)
        if spec.parts:
            self._held.check_parts(rows.bounds)
        constants = check_arguments(spec.bcast_inputs, values[n:], spec.options)
        num_slices = check_num_slices(num_slices, spec)
        batch_s = check_shared_rows(batch_s, spec.sliceable, SESSION.size)
        wanted = self._all.of(output_subset)
        subset = wanted.subset
        finite = None
        if check == "finite":
            finite = FiniteCheck(self._serial, spec, values, rows, subset)
        elif check is not None:
            expected = self._serial.expect(check, values, batch, subset)
            start = perf_counter()  # that was no part of the call
        try:
            with self._replicas.notice:
                kind = kind_of_call(num_slices, SESSION.size)
                programs = self._replicas.prepare(kind, subset)
                if 0 < rows.total < SESSION.size:
                    self._replicas.prepare("idle", subset)
                with self._held.launch(programs.streams(kind)) as launched:
                    what = launched.number, self._number, subset
                    how = batch_s, num_slices, launched.states
                    mine = *what, tuple(rows), constants, *how
                    whole = programs.cut(kind, subset).inputs_read
                    staged = stage(rows, values, constants, SESSION.stage, whole)
                    theirs = *what, *staged, *how
                    doing = programs.label
                    replies = SESSION.run(
                        worker_call, *theirs, mine=mine, timeout=timeout, doing=doing
                    )
                    joined = perf_counter()
                    results = combine_outputs(
                        spec, subset, replies, SESSION.context, self
                    )
                    if finite is not None:
                        finite.check(self._number, results)
                    self._held.note(rows_of(replies), batch_s)
        except NotFinite as error:
            raise error if finite is None else finite.located(repr(self)) from None
        returned = wanted.arrange(results)
        programs.times.returned(start, joined)
        if check == "serial":
            self._serial.compare(subset, results, expected)
        return returned

    @entry
    def run(
        self,
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
            return self._sharded(parts, batch_s).run(batches, *args, **how | kwargs)
        spec = self._spec
        values = bind(self, self._inputs, args, kwargs)
        constants = check_arguments(
            spec.bcast_inputs, values[len(spec.inputs) :], spec.options
        )
        num_slices = check_num_slices(num_slices, spec)
        wanted = self._all.of(output_subset)
        subset = wanted.subset
        kind = kind_of_call(num_slices, SESSION.size)
        plan = Plan(spec, values, constants, batch_s, SESSION.size, SESSION.stage)
        made: list[list] = [[] for _ in subset]
        alone: Any = {"batch_s": batch_s, "num_slices": num_slices}
        alone |= {"output_subset": subset, "timeout": timeout, **kwargs}
        with count_calls(progress, batches) as report, self._replicas.notice:
            if report is not None and not isinstance(report, Bar):
                report = watched(report, self._held.entries)
            for some in in_launches(batches, self._held):
                start = perf_counter()
                calls = [plan.call(batch) for batch in some]
                if self._held.changes_itself([call.bounds for call in calls[:-1]]):
                    for found in self._one_by_one(some, args, alone, report):
                        for of_output, value in zip(made, found, strict=True):
                            of_output.append(value)
                    continue
                for call in calls if spec.parts else ():
                    self._held.check_parts(call.bounds)
                programs = self._replicas.prepare(kind, subset)
                if any(0 < call.bounds[-1] < SESSION.size for call in calls):
                    self._replicas.prepare("idle", subset)
                if isinstance(report, Bar) and not programs.times.is_fresh:
                    report.show()
                bounds = [call.bounds for call in calls]
                streams = programs.streams(kind)
                with self._held.launch(streams, bounds) as launched:
                    number = launched.number, self._number, subset
                    told = num_slices, launched.states
                    mine = *number, calls, plan.sources, constants, *told, report
                    theirs = *number, *plan.describe(calls), *told, None
                    doing = programs.label
                    replies = SESSION.run(
                        worker_run, *theirs, mine=mine, timeout=timeout, doing=doing
                    )
                    joined = perf_counter()
                    some = combine_runs(spec, subset, replies, SESSION.context, self)
                    rows_of_last = tuple(replies[0].rows_by_call[-1])
                    self._held.note(rows_of_last, calls[-1].batch_s)
                for of_output, more in zip(made, some, strict=True):
                    of_output.extend(more)
                programs.times.returned(start, joined, "Function run", len(calls))
        return wanted.arrange([stacked(of_output) for of_output in made])

    def _one_by_one(
        self, batches: list, args: tuple, options: dict[str, Any], report: Any
    ) -> Iterator[list]:
        """Make a run's calls each by itself: the next may be another, or be refused."""
        what = "batch" if self._spec.inputs else "batch_s"
        for batch in batches:
            yield self._of(*args, **options | {what: batch})
            if report is not None:
                report()

    def _seconds(self, timeout: Any, kwargs: dict) -> float | None:
        """Return the seconds of a call; they are an argument if an input has the name.

        That is added to the other arguments.
        """
        if any(var.name == "timeout" for var in self._inputs):
            kwargs["timeout"] = timeout
            return None
        return check_timeout(timeout)

    def _check_ranks(self) -> tuple[SharedVariable, ...]:
        """Raise unless there are ranks that can compute this, with what they hold.

        Returns
        -------
        tuple of SharedVariable
            What it reads that was scattered, and that it was not made to read so.
        """
        SESSION.enter()
        if self._spec.refused is not None and SESSION.size > 1:
            raise SplitError(self._spec.refused)
        return self._held.check()

    def _sharded(self, parts: tuple[SharedVariable, ...], batch_s: Any) -> Function:
        """Return this function as it is if some variables lie in parts on the ranks."""
        if batch_s is not None:
            raise SplitError(
                f"batch_s chooses rows of sliceable variables, and {parts[0]} is none"
                " of them, and was scattered: name it in sliceable_shareds"
            )
        if parts not in self._with_parts:
            self._with_parts[parts] = Function(self._make, parts, self)
        return self._with_parts[parts]

    @entry
    def as_theano(self, *args: Any, **kwargs: Any) -> Any:
        """Run on rank 0 alone, on all rows: the plain function, for comparison.

        Its updates are made in the script's variables; the other ranks get the new
        values when they need them, as of those that the script sets.

        Parameters
        ----------
        *args, **kwargs : Data or array_like
            The inputs, as in a call.

        Returns
        -------
        numpy.ndarray or list of numpy.ndarray or None
        """
        if SESSION.state == "worker":
            SESSION.check_running()
        values = bind(self, self._inputs, args, kwargs)
        programs = self._replicas.local()
        with self._held.in_master() as transaction:
            results = self._serial.run_programs(programs, values, transaction)
            return self._all.arrange(results)

    @entry
    def explain(
        self,
        *args: Any,
        measure: bool = False,
        batch: Any = None,
        graph: bool = False,
        **kwargs: Any,
    ) -> Explanation:
        """Tell what a call does and, after calls, where its time goes.

        Parameters
        ----------
        measure : bool
            Run the plain function as well, some times, and compare. This changes
            nothing, and takes a compilation.
        *args, batch, **kwargs
            With `measure`, the inputs and the batch, as in a call.
        graph : bool
            Draw the stages of a call, and where ranks meet, in place of the times.

        Returns
        -------
        Explanation
        """
        if SESSION.state == "worker":
            SESSION.check_running()
        if measure:
            values = bind(self, self._inputs, args, kwargs)
            self._serial.measure(values, batch)
        elif args or kwargs or batch is not None:
            raise TypeError("explain takes the arguments of a call with measure=True")
        title = self.name or f"function {self._number}"
        known = self._replicas.local(), self._replicas.are_there, self._serial.timed
        return explain(title, self._spec, *known, self._held.facts(), graph)

    @entry
    def build_inputs(
        self,
        *args: Any,
        minibatch: bool | Sequence[bool] = False,
        force_cast: bool | Sequence[bool] = False,
        oversize: float | Sequence[float] = 1,
        **kwargs: Any,
    ) -> Any:
        """Put arrays into new :class:`~synk.Data` of the inputs' types.

        Parameters
        ----------
        *args, **kwargs : array_like
            A value for every input, broadcast ones too, as in a call. Broadcast inputs
            may be left out, all of them.
        minibatch, force_cast, oversize
            As for :func:`synk.data`: one value for all inputs, or a list of one for
            each. Of broadcast inputs `minibatch` means nothing.

        Returns
        -------
        Data or tuple of Data
            One for each value; by itself if there is one only.

        Raises
        ------
        TypeError, ValueError
            If a value does not fit its input, or a list has another length.
        """
        spec = self._spec
        broadcast = {var.name for var in spec.bcast_inputs}
        more = len(args) + len(kwargs) > len(spec.inputs)
        inputs = self._inputs if more or broadcast & kwargs.keys() else spec.inputs
        values = bind(self, inputs, args, kwargs)
        return build(inputs, values, minibatch, force_cast, oversize)
