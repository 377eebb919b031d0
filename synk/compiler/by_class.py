"""Tables by classes of Ops, whose entries hold for what is derived from these, too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from pytensor.graph.op import Op

Entry = TypeVar("Entry")


def entry_for(op: Op, table: Mapping[type, Entry]) -> Entry | None:
    """Return the entry for an Op's class, or for the nearest class that it is from."""
    for cls in type(op).__mro__:
        if cls in table:
            return table[cls]
    return None
