"""Indices in JAX mode: one that is out of range raises IndexError, as in other modes.

XLA itself silently takes the nearest element. So a graph returns one more value, a
vector of flags, by which each call checks that all indices were in range.
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
    """The checks of all indices in a graph."""

    def __init__(self, graph: Sequence[Variable]) -> None:
        found = {
            node: _are_in_range(node)
            for node in io_toposort([], graph)
            if isinstance(node.op, INDEXING)
        }
        self._nodes = [node for node, flag in found.items() if flag is not None]
        flags: list[Any] = [flag for flag in found.values() if flag is not None]
        self.flags: list[Variable] = [pt.stack(flags)] if flags else []
        """Empty, or one vector: for each of `_nodes`, are its indices in range?"""

    def check(self, flags: np.ndarray) -> None:
        """Raise IndexError for the first node that has an index out of range."""
        if not all(flags.tolist()):  # for a few flags, numpy's takes ten times as long
            node = self._nodes[int(np.argmin(flags))]
            source = node.inputs[0]
            raise IndexError(
                f"an index is out of range for {source}, in {node.op}"
                f"{where_made(node.outputs[0])}"
            )


def _are_in_range(node: Apply) -> Variable | None:
    """Return a flag in the graph: are a node's indices in range? None if always."""
    source, flags = node.inputs[0], []
    for axis, index in _numbers(node):
        length = source.shape[axis]  # type: ignore[attr-defined]
        flags.append(pt.all(pt.and_(index >= -length, index < length)))
    return pt.all(pt.stack(flags)) if flags else None


def index_entries(node: Apply) -> list[Any]:
    """Return the entries of an indexing node's index: slices and variables."""
    return entries_of_index(node, 1 if isinstance(node.op, _READING) else 2)


def _numbers(node: Apply) -> Iterator[tuple[int, Any]]:
    """Yield (axis, integers) for each entry of the index that has integers."""
    axis = 0
    for entry in index_entries(node):
        if isinstance(entry, slice):
            axis += 1
        elif getattr(entry.type, "dtype", "") == "bool":
            axis += entry.type.ndim
        else:
            # Cast, as JAX compares a length with a uint8 in uint8.
            yield axis, pt.cast(pt.as_tensor_variable(entry), "int64")
            axis += 1
