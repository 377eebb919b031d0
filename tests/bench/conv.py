"""Convolutions and maxima of windows in JAX mode, beside the same written in JAX.

``python tests/bench/conv.py`` times the outputs of a convolution and its gradients by
inputs and filters, single precision, on the cores of one process: with filters as they
are, and flipped, as Theano's are unless told otherwise. Then what rectified images give
and their gradient, by windows and strides.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytensor
import pytensor.tensor as pt
from beside import interleave

from synk import nn

TURNS = 51


class Case(NamedTuple):
    """What both compute of inputs."""

    what: str
    inputs: list[np.ndarray]
    synk: Callable
    jax: Callable


# Of ResNet-50, images half its size; and the first layer of a network for digits:
# batch, channels, height, width; filters; stride; how far these go beyond the image.
CONVOLUTIONS = {
    "7x7, stride 2": ((8, 3, 112, 112), (64, 3, 7, 7), 2, 3),
    "1x1": ((8, 256, 28, 28), (64, 256, 1, 1), 1, 0),
    "3x3, 64 channels": ((8, 64, 28, 28), (64, 64, 3, 3), 1, 1),
    "3x3, stride 2": ((8, 128, 28, 28), (128, 128, 3, 3), 2, 1),
    "3x3, 512 channels": ((8, 512, 4, 4), (512, 512, 3, 3), 1, 1),
    "5x5 on digits": ((128, 1, 28, 28), (32, 1, 5, 5), 1, 0),
}

WINDOWS = (
    *(((64, 32, 28, 28), 2, 2), ((64, 32, 28, 28), 3, 3)),
    *(((64, 32, 28, 28), 3, 1), ((8, 64, 112, 112), 3, 2)),
)
"""Images, the sides of windows, and how far these are apart."""


def convolutions() -> Iterator[Case]:
    """Yield convolutions, each as it is and with its filters flipped."""
    for what, (images, filters, stride, border) in CONVOLUTIONS.items():
        for flip in (False, True):

            def by_synk(x: Any, w: Any, flip=flip, stride=stride, border=border) -> Any:
                sides = {"border_mode": (border,) * 2, "subsample": (stride,) * 2}
                return nn.conv2d(x, w, filter_flip=flip, **sides)

            def by_jax(x: Any, w: Any, flip=flip, stride=stride, border=border) -> Any:
                return jax.lax.conv_general_dilated(
                    x,
                    w[:, :, ::-1, ::-1] if flip else w,
                    window_strides=(stride,) * 2,
                    padding=((border,) * 2,) * 2,
                    dimension_numbers=("NCHW", "OIHW", "NCHW"),
                )

            name = what + ", flipped" * flip
            yield Case(name, arrays(images, filters), by_synk, by_jax)


def maxima() -> Iterator[Case]:
    """Yield maxima of windows."""
    for images, window, stride in WINDOWS:

        def by_synk(x: Any, window=window, stride=stride) -> Any:
            rectified = pt.maximum(x, np.float32(0))
            return nn.pool_2d(rectified, (window,) * 2, True, (stride,) * 2)

        def by_jax(x: Any, window=window, stride=stride) -> Any:
            sides = (1, 1, window, window), (1, 1, stride, stride)
            rectified = jnp.maximum(x, np.float32(0))
            return jax.lax.reduce_window(
                rectified, -jnp.inf, jax.lax.max, *sides, "VALID"
            )

        name = f"{images}, {window} every {stride}"
        yield Case(name, arrays(images), by_synk, by_jax)


def arrays(*shapes: tuple[int, ...]) -> list[np.ndarray]:
    random = np.random.default_rng(0)
    return [random.normal(size=shape).astype("float32") for shape in shapes]


def measure(case: Case) -> None:
    """Print the medians of interleaved turns, and synk's time over JAX's."""

    def all_of_it(*args: Any) -> Any:
        *inputs, g = args
        y, transpose = jax.vjp(case.jax, *inputs)
        return y, *transpose(g)

    inputs = [pt.tensor4(dtype="float32") for _ in case.inputs]
    y, g = case.synk(*inputs), pt.tensor4(dtype="float32")
    outputs = [y, *pt.grad(None, inputs, known_grads={y: g})]
    synks = pytensor.function([*inputs, g], outputs, mode="JAX", trust_input=True)
    jaxs = jax.jit(all_of_it)
    (gradient,) = arrays(jax.eval_shape(case.jax, *case.inputs).shape)
    args = *case.inputs, gradient
    for found, expected in zip(synks(*args), jaxs(*args), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-2)
    finished = [partial(_finished, function, *args) for function in (synks, jaxs)]
    ours, theirs = interleave(finished, TURNS)
    times = f"{ours * 1e3:7.2f} ms{theirs * 1e3:7.2f} ms{ours / theirs:7.2f}"
    print(f"{case.what:34}{times}", flush=True)


def _finished(function: Callable, *args: Any) -> None:
    jax.block_until_ready(function(*args))


if __name__ == "__main__":
    for title, cases in (("conv2d", convolutions), ("maxima of windows", maxima)):
        print(f"{title:34}{'synk':>10}{'JAX':>10}{'ratio':>7}")
        for case in cases():
            measure(case)
