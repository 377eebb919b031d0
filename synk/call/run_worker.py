"""Many calls of a function in one launch: each rank's side of `Function.run`.

The master launches the ranks with a list of calls. Each rank makes them one after the
other, and meets the other ranks where the graph reduces something, or else at the end
of a call with updates. It keeps all outputs; at the end the master combines them.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from ..compiler.spec import FunctionSpec
from ..memory.loading import loaded_ahead
from ..memory.partition import part_lengths, spans
from ..programs.programs import Subset
from ..ranks.context import RankContext
from ..ranks.streams import worker_states
from ..workers.recorder import COMPUTING
from .call_worker import RankShare
from .outputs import IN_FIRST, combine_outputs


class Spent(NamedTuple):
    """The time that one rank's share of a launch took; by ``perf_counter``."""

    phases: list[float]
    """Seconds by phase, see `times.timing.PHASES`, without calls that compiled."""
    began: float
    ended: list[float]
    """When each call ended; from workers only of the last call."""


class RunReply(NamedTuple):
    """A rank's reply to a launch of several calls."""

    made: Any
    """From the master a list with the outputs of each call, or None without rows. From
    a worker a dict of windows, of the outputs that the master needs: {(output, None):
    values of all calls, stacked}, or {(output, call): value} if shapes differ."""
    rows_by_call: list[list[int]]
    """The rows of each rank in every call; from rank 0 alone."""
    spent: Spent


def worker_run(
    context: RankContext, message: tuple, progress: Callable[[], object] | None
) -> RunReply:
    """Do one rank's share of every call; call `progress` after each.

    `message` is as for `RankShare`, but with a list of `CallRows`. It ends with the
    number of the launch and, if calls are steps of a training rule, the number of its
    workers, or None. In the master's message there are arrays in place of windows.
    """
    job, calls, constants, states, launch, workers = message
    number, subset, kind, num_slices, _ = job
    context.transaction.begin(launch)
    programs = context.functions[number]
    worker_states(programs.streams(kind), states)
    if programs.engine.ON_DEVICE:
        programs.loader.use(context.to_device)
    constants = programs.loader.broadcast(list(map(context.array, constants)))
    worker = None if workers is None else context.workers[workers]
    of_node = worker is not None and worker.is_node

    def share_of(rows: tuple) -> RankShare:
        share = RankShare(context, (job, rows, (), ()), of_node)
        share.task.constants = constants
        return share

    made: list[Any] = []
    rows_by_call: list[list[int]] = []
    before, began, ended = programs.times.so_far(), perf_counter(), list[float]()
    meets = programs.cut(kind, subset).meets or not programs.spec.updates
    # A thread that loads the rows of the next call needs a core of its own, or a GPU
    # that copies them. Rows of sliceable variables may change in the call.
    has_help = context.place.threads > 1 or programs.loader.are_on_device
    with contextlib.ExitStack() as stack:
        if worker is not None:
            programs.exchanges = worker.times
            worker.times.label, worker.times.tracer = programs.label, context.tracer
            stack.enter_context(worker.running())
        through: Iterable[tuple[RankShare, list | None]]
        if has_help and num_slices == 1 and not programs.spec.sliceable:
            ahead = loaded_ahead(programs.loader.rows, map(share_of, calls))
            through = stack.enter_context(contextlib.closing(ahead))
        else:
            through = ((share_of(call), None) for call in calls)
        for (share, taken), (_, bounds, *_) in zip(through, calls, strict=True):
            share.task.taken = taken
            context.recorder.phase[0] = COMPUTING
            outputs = share.compute()
            if outputs is not None and context.rank:
                made.append(share.for_master(outputs))
            else:
                made.append(outputs)
            # With `of_node`, `by_rank` has no rows of other machines.
            rows_by_call.append(part_lengths(bounds) if of_node else share.by_rank)
            if worker is not None:
                context.transaction.note_met()  # the step stays, whatever fails next
                worker.after_step(rows_by_call[-1])
            elif not meets and context.size > 1:  # stay one call apart: `transaction`
                context.comm.barrier()
                context.transaction.note_met()
            ended.append(perf_counter())
            if progress is not None:
                progress()
    phases = programs.times.since(before)
    if context.rank == 0:
        return RunReply(made, rows_by_call, Spent(phases, began, ended))
    spent = Spent(phases, began, ended[-1:])
    return RunReply(context.publish(_packed(made)), [], spent)


