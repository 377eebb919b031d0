"""Machine code of all parts of a call, made before the first call where it can be.

Parts are gone through in the order of a call: what one returns, the next receives.
"""

from __future__ import annotations

from typing import Any

from pytensor.graph.basic import Variable

from ..engines.machine_code import array_type, make_ahead
from .programs import CallKind, Programs, Subset, parts_of


def make_machine_code(programs: Programs, kind: CallKind, subset: Subset) -> None:
    """Make the machine code for one kind of call, whose parts are compiled."""
    inputs = [array_type(var) for var in programs.spec.all_inputs]
    known: dict[Variable, Any] = {}
    for stage in programs.cut(kind, subset).stages:
        for piece in parts_of(kind, stage):
            received = [known.get(var) for var in piece.receives]
            made = make_ahead(programs.program(piece), [*inputs, *received])
            known.update(zip(piece.wants, made, strict=False))
        known.update({var: array_type(var) for var in stage.reduced})
