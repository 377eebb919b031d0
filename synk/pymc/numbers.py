"""Indices that are the numbers of rows, as in ``p[arange(len(y)), y]``.

They take from each row something of its own: so what they index has rows where they do.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.scalar import Cast
from pytensor.tensor.basic import ARange
from pytensor.tensor.elemwise import DimShuffle, Elemwise

from ..compiler.domain import Refused
from ..compiler.rules.base import TAKING
from ..compiler.rules.index import entries_of_index


def candidates(node: Apply) -> Iterator[tuple[int, int, int]]:
    """Yield where a node may be indexed by row numbers.

    Yields
    ------
    i : int
        The input.
    axis : int
        Of what is indexed.
    own : int
        The input's axis along which the numbers are.
    """
    if not isinstance(node.op, TAKING):
        return
    try:
        entries = entries_of_index(node, 1)
    except Refused:
        return
    for axis, entry in enumerate(entries):
        if isinstance(entry, Variable) and _may_be_numbers(entry):
            shape: Any = entry.type.shape  # type: ignore[attr-defined]
            long = [a for a, length in enumerate(shape) if length != 1]
            if len(long) == 1:
                yield node.inputs.index(entry), axis, long[0]


def _may_be_numbers(var: Variable) -> bool:
    """Tell whether a variable stays the numbers of rows if it has such now."""
    while var.owner is not None and is_view(var.owner.op):
        var = var.owner.inputs[0]
    if isinstance(var, Constant):
        return var.type.dtype != "bool"
    return var.owner is not None and isinstance(var.owner.op, ARange)


def is_view(op: Any) -> bool:
    """Tell whether an Op shows an array with other axes, or as another type."""
    is_cast = isinstance(op, Elemwise) and isinstance(op.scalar_op, Cast)
    return is_cast or isinstance(op, DimShuffle)


def are_numbers(values: np.ndarray, length: int) -> bool:
    """Tell whether values are 0, 1, 2, ... up to a length."""
    return values.size == length and np.array_equal(values.ravel(), np.arange(length))


def are_alike(var: Variable, axis: int) -> bool:
    """Tell whether data are the same all along an axis, and will be."""
    if not isinstance(var, Constant):
        return False
    values = np.asarray(var.data)
    first = values.take([0], axis)
    is_nan = values.dtype.kind in "fc"
    return np.array_equal(
        values, np.broadcast_to(first, values.shape), equal_nan=is_nan
    )