def _packed(made: Sequence[dict | None]) -> dict[Any, np.ndarray]:
    """Return the outputs of all calls for the reply; see `RunReply.made`."""
    packed: dict[Any, np.ndarray] = {}
    for key in dict.fromkeys(itertools.chain.from_iterable(filter(None, made))):
        values: list[Any] = [each and each.get(key) for each in made]
        if _are_of_one_shape(values):
            packed[key, None] = np.stack(values)
        else:
            for k, value in enumerate(values):
                if value is not None:
                    packed[key, k] = value
    return packed


def _unpacked(packed: dict, calls: int) -> list[dict]:
    """Return the outputs of each call from those that `_packed` has returned."""
    found: list[dict] = [{} for _ in range(calls)]
    for (key, k), value in packed.items():
        if k is not None:
            found[k][key] = value
            continue
        for of_call, each in zip(found, value, strict=True):
            of_call[key] = each
    return found


def combine_runs(
    spec: FunctionSpec,
    subset: Subset,
    replies: Sequence[RunReply],
    context: RankContext,
    what: object,
    of_nodes: bool,
) -> list[list[np.ndarray]]:
    """Combine the ranks' outputs; return for each output its values in all calls.

    With `of_nodes` the ranks of each machine have made calls of their own.
    """
    ops, reduced = list(spec.wire_ops), list[int]()
    if of_nodes and context.comm is not context.local:
        # Each machine has reduced these among its own ranks only.
        reduced = [i for i in subset if spec.wire_ops[i] is None]
        for i in reduced:
            ops[i] = spec.output_ops[i]
    results: list[list[np.ndarray]] = [[] for _ in subset]
    for of_call in _by_call(replies, context, reduced):
        combined = combine_outputs(spec, subset, of_call, context, what, ops)
        for of_output, value in zip(results, combined, strict=True):
            of_output.append(value)
    return results


def _by_call(
    replies: Sequence[RunReply], context: RankContext, reduced: Sequence[int]
) -> Iterator[list[tuple | None]]:
    """Yield the replies of all ranks to each call, in the form of `outputs`."""
    own, rows_by_call, _ = replies[0]
    others = []
    for reply in replies[1:]:
        arrays = {key: context.array(window) for key, window in reply.made.items()}
        others.append(_unpacked(arrays, len(rows_by_call)))
    starts: list[int] = []  # the first rank of each rank's machine, if `reduced`
    for start, stop in spans(context.comm.ranks) if reduced else ():
        starts += [start] * (stop - start)
    for k, by_rank in enumerate(rows_by_call):
        has_rows = any(by_rank)
        found: list[tuple | None] = []
        for rank, rows in enumerate(by_rank):
            if has_rows and not rows:
                found.append(None)
            elif rank == 0:
                found.append((own[k], rows))
            else:
                outputs = others[rank - 1][k]
                if reduced and any(by_rank[starts[rank] : rank]):
                    # They count with the first rank of the machine that has rows.
                    outputs |= dict.fromkeys(reduced, IN_FIRST)
                found.append((outputs, rows))
        yield found


def stacked(values: list) -> Any:
    """Return values as one array; as a list if shapes differ, or they are no arrays."""
    return np.stack(values) if _are_of_one_shape(values) else values


def _are_of_one_shape(values: Sequence) -> bool:
    """Return whether all values are arrays of one shape."""
    shapes = {value.shape if hasattr(value, "__array__") else None for value in values}
    return len(shapes) == 1 and None not in shapes
