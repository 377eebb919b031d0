"""JAX mode: ``x[to_one_hot(y, n).nonzero()]``, and of one minus it.

A multi-class hinge loss has both (Lasagne 0.2). PyTensor has no ``nonzero`` for JAX,
which would have to know how many elements it finds. Here they are known: one of each
row, or all others.
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
    """Where a matrix is not 0, as rows and columns; how many there are is given."""

    __props__ = ()

    def make_node(self, *inputs: Any) -> Apply:
        """Apply the Op to a matrix and a number."""
        mask, count = map(pt.as_tensor_variable, inputs)
        return Apply(self, [mask, count], [pt.lvector(), pt.lvector()])

    def infer_shape(self, *args: Any) -> Any:
        """Return the number, for both. PyTensor before 3.3 gives the graph, too."""
        *_, node, _shapes = args
        return [(node.inputs[1],)] * 2

    def perform(self, node: Apply, inputs: Any, output_storage: Any) -> None:
        """Compute what JAX does."""
        for storage, indices in zip(output_storage, np.nonzero(inputs[0]), strict=True):
            storage[0] = indices


def register() -> None:
    """Let JAX compute `CountedNonzero`."""
    import jax.numpy as jnp
    from pytensor.link.jax.dispatch import jax_funcify

    @jax_funcify.register(CountedNonzero)
    def convert(op: CountedNonzero, **kwargs: Any) -> Callable:
        return lambda mask, count: jnp.nonzero(mask, size=operator.index(count))


class CountNonzero(GraphRewriter):
    """Puts `CountedNonzero` where it is known how many there are."""

    def apply(self, fgraph: Any) -> None:
        """Look at each ``nonzero`` of a matrix."""
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
    """Return y where a matrix is ``to_one_hot(y, n)``; None where it is not."""
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
    """Return x where a matrix is 1 - x; None where it is not."""
    node = mask.owner
    if node is None or getattr(node.op, "scalar_op", None) != scalar.sub:
        return None
    return node.inputs[1] if _value(node.inputs[0]) == 1 else None


def _value(var: Any) -> Any:
    """Return the number that a variable is; None if it is none, or not known."""
    try:
        return pt.get_underlying_scalar_constant_value(var).item()
    except NotScalarConstantError:
        return None
