"""Images cut into patches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Variable
from pytensor.tensor.type import TensorType

from .base import KernelOp, as_floats
from .convops import of_shape
from .windows import as_ints


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


_MODES = ("valid", "ignore_borders", "wrap_centered", "half", "full")


class Patches(KernelOp):
    """Patches of images, one in a row; the adjoint of `PatchesSum`.

    Parameters
    ----------
    shape, step : (int, int)
    exact : bool
        To refuse images that patches do not fill.
    """

    __props__ = ("shape", "step", "exact")

    def __init__(
        self, shape: tuple[int, ...], step: tuple[int, ...], exact: bool
    ) -> None:
        self.shape = shape
        self.step = step
        self.exact = exact

    def make_node(self, *inputs: Any) -> Apply:
        """Apply the Op to images (batch, channels, rows, columns)."""
        (x,) = as_floats(*inputs)
        if x.type.ndim != 4:
            raise TypeError(f"images have 4 axes, got {x} with {x.type.ndim}")
        shape = (None, self.shape[0] * self.shape[1])
        return Apply(self, [x], [TensorType(x.type.dtype, shape)()])

    def grid(self, x: Sequence[int]) -> tuple[int, int]:
        """Return the number of patches along rows and columns."""
        for size, patch, step in zip(x[2:], self.shape, self.step, strict=True):
            if size < patch or (self.exact and (size - patch) % step):
                raise ValueError(
                    f"patches of {self.shape} at steps of {self.step} do not fill"
                    f" images of {tuple(x[2:])}"
                )
        rows = (x[2] - self.shape[0]) // self.step[0] + 1
        return rows, (x[3] - self.shape[1]) // self.step[1] + 1

    def symbolic_shape(self, input_shapes: Sequence) -> Sequence:
        """Return the shape of the result, symbolic."""
        batch, channels, rows, columns = input_shapes[0]
        down = (rows - self.shape[0]) // self.step[0] + 1
        along = (columns - self.shape[1]) // self.step[1] + 1
        pixels = self.shape[0] * self.shape[1]
        return (batch * channels * down * along, pt.constant(pixels, dtype="int64"))

    def places(self, x: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """Return rows and columns of the pixels of all patches; they broadcast."""
        down, along = self.grid(x)
        rows = np.arange(down)[:, None] * self.step[0] + np.arange(self.shape[0])
        columns = np.arange(along)[:, None] * self.step[1] + np.arange(self.shape[1])
        return rows[:, None, :, None], columns[None, :, None, :]

    def numpy_kernel(self, *arrays: np.ndarray) -> np.ndarray:
        """Compute by indexing."""
        return self.jax_kernel(*arrays)

    def jax_kernel(self, *arrays: Any) -> Any:
        """Compute by indexing."""
        (x,) = arrays
        rows, columns = self.places(x.shape)
        return x[:, :, rows, columns].reshape(-1, self.shape[0] * self.shape[1])

    def gradients(
        self, inputs: Sequence[Variable], output: Variable, cotangent: Variable
    ) -> list[Variable | None]:
        """Return the adjoint."""
        adjoint = PatchesSum(self.shape, self.step, self.exact)
        return [adjoint(inputs[0], cotangent)]


class PatchesSum(Patches):
    """Images, of a template's shape, to which patches are added."""

    shaped_like = 0

    def make_node(self, *inputs: Any) -> Apply:
        """Apply the Op to images (for their shape) and patches."""
        x, patches = as_floats(*inputs)
        return Apply(self, [x, patches], [TensorType(x.type.dtype, x.type.shape)()])

    def symbolic_shape(self, input_shapes: Sequence) -> Sequence:
        """Return the shape of the images."""
        return input_shapes[0]

    def numpy_kernel(self, *arrays: np.ndarray) -> np.ndarray:
        """Compute a pixel of the patches at a time."""
        x, patches = arrays
        down, along = self.grid(x.shape)
        patches = patches.reshape(*x.shape[:2], down, along, *self.shape)
        total = np.zeros(x.shape, patches.dtype)
        for i in range(self.shape[0]):
            rows = slice(i, i + (down - 1) * self.step[0] + 1, self.step[0])
            for j in range(self.shape[1]):
                columns = slice(j, j + (along - 1) * self.step[1] + 1, self.step[1])
                total[:, :, rows, columns] += patches[..., i, j]
        return total

    def jax_kernel(self, *arrays: Any) -> Any:
        """Compute by adding at indices."""
        import jax.numpy as jnp

        x, patches = arrays
        rows, columns = self.places(x.shape)
        shape = (*x.shape[:2], *np.broadcast_shapes(rows.shape, columns.shape))
        total = jnp.zeros(x.shape, patches.dtype)
        return total.at[:, :, rows, columns].add(patches.reshape(shape))

    def gradients(
        self, inputs: Sequence[Variable], output: Variable, cotangent: Variable
    ) -> list[Variable | None]:
        """Return the adjoint."""
        return [None, Patches(self.shape, self.step, self.exact)(cotangent)]


