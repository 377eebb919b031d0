"""Convolutions and maxima of windows in JAX mode, beside the same written in JAX.

``python tests/bench/conv.py`` times the outputs of a convolution and its gradients by
inputs and filters, single precision, on the cores of one process: with filters as they
are, and flipped, as Theano's are unless told otherwise. Then what rectified images give
and their gradient, by windows and strides.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytensor
import pytensor.tensor as pt

from synk import nn
from synk.commands.bench_rows import interleave

TURNS, FEWER_TURNS = 101, 31


class Case(NamedTuple):
    """Shapes of a convolution, and how far the filters go beyond the image."""

    what: str
    inputs: tuple[int, ...]  # batch, channels, height, width
    filters: tuple[int, ...]  # outputs, channels, height, width
    stride: int
    border: int


# Of ResNet-50, images half its size; and the first layer of a network for digits.
CASES = (
    Case("7x7, stride 2", (8, 3, 112, 112), (64, 3, 7, 7), 2, 3),
    Case("1x1", (8, 256, 28, 28), (64, 256, 1, 1), 1, 0),
    Case("3x3, 64 channels", (8, 64, 28, 28), (64, 64, 3, 3), 1, 1),
    Case("3x3, stride 2", (8, 128, 28, 28), (128, 128, 3, 3), 2, 1),
    Case("3x3, 512 channels", (8, 512, 4, 4), (512, 512, 3, 3), 1, 1),
    Case("5x5 on digits", (128, 1, 28, 28), (32, 1, 5, 5), 1, 0),
)


def by_synk(case: Case, flip: bool) -> Callable:
    """Return the outputs and gradients as PyTensor compiles them in JAX mode."""
    x, w, g = (pt.tensor4(name, dtype="float32") for name in "xwg")
    border, stride = (case.border,) * 2, (case.stride,) * 2
    y = nn.conv2d(x, w, border_mode=border, subsample=stride, filter_flip=flip)
    gradients = pt.grad(None, [x, w], known_grads={y: g})
    return pytensor.function([x, w, g], [y, *gradients], mode="JAX", trust_input=True)


def by_jax(case: Case, flip: bool) -> Callable:
    """Return the same by JAX alone."""

    def outputs(x: Any, w: Any) -> Any:
        return jax.lax.conv_general_dilated(
            x,
            w[:, :, ::-1, ::-1] if flip else w,
            window_strides=(case.stride,) * 2,
            padding=((case.border,) * 2,) * 2,
            dimension_numbers=("NCHW", "OIHW", "NCHW"),
        )

    def all_of_it(x: Any, w: Any, g: Any) -> Any:
        y, transpose = jax.vjp(outputs, x, w)
        return y, *transpose(g)

    return jax.jit(all_of_it)


def outputs_shape(case: Case) -> tuple[int, ...]:
    """Return the shape of a convolution's outputs."""
    lengths = zip(case.inputs[2:], case.filters[2:], strict=True)
    image = ((n + 2 * case.border - window) // case.stride + 1 for n, window in lengths)
    return (case.inputs[0], case.filters[0], *image)


def convolutions() -> None:
    """Print the medians of interleaved turns, and synk's time over JAX's."""
    random = np.random.default_rng(0)
    print(f"{'conv2d':28}{'synk':>10}{'JAX':>10}{'ratio':>7}")
    for case, flip in ((case, flip) for case in CASES for flip in (False, True)):
        synks, jaxs = by_synk(case, flip), by_jax(case, flip)
        x = random.normal(size=case.inputs).astype("float32")
        w = random.normal(size=case.filters).astype("float32")
        g = random.normal(size=outputs_shape(case)).astype("float32")
        for found, expected in zip(synks(x, w, g), jaxs(x, w, g), strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-2)
        what = case.what + (", flipped" if flip else "")
        print(line(f"{what:28}", synks, jaxs, (x, w, g), TURNS))


class Windows(NamedTuple):
    """Images, and how windows lie in them."""

    images: tuple[int, ...]  # batch, channels, height, width
    window: int
    stride: int


WINDOWS = (
    Windows((64, 32, 28, 28), 2, 2),
    Windows((64, 32, 28, 28), 3, 3),
    Windows((64, 32, 28, 28), 3, 1),
    Windows((8, 64, 112, 112), 3, 2),
)


def maxima_by_synk(case: Windows) -> Callable:
    """Return the maxima and the gradient as PyTensor compiles them in JAX mode."""
    x, g = (pt.tensor4(name, dtype="float32") for name in "xg")
    rectified = pt.maximum(x, np.float32(0))
    sides = ((case.window,) * 2, True, (case.stride,) * 2)
    y = nn.pool_2d(rectified, *sides)
    gradient = pt.grad(None, x, known_grads={y: g})
    return pytensor.function([x, g], [y, gradient], mode="JAX", trust_input=True)


def maxima_by_jax(case: Windows) -> Callable:
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


def maxima_of_windows() -> None:
    """Print the medians of interleaved turns, and synk's time over JAX's."""
    random = np.random.default_rng(0)
    print(f"{'maxima of windows':34}{'synk':>10}{'JAX':>10}{'ratio':>7}")
    for case in WINDOWS:
        synks, jaxs = maxima_by_synk(case), maxima_by_jax(case)
        x = random.normal(size=case.images).astype("float32")
        g = _gradient_of_maxima(x, case)
        np.testing.assert_array_equal(synks(x, g)[0], jaxs(x, g)[0])
        what = f"{case.images}, {case.window} every {case.stride}"
        print(line(f"{what:34}", synks, jaxs, (x, g), FEWER_TURNS))


def _gradient_of_maxima(x: np.ndarray, case: Windows) -> np.ndarray:
    sizes = ((n - case.window) // case.stride + 1 for n in x.shape[2:])
    return np.ones((*x.shape[:2], *sizes), "float32")


def line(
    what: str, synks: Callable, jaxs: Callable, arrays: tuple[Any, ...], turns: int
) -> str:
    """Return medians of interleaved turns, and synk's time over JAX's."""
    functions = [partial(_finished, function, *arrays) for function in (synks, jaxs)]
    ours, theirs = interleave(functions, turns)
    ratio = ours / theirs
    return f"{what}{ours * 1e3:7.2f} ms{theirs * 1e3:7.2f} ms{ratio:7.2f}"


def _finished(function: Callable, *args: Any) -> None:
    jax.block_until_ready(function(*args))


if __name__ == "__main__":
    convolutions()
    maxima_of_windows()
