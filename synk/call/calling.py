"""Calls of a function on all ranks, one by one or many in a launch.

What a call does (`Calls.__call__`):

1. `inputs.bind` puts positional and keyword arguments in order.
2. `inputs.gather_rows` checks them, and resolves `batch` to a selection of rows; all
   inputs share it, and one cut of it into a part for each rank.
3. `Plans.of` says how it is computed: by which engine, and by all ranks or rank 0.
4. `Replicas.prepare` compiles on all ranks whatever has not been used before.
5. ``SESSION.run(share.worker_call, ...)`` launches the ranks, does the master's own
   share and joins them. Every rank takes its rows (`programs`), computes, updates its
   shared variables, and leaves its outputs in its outbox.
6. `outputs.combine_outputs` reduces the ranks' outputs, each by its op.

A call like the one before goes through 5 and 6 alone: see `again`.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any, Self

from pytensor.compile import SharedVariable

from ..choice.plan import Predicted
from ..compiler.spec import FunctionSpec
from ..errors import NotFinite, SplitError
from ..programs.programs import Subset, kind_of_call
from ..ranks.session import SESSION
from ..report.facts import PlanTimes
from ..user_frames import entry
from ..workers.preconditions import check_timeout
from . import node_rows  # noqa: F401  which rows other nodes get
from .again import Again, prepared
from .again_alone import AgainAlone, prepared_alone
from .alone import Alone
from .finite import FiniteCheck
from .groups import Groups
from .held import HeldVariables
from .inputs import bind, check_arguments, check_num_slices, check_shared_rows
from .last_rows import LastRows
from .measured import compare
from .outputs import Wanted, combine_outputs, rows_of
from .plans import Planned, Plans
from .rows import Rows, arrays_of, gather_rows
from .serial import SerialRun
from .share import worker_call
from .spent import Ran
from .undone import undone

_numbers = itertools.count()


class Calls:
    """How a function is called: the base of `function.Function`."""

    def __init__(
        self,
        make: Callable[..., FunctionSpec],
        parts: Sequence[SharedVariable] = (),
        of: Calls | None = None,
    ) -> None:
        self._make = make
        self._of = of  # which becomes this one where `parts` were scattered
        self._spec = spec = make(parts=parts)
        self._with_parts: dict[tuple[SharedVariable, ...], Self] = {}
        self._careful: Self | None = None
        self._groups = Groups(spec)
        self._number = next(_numbers)
        self._inputs = [*spec.inputs, *spec.bcast_inputs]
        self._all = Wanted(spec.returns, range(len(spec.outputs)))
        self._plans = Plans(spec)
        self._last_rows = LastRows()
        self._again: Again | AgainAlone | None = None
        self._held = HeldVariables(spec)
        self._alone = Alone(spec, self._held)
        self._serial = SerialRun(spec, repr(self))
        self.ran = Ran()  # of the last run

    @entry
    def __call__(
        self,
        /,
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
        again, self._again = self._again, None  # there is none after an error
        is_bare = batch_s is output_subset is check is timeout is None and not kwargs
        if again is not None and is_bare and num_slices == 1:
            is_same = again.is_of(args, batch) and not self._check_ranks()
            is_same = is_same and not self._may_split_groups(args, num_slices)
            if is_same and again.is_known:
                returned = again.call(self, args, start)
                self._again = again
                return returned
        if timeout is not None:
            timeout = self._seconds(timeout, kwargs)
        parts = self._check_ranks()
        if parts and (num_slices != 1 or SESSION.size > 1):  # one rank has it all
            how: Any = {"num_slices": num_slices, "output_subset": output_subset}
            how |= {"batch": batch, "check": check, "timeout": timeout}
            return self._sharded(parts, batch_s)(*args, **how | kwargs)
        spec = self._spec
        values = bind(self, self._inputs, args, kwargs)
        if self._may_split_groups(values, num_slices):
            options: Any = {"num_slices": num_slices, "output_subset": output_subset}
            options |= {"batch": batch, "batch_s": batch_s}
            options |= {"check": check, "timeout": timeout}
            return self._with_groups()(*values, **options)
        n = len(spec.inputs)
        rows = self._last_rows.gather(
            spec.inputs, values[:n], batch, SESSION.size, spec.options
        )
        if spec.parts:
            self._held.check_parts(rows.bounds)
        constants = check_arguments(spec.bcast_inputs, values[n:], spec.options)
        num_slices = check_num_slices(num_slices, spec)
        batch_s = check_shared_rows(batch_s, spec.sliceable, SESSION.size)
        wanted = self._all.of(output_subset)
        subset = wanted.subset
        finite = then = None
        if check == "finite":
            finite = FiniteCheck(self._serial, spec, values, rows, subset)
            then = finite.check
        elif check is not None:
            expected = self._serial.expect(check, values, batch, subset)
            start = perf_counter()  # that was no part of the call
        given = rows, values, constants, batch_s, num_slices, subset, timeout, then
        is_usual = num_slices == 1 and subset is self._all.subset
        made = None
        is_plain = is_usual and check is None
        while made is None:
            arrays = arrays_of(rows.sources, constants)
            planned, is_alone = self._planned(rows.total, arrays, is_plain)
            replicas = planned.replicas
            try:
                if is_alone:
                    made = self._alone.call(planned, *rows, constants, subset)
                else:
                    made = self._launch(planned, *given)
            except NotFinite as error:
                raise error if finite is None else finite.located(repr(self)) from None
            except Exception as error:
                if not self._plans.gives_up(planned, error):
                    raise
                start = perf_counter()
        self._plans.has_made_calls(planned)
        results, joined = made
        returned = wanted.arrange(results)
        times = self._alone.times if is_alone else replicas.local().times
        times.returned(start, joined)
        if check == "serial":
            self._serial.compare(subset, results, expected)
        if is_usual and is_bare and is_alone:
            of = self._plans, planned, self._alone, wanted
            self._again = prepared_alone(spec, *of, rows, args, batch)
        elif is_usual and is_bare and planned.plan.is_alone is is_alone:
            how = self._plans, planned, self._held, wanted
            found = rows, values, constants, self._last_rows
            self._again = prepared(spec, *how, *found, args, batch)
        return returned

    def _planned(
        self, rows: int, arrays: Sequence[Any], may_be_alone: bool
    ) -> tuple[Planned, bool]:
        """Return what makes the next call, and whether rank 0 does so alone."""
        planned = self._plans.of(rows, arrays)
        is_alone = planned.plan.is_alone and may_be_alone and self._alone.is_possible
        if is_alone is not self._alone.was_last:
            self._alone.change(is_alone)
        return planned, is_alone

    def _launch(
        self,
        planned: Planned,
        rows: Rows,
        values: Sequence[Any],
        constants: list,
        batch_s: list | None,
        num_slices: int,
        subset: Subset,
        timeout: float | None = None,
        then: Callable[[int, list], object] | None = None,
    ) -> tuple[list, float]:
        """Make one call on all ranks, or on none.

        Parameters
        ----------
        planned : Planned
        rows, values, constants, batch_s, num_slices, subset, timeout
            The arguments of the call, as they were checked.
        then : callable, optional
            Is called with the function's number and the results. What it raises undoes
            the call.

        Returns
        -------
        results : list
            The outputs of the subset.
        joined : float
            When all ranks had done their shares.
        """
        kind = kind_of_call(num_slices, SESSION.size)
        plan, replicas = planned
        with replicas.notice:
            given = replicas.local(), kind, subset, values, rows, constants
            kind, rows = self._plans.with_kept(*given)
            programs = replicas.prepare(kind, subset)
            if 0 < rows.total < SESSION.size:
                replicas.prepare("idle", subset)
            with self._held.launch(programs.streams(kind)) as launched:
                what, how = (replicas.number, subset), (batch_s, num_slices)
                rest = *how, launched.states, plan.block
                mine = *what, tuple(rows), constants, *rest
                whole = programs.cut(kind, subset).inputs_read
                arena = SESSION.stage
                staged = self._last_rows.stage(rows, values, constants, arena, whole)
                theirs = *what, *staged, *rest
                command = worker_call, (theirs,), (mine,), timeout, programs.label
                replies = SESSION.run_args(*command)
                joined = perf_counter()
                context = SESSION.context
                results = combine_outputs(self._spec, subset, replies, context, self)
                if then is not None:
                    then(replicas.number, results)
                self._held.note(rows_of(replies), batch_s)
        return results, joined

    @property
    def why_refused(self) -> str | None:
        """Why more than one rank cannot compute this, as a call says; None if they can.

        A call's arguments may bring other reasons.
        """
        return self._spec.refused

    def predicted(self, args: Sequence[Any]) -> Predicted | None:
        """Return the seconds that a call is predicted to take; see `Predicted`."""
        spec = self._spec
        n = len(spec.inputs)
        rows = gather_rows(spec.inputs, args[:n], None, SESSION.size, spec.options)
        constants = check_arguments(spec.bcast_inputs, args[n:], spec.options)
        arrays = arrays_of(rows.sources, constants)
        return self._plans.predicted(rows.total, arrays)

    def tuned(
        self, args: tuple, batch: Any, batch_s: Any, kwargs: dict
    ) -> list[PlanTimes]:
        """Time every plan on calls that are undone; see `synk.tune`."""
        parts = self._check_ranks()
        if parts:
            return self._sharded(parts, batch_s).tuned(args, batch, batch_s, kwargs)
        spec = self._spec
        values = bind(self, self._inputs, args, kwargs)
        if self._may_split_groups(values, 1):
            return self._with_groups().tuned(tuple(values), batch, batch_s, {})
        n = len(spec.inputs)
        rows = gather_rows(spec.inputs, values[:n], batch, SESSION.size, spec.options)
        constants = check_arguments(spec.bcast_inputs, values[n:], spec.options)
        batch_s = check_shared_rows(batch_s, spec.sliceable, SESSION.size)
        subset = self._all.subset

        def seconds(planned: Planned) -> float:
            is_alone = planned.plan.is_alone
            self._alone.change(is_alone)
            start = perf_counter()
            with undone(spec) as then:
                if is_alone:
                    self._alone.call(planned, *rows, constants, subset, then)
                else:
                    given = rows, values, constants, batch_s, 1, subset
                    self._launch(planned, *given, None, then)
            return then.came - start

        arrays = arrays_of(rows.sources, constants)
        candidates = self._plans.possible(rows.total, arrays)
        try:
            return compare(self._plans, rows.total, candidates, seconds)
        finally:
            self._alone.change(False)

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
        if self._alone.was_last and self._alone.is_possible:
            return ()  # the ranks need not be given yet what was made alone
        return self._held.check()

    def _may_split_groups(self, values: Sequence[Any], num_slices: int) -> bool:
        """Tell whether a cut through the rows may be one through a reshape's groups."""
        if SESSION.size == 1 and num_slices == 1:
            return False
        return not self._groups.are_filled(values)

    def _with_groups(self) -> Self:
        """Return this function as it is if rows do not fill groups by themselves."""
        if self._careful is None:
            make = functools.partial(self._make, careful=True)
            self._careful = type(self)(make, self._spec.parts, self._of)
        return self._careful

    def _sharded(self, parts: tuple[SharedVariable, ...], batch_s: Any) -> Self:
        """Return this function as it is if some variables lie in parts on the ranks."""
        if batch_s is not None:
            raise SplitError(
                f"batch_s chooses rows of sliceable variables, and {parts[0]} is none"
                " of them, and was scattered: name it in sliceable_shareds"
            )
        if parts not in self._with_parts:
            self._with_parts[parts] = type(self)(self._make, parts, self)
        return self._with_parts[parts]
