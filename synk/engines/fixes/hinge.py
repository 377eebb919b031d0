"""JAX mode: ``nonzero`` of ``to_one_hot(y, n)``, and of 1 minus that.

A multi-class hinge loss uses both as indices (Lasagne 0.2). PyTensor has no ``nonzero``
for JAX, as JAX must know the number of elements when it compiles. Here it is known: one
in each row, or all but one.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytensor.scalar as scalar
import pytensor.tensor as pt
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
from pytensor.graph.rewriting.basic import GraphRewriter
from pytensor.tensor.basic import Alloc, ARange, Nonzero
from pytensor.tensor.exceptions import NotScalarConstantError
from pytensor.tensor.subtensor import AdvancedIncSubtensor


class CountedNonzero(Op):
    """The rows and columns of a matrix's nonzero elements, whose number is given."""

    __props__ = ()

    def make_node(self, *inputs: Any) -> Apply:
        """Apply the Op to a matrix and the number of its nonzero elements."""
        mask, count = map(pt.as_tensor_variable, inputs)
        return Apply(self, [mask, count], [pt.lvector(), pt.lvector()])

    def infer_shape(self, *args: Any) -> Any:
        """Return the number, for both. Before PyTensor 3.3 `args` has one more."""
        *_, node, _shapes = args
        return [(node.inputs[1],)] * 2

    def perform(self, node: Apply, inputs: Any, output_storage: Any) -> None:
        """Compute the Op by numpy."""
        for storage, indices in zip(output_storage, np.nonzero(inputs[0]), strict=True):
            storage[0] = indices


def register() -> None:
    """Register how JAX computes `CountedNonzero`."""
    import jax.numpy as jnp
    from pytensor.link.jax.dispatch import jax_funcify

    @jax_funcify.register(CountedNonzero)
    def convert(op: CountedNonzero, **kwargs: Any) -> Callable:
        return lambda mask, count: jnp.nonzero(mask, size=operator.index(count))


class CountNonzero(GraphRewriter):
    """A rewrite of ``nonzero`` to `CountedNonzero`, for one-hot matrices."""

    def apply(self, fgraph: Any) -> None:
        """Rewrite a graph."""
        for node in fgraph.toposort():
            if not isinstance(node.op, Nonzero) or len(node.outputs) != 2:
                continue
            (mask,) = node.inputs
            if (classes := _classes(mask)) is not None:
                count = classes.shape[0]
            elif (classes := _classes(_one_minus(mask))) is not None:
                count = classes.shape[0] * (mask.shape[1] - 1)
            else:
                continue
            found: Any = CountedNonzero()(mask, count)
            fgraph.replace_all(list(zip(node.outputs, found, strict=True)))


def _classes(mask: Any) -> Any:
    """Return y if a matrix is ``to_one_hot(y, n)``, else None."""
    node = None if mask is None else mask.owner
    if node is None or not isinstance(node.op, AdvancedIncSubtensor):
        return None
    if not node.op.set_instead_of_inc or len(node.inputs) != 4:
        return None
    zeros, one, rows, classes = node.inputs
    alloc, arange = zeros.owner, rows.owner
    if alloc is None or not isinstance(alloc.op, Alloc) or _value(alloc.inputs[0]) != 0:
        return None
    is_of_rows = arange is not None and isinstance(arange.op, ARange)
    return classes if is_of_rows and _value(one) == 1 else None


def _one_minus(mask: Any) -> Any:
    """Return x if a matrix is 1 - x, else None."""
    node = mask.owner
    if node is None or getattr(node.op, "scalar_op", None) != scalar.sub:
        return None
    return node.inputs[1] if _value(node.inputs[0]) == 1 else None


def _value(var: Any) -> Any:
    """Return the value of a constant scalar; None for other variables."""
    try:
        return pt.get_underlying_scalar_constant_value(var).item()
    except NotScalarConstantError:
        return None
