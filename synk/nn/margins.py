"""Images with a margin, and its adjoint."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from pytensor.graph.basic import Apply, Variable
from pytensor.tensor.type import TensorType

from .base import KernelOp, as_floats


class Margins(KernelOp):
    """Images with a margin, of zeros or of what is on the other side.

    Parameters
    ----------
    margin : (int, int)
        Rows and columns at each end.
    wrap : bool
    """

    __props__ = ("margin", "wrap")

    def __init__(self, margin: tuple[int, ...], wrap: bool) -> None:
        self.margin = margin
        self.wrap = wrap

    def make_node(self, *inputs: Any) -> Apply:
        """Apply the Op to images (batch, channels, rows, columns)."""
        (x,) = as_floats(*inputs)
        sizes = zip(x.type.shape[2:], self.margin, strict=True)
        image = [None if n is None else n + 2 * m for n, m in sizes]
        shape = (*x.type.shape[:2], *image)
        return Apply(self, [x], [TensorType(x.type.dtype, shape)()])

    def symbolic_shape(self, input_shapes: Sequence) -> Sequence:
        """Return the shape of the result, symbolic."""
        batch, channels, rows, columns = input_shapes[0]
        down, along = self.margin
        return (batch, channels, rows + 2 * down, columns + 2 * along)

    def _pad(self, module: Any, x: Any) -> Any:
        margins = [(0, 0), (0, 0), *((m, m) for m in self.margin)]
        return module.pad(x, margins, mode="wrap" if self.wrap else "constant")

    def numpy_kernel(self, *arrays: np.ndarray) -> np.ndarray:
        """Compute by numpy."""
        return self._pad(np, *arrays)

    def jax_kernel(self, *arrays: Any) -> Any:
        """Compute by JAX."""
        import jax.numpy as jnp

        return self._pad(jnp, *arrays)

    def gradients(
        self, inputs: Sequence[Variable], output: Variable, cotangent: Variable
    ) -> list[Variable | None]:
        """Return the margins folded back."""
        return [MarginsFolded(self.margin, self.wrap)(cotangent)]


class MarginsFolded(Margins):
    """The adjoint: margins taken off, and added to the other side if they wrap."""

    def make_node(self, *inputs: Any) -> Apply:
        """Apply the Op to images with a margin."""
        (x,) = as_floats(*inputs)
        sizes = zip(x.type.shape[2:], self.margin, strict=True)
        image = [None if n is None else n - 2 * m for n, m in sizes]
        shape = (*x.type.shape[:2], *image)
        return Apply(self, [x], [TensorType(x.type.dtype, shape)()])

    def symbolic_shape(self, input_shapes: Sequence) -> Sequence:
        """Return the shape of the result, symbolic."""
        batch, channels, rows, columns = input_shapes[0]
        down, along = self.margin
        return (batch, channels, rows - 2 * down, columns - 2 * along)

    def numpy_kernel(self, *arrays: np.ndarray) -> np.ndarray:
        """Compute an axis at a time."""
        (g,) = arrays
        for axis, margin in zip((2, 3), self.margin, strict=True):
            g = self._folded(g.swapaxes(0, axis), margin).swapaxes(0, axis)
        return g

    def _folded(self, g: np.ndarray, margin: int) -> np.ndarray:
        if not margin:
            return g
        inner = g[margin:-margin].copy()
        if self.wrap:
            # A margin is at most as wide as what it surrounds; see np.pad.
            inner[-margin:] += g[:margin]
            inner[:margin] += g[-margin:]
        return inner

    def jax_kernel(self, *arrays: Any) -> Any:
        """Compute as JAX derives it."""
        import jax

        (g,) = arrays
        image = [n - 2 * m for n, m in zip(g.shape[2:], self.margin, strict=True)]
        shape = jax.ShapeDtypeStruct((*g.shape[:2], *image), g.dtype)
        return jax.linear_transpose(super().jax_kernel, shape)(g)[0]

    def gradients(
        self, inputs: Sequence[Variable], output: Variable, cotangent: Variable
    ) -> list[Variable | None]:
        """Return the adjoint."""
        return [Margins(self.margin, self.wrap)(cotangent)]
