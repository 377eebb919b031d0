"""What a rank does of a call: with rows, in one go or by parts; or without any."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from ..compiler.kept import Kept
from ..times.timing import COMMON, COMPUTE, ROWS
from .blocks import kept_in_blocks
from .one_call import Call
from .slices import SlicedCall
from .task import Task


def run(task: Task) -> list[Any]:
    """Compute outputs and make updates, in one go, in blocks or in slices.

    Returns
    -------
    list of numpy.ndarray or TreeOutput
    """
    if task.kind == "slice":
        return SlicedCall(task, "slice").run()
    call, programs, times = Call(task, task.kind), task.programs, task.times
    call.padded_size = task.padded_size
    if task.sources:
        call.rows = task.taken or programs.take(task.sources, task.selections)
        times.spent(ROWS)
    kept = programs.kept(task.kind, task.subset)
    block = _block(task, call, kept)
    if kept is not None:
        _take_kept(task, call, kept, block)
    programs.blocks.last = None
    is_padded = bool(task.padded_size)
    for level, stage in enumerate(call.cut.stages):
        made = None
        call.run_part(stage.drawn)
        if block and stage.merged and stage.phase == COMPUTE:
            made = programs.blocks.run(call, level, kept, block, task.tree)
        if made is None:
            padded = is_padded and stage.phase == COMPUTE
            call.run_part(stage.merged, padded=padded)
        else:
            call.take(made)
        call.reduce(stage, level)
    return call.finish()


def _block(task: Task, call: Call, kept: Kept | None) -> int:
    """Return the rows of a block; 0 if a rank's rows are gone through in one go."""
    if call.padded_size or not call.rows or len(call.rows[0]) <= task.block:
        return 0 if task.tree is None else task.block
    if task.tree is None and task.programs.blocks.are_apart(call.cut, kept):
        return 0  # blocks are not those of all ranks
    return task.block


def _take_kept(task: Task, call: Call, kept: Kept, block: int) -> None:
    """Take what follows from the rows alone, computed as all else is or kept."""
    compute = partial(call.outputs_of, kept, padded=False)
    if block:
        compute = partial(kept_in_blocks, call, kept, block)
    key = None if task.kept is None else (block, *task.kept)
    for var, value in task.programs.kept_terms.of(kept, key, compute).items():
        by_block = block and var not in kept.rows
        (call.by_block if by_block else call.values)[var] = value


def idle(task: Task) -> None:
    """Take part in a call without rows."""
    call = Call(task, "idle")
    # No row enters the common parts.
    call.rows = [
        np.empty((0, *source.shape[1:]), var.type.dtype)
        for source, var in zip(task.sources, task.programs.spec.row_inputs, strict=True)
    ]
    for level, stage in enumerate(call.cut.stages):
        call.run_part(stage.common)
        call.reduce(stage, level)
    call.store()
    task.times.end(COMMON, level)
