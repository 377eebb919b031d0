"""What a rank does of a call: with rows, in one go or in slices; or without any."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from ..compiler.stages import Stage
from ..times.timing import COMMON, COMPUTE, ROWS
from .one_call import Call
from .slices import SlicedCall
from .task import Task


def run(task: Task) -> list[np.ndarray]:
    """Compute outputs and make updates, in one go or in slices."""
    if task.kind == "slice":
        return SlicedCall(task, "slice").run()
    call, programs, times = Call(task, task.kind), task.programs, task.times
    call.padded_size = task.padded_size
    if task.sources:
        call.rows = task.taken or programs.take(task.sources, task.selections)
        times.spent(ROWS)
    if task.kept is not None:
        part = call.cut.stages[0].kept
        compute = partial(call.outputs_of, part, padded=False)
        call.values.update(programs.kept_terms.of(part, task.kept, compute))
    programs.blocks.last = None
    blocks = _blocks(task, call)
    is_padded = bool(task.padded_size)
    for level, stage in enumerate(call.cut.stages):
        if blocks is None or not blocks(stage):
            padded = is_padded and stage.phase == COMPUTE
            call.run_part(stage.merged, padded=padded)
        call.reduce(stage, level)
    return call.finish()


def _blocks(task: Task, call: Call) -> Callable[[Stage], bool] | None:
    """Return what runs a stage in blocks of rows, where the plan has them."""
    programs, kind, subset = task.programs, task.kind, task.subset
    if not task.block or not programs.blocks.can_be or call.padded_size:
        return None
    is_whole = kind in ("uncut", "kept uncut")
    if is_whole and programs.cut("uncut", subset) is not programs.cut("step", subset):
        return None  # its values do not follow from those of rows
    kept = programs.kept(kind, subset)
    return partial(programs.blocks.run, call, kept=kept, size=task.block)


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
