"""The reduce ops "avg", "sum", "prod", "min" and "max", on values of numpy.

The order of reduction is fixed (rank 0 first), so the same values give the same bits.
Floating-point values are accumulated in the next wider type, and rounded once.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, Literal, TypeAlias

import numpy as np

from .errors import ShapeMismatch

ReduceOp: TypeAlias = Literal["avg", "sum", "prod", "min", "max"]
"""How values of one shape are combined, element by element."""

OutputOp: TypeAlias = ReduceOp | Literal["gather"] | None
"""How the ranks' values of an output are combined; None takes rank 0's value."""

REDUCE_OPS: tuple[ReduceOp, ...] = ("avg", "sum", "prod", "min", "max")
"""All of `ReduceOp`."""

OPS: tuple[OutputOp, ...] = (*REDUCE_OPS, "gather", None)
"""All of `OutputOp`."""

_WIDER = {"float16": "float32", "float32": "float64", "complex64": "complex128"}
_UFUNCS = {"prod": np.multiply, "min": np.minimum, "max": np.maximum}

_BLOCK = 16 * 1024  # elements to combine at once: the accumulator stays in the cache
_AT_ONCE = 1 << 20  # the most elements, of all values, to copy to rows of one array


def check_op(op: str | None, allowed: Sequence[str | None], what: str) -> None:
    """Raise ValueError unless `op` is one of `allowed`."""
    if op not in allowed:
        names = ", ".join(map(repr, allowed))
        raise ValueError(f"{what}: the op must be one of {names}; got {op!r}")


def check_dtype(op: OutputOp, dtype: np.dtype, what: str) -> None:
    """Raise TypeError where `op` has no meaning for `dtype`."""
    dtype = np.dtype(dtype)
    if op in (None, "gather"):
        return
    if dtype.kind not in "biufc":
        raise TypeError(f"{what}: cannot reduce dtype {dtype} with op {op!r}")
    if op == "avg" and dtype.kind == "b":
        raise TypeError(
            f"{what}: no 'avg' of bools; cast to a float,"
            " or use 'min' (all) or 'max' (any)"
        )
    if op in ("min", "max") and dtype.kind == "c":
        raise TypeError(f"{what}: complex numbers ({dtype}) have no {op!r}")


def check_shapes(
    doing: str, what: object, shapes: Sequence[tuple[int, ...]], hint: str = ""
) -> None:
    """Raise ShapeMismatch, naming every rank, unless all shapes are the same."""
    if any(shape != shapes[0] for shape in shapes):
        listed = ", ".join(f"rank {rank} {shape}" for rank, shape in enumerate(shapes))
        raise ShapeMismatch(
            f"cannot {doing} {what}: its shape differs between ranks: {listed}{hint}"
        )


def identity(op: ReduceOp, dtype: np.dtype) -> Any:
    """Return the identity of an op, for real numbers; 0 for "avg"."""
    if op in ("avg", "sum", "prod"):
        return int(op == "prod")
    if dtype.kind == "f":
        return np.inf if op == "min" else -np.inf
    limits = np.iinfo(dtype)
    return limits.max if op == "min" else limits.min


@cache
def accumulator(op: ReduceOp, dtype: np.dtype) -> np.dtype:
    """Return the dtype in which values of `dtype` are combined."""
    dtype = np.dtype(dtype)
    if op == "avg" and dtype.kind in "iu":
        return np.dtype("float64")
    if op in ("min", "max"):
        return dtype
    return np.dtype(_WIDER.get(dtype.name, dtype.name))


def finish(total: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Round an accumulated value to `dtype`; integers to the nearest, ties to even."""
    dtype = np.dtype(dtype)
    if dtype.kind in "iu" and total.dtype.kind == "f":
        total = np.rint(total)
    return total.astype(dtype, copy=False)


