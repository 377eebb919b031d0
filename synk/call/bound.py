"""A call as an object, which the next call can use again.

A `BoundCall` holds what follows from the arguments: the rows, their cut between ranks,
the plan, and the message to the workers. A sampler's next call has the same data, and a
training loop's next step as many rows. Such a call uses the same object, and only
checks that nothing has changed and takes the new values.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from ..errors import NotFinite
from ..memory.partition import count, part_lengths, select
from ..ranks.session import SESSION
from ..variables.data import Data, any_partial
from .arguments import (
    CallRows,
    CallValues,
    check_arguments,
    check_num_slices,
    check_shared_rows,
    gather,
    stage,
)
from .call_worker import worker_call
from .finite import FiniteCheck
from .outputs import combine_outputs
from .plans import Planned
from .variant import Variant

COMPARED = (type(None), int, slice)
"""Types of `batch` that are compared by value; an array may hold other numbers."""


class Options(NamedTuple):
    """The options of a call, as in `Function.__call__`."""

    batch: Any = None
    batch_s: Any = None
    num_slices: int = 1
    output_subset: Sequence[int] | None = None
    check: str | None = None
    timeout: float | None = None


class Bound:
    """The rows, their cut, and the wanted outputs of a call or a run.

    `values` are the arguments in the variant's order, scattered inputs first.
    """

    def __init__(self, variant: Variant, values: Sequence[Any], how: Options) -> None:
        self.variant, self.how = variant, how
        spec, size = variant.spec, SESSION.size
        self.rows, self.given = gather(spec, values, how.batch, size)
        if how.batch_s is not None:
            batch_s = check_shared_rows(how.batch_s, spec.sliceable, size)
            self.rows = self.rows._replace(batch_s=batch_s)
        self.num_slices = check_num_slices(how.num_slices, spec)
        self.wanted = variant.all.of(how.output_subset)
        self.has_parts = any_partial(values)  # a machine has only its own ranks' rows
        self.is_usual = self.num_slices == 1 and self.wanted is variant.all


class BoundCall(Bound):
    """A call of one function in one session, to be made once or many times.

    It holds no reference to the memory of the data.
    """

    def __init__(self, variant: Variant, values: Sequence[Any], how: Options) -> None:
        super().__init__(variant, values, how)
        given = self.given
        self._first: CallValues | None = given  # until the first call takes it
        del self.given
        if variant.spec.parts:
            variant.placement.check_parts(self.rows.bounds)
        self._prepare_repeat(given)
        self.choose_plan(given, self.is_usual and how.check is None)

    # -- whether the next call can use this object

    def _prepare_repeat(self, given: CallValues) -> None:
        """Set the state that `fits` compares, and whether later calls may use this."""
        spec, how = self.variant.spec, self.how
        sources = self.rows.sources
        data = given.values[: len(sources)]
        self._made_for, self._batch = weakref.ref(SESSION.pool), how.batch
        self.can_repeat = (
            how.batch_s is how.output_subset is how.check is how.timeout is None
            and how.num_slices == 1
            and all(type(value) is Data for value in data)
            and type(how.batch) in (*COMPARED, np.ndarray)
            and not (spec.sliceable or spec.parts)
        )
        self._data: list[tuple] = []
        if self.can_repeat:
            self._data = [(value._window(), value.minibatch) for value in data]
        # How many rows a later batch can select from; 0 if an input is a minibatch,
        # whose rows are fixed.
        lengths = [
            0 if source.is_batch else len(array)
            for source, array in zip(sources, given.sources, strict=True)
        ]
        self._length = min(lengths, default=0)

    def fits(self, args: Sequence[Any], batch: Any) -> bool:
        """Return whether a call with default options can use this object; set its rows.

        It can if session, data, number of rows and the ranks' variables are as before.
        """
        variant = self.variant
        if not SESSION.is_of(self._made_for):
            return False
        if self._wants_alone and self.is_alone is not variant.placement.is_replicated:
            return False
        known = zip(args, self._data, self.rows.sources, strict=False)
        for value, (window, is_batch), source in known:
            if (
                type(value) is not Data
                or value._lending.window is not window
                or value.minibatch is not is_batch
                or value._lending.is_partial is not self.has_parts
                or (source.state is not None and value._state != source.state)
            ):
                return False
        return (
            self._fits_rows(batch)
            and not variant.check_ranks()
            and not variant.may_split_groups(args, 1)
        )

    def _fits_rows(self, batch: Any) -> bool:
        """Return whether `batch` selects as many rows as before; if so, take them."""
        kind = type(batch)
        if kind in COMPARED and kind is type(self._batch) and batch == self._batch:
            return True
        # An array is selected from anew, as it may hold other numbers by now.
        if not self._length or (kind not in COMPARED and kind is not np.ndarray):
            return False
        selection = select(batch, self._length)
        if count(selection) != self.rows.total:
            return False
        self._batch, self.rows = batch, CallRows(selection, *self.rows[1:])
        self._is_prepared = False
        return True

    def values_of(self, args: Sequence[Any]) -> CallValues:
        """Return the values of a call that `fits`, broadcast inputs checked."""
        given, self._first = self._first, None
        if given is None:
            spec, n = self.variant.spec, len(self._data)
            sources = [value._held() for value in args[:n]]
            constants = check_arguments(spec.bcast_inputs, args[n:], spec.options)
            given = CallValues(args, sources, constants)
        return given

    # -- making the call

    def choose_plan(self, given: CallValues, may_be_alone: bool) -> None:
        """Choose the engine, and whether all ranks or rank 0 alone make the call."""
        self._may_be_alone = may_be_alone
        found = self.variant.planned(self.rows.total, given.arrays, may_be_alone)
        self.use_plan(*found)
        self._wants_alone = self._planned.plan.is_alone and may_be_alone

    def use_plan(self, planned: Planned, is_alone: bool) -> None:
        """Make the calls from now on by this plan; cut the rows for it."""
        self._planned, self.is_alone = planned, is_alone
        if not self.has_parts:
            self.rows = planned.cut(self.rows)
        self._is_prepared = False

    def call(self, values: Sequence[Any], start: float) -> list:
        """Make the call, with the check in its options; return the outputs.

        `start` is the time at which the script called, by ``perf_counter``.
        """
        given, check = self.values_of(values), self.how.check
        if check is None:
            return self._make(given, start)
        serial, subset = self.variant.serial, self.wanted.subset
        if check == "finite":
            finite = FiniteCheck(serial, values, self.rows, subset)
            try:
                return self._make(given, start, finite.check)
            except NotFinite:
                raise finite.located(self.variant.what) from None
        expected = serial.expect(check, values, self.how.batch, subset)
        results = self._make(given, perf_counter())
        serial.compare(subset, results, expected)
        return results

    def _make(
        self,
        given: CallValues,
        start: float,
        then: Callable[[int, list], object] | None = None,
    ) -> list:
        """Make the call; if the engine cannot compile the graph, by the next one."""
        plans = self.variant.plans
        while True:
            planned = self._planned
            try:
                results, joined = self.attempt(given, then)
                break
            except Exception as error:
                if not plans.gives_up(planned, error):
                    raise
            start = perf_counter()
            self.choose_plan(given, self._may_be_alone)
        plans.note_success(planned)
        times = self.variant.times_alone if self.is_alone else self._times
        times.returned(start, joined)
        return results

    def attempt(
        self, given: CallValues, then: Callable[[int, list], object] | None = None
    ) -> tuple[list, float]:
        """Make the call by its plan; return outputs, and the time of the last reply.

        ``then(number of the function, outputs)`` is called before the launch ends; an
        exception in it undoes the call, as any other.
        """
        variant, subset, planned = self.variant, self.wanted.subset, self._planned
        if self.is_alone:
            results = variant.call_alone(planned, self.rows, given, subset, then)
            return results, perf_counter()
        with planned.replicas.notice:
            if not self._is_prepared:
                self._prepare(given)
            with self._launch as launched:
                theirs, mine = self._messages(given, launched.states)
                own = mine, given.sources, given.constants
                how = self.how.timeout, self._label
                replies = SESSION.run_args(worker_call, theirs, own, *how)
                joined = perf_counter()
                context = SESSION.context
                results = combine_outputs(
                    variant.spec, subset, replies, context, variant.what
                )
                if then is not None:
                    then(planned.replicas.number, results)
                by_rank = tuple([0 if reply is None else reply[1] for reply in replies])
                variant.placement.note(by_rank, self.rows.batch_s)
        return results, joined

    def _prepare(self, given: CallValues) -> None:
        """Have all ranks compile missing parts; set the attributes for launches."""
        variant, subset = self.variant, self.wanted.subset
        replicas, rows = self._planned.replicas, self.rows
        programs = replicas.local()
        block, kind = self._planned.block_and_kind(subset, self.num_slices)
        how = kind, subset, given, rows, block
        kind, states = variant.plans.with_kept(programs, *how)
        pairs = zip(rows.sources, states, strict=True)
        sources = [source._replace(state=state) for source, state in pairs]
        self.rows = rows._replace(sources=sources)
        replicas.prepare(kind, subset)
        if rows.total and 0 in part_lengths(rows.bounds):
            replicas.prepare("idle", subset)
        self._launch = variant.placement.launch(programs.streams(kind))
        self._label, self._times = programs.label, programs.times
        self._whole = programs.cut(kind, subset).inputs_read
        self._job = replicas.number, subset, kind, self.num_slices, block
        self._described: tuple | None = None
        self._windows: list | None = None
        self._for_workers: tuple = ()
        self._for_master: tuple = ()
        # Last: compiling may fail, and an interrupt may come at any line.
        self._is_prepared = True

    def _messages(self, given: CallValues, states: list) -> tuple[tuple, tuple]:
        """Return the messages of a call for the workers, and for the master's share.

        If nothing has changed they are the last call's objects, as `launch` checks.
        """
        known, rows = self._described, self.rows
        if known is not None and not (states or given.constants):
            SESSION.pool.stage.put(())
            return self._for_workers, self._for_master
        described, windows = stage(rows, given, SESSION.pool.stage, self._whole, known)
        if states or known is None or windows != self._windows:
            self._windows = windows
            self._for_workers = ((self._job, described, windows, states),)
            if known is None or states:
                unsaid = *rows[:2], list(map(tuple, rows.sources)), rows.batch_s
                self._for_master = self._job, unsaid, (), states
        if self.can_repeat and type(rows.selection) is slice:
            self._described = described
        return self._for_workers, self._for_master
