"""Indices in JAX mode: one that is out of range is an error, as it is elsewhere.

XLA takes the nearest element in its place, and says nothing. So a graph returns one
value more, from which each call sees whether all indices were in range.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.traversal import io_toposort
from pytensor.tensor import subtensor as pts

from ..compiler.rules.base import PUTTING, TAKING
from ..compiler.rules.index import entries_of_index
from ..user_frames import where_made

_READING = (pts.Subtensor, *TAKING)
_WRITING = (pts.IncSubtensor, *PUTTING)
INDEXING = _READING + _WRITING


class Bounds:
    """The indices of a graph, each of which must be in range."""

    def __init__(self, graph: Sequence[Variable]) -> None:
        found = {
            node: _are_in_range(node)
            for node in io_toposort([], graph)
            if isinstance(node.op, INDEXING)
        }
        self._nodes = [node for node, flag in found.items() if flag is not None]
        flags: list[Any] = [flag for flag in found.values() if flag is not None]
        self.flags: list[Variable] = [pt.stack(flags)] if flags else []
        """None, or one vector of bools: which nodes have all of theirs in range."""

    def check(self, flags: np.ndarray) -> None:
        """Raise IndexError for the first node that has an index out of range."""
        if not all(flags.tolist()):  # a few: numpy's takes ten times as long
            node = self._nodes[int(np.argmin(flags))]
            source = node.inputs[0]
            raise IndexError(
                f"an index is out of range for {source}, in {node.op}"
                f"{where_made(node.outputs[0])}"
            )


def _are_in_range(node: Apply) -> Variable | None:
    """Return whether a node's indices are in range; None if they always are."""
    source, flags = node.inputs[0], []
    for axis, index in _numbers(node):
        length = source.shape[axis]  # type: ignore[attr-defined]
        flags.append(pt.all(pt.and_(index >= -length, index < length)))
    return pt.all(pt.stack(flags)) if flags else None


def index_entries(node: Apply) -> list[Any]:
    """Return the entries of the index of a node that has one: slices and variables."""
    return entries_of_index(node, 1 if isinstance(node.op, _READING) else 2)


def _numbers(node: Apply) -> Iterator[tuple[int, Any]]:
    """Return the whole numbers that choose along an axis, and the axis."""
    axis = 0
    for entry in index_entries(node):
        if isinstance(entry, slice):
            axis += 1
        elif getattr(entry.type, "dtype", "") == "bool":
            axis += entry.type.ndim
        else:
            # JAX makes of a length, compared with a uint8, another uint8.
            yield axis, pt.cast(pt.as_tensor_variable(entry), "int64")
            axis += 1