class Accumulator:
    """Combines values one after the other, the way `combine` does it at once."""

    def __init__(self, op: ReduceOp, dtype: np.dtype) -> None:
        self._op, self.dtype = op, np.dtype(dtype)
        self._type = accumulator(op, dtype)
        self._total: np.ndarray | None = None

    def add(self, value: np.ndarray, weight: float) -> None:
        """Add a value; for "avg", `weight` is its fraction of the rows."""
        if self._total is not None and np.shape(value) != self._total.shape:
            raise ShapeMismatch(
                f"values of shapes {self._total.shape} and {np.shape(value)} cannot be"
                f" combined by {self._op!r}; are they to be gathered?"
            )
        if self._op == "avg":
            value = np.multiply(value, weight, dtype=self._type)
        if self._total is None:
            self._total = np.array(value, dtype=self._type)
        else:
            ufunc = _UFUNCS.get(self._op, np.add)
            self._total = np.asarray(ufunc(self._total, value, dtype=self._type))

    def result(self, dtype: np.dtype | None = None) -> np.ndarray:
        """Return the combined value, in `dtype` or by default that of the values."""
        assert self._total is not None
        return finish(self._total, self.dtype if dtype is None else dtype)


def combine(
    op: ReduceOp, values: Sequence[np.ndarray], weights: Sequence[float]
) -> np.ndarray:
    """Combine values of one shape and dtype, in their order.

    `weights` are the numbers of rows of each value, for "avg"; if all are 0, all values
    count equally. The average of integers is float64.
    """
    dtype = values[0].dtype
    fractions = shares(weights)
    if values[0].shape == () and dtype.char in "fd" and op in ("sum", "avg"):
        total = 0.0  # scalars as Python floats: numpy takes ten times as long
        for value, share in zip(values, fractions, strict=True):
            if op == "sum":
                total += value.item()
            elif share:
                total += value.item() * share
        return np.array(total, dtype)
    # Leave out values without rows: 0 times NaN is NaN.
    terms = [
        (np.asarray(value), share)
        for value, share in zip(values, fractions, strict=True)
        if op != "avg" or share
    ]
    out = np.empty(values[0].shape, result_dtype(op, dtype))
    if out.size <= _BLOCK:
        out[...] = _combine(op, dtype, terms, out.dtype)
        return out
    flat = out.reshape(-1)
    terms = [(value.reshape(-1), share) for value, share in terms]
    for low in range(0, flat.size, _BLOCK):
        block = [(value[low : low + _BLOCK], share) for value, share in terms]
        flat[low : low + _BLOCK] = _combine(op, dtype, block, out.dtype)
    return out


def _combine(op: ReduceOp, dtype: np.dtype, terms: list, to: np.dtype) -> np.ndarray:
    if op in ("sum", "avg") and dtype.char in "fd":
        shapes = {value.shape for value, _ in terms}
        size = terms[0][0].size if len(shapes) == 1 else 0
        if 1 < size <= _AT_ONCE / len(terms):
            return finish(_added_as_rows(op, dtype, terms), to)
    accumulator = Accumulator(op, dtype)
    for value, share in terms:
        accumulator.add(value, share)
    return accumulator.result(to)


def _added_as_rows(op: ReduceOp, dtype: np.dtype, terms: list) -> np.ndarray:
    """Add values in the order of an `Accumulator`, by one call of numpy.

    numpy adds rows of two or more elements in order, but of one element pairwise.
    """
    values = [value for value, _ in terms]
    kind = accumulator(op, dtype)
    rows = np.empty((len(values), *values[0].shape), kind)  # C order
    np.concatenate(values, out=rows.reshape(-1, *values[0].shape[1:]))
    if op == "avg":
        fractions = np.array([share for _, share in terms], kind)
        rows *= fractions.reshape(-1, *(1,) * values[0].ndim)
    return np.add.reduce(rows, axis=0)


def result_dtype(op: str | None, dtype: np.dtype) -> np.dtype:
    """Return the dtype of a function's output after its op."""
    dtype = np.dtype(dtype)
    return np.dtype("float64") if op == "avg" and dtype.kind in "iu" else dtype


def shares(weights: Sequence[float]) -> list[float]:
    """Turn weights into fractions of their sum; equal ones where all are zero.

    >>> shares([3, 1]), shares([0, 0])
    ([0.75, 0.25], [0.5, 0.5])
    """
    total = sum(weights)
    if not total:
        return [1 / len(weights)] * len(weights)
    return [weight / total for weight in weights]
