"""PyTensor's functions with the names, order and defaults of Theano's arguments."""

from __future__ import annotations

from typing import Any

import pytensor.tensor as pt
from pytensor.tensor.basic import get_scalar_constant_value as _constant_value

from ...also_named import also_named

__all__ = [
    "cast",
    "choose",
    "conj",
    "diag",
    "dot",
    "eigh",
    "get_scalar_constant_value",
    "is_flat",
    "mean",
    "qr",
    "repeat",
    "reshape",
    "trace",
    "unravel_index",
]

conj = also_named("z", "x")(pt.conj)
diag = also_named("x", "v")(pt.diag)
dot = also_named("a", "l")(also_named("b", "r")(pt.dot))
get_scalar_constant_value = also_named("orig_v", "v")(_constant_value)
is_flat = also_named("outdim", "ndim")(pt.is_flat)
repeat = also_named("x", "a")(pt.repeat)
trace = also_named("X", "a")(pt.trace)

_NARROW = {"uint8": 8, "uint16": 16, "uint32": 32, "int8": 8, "int16": 16}


def cast(x: Any, dtype: Any) -> Any:
    """Return `x` in another dtype; "floatX" is one as well.

    Integers that do not fit wrap around, as in NumPy. Floats become narrow integers by
    way of int64: of 300.0 as a uint8 PyTensor's engines make 44, 255 or an error.
    """
    x = pt.as_tensor_variable(x)
    bits = _NARROW.get(str(dtype))
    if bits is None or not x.dtype.startswith("float"):
        return pt.cast(x, dtype)
    size = 2**bits
    shift = 0 if str(dtype).startswith("u") else size // 2
    whole = pt.cast(x, "int64")
    return pt.cast(pt.bitwise_and(whole + shift, size - 1) - shift, dtype)


def mean(
    input: Any,
    axis: Any = None,
    dtype: Any = None,
    op: bool = False,
    keepdims: bool = False,
    acc_dtype: Any = None,
) -> Any:
    """Return the mean along axes.

    Parameters
    ----------
    input : tensor
        What is averaged.
    op : bool
        Has no meaning any more: how Theano was to compute it.
    axis, dtype, keepdims, acc_dtype
        As in PyTensor.
    """
    return pt.mean(input, axis, dtype, keepdims=keepdims, acc_dtype=acc_dtype)


def reshape(x: Any, newshape: Any, ndim: int | None = None) -> Any:
    """Return `x` in another shape; of a symbolic one `ndim` is the length."""
    return pt.reshape(x, newshape, ndim=ndim)


def choose(a: Any, choices: Any, out: None = None, mode: str = "raise") -> Any:
    """Return elements of `choices` by the numbers in `a`; `out` must be None."""
    if out is not None:
        raise ValueError(f"choose: out must be None, got {out!r}")
    return pt.choose(a, choices, mode=mode)


def unravel_index(
    indices: Any, dims: Any, order: str = "C", ndim: int | None = None
) -> Any:
    """Return coordinates of flat indices into an array of shape `dims`.

    Parameters
    ----------
    ndim : int, optional
        The length of a symbolic `dims`.
    indices, dims, order
        As in NumPy.
    """
    if ndim is not None:
        dims = pt.specify_shape(pt.as_tensor_variable(dims), (ndim,))
    return pt.unravel_index(indices, dims, order=order)


def eigh(a: Any, UPLO: str = "L") -> Any:
    """Return eigenvalues and eigenvectors of a symmetric matrix.

    Parameters
    ----------
    a : matrix
        Of which one triangle is read.
    UPLO : {"L", "U"}
        Which one: the lower or the upper.
    """
    return pt.linalg.eigh(a, UPLO=UPLO)


def qr(a: Any, mode: Any = "reduced") -> Any:
    """Return the QR decomposition, Theano's and NumPy's "reduced" unless asked.

    Parameters
    ----------
    a : matrix
        What is decomposed.
    mode : {"reduced", "complete", "r", "raw"}
        As in NumPy.
    """
    return pt.linalg.qr(a, mode="economic" if mode == "reduced" else mode)
