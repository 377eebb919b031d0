"""`KernelOp`, the base of the Ops: an Op with kernels in numpy and in JAX.

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

    __props__: ClassVar[tuple[str, ...]]
    KERNELS: ClassVar[tuple[Callable, Callable]]
    """The kernels for numpy and for JAX, called with the result of `arguments`."""
    UNCONNECTED: ClassVar[tuple[int, ...]] = ()
    """Inputs without a gradient, for example as only their shape counts."""

    def sibling(self, cls: type[KernelOp]) -> Any:
        """Return an Op of another class with the same parameters."""
        return cls(*(getattr(self, name) for name in self.__props__))

    def checked(self, *variables: Any) -> list[Any]:
        """Return a node's inputs as tensors of one dtype; raise if they are invalid."""
        return as_floats(*variables)

    def arguments(self, *arrays: Any) -> tuple:
        """Return the kernels' arguments; raise if the shapes do not fit."""
        return (self, *arrays)

    def shape(self, inputs: Sequence, *shapes: Sequence) -> Sequence:
        """Return the output's shape from the inputs' shapes, of ints or symbols."""
        raise NotImplementedError

    def static_shape(self, inputs: Sequence, *shapes: Sequence) -> Sequence:
        """Return the output's static shape from those of the inputs; None: unknown."""
        return self.shape(inputs, *shapes)

    def gradients(self, inputs: Sequence, output: Any, cotangent: Any) -> list[Any]:
        """Return the gradient by each input, None for inputs in `UNCONNECTED`."""
        raise NotImplementedError

    def make_node(self, *inputs: Any) -> Apply:
        """Apply the Op to tensors."""
        tensors = self.checked(*inputs)
        shape = self.static_shape(tensors, *(var.type.shape for var in tensors))
        known = [size if isinstance(size, int) else None for size in shape]
        return Apply(self, tensors, [TensorType(tensors[0].type.dtype, known)()])

    def perform(self, node: Apply, inputs: Sequence, output_storage: Sequence) -> None:
        """Compute the output on this process's cores."""
        found = self.KERNELS[0](*self.arguments(*inputs))
        output_storage[0][0] = np.ascontiguousarray(found)

    def jax_kernel(self, *arrays: Any) -> Any:
        """Return the output for arrays that JAX traces."""
        return self.KERNELS[1](*self.arguments(*arrays))

    def infer_shape(self, *args: Any) -> Sequence:
        """Return the shape of the output, for PyTensor.

        The arguments are the node and the shapes of inputs, and before these, in
        PyTensor before 3.3, the graph.
        """
        node, shapes = args[-2:]
        return [tuple(self.shape(node.inputs, *shapes))]

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Variable]:
        """Return the gradients."""
        found = self.gradients(inputs, outputs[0], cotangents[0])
        return [disconnected_type() if g is None else g for g in found]

    L_op = pullback  # type: ignore[assignment]  # its name before PyTensor 3

    def connection_pattern(self, node: Apply) -> list[list[bool]]:
        """Return, for each input, whether its values affect the output."""
        return [[i not in self.UNCONNECTED] for i in range(len(node.inputs))]


def number_like(value: Any, x: Any) -> Any:
    """Return a number in the dtype of `x`, so that results keep that dtype."""
    return pt.cast(pt.as_tensor_variable(value), x.type.dtype)


def as_floats(*variables: Any) -> list[Any]:
    """Return tensors of one float dtype, the widest of them."""
    tensors = [pt.as_tensor_variable(var) for var in variables]
    dtype = upcast(*(var.type.dtype for var in tensors))
    if not dtype.startswith("float"):
        if dtype.startswith("complex"):
            raise TypeError(f"needs real numbers, got {dtype}")
        dtype = upcast(dtype, "float32") if "8" in dtype else "float64"
    return [var if var.type.dtype == dtype else pt.cast(var, dtype) for var in tensors]


def named(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function, renamed to its name in the module."""
    function.__name__ = function.__qualname__ = name
    return function
