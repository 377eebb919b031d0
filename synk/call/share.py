"""What a rank does in a call of a function: its share of the rows, computed.

`worker_call` takes its rows, computes, makes its updates, and leaves its outputs where
the master can read them.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from time import perf_counter
from typing import Any

import numpy as np

from ..compiler.spec import FunctionSpec
from ..engines import compiles_in_calls
from ..garbage import without_collection
from ..memory.partition import Selection, count, part_lengths, select
from ..programs import running
from ..programs.one_call import Reducer
from ..programs.padding import UNPADDED
from ..programs.programs import Programs, Subset, kind_of_call
from ..ranks.context import RankContext
from ..ranks.streams import split, worker_states
from ..times.timing import COMMON, ROWS, WAIT
from ..workers.channel import Ready
from ..workers.control import LAUNCH
from .rows import rows_of_node, take_all, take_share


def worker_call(
    context: RankContext,
    told: tuple,
    given: list[np.ndarray] | None = None,
    constants: list[np.ndarray] | None = None,
) -> Any:
    """Do one rank's share of a call.

    Parameters
    ----------
    context : RankContext
    told : tuple
        Of which function, by its number, which outputs, `Rows`, the broadcast inputs,
        `batch_s`, `num_slices`, the states of common streams and the rows of a block.
        Of arrays the master has these themselves, and the other ranks windows. If it
        is the very object that the last call was told, that call is made again.
    given, constants : list of numpy.ndarray, optional
        In the master: what rows are taken from and the values of broadcast inputs, if
        `told` does not say it.

    Returns
    -------
    tuple or None
        See `outputs.Reply`; None from a rank that had no rows.
    """
    context.transaction.begin(context.control.words[LAUNCH])
    made, context.repeated = context.repeated, None  # there is none after an error
    if made is None or made.told is not told:
        made = _Prepared(context, told)
    reply = made.call(given, constants)
    # The master's has arrays of the script's, whose memory is not to be held.
    if made.can_repeat and (context.rank or given is not None):
        context.repeated = made
    return reply


class _Prepared:
    """One rank's share of a call, which may be made again and again.

    Attributes
    ----------
    can_repeat : bool
        Whether all that a call takes but the values themselves follows from `told`.
    """

    def __init__(self, context: RankContext, told: tuple) -> None:
        self.told, self._context = told, context
        number, self._subset, rows, constants, batch_s, num_slices, states, block = told
        programs = context.registry.functions[number]
        self._label = context.activity = programs.label
        if states:
            kind = kind_of_call(num_slices, context.size)
            worker_states(programs.streams(kind), states)
        shared = rows, batch_s, num_slices, False, block
        self._share = share = Share(context, programs, *shared)
        arrays = list(map(context.array, constants))
        self._constants = programs.takers.broadcast(arrays) if arrays else []
        is_told = not (states or programs.spec.sliceable)
        on_host = not (programs.is_padded or programs.engine.ON_DEVICE)
        self.can_repeat = is_told and on_host and not share.is_idle
        self._is_first = True
        self._views: list[np.ndarray] | None = None
        self._left: dict | None = None
        self._reply: Any = None

    def call(
        self, given: list[np.ndarray] | None, constants: list[np.ndarray] | None
    ) -> Any:
        """Make the call; see `worker_call`."""
        context, share, rank = self._context, self._share, self._context.rank
        is_first, self._is_first = self._is_first, False
        if not is_first:
            share.start = perf_counter()
            context.activity = self._label
        if given is None or constants is None:
            if not is_first and self.can_repeat and self._views is None:
                self._views = share.views()
            outputs = share.compute(self._subset, self._constants, self._views)
        else:
            share.sources = given
            outputs = share.compute(self._subset, constants)
            share.sources = []
        if outputs is None:
            return None
        if rank == 0:
            return outputs, share.rows
        left = {
            i: output
            for i, output in zip(self._subset, outputs, strict=True)
            if share.is_wanted(i)
        }
        windows = context.leave(left)
        if is_first:  # and may be the last
            return windows, share.rows
        if any(type(window) is not tuple for window in windows.values()):
            return windows, share.rows  # values themselves, which nobody compares
        if windows != self._left:
            self._left, self._reply = windows, Ready((windows, share.rows))
        return self._reply


class Share:
    """The rows that one rank computes on in one call.

    Parameters
    ----------
    context : RankContext
    programs : Programs
    rows : tuple
        The selection, its bounds and the sources; see `inputs.Rows`.
    batch_s : list or None
        For each rank, which rows of sliceable shared variables it uses.
    num_slices : int
        Slices are padded one by one, and other rows here.
    of_node : bool
        Whether the ranks of each machine make a call of its own, on their rows.
    block : int
        Rows of a block; see `choice.plan.Plan`.
    """

    def __init__(
        self,
        context: RankContext,
        programs: Programs,
        rows: tuple,
        batch_s: list | None,
        num_slices: int,
        of_node: bool = False,
        block: int = 0,
    ) -> None:
        self.start = perf_counter()
        self._context, self._programs = context, programs
        self._num_slices = num_slices
        self._streams = programs.streams(kind_of_call(num_slices, context.size))
        self._reducer: Reducer = context.flat_buffers
        if programs.engine.ON_DEVICE and context.device_buffers is not None:
            self._reducer = context.device_buffers
        self._has_node_rows = True
        self._block = block
        if of_node and context.comm is not context.local:
            self._reducer = context.buffers_of_node
            rows = rows_of_node(context, rows)
            self._has_node_rows = rows[1][-1] > rows[1][0]
        if programs.engine.ON_DEVICE:
            programs.takers.use(context.to_device)
        self.sources, self.selections = take_share(context.rank, context.array, *rows)
        self._all_rows = functools.partial(take_all, context.array, *rows)
        self._selected = {}
        for var in programs.spec.sliceable:  # each stands in for a further input
            value = programs.engine.get_value(var)
            chosen = None if batch_s is None else batch_s[context.rank]
            self.sources.append(value)
            self._selected[var] = select(chosen, len(value))
        self.selections += self._selected.values()
        if programs.spec.are_paired and context.size > 1:
            _check_paired(programs.spec, context.rank, self.selections)
        self._kept = _key(rows[2], self.selections)
        self._waited = 0.0
        self.by_rank = self._rows_per_rank(rows[1])
        self._padded_size = UNPADDED
        if num_slices == 1:
            self.selections, self._padded_size = programs.padded(self.selections)

    def _rows_per_rank(self, bounds: list[int]) -> list[int]:
        """Return how many rows each rank computes on, which says what its values weigh.

        Of rows of a sliceable variable only its own rank knows how many there are.
        """
        context = self._context
        if self._programs.spec.inputs:
            return part_lengths(bounds)
        if not self.selections:
            return [1] * context.size
        start = perf_counter()
        rows = context.comm.agree(count(self.selections[0]))
        self._waited = perf_counter() - start
        return rows

    @property
    def rows(self) -> int:
        """How many rows this rank has."""
        return self.by_rank[self._context.rank]

    @property
    def is_idle(self) -> bool:
        """Whether other ranks have rows and this one has none."""
        return not self.rows and (any(self.by_rank) or not self._has_node_rows)

    def views(self) -> list[np.ndarray] | None:
        """Return the rows if each call finds them in the same memory."""
        for source, selection in zip(self.sources, self.selections, strict=True):
            if not isinstance(selection, slice) or not source[selection].flags.carray:
                return None
        return self._programs.take(self.sources, self.selections)

    def compute(
        self,
        subset: Subset,
        constants: list[np.ndarray],
        taken: list[np.ndarray] | None = None,
    ) -> list[np.ndarray] | None:
        """Compute outputs and make updates; return None if this rank has no rows.

        Parameters
        ----------
        subset : tuple of int
        constants : list of numpy.ndarray
        taken : list of numpy.ndarray, optional
            The rows, if they have been taken from the sources already.
        """
        context, programs = self._context, self._programs
        times, rows = programs.times, self.rows
        times.begin(self.start, rows, context.tracer)
        transaction = context.transaction
        transaction.begin_call(programs.led_on, self._selected)
        if self._waited:
            times.move(self._waited, ROWS, to=WAIT)
        if self._is_new(subset, constants):
            times.is_fresh = True
        if times.is_fresh:
            times.set_aside()
            self._note_sizes()
            if programs.notice is not None and compiles_in_calls(programs.spec.mode):
                programs.notice.begin()
        if times.is_fresh and programs.engine.PER_SHAPE:  # numba leaves garbage
            with without_collection():
                outputs = self._computed(subset, constants, taken)
        else:
            outputs = self._computed(subset, constants, taken)
        transaction.end_call()
        if programs.notice is not None:
            programs.notice.end()
        return outputs

    def _computed(
        self,
        subset: Subset,
        constants: list[np.ndarray],
        taken: list[np.ndarray] | None,
    ) -> list[np.ndarray] | None:
        """Compute, and count the times; see `compute`."""
        context, programs = self._context, self._programs
        times, transaction = programs.times, context.transaction
        outputs = None
        if self._streams:
            split(self._streams, context.rank)
        if not self.is_idle:
            try:
                outputs = running.run(
                    programs,
                    self._num_slices,
                    subset,
                    self.sources,
                    self.selections,
                    constants,
                    self._reducer,
                    self.by_rank,
                    taken,
                    times,
                    self._padded_size,
                    context.rank,
                    self._all_rows,
                    transaction,
                    self._kept,
                    block=self._block,
                )
            except BaseException:
                programs.takers.renew()  # JAX may be computing still
                raise
        elif self._has_node_rows and programs.takes_part(subset):
            running.idle(
                programs,
                subset,
                self.sources,
                constants,
                self._reducer,
                self.by_rank,
                times,
                self._all_rows,
                transaction,
            )
        else:
            times.end(COMMON)
        return outputs

    def _is_new(self, subset: Subset, constants: list) -> bool:
        """Tell whether some rank has to compile for the shapes that it has now."""
        programs = self._programs
        if not programs.engine.PER_SHAPE:
            return False
        kind = (
            self._num_slices,
            subset,
            tuple([source.shape[1:] for source in self.sources]),
            tuple([array.shape for array in constants]),
        )
        is_padded = programs.is_padded and self._num_slices == 1
        return programs.shapes_met.are_new(kind, self.by_rank, is_padded)

    def _note_sizes(self) -> None:
        """Take note of the bytes of a row; they are mostly those of all calls."""
        n = len(self._programs.spec.inputs)
        self._programs.times.row_bytes = sum(
            source.itemsize * int(np.prod(source.shape[1:], dtype=np.int64))
            for source in self.sources[:n]
        )

    def is_wanted(self, i: int) -> bool:
        """Tell whether the master needs this rank's value of an output."""
        # The first rank that has rows stands in for rank 0 where that is idle.
        stands_in = not any(self.by_rank[: self._context.rank])
        return stands_in or self._programs.spec.wire_ops[i] is not None


def _check_paired(
    spec: FunctionSpec, rank: int, selections: Sequence[Selection]
) -> None:
    """Raise unless a rank has equally many rows of all that the function pairs."""
    names = [str(var) for var in (*spec.inputs, *spec.sliceable)]
    rows = list(map(count, selections))
    if len(set(rows)) > 1:
        found = ", ".join(
            f"{many} of {name}" for name, many in zip(names, rows, strict=True)
        )
        raise ValueError(
            f"{spec.label} pairs the rows of its sliceable shared variables, and rank"
            f" {rank} has {found}; scatter them alike, or choose as many of each by"
            " batch_s"
        )


def _key(sources: Sequence, selections: Sequence[Selection]) -> tuple | None:
    """Return what tells a rank's rows from others, if terms of them are to be kept."""
    found = []
    for source, rows in zip(sources, selections, strict=False):
        if source[3] is not None:
            assert isinstance(rows, slice)
            found.append((source[3], rows.start, rows.stop))
    return tuple(found) or None
