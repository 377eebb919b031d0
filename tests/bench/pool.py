"""Maxima of windows, forward and backward, in JAX mode beside the same written in JAX.

``python tests/bench/pool.py`` times what rectified images give and their gradient, by
windows and strides, single precision, on the cores of one process.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytensor
import pytensor.tensor as pt
from beside_jax import line

from synk import nn

TURNS = 31


class Case(NamedTuple):
    """Images, and how windows lie in them."""

    images: tuple[int, ...]  # batch, channels, height, width
    window: int
    stride: int


CASES = (
    Case((64, 32, 28, 28), 2, 2),
    Case((64, 32, 28, 28), 3, 3),
    Case((64, 32, 28, 28), 3, 1),
    Case((8, 64, 112, 112), 3, 2),
)


def by_synk(case: Case) -> Callable:
    """Return the maxima and the gradient as PyTensor compiles them in JAX mode."""
    x, g = (pt.tensor4(name, dtype="float32") for name in "xg")
    rectified = pt.maximum(x, np.float32(0))
    sides = ((case.window,) * 2, True, (case.stride,) * 2)
    y = nn.pool_2d(rectified, *sides)
    gradient = pt.grad(None, x, known_grads={y: g})
    return pytensor.function([x, g], [y, gradient], mode="JAX", trust_input=True)


def by_jax(case: Case) -> Callable:
    """Return the same by JAX alone."""
    window, stride = ((1, 1, n, n) for n in (case.window, case.stride))

    def maxima(x: Any) -> Any:
        rectified = jnp.maximum(x, np.float32(0))
        return jax.lax.reduce_window(
            rectified, -jnp.inf, jax.lax.max, window, stride, "VALID"
        )

    def both(x: Any, g: Any) -> Any:
        y, transpose = jax.vjp(maxima, x)
        return y, *transpose(g)

    return jax.jit(both)


def main() -> None:
    """Print the medians of interleaved turns, and synk's time over JAX's."""
    random = np.random.default_rng(0)
    print(f"{'maxima of windows':34}{'synk':>10}{'JAX':>10}{'ratio':>7}")
    for case in CASES:
        synks, jaxs = by_synk(case), by_jax(case)
        x = random.normal(size=case.images).astype("float32")
        g = _gradient(x, case)
        np.testing.assert_array_equal(synks(x, g)[0], jaxs(x, g)[0])
        what = f"{case.images}, {case.window} every {case.stride}"
        print(line(f"{what:34}", synks, jaxs, (x, g), TURNS))


def _gradient(x: np.ndarray, case: Case) -> np.ndarray:
    sizes = ((n - case.window) // case.stride + 1 for n in x.shape[2:])
    return np.ones((*x.shape[:2], *sizes), "float32")


if __name__ == "__main__":
    main()
