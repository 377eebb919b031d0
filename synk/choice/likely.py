"""Which engine is the fastest for a graph, told by its Ops."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal, TypeAlias, cast

from pytensor.graph.basic import Apply, Variable
from pytensor.graph.traversal import io_toposort
from pytensor.tensor.basic import (
    Alloc,
    ARange,
    Join,
    MakeVector,
    ScalarFromTensor,
    Split,
    TensorFromScalar,
)
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.elemwise import CAReduce, DimShuffle, Elemwise
from pytensor.tensor.math import Dot
from pytensor.tensor.shape import Reshape, Shape, Shape_i, SpecifyShape
from pytensor.tensor.special import LogSoftmax, Softmax

from ..engines.jax_bounds import INDEXING
from ..ops import is_collective

_MAPS = (Elemwise, LogSoftmax, Softmax)

_BY_ELEMENTS = (
    *(Alloc, CAReduce, DimShuffle, Join, MakeVector, *INDEXING, *_MAPS),
    *(Reshape, ScalarFromTensor, Shape, Shape_i, SpecifyShape, Split),
    TensorFromScalar,
)


Kind: TypeAlias = Literal["vectors", "matrices", "other"]
"""What a graph goes through: see `kind_of`."""


def kind_of(
    graph: Sequence[Variable], rows: Iterable[Variable], is_step: bool = False
) -> Kind:
    """Return what a graph goes through, by which an engine is fast or slow.

    "vectors"
        By elements, a number or a few a row, with sums and products by vectors, as
        log-likelihoods and their gradients do. That is one loop over vectors for numba,
        with synk's own functions (`engines.numba_math`), and by blocks of rows: it is
        the fastest engine.
    "matrices"
        The same of rows by columns, or with products of matrices. It is for numba where
        it goes by blocks of rows, and else for XLA, which compiles faster.
    "other"
        What has other Ops, as a training step that picks by labels: numba takes several
        times as long as JAX to compile one.

    Parameters
    ----------
    graph : sequence of Variable
    rows : iterable of Variable
        The inputs that hold rows.
    is_step : bool
        Whether variables are updated.
    """
    by_elements = _BY_ELEMENTS if is_step else (*_BY_ELEMENTS, ARange)
    dtypes = {str(getattr(each.type, "dtype", "")) for each in graph}
    inexact = {dtype for dtype in dtypes if dtype.startswith(("float", "complex"))}
    if len(inexact) > 1 or not inexact <= {"float32", "float64"}:
        return "other"
    on_rows, kind = set(rows), cast(Kind, "vectors")
    for node in io_toposort([], list(graph)):
        if not on_rows.isdisjoint(node.inputs) and not is_collective(node):
            on_rows.update(node.outputs)
            if _goes_through_matrices(node):
                kind = "matrices"
        if _is_dot(node):
            if not any(map(_is_vector, node.inputs)):
                kind = "matrices"
        elif not isinstance(node.op, by_elements) and not is_collective(node):
            return "other"
    return kind


def _is_dot(node: Apply) -> bool:
    op = node.op
    return isinstance(op.core_op if isinstance(op, Blockwise) else op, Dot)


def _goes_through_matrices(node: Apply) -> bool:
    """Tell whether a node computes elements of rows by columns."""
    if isinstance(node.op, _MAPS):
        return not _is_vector(node.outputs[0])
    return isinstance(node.op, CAReduce) and not _is_vector(node.inputs[0])


def _is_vector(operand: Any) -> bool:
    """Tell whether a value has one dimension, but for such as have the length 1."""
    shape = operand.type.shape
    return len(shape) < 2 or sum(length != 1 for length in shape) < 2
