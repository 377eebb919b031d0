"""Functions of `theano.tensor` that PyTensor has not, or has with other arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytensor.tensor as pt
from pytensor.compile.builders import OpFromGraph
from pytensor.raise_op import Assert

__all__ = [
    "Rebroadcast",
    "addbroadcast",
    "argtopk",
    "flatten",
    "patternbroadcast",
    "rint",
    "solve_lower_triangular",
    "solve_symmetric",
    "solve_upper_triangular",
    "split",
    "stack",
    "tile",
    "topk",
    "topk_and_argtopk",
    "unbroadcast",
    "xlogx",
    "xlogy0",
]


def addbroadcast(x: Any, *axes: int) -> Any:
    """Return `x` known to have length 1 along `axes`; checked when it is computed."""
    x = pt.as_tensor_variable(x)
    return pt.specify_broadcastable(x, *axes) if axes else x


def unbroadcast(x: Any, *axes: int) -> Any:
    """Return `x`, of which nothing is known of its length along `axes`."""
    x = pt.as_tensor_variable(x)
    if not any(x.type.broadcastable[axis] for axis in axes):
        return x
    shape = [None if i in axes else n for i, n in enumerate(x.type.shape)]
    # PyTensor has no Op that forgets; a graph of an input of the wider type does.
    wider: Any = pt.tensor("x", dtype=x.dtype, shape=tuple(shape))
    return OpFromGraph([wider], [wider.copy()], inline=True)(x)


def patternbroadcast(x: Any, broadcastable: Sequence[bool]) -> Any:
    """Return `x` with length 1 known along the axes where `broadcastable` is true.

    Nothing is known of the others.
    """
    x = pt.as_tensor_variable(x)
    pattern = list(broadcastable)
    if len(pattern) != x.ndim:
        raise ValueError(
            f"broadcastable has {len(pattern)} entries for {x.ndim} axes of {x}"
        )
    known = x.type.broadcastable
    add = [i for i, one in enumerate(pattern) if one and not known[i]]
    drop = [i for i, one in enumerate(pattern) if not one and known[i]]
    return unbroadcast(addbroadcast(x, *add), *drop)


class Rebroadcast:
    """`addbroadcast` and `unbroadcast` in one: ``Rebroadcast((0, True))(x)``."""

    def __init__(self, *axes: tuple[int, bool]) -> None:
        self.axis = dict(axes)

    def __call__(self, x: Any) -> Any:
        """Return `x` with what is known of its axes changed."""
        x = pt.as_tensor_variable(x)
        pattern = list(x.type.broadcastable)
        for axis, one in self.axis.items():
            pattern[axis] = one
        return patternbroadcast(x, pattern)


def stack(*tensors: Any, **kwargs: Any) -> Any:
    """Join tensors along a new axis.

    Parameters
    ----------
    *tensors
        A list of tensors and the axis (0 by default); or, as it was once, the tensors
        themselves.
    **kwargs
        `tensors`, `axis`.
    """
    if not tensors:
        tensors = (kwargs.pop("tensors"),)
    if isinstance(tensors[0], list | tuple):
        of, *axis = tensors
        if axis:
            kwargs["axis"] = axis[0]
        return pt.stack(of, **kwargs)
    if len(tensors) == 2 and isinstance(tensors[1], int):
        return pt.stack(list(tensors[0]), axis=tensors[1])
    return pt.stack(list(tensors), **kwargs)


def split(x: Any, splits_size: Any, n_splits: int | None = None, axis: int = 0) -> Any:
    """Return `n_splits` parts of `x` along an axis.

    Parameters
    ----------
    x : tensor
        What is split.
    splits_size : vector or list of int
        The parts' lengths.
    n_splits : int, optional
        How many parts; where PyTensor cannot tell from `splits_size`.
    axis : int
        Along which they lie.
    """
    return pt.split(x, splits_size, n_splits=n_splits, axis=axis)


def flatten(x: Any, ndim: int | None = None, outdim: int | None = None) -> Any:
    """Return `x` with its last axes made one, so that `ndim` (1) axes remain.

    Parameters
    ----------
    x : TensorVariable
        What to flatten.
    ndim, outdim : int, optional
        The number of axes; `outdim` is the older name.
    """
    if outdim is not None:
        if ndim is not None:
            raise ValueError("outdim and ndim are one argument; give one of them")
        ndim = outdim
    return pt.flatten(pt.as_tensor_variable(x), 1 if ndim is None else ndim)


def tile(x: Any, reps: Any, ndim: int | None = None) -> Any:
    """Repeat `x` along its axes.

    Parameters
    ----------
    x : tensor
        What to repeat.
    reps : int, vector of int, or list of int and integer scalars
        How often along each of the last axes.
    ndim : int, optional
        The number of axes of the result, which are added in front. Needed if `reps` is
        a vector whose length is not known.
    """
    x = pt.as_tensor_variable(x)
    if ndim is None:
        return pt.tile(x, reps)
    if ndim < x.ndim:
        raise ValueError(f"tile: ndim is {ndim}, and x has {x.ndim} axes already")
    if isinstance(reps, list | tuple):
        if len(reps) > ndim:
            raise ValueError(f"tile: {len(reps)} entries of reps for ndim={ndim}")
        reps = [*[1] * (ndim - len(reps)), *reps]
    else:
        reps = _in_front(pt.atleast_1d(reps), ndim)
    return pt.tile(x, reps)


def _in_front(reps: Any, ndim: int) -> list:
    """Return `ndim` entries: those of a vector of any length, and ones before them."""
    fits = Assert(f"tile: reps has more than ndim={ndim} entries")
    reps = fits(reps, reps.shape[0] <= ndim)
    padded = pt.concatenate([pt.ones(ndim, dtype=reps.dtype), reps])[-ndim:]
    return [padded[i] for i in range(ndim)]


def rint(a: Any) -> Any:
    """Round to the nearest integer, halves to the even one."""
    return pt.round(a, mode="half_to_even")


def topk_and_argtopk(
    x: Any,
    kth: int,
    axis: int | None = -1,
    sorted: bool = True,
    idx_dtype: str = "int64",
) -> list:
    """Return the `kth` largest elements along an axis, and where they are.

    Parameters
    ----------
    x : TensorVariable
        Where to look.
    kth : int
        How many; of a negative number, so many of the smallest.
    axis : int or None
        Along which axis; None flattens `x`.
    sorted : bool
        They come in descending order in either case.
    idx_dtype : str
        Of the indices.
    """
    x = pt.as_tensor_variable(x)
    if axis is None:
        x, axis = pt.flatten(x, 1), 0
    order = pt.argsort(x, axis=axis)
    backwards: list = [slice(None)] * x.ndim
    # Of an ascending order the last are the largest: the first of it reversed.
    backwards[axis] = slice(None, None, -1)
    chosen: list = [slice(None)] * x.ndim
    chosen[axis] = slice(None, kth) if kth > 0 else slice(kth, None)
    indices = order[tuple(backwards)][tuple(chosen)]
    return [pt.take_along_axis(x, indices, axis), pt.cast(indices, idx_dtype)]


def topk(x: Any, kth: int, axis: int | None = -1, **kwargs: Any) -> Any:
    """Return the values of `topk_and_argtopk`."""
    return topk_and_argtopk(x, kth, axis, **kwargs)[0]


def argtopk(x: Any, kth: int, axis: int | None = -1, **kwargs: Any) -> Any:
    """Return the indices of `topk_and_argtopk`."""
    return topk_and_argtopk(x, kth, axis, **kwargs)[1]


def xlogx(x: Any) -> Any:
    """Return x log x, and 0 where `x` is 0."""
    return xlogy0(x, x)


def xlogy0(x: Any, y: Any) -> Any:
    """Return x log y, and 0 where `x` is 0."""
    x, y = pt.as_tensor_variable(x), pt.as_tensor_variable(y)
    zero = pt.eq(x, 0)
    # The inner switch keeps the logarithm, and its gradient, finite there.
    return pt.switch(zero, 0.0, x * pt.log(pt.switch(zero, 1.0, y)))


def solve_lower_triangular(a: Any, b: Any) -> Any:
    """Solve ``a x = b`` for a lower triangular `a`."""
    return pt.linalg.solve_triangular(a, b, lower=True)


def solve_upper_triangular(a: Any, b: Any) -> Any:
    """Solve ``a x = b`` for an upper triangular `a`."""
    return pt.linalg.solve_triangular(a, b, lower=False)


def solve_symmetric(a: Any, b: Any) -> Any:
    """Solve ``a x = b`` for a symmetric `a`."""
    return pt.linalg.solve(a, b, assume_a="sym")
