"""What was said of which Op, in this process."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pytensor.graph.basic import Apply, Variable
from pytensor.graph.op import HasInnerGraph, Op
from pytensor.graph.traversal import io_toposort

from .sharding import Sharding, shardings_for

said_of: dict[type[Op] | Op, Any] = {}
"""By class, for what is derived from it too; by Op, for what is equal to it."""

_classes: set[type[Op]] = set()
"""Those of which something is said, of the class or of some Op of it."""


def classes() -> frozenset[type[Op]]:
    """Return the classes that anything is said of."""
    return frozenset(_classes)


def say(op: type[Op] | Op, said: Any) -> None:
    """Take note of what is said of an Op, or of a class of Ops."""
    said_of[op] = said
    _classes.add(op if isinstance(op, type) else type(op))


def is_registered(op: Op) -> bool:
    """Tell whether anything is said of an Op."""
    return _key_of(op) is not None


def shardings_of(node: Apply) -> tuple[Sharding, ...] | None:
    """Return in which ways a node can be computed part by part.

    Returns
    -------
    tuple of Sharding, or None
        None if nothing is said of its Op; empty if it takes all rows at once.
    """
    key = _key_of(node.op)
    return None if key is None else shardings_for(said_of[key], node)


def said_in(graph: Iterable[Variable]) -> list[tuple[Any, Any]]:
    """Return what is said of the Ops of a graph, and of graphs within them."""
    found: dict[Any, Any] = {}
    todo = [list(graph)]
    while todo:
        for node in io_toposort([], todo.pop()):
            key = _key_of(node.op)
            if key is not None:
                found[key] = said_of[key]
            if isinstance(node.op, HasInnerGraph):
                todo.append(list(node.op.inner_outputs))
    return list(found.items())


def _key_of(op: Op) -> type[Op] | Op | None:
    # Ops are hashed by their properties: only those are of whose class some are here.
    if type(op) in _classes and op in said_of:
        return op
    for cls in type(op).__mro__:
        if cls in said_of:
            return cls
    return None
