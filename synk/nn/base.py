"""What the Ops share: an Op of arrays with kernels in numpy and in JAX.

Outside JAX mode numpy computes the Ops, or XLA, which is JAX's compiler. On one core,
in single precision, it takes for 3x3 convolutions of large images half of numpy's time
or all of it, for 1x1 ones and for depthwise ones two to seven times as much; it
compiles anew for every shape of a batch; and a process in which it runs cannot fork
ranks. So it is not the default. Where it is chosen, JAX is imported when a value is
first computed and not before.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.gradient import disconnected_type
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.op import Op
from pytensor.scalar import upcast

_CHOICES = ("numpy", "xla")
_chosen: list[str] = []


def set_kernels(name: str) -> None:
    """Choose what computes the Ops of this module outside JAX mode.

    Parameters
    ----------
    name : {"numpy", "xla"}
        "numpy" is the default. "xla" needs JAX, and no rank can be forked once it has
        computed something. The environment variable ``SYNK_NN`` gives the choice at the
        start.

    Raises
    ------
    ValueError
        If there is no such choice.
    ImportError
        If it is "xla", and JAX is not installed.

    Notes
    -----
    It holds for this process, and for ranks that it forks afterwards. JAX mode does not
    depend on it.
    """
    if name not in _CHOICES:
        raise ValueError(f"kernels must be one of {_CHOICES}, got {name!r}")
    if name == "xla" and importlib.util.find_spec("jax") is None:
        raise ImportError("the kernels 'xla' need JAX: pip install 'synk[jax]'")
    _chosen[:] = [name]


def kernels() -> str:
    """Return what computes the Ops outside JAX mode: one of the choices."""
    if not _chosen:
        set_kernels(os.environ.get("SYNK_NN") or "numpy")
    return _chosen[0]


def compute(op: Any, *arrays: np.ndarray) -> np.ndarray:
    """Return what an Op is of some arrays, as an array that may be written to."""
    if kernels() != "xla":
        return np.ascontiguousarray(op.numpy_kernel(*arrays))
    import jax

    # float64 in, float64 out, whatever precision the user's JAX works with; and on the
    # CPU, where the arrays are.
    with jax.enable_x64(True), jax.default_device(_cpu()):
        # What XLA returns must not be written to; compiled graphs work in place.
        return np.array(_jitted(op)(*arrays))


@lru_cache(maxsize=1)
def _cpu() -> Any:
    import jax

    return jax.local_devices(backend="cpu")[0]


@lru_cache(maxsize=1024)
def _jitted(op: Any) -> Any:
    import jax

    return jax.jit(op.jax_kernel)


class KernelOp(Op):
    """An Op of float tensors with one output, computed by equivalent kernels.

    Subclasses have ``numpy_kernel`` and ``jax_kernel``, which take an array for each
    input; ``shaped_like``, the number of an input of which only the shape counts, or
    None; and ``gradients``.
    """

    shaped_like: int | None = None

    def __call__(self, *inputs: Any, **kwargs: Any) -> Any:
        """Return the output of the Op."""
        return super().__call__(*inputs, **kwargs)

    def numpy_kernel(self, *arrays: np.ndarray) -> np.ndarray:
        """Return the output, computed by numpy."""
        raise NotImplementedError

    def jax_kernel(self, *arrays: Any) -> Any:
        """Return the output, computed by JAX; traced."""
        raise NotImplementedError

    def symbolic_shape(self, input_shapes: Sequence) -> Sequence:
        """Return the shape of the output, as symbolic sizes, from those of inputs."""
        raise NotImplementedError

    def gradients(
        self, inputs: Sequence[Variable], output: Variable, cotangent: Variable
    ) -> list[Variable | None]:
        """Return the gradient by each input; None where it has none."""
        raise NotImplementedError

    def perform(self, node: Apply, inputs: Sequence, output_storage: Sequence) -> None:
        """Compute the output on this process's cores."""
        output_storage[0][0] = compute(self, *inputs)

    def infer_shape(self, *args: Any) -> Sequence:
        """Return the shape of the output, so that it need not be computed for it.

        The last argument has the shapes of inputs. Before it comes the node, and, in
        PyTensor before 3.3, the graph.
        """
        return [tuple(self.symbolic_shape(args[-1]))]

    def pullback(
        self, inputs: Sequence, outputs: Sequence, cotangents: Sequence
    ) -> list[Variable]:
        """Return the gradients."""
        found = self.gradients(inputs, outputs[0], cotangents[0])
        return [disconnected_type() if g is None else g for g in found]

    L_op = pullback  # type: ignore[assignment]  # its name before PyTensor 3

    def connection_pattern(self, node: Apply) -> list[list[bool]]:
        """Tell which inputs have a say in the values of the output."""
        return [[i != self.shaped_like] for i in range(len(node.inputs))]


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
