"""What PyTensor's JAX mode gets wrong and networks need; each goes when it can.

Found with PyTensor 3.0.7 and JAX 0.10.2. ``tests/test_nn_jax_fixes.py`` has for each a
test that fails once PyTensor does it right by itself: then the fix can go.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytensor.scalar as scalar
import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Constant
from pytensor.graph.op import Op
from pytensor.tensor.basic import Alloc, ARange, MakeVector, Nonzero
from pytensor.tensor.elemwise import CAReduce, Elemwise
from pytensor.tensor.exceptions import NotScalarConstantError
from pytensor.tensor.subtensor import AdvancedIncSubtensor


def register() -> None:
    """Replace PyTensor's own conversions."""
    from pytensor.link.jax.dispatch import jax_funcify

    jax_funcify.register(ARange)(arange)
    for cls in (Elemwise, MakeVector, CAReduce):
        jax_funcify.register(cls)(sizes_at_compile_time(jax_funcify.dispatch(cls)))
    jax_funcify.register(CountedNonzero)(counted_nonzero)


def arange(op: Any, node: Apply, **kwargs: Any) -> Callable:
    """``arange(n)``, and so ``x[arange(n), y]``, for any n that follows from shapes.

    PyTensor keeps the start and step as constants of the smallest dtype, int8, and JAX
    converts n to that: "Python integer 300 out of bounds for int8". It also refuses to
    look at numbers that are computed from shapes, though they are known.
    """
    import jax
    import jax.numpy as jnp

    known = [
        var.data.item() if isinstance(var, Constant) else None for var in node.inputs
    ]

    def number(value: Any) -> Any:
        if isinstance(value, jax.core.Tracer):
            raise NotImplementedError(
                "JAX needs the length of arange when it compiles: give it constants,"
                " or what follows from the shapes of variables"
            )
        try:
            return operator.index(value)
        except TypeError:
            return float(value)

    def convert(*values: Any) -> Any:
        pairs = zip(values, known, strict=True)
        start, stop, step = (
            number(value) if constant is None else constant for value, constant in pairs
        )
        return jnp.arange(start, stop, step, dtype=op.dtype)

    return convert


def sizes_at_compile_time(funcify: Callable) -> Callable:
    """Arithmetic with sizes that JAX knows: ``zeros(maximum(x.shape[0], 1))``.

    PyTensor computes sizes by functions of ``jax.numpy``. What these return is unknown
    until the compiled code runs, even if they are given ints: "Shapes must be 1D
    sequences of concrete values".
    """
    import jax

    def convert(op: Any, node: Apply, **kwargs: Any) -> Callable:
        function = funcify(op, node=node, **kwargs)
        if not all(map(_may_be_size, [*node.inputs, *node.outputs])):
            return function

        def call(*values: Any) -> Any:
            if any(isinstance(value, jax.core.Tracer) for value in values):
                return function(*values)
            with jax.ensure_compile_time_eval():
                return function(*values)

        return call

    return convert


def _may_be_size(var: Any) -> bool:
    kind = np.dtype(getattr(var.type, "dtype", "O")).kind
    return kind in "iub" and getattr(var.type, "ndim", 0) <= 1


class CountedNonzero(Op):
    """Where a matrix is not 0, as rows and columns; how many there are is given."""

    __props__ = ()

    def make_node(self, *inputs: Any) -> Apply:
        """Apply the Op to a matrix and a number."""
        mask, count = map(pt.as_tensor_variable, inputs)
        return Apply(self, [mask, count], [pt.lvector(), pt.lvector()])

    def infer_shape(self, fgraph: Any, node: Apply, input_shapes: Any) -> Any:
        """Return the number, for both."""
        return [(node.inputs[1],)] * 2

    def perform(self, node: Apply, inputs: Any, output_storage: Any) -> None:
        """Compute what JAX does."""
        for storage, indices in zip(output_storage, np.nonzero(inputs[0]), strict=True):
            storage[0] = indices


def counted_nonzero(op: CountedNonzero, **kwargs: Any) -> Callable:
    """Return the Op's function in JAX."""
    import jax.numpy as jnp

    def convert(mask: Any, count: Any) -> Any:
        return jnp.nonzero(mask, size=operator.index(count))

    return convert


def count_nonzero(fgraph: Any) -> None:
    """``x[to_one_hot(y, n).nonzero()]``, and of one minus it: a multi-class hinge loss.

    PyTensor has no ``nonzero`` for JAX, which would have to know how many elements it
    finds. Here they are known: one of each row, or all others.
    """
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
    made = all(var.owner for var in (zeros, rows)) and _value(one) == 1
    if not (made and isinstance(zeros.owner.op, Alloc)):
        return None
    if _value(zeros.owner.inputs[0]) != 0 or not isinstance(rows.owner.op, ARange):
        return None
    return classes


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
