"""Constructors of variables with Theano's arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytensor.tensor as pt
from pytensor.tensor import TensorType

__all__ = [
    "TensorType",
    "col",
    "matrix",
    "row",
    "scalar",
    "tensor",
    "tensor3",
    "tensor4",
    "tensor5",
    "vector",
]


def _shape(broadcastable: Sequence[bool]) -> tuple[int | None, ...]:
    return tuple(1 if one else None for one in broadcastable)


def _constructor(name: str) -> Callable:
    theirs = getattr(pt, name)

    def make(name: str | None = None, dtype: Any = None, **kwargs: Any) -> Any:
        """Make a variable.

        Parameters
        ----------
        name : str, optional
            Its name.
        dtype : str, optional
            ``config.floatX`` unless given.
        **kwargs
            `shape`, as in PyTensor; or `broadcastable`, the axes of length 1.
        """
        if "broadcastable" in kwargs:
            kwargs["shape"] = _shape(kwargs.pop("broadcastable"))
        return theirs(name, dtype=dtype, **kwargs)

    make.__name__ = make.__qualname__ = name
    return make


scalar = _constructor("scalar")
vector = _constructor("vector")
row = _constructor("row")
col = _constructor("col")
matrix = _constructor("matrix")
tensor3 = _constructor("tensor3")
tensor4 = _constructor("tensor4")
tensor5 = _constructor("tensor5")


def tensor(
    dtype: Any,
    broadcastable: Sequence[bool] | None = None,
    name: str | None = None,
    **kwargs: Any,
) -> Any:
    """Make a variable of any type.

    Parameters
    ----------
    dtype : str
        Its dtype.
    broadcastable : sequence of bool
        For each axis, whether its length is 1.
    name : str, optional
        Its name.
    **kwargs
        `shape`, as in PyTensor, in place of `broadcastable`.
    """
    if broadcastable is not None:
        kwargs["shape"] = _shape(broadcastable)
    return TensorType(dtype, **kwargs)(name)
