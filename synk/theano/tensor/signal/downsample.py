"""`theano.tensor.signal.downsample`: the older place of `pool`."""

from __future__ import annotations

from typing import Any

from .pool import max_pool_2d_same_size, pool_2d

__all__ = ["max_pool_2d", "max_pool_2d_same_size"]


def max_pool_2d(
    input: Any,
    ds: Any,
    ignore_border: bool | None = None,
    st: Any = None,
    padding: Any = (0, 0),
    mode: str = "max",
) -> Any:
    """`pool.pool_2d` with its older arguments."""
    return pool_2d(input, ds, ignore_border, st, padding, mode)
