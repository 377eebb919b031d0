"""Functions of `theano.tensor` that PyTensor lacks, or has with other arguments.

Scripts use Theano's names of arguments, and pass some by position that are keyword-only
in PyTensor. Functions with the same arguments in PyTensor are not here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.compile import SharedVariable
from pytensor.compile.builders import OpFromGraph
from pytensor.graph import Constant
from pytensor.raise_op import Assert
from pytensor.tensor import TensorType

from ..also_named import also_named

# -- variables


class _Plain(type):
    def __instancecheck__(cls, instance: Any) -> bool:
        return cls.__subclasscheck__(type(instance))

    def __subclasscheck__(cls, subclass: type) -> bool:
        return subclass is cls or (
            issubclass(subclass, pt.TensorVariable)
            and not issubclass(subclass, SharedVariable | Constant)
        )

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return pt.TensorVariable(*args, **kwargs)

    def __getattr__(cls, name: str) -> Any:
        return getattr(pt.TensorVariable, name)


class TensorVariable(metaclass=_Plain):
    """The class of expressions and inputs; a call makes PyTensor's TensorVariable.

    In PyTensor, a shared variable is a ``TensorVariable``; in Theano it was not. Code
    distinguishes parameters from expressions by that, as recurrent layers of Lasagne do
    for initial states.
    """


def _shape(broadcastable: Sequence[bool]) -> tuple[int | None, ...]:
    return tuple(1 if one else None for one in broadcastable)


def _constructor(name: str) -> Callable:
    theirs = getattr(pt, name)

    def make(name: str | None = None, dtype: Any = None, **kwargs: Any) -> Any:
        """Make a variable; `broadcastable` names its axes of length 1."""
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
    """Make a variable of any type, by `broadcastable`, or by PyTensor's `shape`."""
    if broadcastable is not None:
        kwargs["shape"] = _shape(broadcastable)
    return TensorType(dtype, **kwargs)(name)


# -- names and order of arguments

dot = also_named("a", "l")(also_named("b", "r")(pt.dot))
repeat = also_named("x", "a")(pt.repeat)
flatten = also_named("outdim", "ndim")(pt.flatten)


def mean(
    input: Any,
    axis: Any = None,
    dtype: Any = None,
    op: bool = False,
    keepdims: bool = False,
    acc_dtype: Any = None,
) -> Any:
    """Return the mean along axes; `op` has no effect."""
    return pt.mean(input, axis, dtype, keepdims=keepdims, acc_dtype=acc_dtype)


def sparse_grad(var: Any) -> Any:
    """Return `var`: the gradient by what it is taken from is dense, as any other."""
    return pt.as_tensor_variable(var)


def reshape(x: Any, newshape: Any, ndim: int | None = None) -> Any:
    """Return `x` in another shape; `ndim` is the length of a symbolic one."""
    if isinstance(newshape, tuple | list):
        # PyTensor 3.0 would cast each number, in a node without inputs. Such a node of
        # a loop's graph would move to the outer graph, whose rewrites break both.
        newshape = [
            pt.constant(n, dtype="int64") if isinstance(n, int) else n for n in newshape
        ]
    return pt.reshape(x, newshape, ndim=ndim)


def stack(*tensors: Any, **kwargs: Any) -> Any:
    """Join tensors along a new axis: a list and the axis, or the tensors themselves."""
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


def tile(x: Any, reps: Any, ndim: int | None = None) -> Any:
    """Repeat `x` along its last axes.

    The result has `ndim` axes, the new ones in front. `ndim` is needed if `reps` is a
    vector of unknown length.
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
    """Return `ndim` entries: ones, and then those of a vector of any length."""
    fits = Assert(f"tile: reps has more than ndim={ndim} entries")
    reps = fits(reps, reps.shape[0] <= ndim)
    padded = pt.concatenate([pt.ones(ndim, dtype=reps.dtype), reps])[-ndim:]
    return [padded[i] for i in range(ndim)]


# -- numbers

_NARROW = {"uint8": 8, "uint16": 16, "uint32": 32, "int8": 8, "int16": 16}


def cast(x: Any, dtype: Any) -> Any:
    """Return `x` in another dtype, which may be "floatX".

    Integers that do not fit wrap around, as in NumPy. Floats become narrow integers via
    int64, as PyTensor's engines differ: 300.0 as a uint8 is 44, 255 or an error.
    """
    x = pt.as_tensor_variable(x)
    bits = _NARROW.get(str(dtype))
    if bits is None or not x.dtype.startswith("float"):
        return pt.cast(x, dtype)
    size = 2**bits
    shift = 0 if str(dtype).startswith("u") else size // 2
    whole = pt.cast(x, "int64")
    return pt.cast(pt.bitwise_and(whole + shift, size - 1) - shift, dtype)


def xlogx(x: Any) -> Any:
    """Return x log x, and 0 where `x` is 0."""
    return xlogy0(x, x)


def xlogy0(x: Any, y: Any) -> Any:
    """Return x log y, and 0 where `x` is 0."""
    x, y = pt.as_tensor_variable(x), pt.as_tensor_variable(y)
    zero = pt.eq(x, 0)
    # The inner switch keeps the logarithm of 0, and its gradient, finite.
    return pt.switch(zero, 0.0, x * pt.log(pt.switch(zero, 1.0, y)))


# -- axes of length 1


def addbroadcast(x: Any, *axes: int) -> Any:
    """Return `x` with static length 1 along `axes`, which a call checks."""
    x = pt.as_tensor_variable(x)
    return pt.specify_broadcastable(x, *axes) if axes else x


def unbroadcast(x: Any, *axes: int) -> Any:
    """Return `x` with unknown static lengths along `axes`."""
    x = pt.as_tensor_variable(x)
    if not any(x.type.broadcastable[axis] for axis in axes):
        return x
    shape = [None if i in axes else n for i, n in enumerate(x.type.shape)]
    # PyTensor has no Op for that; the identity graph of a wider input does it.
    wider: Any = pt.tensor("x", dtype=x.dtype, shape=tuple(shape))
    return OpFromGraph([wider], [wider.copy()], inline=True)(x)


def patternbroadcast(x: Any, broadcastable: Sequence[bool]) -> Any:
    """Return `x` with static length 1 where `broadcastable` is true.

    The other axes that had length 1 get unknown static lengths.
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
        """Return `x` with the static lengths of its axes changed."""
        x = pt.as_tensor_variable(x)
        pattern = list(x.type.broadcastable)
        for axis, one in self.axis.items():
            pattern[axis] = one
        return patternbroadcast(x, pattern)


