"""Ops that hand on what they are given, as it is."""

from __future__ import annotations

from pytensor.compile.ops import DeepCopyOp, ViewOp
from pytensor.graph.basic import Apply, Variable
from pytensor.printing import Print
from pytensor.raise_op import CheckAndRaise
from pytensor.tensor import basic as ptb
from pytensor.tensor.extra_ops import CpuContiguous

from ...ops import OwnRows
from .. import table
from ..domain import Value
from ..lengths import Length, size, value_of


@table.placement(
    ViewOp,
    DeepCopyOp,
    CpuContiguous,
    Print,
    ptb.TensorFromScalar,
    ptb.ScalarFromTensor,
    OwnRows,
)
def identity(node: Apply, values: list[Value]) -> Value:
    """The first input, as it is."""
    return values[0]


@table.placement(CheckAndRaise, takes_unknown=True, takes_some_rows=True)
def checked(node: Apply, values: list[Value]) -> Value:
    """The first input, or an error, whatever is checked."""
    return values[0]


@table.length(ViewOp, DeepCopyOp, Print, OwnRows, CheckAndRaise)
def first_length(node: Apply, var: Variable, axis: int) -> Length:
    """That of the first input."""
    return size(node.inputs[0], axis)


@table.value(ptb.ScalarFromTensor, ptb.TensorFromScalar)
def first_value(node: Apply, var: Variable, which: str) -> Length:
    """The first input."""
    return value_of(node.inputs[0])
