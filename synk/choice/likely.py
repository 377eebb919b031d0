"""Which engine is likely to be the fastest for a graph: to try it may cost more."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pytensor.graph.basic import Apply, Variable
from pytensor.graph.traversal import io_toposort
from pytensor.tensor.basic import (
    Alloc,
    Join,
    MakeVector,
    ScalarFromTensor,
    TensorFromScalar,
)
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.elemwise import CAReduce, DimShuffle, Elemwise
from pytensor.tensor.math import Dot
from pytensor.tensor.shape import Reshape, Shape, Shape_i, SpecifyShape

from ..engines.jax_bounds import INDEXING
from ..ops import is_collective

_BY_ELEMENTS = (
    *(Alloc, CAReduce, DimShuffle, Elemwise, Join, MakeVector, *INDEXING),
    *(Reshape, ScalarFromTensor, Shape, Shape_i, SpecifyShape, TensorFromScalar),
)


def is_for_numba(graph: Sequence[Variable]) -> bool:
    """Tell whether numba is likely to be the fastest engine.

    That is so of log-likelihoods and their gradients: by elements, with sums
    and products by vectors. What goes by elements is one loop over vectors, with synk's
    own functions (`engines.numba_math`), and by blocks of rows. On an AMD EPYC, 200,000
    rows of five such models took 1.0 to 3.6 ms by numba, 2.9 to 12 by C, and 3.4 to 11
    by JAX (``python -m tests.bench pymc``; docs/performance.rst).
    """
    dtypes = {str(getattr(each.type, "dtype", "")) for each in graph}
    inexact = {dtype for dtype in dtypes if dtype.startswith(("float", "complex"))}
    if len(inexact) > 1 or not inexact <= {"float32", "float64"}:
        return False
    return all(map(_is_by_elements, io_toposort([], list(graph))))


def _is_by_elements(node: Apply) -> bool:
    op = node.op
    if isinstance(op, Dot) or (
        isinstance(op, Blockwise) and isinstance(op.core_op, Dot)
    ):
        return any(map(_is_vector, node.inputs))
    return isinstance(op, _BY_ELEMENTS) or is_collective(node)


def _is_vector(operand: Any) -> bool:
    """Tell whether an operand of a product has one row or column."""
    return operand.type.ndim < 2 or 1 in operand.type.shape[-2:]