# -- linear algebra


def batched_dot(a: Any, b: Any) -> Any:
    """Return the dot product of each pair of elements along axis 0.

    By ``matmul``, as PyTensor deprecates its own function. With more than 3 dimensions
    it is a `batched_tensordot`.
    """
    a, b = pt.as_tensor_variable(a), pt.as_tensor_variable(b)
    if a.ndim == 0 or b.ndim == 0:
        raise TypeError(f"a scalar has no batch: got {a.ndim} and {b.ndim} dimensions")
    if a.ndim == 1:
        return a.dimshuffle(0, *["x"] * (b.ndim - 1)) * b
    if b.ndim == 1:
        return a * b.dimshuffle(0, *["x"] * (a.ndim - 1))
    if a.ndim > 3 or b.ndim > 3:
        return batched_tensordot(a, b, [[a.ndim - 1], [max(1, b.ndim - 2)]])
    left = a[:, None, :] if a.ndim == 2 else a
    right = b[:, :, None] if b.ndim == 2 else b
    product = pt.matmul(left, right)
    if b.ndim == 2:
        product = product[:, :, 0]
    return product[:, 0] if a.ndim == 2 else product


def batched_tensordot(x: Any, y: Any, axes: Any = 2) -> Any:
    """Return the `tensordot` of each pair of elements along axis 0.

    `axes` is the number of axes to sum over, the last of `x` and the first of `y`; or a
    pair of lists of axes.
    """
    x, y = pt.as_tensor_variable(x), pt.as_tensor_variable(y)
    if isinstance(axes, int):
        axes = list(range(x.ndim - axes, x.ndim)), list(range(1, 1 + axes))
    of_x = [axis % x.ndim for axis in np.atleast_1d(axes[0])]
    of_y = [axis % y.ndim for axis in np.atleast_1d(axes[1])]
    if 0 in of_x + of_y:
        raise ValueError(f"axes={axes!r}: axis 0 is the batch and is not summed over")
    rest_x = [a for a in range(1, x.ndim) if a not in of_x]
    rest_y = [a for a in range(1, y.ndim) if a not in of_y]

    def size(v: Any, some: list[int]) -> Any:
        return pt.prod([1, *(v.shape[a] for a in some)])

    left = x.dimshuffle(0, *rest_x, *of_x)
    right = y.dimshuffle(0, *of_y, *rest_y)
    left = left.reshape((x.shape[0], size(x, rest_x), size(x, of_x)))
    right = right.reshape((x.shape[0], size(y, of_y), size(y, rest_y)))
    shape = x.shape[0], *(x.shape[a] for a in rest_x), *(y.shape[a] for a in rest_y)
    return pt.matmul(left, right).reshape(shape)


def eigh(a: Any, UPLO: str = "L") -> Any:
    """Return eigenvalues and eigenvectors, from the lower ("L") or upper triangle."""
    return pt.linalg.eigh(a, UPLO=UPLO)


def qr(a: Any, mode: Any = "reduced") -> Any:
    """Return the QR decomposition, by default "reduced" as in Theano and NumPy."""
    return pt.linalg.qr(a, mode="economic" if mode == "reduced" else mode)


def solve_lower_triangular(a: Any, b: Any) -> Any:
    """Solve ``a x = b`` for a lower triangular `a`."""
    return pt.linalg.solve_triangular(a, b, lower=True)


def solve_upper_triangular(a: Any, b: Any) -> Any:
    """Solve ``a x = b`` for an upper triangular `a`."""
    return pt.linalg.solve_triangular(a, b, lower=False)
