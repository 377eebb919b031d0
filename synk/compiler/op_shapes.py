"""The shapes of results, as PyTensor's Ops tell them."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from pytensor.graph.basic import Apply


def inferred(node: Apply, shapes: Sequence[Any]) -> Sequence[Any] | None:
    """Return the shapes of a node's outputs, None if its Op tells of none.

    Parameters
    ----------
    node : Apply
    shapes : sequence of tuple or None
        Of the inputs, as variables; None for one that has no shape.
    """
    infer: Any = getattr(node.op, "infer_shape", None)
    if infer is None:
        return None
    parameters = inspect.signature(infer).parameters.values()
    wanted = [one for one in parameters if one.default is one.empty]
    # The first is the graph that the node is in; not from PyTensor 3.3 on.
    first = (None,) if len(wanted) == 3 else ()
    found: Sequence[Any] = infer(*first, node, list(shapes))
    return found
