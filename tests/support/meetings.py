"""Where the ranks meet in a call of a function."""

from __future__ import annotations

import synk


def levels(f: synk.Function) -> list[list[str]]:
    """Return by what ops each stage of a function combines values."""
    stages = f.explain().to_dict()["stages"]
    return [
        sorted(value["op"] for value in stage["reduces"])
        for stage in stages
        if stage["reduces"]
    ]
