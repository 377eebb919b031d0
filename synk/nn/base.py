"""What the Ops share: an Op of arrays with kernels in numpy and in JAX.

In JAX mode the Ops are part of XLA's program. In all other modes numpy computes them:
XLA would compile anew for every shape, and a process in which it runs cannot fork.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
import pytensor.tensor as pt
from pytensor.gradient import disconnected_type
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.op import Op
from pytensor.scalar import upcast
from pytensor.tensor.type import TensorType


class KernelOp(Op):
    """An Op of float tensors with one output, computed by equivalent kernels."""

    KERNELS: ClassVar[tuple[Callable, Callable]]
    """Of numpy's arrays and of JAX's; they take what `arguments` returns."""
    UNCONNECTED: ClassVar[tuple[int, ...]] = ()
    """The inputs that have no gradient, as only their shape counts, say."""

    def __call__(self, *inputs: Any, **kwargs: Any) -> Any:
        """Return the output of the Op."""
        return super().__call__(*inputs, **kwargs)

    def checked(self, *variables: Any) -> list[Any]:
        """Return the inputs of a node, of one dtype; raise for those of no use."""
        return as_floats(*variables)

    def arguments(self, *arrays: Any) -> tuple:
        """Return what kernels take of arrays; raise if their shapes do not fit."""
        return (self, *arrays)

    def shape(self, *shapes: Sequence) -> Sequence:
        """Return the shape of the output; of the inputs' shapes, ints or symbols."""
        raise NotImplementedError

    def static_shape(self, *shapes: Sequence) -> Sequence:
        """Return what is known of it when a graph is made: ints, or None."""
        return self.shape(*shapes)

    def gradients(self, inputs: Sequence, output: Any, cotangent: Any) -> list[Any]:
        """Return the gradient by each input; None where it has none."""
        raise NotImplementedError

    def make_node(self, *inputs: Any) -> Apply:
        """Apply the Op to tensors."""
        tensors = self.checked(*inputs)
        shape = self.static_shape(*(var.type.shape for var in tensors))
        return Apply(self, tensors, [TensorType(tensors[0].type.dtype, shape)()])

    def perform(self, node: Apply, inputs: Sequence, output_storage: Sequence) -> None:
        """Compute the output on this process's cores."""
        found = self.KERNELS[0](*self.arguments(*inputs))
        output_storage[0][0] = np.ascontiguousarray(found)

    def jax_kernel(self, *arrays: Any) -> Any:
        """Return the output, computed by JAX; traced."""
        return self.KERNELS[1](*self.arguments(*arrays))

    def infer_shape(self, *args: Any) -> Sequence:
        """Return the shape of the output, so that it need not be computed for it.

        The last argument has the shapes of inputs. Before it comes the node, and, in
        PyTensor before 3.3, the graph.
        """
        return [tuple(self.shape(*args[-1]))]

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Variable]:
        """Return the gradients."""
        found = self.gradients(inputs, outputs[0], cotangents[0])
        return [disconnected_type() if g is None else g for g in found]

    L_op = pullback  # type: ignore[assignment]  # its name before PyTensor 3

    def connection_pattern(self, node: Apply) -> list[list[bool]]:
        """Tell which inputs have a say in the values of the output."""
        return [[i not in self.UNCONNECTED] for i in range(len(node.inputs))]


def number_like(value: Any, x: Any) -> Any:
    """Return a number in the dtype of a tensor, which it would otherwise widen."""
    return pt.cast(pt.as_tensor_variable(value), x.type.dtype)


def as_floats(*variables: Any) -> list[Any]:
    """Return tensors of one float dtype, the widest of all."""
    tensors = [pt.as_tensor_variable(var) for var in variables]
    dtype = upcast(*(var.type.dtype for var in tensors))
    if not dtype.startswith("float"):
        if dtype.startswith("complex"):
            raise TypeError(f"needs real numbers, got {dtype}")
        dtype = upcast(dtype, "float32") if "8" in dtype else "float64"
    return [var if var.type.dtype == dtype else pt.cast(var, dtype) for var in tensors]


def named(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function by another name, as that of the module it is in."""
    function.__name__ = function.__qualname__ = name
    return function
