"""`worker_call`: the command by which each rank makes its share of a call.

A rank takes its rows, computes, makes its updates, and leaves its outputs in shared
memory for the master.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np
from pytensor.compile import SharedVariable

from ..compiler.spec import FunctionSpec
from ..engines import compiles_in_calls
from ..memory.partition import Selection, count, part_lengths, select
from ..programs import running
from ..programs.one_call import Reducer, Task
from ..programs.padding import rows_computed
from ..ranks.context import RankContext
from ..ranks.streams import split, worker_states
from ..reduce_tree import TreeOutput, block_cut
from ..signals import without_collection
from ..times.timing import COMMON, ROWS, WAIT
from ..workers.control import LAUNCH
from .arguments import rows_of_node, take_all, take_share


def worker_call(
    context: RankContext,
    message: tuple,
    given: list[np.ndarray] | None = None,
    constants: list[np.ndarray] | None = None,
) -> Any:
    """Do one rank's share of a call; return its reply, or None without rows.

    For `message` see `RankShare`, for the reply `outputs`. If the message is the last
    call's object, the rank uses its share again. The master alone gets arrays: `given`
    are those that rows are taken from, `constants` the broadcast inputs.
    """
    context.transaction.begin(context.control.words[LAUNCH])
    share, context.share = context.share, None  # stays None after an error
    if share is None or share.message is not message:
        share = RankShare(context, message)
    else:
        share.begin_again()
    if given is not None:
        share.set_arrays(given, constants)
    reply = share.reply(share.compute())
    if share.can_repeat:
        context.share = share
    return reply


def timed(
    context: RankContext,
    task: Task,
    start: float,
    run: Callable[[], Any],
    is_padded: bool = False,
) -> Any:
    """Return ``run()``, and add to the function's times from `start` on.

    If some rank compiles during the call, its times are set aside.
    """
    programs, times = task.programs, task.times
    times.begin(start, task.weights[task.rank], context.tracer)
    is_per_shape = programs.engine.PER_SHAPE
    is_new = is_per_shape and _needs_compilation(task, is_padded)
    if not is_new and not times.is_fresh:
        return run()
    times.is_fresh = True
    times.set_aside()
    # Taken once, as most calls have rows of the same size.
    times.row_bytes = sum(
        source.itemsize * int(np.prod(source.shape[1:], dtype=np.int64))
        for source in task.sources[: len(programs.spec.inputs)]
    )
    if programs.notice is not None and compiles_in_calls(programs.spec.mode):
        programs.notice.begin()
    # Numba leaves garbage.
    with without_collection() if is_per_shape else contextlib.nullcontext():
        outputs = run()
    if programs.notice is not None:
        programs.notice.end()
    return outputs


def _needs_compilation(task: Task, is_padded: bool) -> bool:
    """Return whether some rank has to compile for the shapes of this call.

    It keeps the others waiting. So every rank records the rows of all, and all leave
    the same calls out of their times.
    """
    kind = (
        task.kind,
        task.num_slices,
        task.subset,
        tuple([source.shape[1:] for source in task.sources]),
        tuple([np.shape(value) for value in task.constants]),
    )
    met = task.programs.rows_met.setdefault(kind, [[] for _ in task.weights])
    before = sum(map(len, met))
    for known, rows in zip(met, task.weights, strict=True):
        if is_padded and rows:
            rows_computed(known, rows)
        elif rows not in known:
            known.append(rows)
    return sum(map(len, met)) > before


class RankShare:
    """One rank's share of a call by all ranks, which it may make many times.

    `message` describes the call, or one call of a run: the job (number of the function,
    subset of outputs, `CallKind`, `num_slices`, rows of a block); `CallRows`; broadcast
    inputs; states of common random streams. Arrays are windows, and left out in the
    master's message: see `set_arrays`. With `of_node` the ranks of each machine make a
    call of their own, on their machine's rows.
    """

    def __init__(
        self, context: RankContext, message: tuple, of_node: bool = False
    ) -> None:
        self.start = perf_counter()
        job, rows, constants, states = message
        number, subset, kind, num_slices, block = job
        programs = context.functions[number]
        context.activity = programs.label
        self.message, self._context, self._programs = message, context, programs
        self._has_node_rows = True
        reducer: Reducer = context.flat_buffers
        if programs.engine.ON_DEVICE:
            programs.loader.use(context.to_device)
            reducer = context.device_buffers or reducer
        if of_node and context.comm is not context.local:
            reducer, rows = context.buffers_of_node, rows_of_node(context, rows)
            self._has_node_rows = rows[1][-1] > rows[1][0]
        sources, selections = take_share(context.rank, context.array, rows)
        kept = _key(rows[2], selections)
        self._selected = self._select_shared(rows[3], sources, selections)
        self._streams = programs.streams(kind)
        if states:
            worker_states(self._streams, states)
        self._waited = 0.0
        self.by_rank = self._rows_per_rank(rows[1], selections)
        computed = programs, kind, subset, sources, selections
        how = reducer, self.by_rank, context.rank, num_slices
        self.task = task = Task(*computed, [], *how)
        self._has_blocks = block > 0
        if block and not of_node:
            task.tree = block_cut(tuple(rows[1]), block)
        # Not a method of this object: that would be a cycle, which holds all rows until
        # garbage is collected.
        task.all_rows = partial(take_all, context.array, rows)
        task.transaction = context.transaction
        task.kept, task.times = kept, programs.times
        self._is_padded = programs.is_padded and num_slices == 1
        if self._is_padded:
            task.selections, task.padded_size = programs.padded(selections)
        if constants:
            located = list(map(context.array, constants))
            task.constants = programs.loader.broadcast(located)
        self._rows = self.by_rank[context.rank]
        # Whether this rank has no rows, and others have some.
        self._is_idle = not self._rows and (
            any(self.by_rank) or not self._has_node_rows
        )
        # Whether all but the values of arrays follows from the message.
        self.can_repeat = not (
            states
            or programs.spec.sliceable
            or programs.is_padded
            or programs.engine.ON_DEVICE
            or self._is_idle
        )

    def _select_shared(
        self, batch_s: list | None, sources: list, selections: list[Selection]
    ) -> dict[SharedVariable, Selection]:
        """Append sliceable variables to the arrays and selections of the inputs.

        Return the selection of each.
        """
        rank, programs = self._context.rank, self._programs
        selected = {}
        for var in programs.spec.sliceable:  # each stands in for a further input
            value = programs.engine.get_value(var)
            chosen = None if batch_s is None else batch_s[rank]
            sources.append(value)
            selected[var] = select(chosen, len(value))
        selections += selected.values()
        if programs.spec.are_paired and self._context.size > 1:
            _check_paired(programs.spec, rank, selections)
        return selected

    def _rows_per_rank(
        self, bounds: list[int], selections: Sequence[Selection]
    ) -> list[int]:
        """Return the number of rows of each rank: the weights of the ranks' values.

        Ranks exchange these numbers if all rows are of sliceable variables.
        """
        context = self._context
        if self._programs.spec.inputs:
            return part_lengths(bounds)
        if not selections:
            return [1] * context.size
        start = perf_counter()
        rows = context.comm.agree(count(selections[0]))
        self._waited = perf_counter() - start
        return rows

    def begin_again(self) -> None:
        """Begin a call with the same message; arrays may hold other values."""
        self.start = perf_counter()
        self._context.activity = self._programs.label

    def set_arrays(
        self, sources: list[np.ndarray], constants: list[np.ndarray] | None
    ) -> None:
        """Set the master's arrays, which its message leaves out, for one call."""
        if sources:
            self.task.sources[: len(sources)] = sources
        if constants:
            self.task.constants = self._programs.loader.broadcast(constants)

    def compute(self) -> list[np.ndarray] | None:
        """Compute outputs and make updates, undone if the call fails.

        Return the outputs, in the order of the subset; None without rows.
        """
        context, task = self._context, self.task
        context.transaction.begin_call(self._programs.streams_used, self._selected)
        if self._waited:
            task.times.move(self._waited, ROWS, to=WAIT)
        return timed(context, task, self.start, self._run, self._is_padded)

    def _run(self) -> list[np.ndarray] | None:
        programs, outputs = self._programs, None
        self._context.confinement.compute_with(one_thread=self._has_blocks)
        if self._streams:
            split(self._streams, self._context.rank)
        if not self._is_idle:
            self._context.task = self.task
            try:
                outputs = running.run(self.task)
            except BaseException:
                programs.loader.renew()  # JAX may still read the loader's memory
                raise
            finally:
                self._context.task = None
        elif self._has_node_rows and programs.takes_part(self.task.subset):
            running.idle(self.task)
        else:
            self.task.times.end(COMMON)
        self._context.transaction.end_call()
        return outputs

    def reply(self, outputs: list[np.ndarray] | None) -> Any:
        """Leave outputs for the master; return this rank's reply, see `outputs`."""
        if outputs is None:
            return None
        if not self._context.rank:
            task = self.task  # drop the references to the script's arrays
            if task.sources:
                task.sources[:] = [None] * len(task.sources)
            task.constants = []
            return outputs, self._rows
        return self._context.publish(self.for_master(outputs)), self._rows

    def for_master(self, outputs: list[np.ndarray]) -> dict[Any, np.ndarray]:
        """Return the outputs that the master needs, by position or `TreeOutput.key`."""
        # If rank 0 has no rows, the first rank that has some stands in for it.
        stands_in = not any(self.by_rank[: self._context.rank])
        ops, needed = self._programs.spec.wire_ops, dict[Any, np.ndarray]()
        for i, output in zip(self.task.subset, outputs, strict=True):
            if type(output) is TreeOutput:
                needed[output.key] = output.subtrees.entries
            elif stands_in or ops[i] is not None:
                needed[i] = output
        return needed


def _check_paired(
    spec: FunctionSpec, rank: int, selections: Sequence[Selection]
) -> None:
    """Raise unless a rank has as many rows of every row input; the graph pairs them."""
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
    """Return the key of a rank's rows, by which terms are kept; None: keep nothing."""
    found = []
    for source, rows in zip(sources, selections, strict=False):
        if source[3] is not None:
            assert isinstance(rows, slice)
            found.append((source[3], rows.start, rows.stop))
    return tuple(found) or None
