"""Where the ranks meet in a call of a function."""

from __future__ import annotations

import synk
from synk.compiler.stages import cut


def levels(f: synk.Function) -> list[list[str]]:
    """Return by what ops each stage of a function combines values."""
    stages = cut(f._spec, range(len(f._spec.outputs)), in_slices=False).stages
    return [
        sorted(var.owner.op.op for var in stage.reduced)
        for stage in stages
        if stage.reduced
    ]
