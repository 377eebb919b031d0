"""Many calls of a function in one launch: `Function.run`.

The master launches the ranks with a list of batches. Each rank goes through them by
itself: a call waits for the other ranks where the graph reduces something, or else at
its end if it makes updates. It keeps the outputs of all calls, and the master combines
them when all are done.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..compiler.spec import FunctionSpec
from ..memory.arena import Arena
from ..memory.partition import count, cuts, part_lengths, select, spans
from ..memory.prefetch import Ahead
from ..programs.programs import Subset, kind_of_call
from ..ranks.context import RankContext
from ..ranks.streams import worker_states
from ..variables.data import Data
from ..workers.recorder import COMPUTING
from .inputs import check_shared_rows
from .outputs import own_copy, reduce_output
from .rows import Source, arrays_of, describe_selection, gather_rows, windows_of
from .share import Share
from .spent import Spent, Watch


class Call(NamedTuple):
    """One call of a run: its rows, their cut into parts, and `batch_s`.

    To ranks 1 and up a slice travels as (start, stop), an index array as a window. On
    other nodes rows may lie elsewhere in each call; it has `sources` of its own then.
    """

    selection: Any
    bounds: list[int]
    batch_s: list | None
    sources: list | None = None


class Plan:
    """A run as the master prepares it: arguments checked once, batches one by one.

    Parameters
    ----------
    spec : FunctionSpec
    values : list
        The arguments, scattered inputs first.
    constants : list of numpy.ndarray
        The broadcast inputs, checked.
    batch_s : optional
        As in a call; the same for all calls.
    size : int
        The number of ranks.
    stage : Arena
        Where arrays are copied to that are to be described to other ranks.

    Raises
    ------
    TypeError, ValueError
        If an argument does not fit.
    """

    def __init__(
        self,
        spec: FunctionSpec,
        values: list,
        constants: list[np.ndarray],
        batch_s: Any,
        size: int,
        stage: Arena,
    ) -> None:
        n = len(spec.inputs)
        if any(isinstance(v, Data) and v.minibatch for v in values[:n]):
            raise ValueError(
                "minibatch data holds the rows of one call: a run has many"
            )
        self._spec, self._size, self._stage, self._values = spec, size, stage, values
        whole = gather_rows(spec.inputs, values[:n], None, size, spec.options)
        self._length = whole.total
        self.constants = constants
        self.sources = [tuple(source) for source in whole.sources]
        self._batch_s = check_shared_rows(batch_s, spec.sliceable, size)
        self.is_partial = any(
            isinstance(value, Data) and value._lending.is_partial
            for value in values[:n]
        )

    def call(self, batch: Any) -> Call:
        """Check one batch: of the scattered inputs or, without any, of shared rows."""
        spec, size = self._spec, self._size
        if spec.inputs:
            selection = select(batch, self._length)
            return Call(selection, cuts(count(selection), size), self._batch_s)
        batch_s = self._batch_s
        if batch is not None:
            batch_s = check_shared_rows(batch, spec.sliceable, size)
        return Call(slice(0, 0), [0] * (size + 1), batch_s)

    def describe(self, calls: Sequence[Call]) -> tuple[list, list, list]:
        """Describe calls, sources and broadcast inputs to ranks 1 and up.

        `Data` is described where it lies; other arrays are copied to the stage.
        """
        if self._size == 1:
            return list(calls), self.sources, self.constants
        arrays = arrays_of(self.sources, self.constants)
        copies = [
            array
            for array, value in zip(arrays, self._values, strict=True)
            if not isinstance(value, Data)
        ]
        copies += [c.selection for c in calls if isinstance(c.selection, np.ndarray)]
        staged = iter(self._stage.put(copies) if copies else self._stage.put_nothing())
        windows = windows_of(self._values, staged)
        described = [
            call._replace(selection=describe_selection(call.selection, staged))
            for call in calls
        ]
        n = len(self.sources)
        sources = [tuple(Source(window, 0, False)) for window in windows[:n]]
        return described, sources, windows[n:]


class RunReply(NamedTuple):
    """What one rank's share of all calls of a launch has come to.

    Attributes
    ----------
    made : dict
        What the master needs of this rank: by position of the output the values of the
        calls, stacked (the master's own as a list), or by output and call where shapes
        differ.
    rows_by_call : list of list of int
        The rows of each rank in every call; from rank 0 alone.
    spent : Spent
        Where its time has gone.
    """

    made: dict
    rows_by_call: list[list[int]]
    spent: Spent


def worker_run(
    context: RankContext,
    launch: int,
    number: int,
    subset: Subset,
    calls: Sequence[Call],
    sources: list,
    constants: list,
    num_slices: int,
    states: list,
    workers: int | None,
    block: int,
    progress: Callable[[], object] | None,
) -> RunReply:
    """Do one rank's share of every call.

    The master gets arrays, the other ranks windows. Each call is a step of the rank as
    one of `workers` of a training rule, if there are any; `block` is of its plan.
    """
    context.transaction.begin(launch)
    programs = context.registry.functions[number]
    context.activity = programs.label
    worker_states(programs.streams(kind_of_call(num_slices, context.size)), states)
    if programs.engine.ON_DEVICE:
        programs.takers.use(context.to_device)
    constants = programs.takers.broadcast(list(map(context.array, constants)))
    cut = programs.cut(kind_of_call(num_slices, context.size), subset)
    meets = cut.meets or not programs.spec.updates or context.size == 1
    worker = None if workers is None else context.workers[workers]
    of_node = worker is not None and worker.is_node
    made: dict[int, list] = {i: [] for i in subset}
    rows_by_call = []
    watch = Watch(programs.times)
    shares = (
        Share(
            context,
            programs,
            (call.selection, call.bounds, call.sources or sources),
            call.batch_s,
            num_slices,
            of_node,
            block,
        )
        for call in calls
    )
    # A thread that takes rows ahead needs a core, or a GPU that copies them, and rows
    # that are there already.
    has_help = context.place.threads > 1 or programs.takers.are_on_device
    is_ahead = has_help and num_slices == 1 and not programs.spec.sliceable
    with contextlib.ExitStack() as stack:
        if worker is not None:
            programs.exchanges = worker.times
            worker.times.label, worker.times.tracer = programs.label, context.tracer
            stack.enter_context(worker.running())
        through: Iterable[tuple[Share, list | None]]
        if is_ahead:
            ahead = stack.enter_context(Ahead(programs.takers.rows))
            through = ahead.through(shares)
        else:
            through = ((share, None) for share in shares)
        for (share, taken), call in zip(through, calls, strict=True):
            context.recorder.phase[0] = COMPUTING
            outputs = share.compute(subset, constants, taken)
            by_rank = share.by_rank
            if of_node:  # of other machines, too
                by_rank = part_lengths(call.bounds)
            rows_by_call.append(by_rank)
            given = itertools.repeat(None) if outputs is None else outputs
            for i, output in zip(subset, given, strict=False):
                made[i].append(output if share.is_wanted(i) else None)
            if worker is not None:
                context.transaction.have_met()  # what fails from now on is not undone
                worker.after_step(by_rank)
            elif not meets:  # which keeps ranks one call apart: see `transaction`
                context.comm.barrier()
                context.transaction.have_met()
            watch.call_ended()
            if progress is not None:
                progress()
    spent = watch.told(context.rank)
    if context.rank == 0:
        return RunReply(made, rows_by_call, spent)
    return RunReply(context.leave(_packed(made)), [], spent)


def _packed(made: dict[Any, list]) -> dict[Any, np.ndarray]:
    """Stack the values of each output, where they are all there and of one shape."""
    packed = {}
    for i, values in made.items():
        if _are_alike(values):
            packed[i] = np.stack(values)
        else:
            for k, value in enumerate(values):
                if value is not None:
                    packed[i, k] = value
    return packed


def combine_runs(
    spec: FunctionSpec,
    subset: Subset,
    replies: Sequence[RunReply],
    context: RankContext,
    what: object,
    of_nodes: bool,
) -> list[list[np.ndarray]]:
    """Return for each output its values in all calls of a launch.

    Parameters
    ----------
    spec : FunctionSpec
    subset : tuple of int
    replies : sequence
        What `worker_run` has returned on each rank.
    context : RankContext
    what : object
        What was called, for messages.
    of_nodes : bool
        Whether the ranks of each machine have made calls of their own.
    """
    rows_by_call = replies[0].rows_by_call
    made = [replies[0].made]
    for reply in replies[1:]:
        windows = reply.made.items()
        made.append({key: context.array(window) for key, window in windows})

    def value(rank: int, i: int, k: int) -> np.ndarray:
        of_rank = made[rank]
        return of_rank[i][k] if i in of_rank else of_rank[i, k]

    present_by_call = [
        [rank for rank, rows in enumerate(by_rank) if rows or not any(by_rank)]
        for by_rank in rows_by_call
    ]
    results: list[list[np.ndarray]] = []
    for i in subset:
        op = spec.wire_ops[i]
        of_machines = of_nodes and op is None and context.comm is not context.local
        if of_machines:
            op = spec.output_ops[i]
        of_output = []
        for k, present in enumerate(present_by_call):
            by_rank = rows_by_call[k]
            if of_machines and any(by_rank):  # on each it was reduced already
                present, by_rank = _of_machines(context, by_rank)
            if op is None:
                own = value(present[0], i, k)
                of_output.append(own_copy(own) if present[0] else own)
                continue
            values = [value(rank, i, k) for rank in present]
            weights = [by_rank[rank] for rank in present]
            of_output.append(reduce_output(spec, i, op, values, weights, what))
        results.append(of_output)
    return results


def _of_machines(
    context: RankContext, by_rank: list[int]
) -> tuple[list[int], list[int]]:
    """Return who stands for machines that have rows, and by rank how many these are."""
    found, rows = [], [0] * len(by_rank)
    for start, stop in spans(context.comm.ranks):
        first = next((rank for rank in range(start, stop) if by_rank[rank]), None)
        if first is not None:
            found.append(first)
            rows[first] = sum(by_rank[start:stop])
    return found, rows


def stacked(values: list) -> Any:
    """Return the values of all calls as one array, or as they are if shapes differ.

    And as they are if they are no arrays, but sparse matrices, for example.
    """
    return np.stack(values) if _are_alike(values) else values


def _are_alike(values: Sequence) -> bool:
    """Tell whether values are arrays, all of one shape."""
    shapes = {value.shape if hasattr(value, "__array__") else None for value in values}
    return len(shapes) == 1 and None not in shapes
