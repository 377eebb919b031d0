"""What a rank does of a call: with rows, in one go or in slices; or without any."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from ..compiler.stages import Stage
from ..memory.partition import Selection
from ..times.timing import COMMON, COMPUTE, ROWS, UNCOUNTED, Times
from .kept import Key
from .one_call import Call, Reducer
from .padding import UNPADDED, PaddedSize
from .programs import CallKind, Programs, Subset, kind_of_call
from .slices import SlicedCall
from .transaction import Transaction


def run(
    programs: Programs,
    num_slices: int,
    subset: Subset,
    sources: Sequence[np.ndarray],
    selections: Sequence[Selection],
    constants: Sequence[np.ndarray],
    reducer: Reducer,
    weights: Sequence[int],
    taken: list[np.ndarray] | None = None,
    times: Times = UNCOUNTED,
    padded_size: PaddedSize = UNPADDED,
    rank: int = 0,
    all_rows: Callable[[int], np.ndarray] | None = None,
    transaction: Transaction | None = None,
    kept: Key | None = None,
    kind: CallKind | None = None,
    block: int = 0,
) -> list[np.ndarray]:
    """Compute outputs and make updates, in one go or in slices.

    Parameters
    ----------
    programs : Programs
    num_slices : int
    subset : tuple of int
    sources : sequence of numpy.ndarray
        For each row input, the array that its rows are taken from.
    selections : sequence of Selection
        For each row input, which rows.
    constants : sequence of numpy.ndarray
        The broadcast inputs.
    reducer : Reducer
    weights : sequence of float
        The rows of each rank.
    taken : list of numpy.ndarray, optional
        The rows, if they have been taken already; in one go only.
    times : Times, optional
        Where to count the time that it takes.
    padded_size : PaddedSize, optional
        If the selections are padded. Slices are padded here.
    rank : int
        Whose share it is.
    all_rows : callable, optional
        Returns all rows of the call, of an input by its number. Without it ranks gather
        the rows of inputs as they do others.
    transaction : Transaction, optional
        In a call. On one rank, what is run in one go makes its updates itself.
    kept : tuple, optional
        Tells these rows from others, if what follows from them alone is to be kept.
    kind : str, optional
        What is run, in one go, if it does not follow from the number of ranks.
    block : int
        Rows of a block, where parts are run for one after the other; 0: in one go.
    """
    whose = rank, all_rows, transaction
    if num_slices > 1:
        sliced = SlicedCall(
            programs, "slice", subset, constants, reducer, weights, times, *whose
        )
        return sliced.run(num_slices, sources, selections)
    if kind is None:
        kind = kind_of_call(num_slices, len(weights), kept is not None)
    call = Call(programs, kind, subset, constants, reducer, weights, times, *whose)
    call.padded_size = padded_size
    if sources:
        call.rows = programs.take(sources, selections) if taken is None else taken
        times.spent(ROWS)
    if kept is not None:
        part = call.cut.stages[0].kept
        run = partial(call.outputs_of, part, padded=False)
        call.values.update(programs.kept_terms.of(part, kept, run))
    programs.blocks.last = None
    blocks = _blocks(programs, kind, subset, call, block)
    is_padded = bool(padded_size)
    for level, stage in enumerate(call.cut.stages):
        if blocks is None or not blocks(stage):
            padded = is_padded and stage.phase == COMPUTE
            call.run_part(stage.merged, padded=padded)
        call.reduce(stage, level)
    return call.finish()


def _blocks(
    programs: Programs, kind: CallKind, subset: Subset, call: Call, block: int
) -> Callable[[Stage], bool] | None:
    """Return what runs a stage in blocks of rows, where the plan has them."""
    if not block or not programs.blocks.can_be or call.padded_size:
        return None
    is_whole = kind in ("uncut", "kept uncut")
    if is_whole and programs.cut("uncut", subset) is not programs.cut("step", subset):
        return None  # its values do not follow from those of rows
    kept = programs.kept(kind, subset)
    return partial(programs.blocks.run, call, kept=kept, size=block)


def idle(
    programs: Programs,
    subset: Subset,
    sources: Sequence[np.ndarray],
    constants: Sequence[np.ndarray],
    reducer: Reducer,
    weights: Sequence[int],
    times: Times,
    all_rows: Callable[[int], np.ndarray] | None = None,
    transaction: Transaction | None = None,
) -> None:
    """Take part in a call without rows."""
    shared = constants, reducer, weights, times
    call = Call(programs, "idle", subset, *shared, 0, all_rows, transaction)
    # No row enters the common parts.
    call.rows = [
        np.empty((0, *source.shape[1:]), var.type.dtype)
        for source, var in zip(sources, programs.spec.row_inputs, strict=True)
    ]
    for level, stage in enumerate(call.cut.stages):
        call.run_part(stage.common)
        call.reduce(stage, level)
    call.store()
    times.end(COMMON, level)
