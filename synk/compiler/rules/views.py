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
from ..padded.padder import Made, Padder


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


table.known(
    *(ViewOp, DeepCopyOp, CpuContiguous, Print, OwnRows),
    *(ptb.TensorFromScalar, ptb.ScalarFromTensor),
    makes_sizes=True,
)


@table.padded(CheckAndRaise)
def unchecked(padder: Padder, node: Apply, values: list[Value]) -> Made:
    """The first input: JAX checks nothing."""
    var, (out,) = node.inputs[0], node.outputs
    if var in padder.long:
        padder.long[out] = padder.long[var]
    return Made([padder.new[var]], [values[0]])


@table.length(ViewOp, DeepCopyOp, Print, OwnRows, CheckAndRaise)
def first_length(node: Apply, var: Variable, axis: int) -> Length:
    """That of the first input."""
    return size(node.inputs[0], axis)


@table.value(ptb.ScalarFromTensor, ptb.TensorFromScalar)
def first_value(node: Apply, var: Variable, which: str) -> Length:
    """The first input."""
    return value_of(node.inputs[0])
