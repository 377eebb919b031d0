"""Pooling in numpy: all windows at once, one place in them at a time."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np

from .conv_numpy import pad
from .pool_op import PoolOp


def pool(op: PoolOp, x: np.ndarray) -> np.ndarray:
    """Return the maximum, sum or average of each window."""
    fill = -np.inf if op.mode == "max" else 0
    y = np.full((*x.shape[: -op.ndim], *op.pooled(x.shape)), fill, x.dtype)
    if not y.size:
        return y
    padded = pad(x, op.margins(x.shape), fill)
    for where in _places(op, y.shape):
        if op.mode == "max":
            np.maximum(y, padded[where], out=y)
        else:
            y += padded[where]
    return op.averaged(y, x.shape)


def grad(op: PoolOp, x: np.ndarray, y: np.ndarray, g: np.ndarray) -> np.ndarray:
    """Return g, the gradient by y, spread over the pixels that y depends on."""
    margins = op.margins(x.shape)
    padded = pad(x, margins, -np.inf) if op.mode == "max" else x
    g = op.averaged(g, x.shape)
    total = pad(np.zeros(x.shape, x.dtype), margins)
    for where in _places(op, g.shape) if g.size else ():
        total[where] += np.where(padded[where] == y, g, 0) if op.mode == "max" else g
    inner: Any = op.inner(x.shape)
    return total[(..., *inner)]


def pick(op: PoolOp, x: np.ndarray, y: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Return the sum of v over those pixels of each window where x equals y."""
    margins = op.margins(x.shape)
    x, v = pad(x, margins, -np.inf), pad(v, margins)
    total = np.zeros(y.shape, y.dtype)
    for where in _places(op, y.shape) if y.size else ():
        total += np.where(x[where] == y, v[where], 0)
    return total


def _places(op: PoolOp, pooled: tuple[int, ...]) -> Iterator[Any]:
    """Yield where each place of the windows lies in padded images."""
    for at in product(*map(range, op.window)):
        yield (
            ...,
            *(
                slice(i, i + (n - 1) * s + 1, s)
                for i, n, s in zip(at, pooled[-op.ndim :], op.stride, strict=True)
            ),
        )