def images2neibs(
    ten4: Any, neib_shape: Any, neib_step: Any = None, mode: str = "valid"
) -> Any:
    """Cut images into patches, each of which becomes a row of a matrix.

    Parameters
    ----------
    ten4 : tensor_like
        Images (batch, channels, rows, columns).
    neib_shape : tuple of int
        Rows and columns of a patch.
    neib_step : tuple of int, optional
        The distance between patches; by default their size.
    mode : {"valid", "ignore_borders", "half", "full", "wrap_centered"}
        "valid": the patches must fill the images, else a compiled function raises
        ValueError. "ignore_borders": what they do not fill is left out. "half",
        "full": likewise, of images with a margin of zeros, half a patch wide (rounded
        down) or a patch less a pixel. "wrap_centered": patches, of odd size, lie
        around pixels, and go on at the other side of the image.

    Returns
    -------
    TensorVariable
        Shape (batch * channels * patches of an image, rows * columns of a patch).

    Raises
    ------
    TypeError, ValueError
        If parameters are none of these.
    """
    shape = as_ints(neib_shape, 2, "neib_shape", 1)
    step = shape if neib_step is None else as_ints(neib_step, 2, "neib_step", 1)
    if mode not in _MODES:
        raise ValueError(f"mode must be one of {_MODES}, got {mode!r}")
    margin = (0, 0)
    if mode in ("half", "wrap_centered"):
        margin = (shape[0] // 2, shape[1] // 2)
    elif mode == "full":
        margin = (shape[0] - 1, shape[1] - 1)
    if mode == "wrap_centered" and not (shape[0] % 2 and shape[1] % 2):
        raise ValueError(f"'wrap_centered' needs patches of odd size, got {shape}")
    if any(margin):
        ten4 = Margins(margin, mode == "wrap_centered")(ten4)
    return Patches(shape, step, mode == "valid")(ten4)


def neibs2images(
    neibs: Any, neib_shape: Any, original_shape: Any, mode: str = "valid"
) -> Any:
    """Put patches together to images: undo `images2neibs`.

    Parameters
    ----------
    neibs : tensor_like
        Patches side by side, one in a row.
    neib_shape : tuple of int
        Rows and columns of a patch.
    original_shape : sequence of int or scalar variables
        Of the images: (batch, channels, rows, columns).
    mode : {"valid", "ignore_borders"}
        What it was with `images2neibs`. Pixels that it left out are 0.

    Returns
    -------
    TensorVariable
        Shape `original_shape`.

    Raises
    ------
    ValueError
        If the mode is none of these.
    """
    if mode not in _MODES[:2]:
        raise ValueError(f"mode must be one of {_MODES[:2]}, got {mode!r}")
    (neibs,) = as_floats(neibs)
    shape = as_ints(neib_shape, 2, "neib_shape", 1)
    images = of_shape([*original_shape], neibs.type.dtype)
    return PatchesSum(shape, shape, mode == "valid")(images, neibs)
