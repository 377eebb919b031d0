"""`theano.tensor.nnet.neighbours`: patches of images as rows of a matrix."""

from __future__ import annotations

from typing import Any

import pytensor.tensor as pt
from pytensor.compile import SharedVariable
from pytensor.graph import Constant, Variable
from pytensor.raise_op import Assert

from ...network import network_op

__all__ = ["images2neibs", "neibs2images"]


def _numbers(given: Any) -> Any:
    """Return what is constant as numbers, and all else as it is."""
    if isinstance(given, Constant):
        given = given.data.tolist()
    if isinstance(given, list | tuple):
        return tuple(int(x.data) if isinstance(x, Constant) else x for x in given)
    return given


def _is_symbolic(given: Any) -> bool:
    several = given if isinstance(given, tuple) else (given,)
    return any(isinstance(x, Variable | SharedVariable) for x in several)


def images2neibs(
    ten4: Any, neib_shape: Any, neib_step: Any = None, mode: str = "valid"
) -> Any:
    """Return the patches of images, one in each row; ``synk.nn.images2neibs``.

    Parameters
    ----------
    ten4 : tensor
        Images (batch, channels, rows, columns).
    neib_shape, neib_step : pair of int, or vector of two
        Rows and columns of a patch, and of the distance between two. Where they are
        not known before a call, as in a shared variable, `mode` is "valid" or
        "ignore_borders".
    mode : str
        See there.
    """
    shape, step = _numbers(neib_shape), _numbers(neib_step)
    if _is_symbolic(shape) or _is_symbolic(step):
        return _by_indices(ten4, shape, shape if step is None else step, mode)
    return network_op("images2neibs", "images2neibs")(ten4, shape, step, mode)


def _by_indices(images: Any, shape: Any, step: Any, mode: str) -> Any:
    if mode not in ("valid", "ignore_borders"):
        raise ValueError(
            f"images2neibs: mode={mode!r} needs a neib_shape of numbers, which are"
            " known before a call"
        )
    images = pt.as_tensor_variable(images)
    shape, step = (pt.cast(pt.as_tensor_variable(x), "int64") for x in (shape, step))
    places = []
    for axis in range(2):
        rest = images.shape[2 + axis] - shape[axis]
        if mode == "valid":
            fills = pt.and_(rest >= 0, pt.eq(rest % step[axis], 0))
            rest = Assert("images2neibs: the patches do not fill the images")(
                rest, fills
            )
        first = pt.arange(rest // step[axis] + 1) * step[axis]
        places.append(first[:, None] + pt.arange(shape[axis]))
    rows, columns = places
    found = images[:, :, rows[:, None, :, None], columns[None, :, None, :]]
    return found.reshape((-1, shape[0] * shape[1]))


def neibs2images(
    neibs: Any, neib_shape: Any, original_shape: Any, mode: str = "valid"
) -> Any:
    """Return images of their patches; ``synk.nn.neibs2images``."""
    put = network_op("neibs2images", "neibs2images")
    return put(neibs, _numbers(neib_shape), original_shape, mode)
