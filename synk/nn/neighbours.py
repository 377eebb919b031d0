"""Images cut into patches, and put together again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytensor.tensor as pt

from .base import KernelOp, as_floats
from .convops import of_shape
from .numpy_kernels import cut
from .windows import as_ints

_MODES = ("valid", "ignore_borders", "wrap_centered", "half", "full")


def _chosen(op: Patches, x: Any) -> Any:
    """Return patches of images, for arrays of numpy or JAX."""
    rows, columns = op.places(x.shape)
    return x[:, :, rows, columns].reshape(-1, op.pixels)


def _sum(op: Patches, x: np.ndarray, patches: np.ndarray) -> np.ndarray:
    """Return images with the patches added, one pixel of all patches at a time."""
    counts = op.grid(x.shape)
    patches = patches.reshape(*x.shape[:2], *counts, *op.size)
    total = np.zeros(x.shape, patches.dtype)
    for at in np.ndindex(op.size):
        total[:, :, *cut(at, counts, op.step)] += patches[..., *at]
    return total


def _sum_in_jax(op: Patches, x: Any, patches: Any) -> Any:
    import jax.numpy as jnp

    rows, columns = op.places(x.shape)
    shape = (*x.shape[:2], *np.broadcast_shapes(rows.shape, columns.shape))
    total = jnp.zeros(x.shape, patches.dtype)
    return total.at[:, :, rows, columns].add(patches.reshape(shape))


@dataclass(eq=False, repr=False)
class Patches(KernelOp):
    """Patches of images (batch, channels, rows, columns), one in each row."""

    size: tuple[int, ...]
    """Rows and columns of a patch."""
    step: tuple[int, ...]
    """The distance between patches."""
    exact: bool
    """Whether to raise if patches do not fill the images."""

    __props__ = ("size", "step", "exact")
    KERNELS: ClassVar[tuple[Callable, Callable]] = (_chosen, _chosen)

    @property
    def pixels(self) -> int:
        """The number of pixels of a patch."""
        return self.size[0] * self.size[1]

    def checked(self, *variables: Any) -> list[Any]:
        """Return the images, which must have 4 axes, and patches if there are any."""
        x, *patches = super().checked(*variables)
        if x.type.ndim != 4:
            raise TypeError(f"images have 4 axes, got {x} with {x.type.ndim}")
        return [x, *patches]

    def grid(self, x: Sequence) -> tuple[Any, Any]:
        """Return the number of patches along rows and columns."""
        for n, patch, step in zip(x[2:], self.size, self.step, strict=True):
            leaves = isinstance(n, int) and (n < patch or (n - patch) % step != 0)
            if leaves and (self.exact or n < patch):
                raise ValueError(
                    f"patches of {self.size} at steps of {self.step} do not fill"
                    f" images of {tuple(x[2:])}"
                )
        rows = (x[2] - self.size[0]) // self.step[0] + 1
        return rows, (x[3] - self.size[1]) // self.step[1] + 1

    def shape(self, inputs: Sequence, *shapes: Sequence) -> Sequence:
        batch, channels, *_ = shapes[0]
        down, along = self.grid(shapes[0])
        return (batch * channels * down * along, self.pixels)

    def static_shape(self, inputs: Sequence, *shapes: Sequence) -> Sequence:
        return (None, self.pixels)

    def places(self, x: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """Return rows and columns of all patches' pixels, to be broadcast."""
        down, along = self.grid(x)
        rows = np.arange(down)[:, None] * self.step[0] + np.arange(self.size[0])
        columns = np.arange(along)[:, None] * self.step[1] + np.arange(self.size[1])
        return rows[:, None, :, None], columns[None, :, None, :]

    def gradients(self, inputs: Sequence, output: Any, cotangent: Any) -> list[Any]:
        return [self.sibling(PatchesSum)(inputs[0], cotangent)]


class PatchesSum(Patches):
    """The adjoint of `Patches`: images of x's shape, with all patches added."""

    KERNELS = _sum, _sum_in_jax
    UNCONNECTED = (0,)

    def shape(self, inputs: Sequence, *shapes: Sequence) -> Sequence:
        return shapes[0]

    static_shape = shape

    def gradients(self, inputs: Sequence, output: Any, cotangent: Any) -> list[Any]:
        return [None, self.sibling(Patches)(cotangent)]


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
        ValueError. "ignore_borders": pixels outside of patches are left out. "half",
        "full": likewise, for images with a margin of zeros, as wide as half a patch
        (rounded down) or a patch minus a pixel. "wrap_centered": a patch of odd size
        around each pixel, which continues at the other side of the image.

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
    (images,) = as_floats(ten4)
    for axis, width in enumerate(margin, 2):
        images = _with_margin(images, axis, width, mode == "wrap_centered")
    return Patches(shape, step, mode == "valid")(images)


def _with_margin(x: Any, axis: int, width: int, wrap: bool) -> Any:
    """Return images with a margin of zeros, or of pixels from the other side."""
    if width == 0 or x.type.ndim != 4:
        return x
    length = x.shape[axis]
    if wrap:
        return pt.take(x, pt.arange(-width, length + width) % length, axis)
    sizes = [*x.shape]
    sizes[axis] = width
    zeros = pt.zeros(sizes, x.type.dtype)
    return pt.concatenate([zeros, x, zeros], axis)


def neibs2images(
    neibs: Any, neib_shape: Any, original_shape: Any, mode: str = "valid"
) -> Any:
    """Put patches together to images: the inverse of `images2neibs`.

    Parameters
    ----------
    neibs : tensor_like
        Patches side by side, one in a row.
    neib_shape : tuple of int
        Rows and columns of a patch.
    original_shape : sequence of int or scalar variables
        The images' shape: (batch, channels, rows, columns).
    mode : {"valid", "ignore_borders"}
        The mode of `images2neibs`. Pixels that it left out are 0.

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
