"""`theano.tensor.signal.pool`: pooling, by the Ops of `synk.nn`."""

from __future__ import annotations

from typing import Any

from ...network import network_op

__all__ = ["max_pool_2d_same_size", "pool_2d", "pool_3d"]


def _pool(
    name: str,
    input: Any,
    ws: Any,
    ignore_border: bool | None,
    stride: Any,
    pad: Any,
    mode: str,
    old: dict[str, Any],
) -> Any:
    ws = old.pop("ds", None) if ws is None else ws
    stride = old.pop("st", None) if stride is None else stride
    padding = old.pop("padding", None)
    pad = pad if padding is None else padding
    if any(value is not None for value in old.values()):
        raise TypeError(f"{name}: unknown arguments: {', '.join(sorted(old))}")
    if ws is None:
        raise ValueError(f"{name}: ws, the size of the window, is missing")
    return network_op(name, name)(
        input,
        ws,
        ignore_border=bool(ignore_border),
        stride=stride,
        pad=pad,
        mode=mode,
    )


def pool_2d(
    input: Any,
    ws: Any = None,
    ignore_border: bool | None = None,
    stride: Any = None,
    pad: Any = (0, 0),
    mode: str = "max",
    **old: Any,
) -> Any:
    """Pool over the last two axes; see ``synk.nn.pool_2d``.

    Parameters
    ----------
    input : tensor
        The images.
    ws : tuple of int, or vector of int
        The window; its sizes may be variables, and so those of `stride` and `pad`.
    ignore_border : bool
        Whether incomplete windows are left out; False unless given.
    stride : tuple of int, optional
        The window unless given.
    pad : tuple of int
        Rows and columns added at each border.
    mode : {"max", "sum", "average_inc_pad", "average_exc_pad"}
        What is done.
    **old
        `ds`, `st`, `padding`: older names of `ws`, `stride`, `pad`.
    """
    return _pool("pool_2d", input, ws, ignore_border, stride, pad, mode, old)


def pool_3d(
    input: Any,
    ws: Any = None,
    ignore_border: bool | None = None,
    stride: Any = None,
    pad: Any = (0, 0, 0),
    mode: str = "max",
    **old: Any,
) -> Any:
    """Pool over the last three axes: `pool_2d` with one more."""
    return _pool("pool_3d", input, ws, ignore_border, stride, pad, mode, old)


def max_pool_2d_same_size(input: Any, patch_size: Any) -> Any:
    """Return `input` with all but the largest element of each window set to 0."""
    import pytensor.tensor as pt

    input = pt.as_tensor_variable(input)
    largest = pool_2d(input, patch_size, ignore_border=True)
    return pt.grad(largest.sum(), input) * input
