"""Numba mode: layouts of transposes, products by rows; filled arrays, reductions.

*Transposes.* PyTensor before 3.3.2 computes a `DimShuffle` by ``as_strided``, and numba
takes the result for an array of any strides. So a product by ``X.T`` copies X in every
call. Here the values of `DimShuffle` stay PyTensor's, and the result declares its
layout: for dimensions in order that of the input, and in reverse order Fortran for C
and C for Fortran. Dimensions of length 1 may come or go in both cases.

*Products.* For ``X @ w`` of float64, with X in C order, BLAS is slow: OpenBLAS 0.3
takes 0.62 ms for 100,000 rows of 20, on a core of an AMD EPYC 9004, and a loop that
LLVM compiles 0.44; with 2 or 3 columns 3.3 and 0.9. So the loop is used. A row's
product then does not depend on the other rows. w may be a matrix of one column, as
PyTensor makes it one. For a transposed matrix BLAS is as fast, and products of float32
and of two matrices are computed by BLAS as well. PyTensor before 3.3 assigns each
product of a stack of matrices to its place; here BLAS writes it there.

*Filled arrays.* PyTensor assigns an array to the new one, even to fill it with one
number. For an array's assignment, numba compiles the text of an error for shapes that
do not fit: 3 s in each process (numba 0.65). Here a number is assigned, which takes
0.2 s.

*Reductions.* PyTensor 3 makes numba compile loops for all layouts of an array, with a
sort of its strides: 4 s for a process's first sum. Numba knows the layout when it
compiles. For C order, only the loop for that is compiled here, which takes 0.3 s.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytensor
from pytensor.graph.basic import Apply
from pytensor.scalar import Add, Maximum, Minimum

_VERSION = 11
"""A part of the cache keys on disk. Raise it when this file's code changes."""

_PYTENSOR = tuple(map(int, re.findall(r"\d+", pytensor.__version__)[:3]))

IS_NEEDED = _PYTENSOR < (3, 3, 2)
"""Whether `with_layout` is needed: this PyTensor does not declare layouts itself."""

ASSIGNS_PRODUCTS = _PYTENSOR < (3, 3)
"""Whether `products` is needed: this PyTensor assigns a stack's products."""


def own_key(key: str | None, *facts: Any) -> str | None:
    """Return a key for PyTensor's cache on disk, made of PyTensor's key and facts.

    None if PyTensor has no key, so that the code is not kept.
    """
    return key and hashlib.sha256(f"{key}, synk {facts}".encode()).hexdigest()


def float_of(node: Apply) -> str | None:
    """Return the dtype that all inputs and outputs have, if it is a float; or None."""
    variables: list[Any] = [*node.inputs, *node.outputs]
    found = {var.type.dtype for var in variables}
    return found.pop() if found in ({"float64"}, {"float32"}) else None


# -- transposes


def with_layout(node: Apply, view: Callable, key: str | None) -> tuple | None:
    """Return a `DimShuffle`'s function and key, or None to keep PyTensor's."""
    from pytensor.link.numba.dispatch import basic

    kept = [i for i in node.op.new_order if i != "x"]  # type: ignore[attr-defined]
    if not kept:  # the array has one element
        return None
    if kept == sorted(kept):
        order = "kept"
    elif kept == sorted(kept, reverse=True):
        order = "reversed"
    else:
        return None
    declare = _declaration(order)

    @basic.numba_njit
    def with_declaration(x):
        return declare(view(x), x)

    return with_declaration, own_key(key, order, _VERSION)


@cache
def _declaration(order: str) -> Callable:
    """Return a numba function of (view, x): `view`, declared to have x's layout.

    If `order` is "reversed", the layout has C and F exchanged. The layouts of
    ``numba.types.Array`` are documented in its code only.
    """
    from numba.core.imputils import impl_ret_borrowed
    from numba.extending import intrinsic

    def as_it_is(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return impl_ret_borrowed(context, builder, signature.return_type, args[0])

    @intrinsic
    def declared(typingctx, view, x):
        layouts = {"C": "C", "F": "F"} if order == "kept" else {"C": "F", "F": "C"}
        layout = layouts.get(x.layout, "A")
        if view.ndim < 2 and layout == "F":
            layout = "C"  # numba's name for the layout of one dimension
        return view.copy(layout=layout)(view, x), as_it_is

    return declared


# -- filled arrays


def filled(node: Apply, alloc: Callable, key: str | None) -> tuple | None:
    """Return the function and key of an `Alloc` of one number; None for others."""
    number: Any = node.inputs[0].type
    lengths = node.inputs[1:]
    if {*number.shape} - {1} or not 0 < len(lengths) < 5:
        return None
    return _fills()[len(lengths)], own_key(key, "filled", len(lengths), _VERSION)


@cache
def _fills() -> dict[int, Callable]:
    """Return numba functions that fill a new array, by its number of dimensions."""
    from pytensor.link.numba.dispatch import basic

    @basic.numba_njit
    def full(x, shape):
        made = np.empty(shape, x.dtype)
        made[...] = x.item()
        return made

    @basic.numba_njit
    def fill_1(x, a):
        return full(x, (a.item(),))

    @basic.numba_njit
    def fill_2(x, a, b):
        return full(x, (a.item(), b.item()))

    @basic.numba_njit
    def fill_3(x, a, b, c):
        return full(x, (a.item(), b.item(), c.item()))

    @basic.numba_njit
    def fill_4(x, a, b, c, d):
        return full(x, (a.item(), b.item(), c.item(), d.item()))

    return {1: fill_1, 2: fill_2, 3: fill_3, 4: fill_4}


# -- sums, maxima, minima


def reduction(node: Apply, original: Callable, key: str | None) -> tuple | None:
    """Return the function and key of a sum, maximum or minimum, or None.

    It is of all elements, or of those of a matrix along an axis.
    """
    op: Any = node.op
    x, out = (var.type for var in (node.inputs[0], node.outputs[0]))  # type: ignore
    acc = np.dtype(getattr(op, "acc_dtype", None) or out.dtype)
    kinds = {Add: "iuf", Maximum: "f", Minimum: "f"}.get(type(op.scalar_op), "")
    if acc != out.dtype or acc.kind not in kinds:
        return None
    if x.ndim < 2 or x.dtype == "bool" or (out.ndim and x.ndim > 2):
        return None
    axis = None if out.ndim == 0 else op.axis[0] % x.ndim
    first = acc.type(op.scalar_op.identity)
    made = _by_layout(original, type(op.scalar_op), axis, first)
    return made, own_key(key, "sum", x.ndim, _VERSION)


def _by_layout(
    original: Callable, kind: type, axis: int | None, first: np.generic
) -> Callable:
    """Return numba's function of a reduction of C order; `original` has the rest.

    `first` is the value of no elements, in the dtype of the result. `axis` None: of all
    elements.
    """
    from numba.extending import overload
    from pytensor.link.numba.dispatch import basic

    combine = basic.numba_njit(_COMBINED[kind], inline="always")

    def of_all(x):
        values, made = x.ravel(), first
        for i in range(values.size):
            made = combine(made, values[i])
        return np.array(made)

    def of_columns(x):
        made = np.full(x.shape[1], first)
        for i in range(x.shape[0]):
            for j in range(x.shape[1]):
                made[j] = combine(made[j], x[i, j])
        return made

    def of_rows(x):
        made = np.full(x.shape[0], first)
        for i in range(x.shape[0]):
            for j in range(x.shape[1]):
                made[i] = combine(made[i], x[i, j])
        return made

    ours = {None: of_all, 0: of_columns, 1: of_rows}[axis]
    by_layout = [basic.numba_njit(ours, boundscheck=False), original]

    def reduced(x):
        """Stand for the overload that numba chooses by layout."""

    @overload(reduced, strict=False)
    def reduced_for(x):
        chosen = by_layout[x.layout != "C"]
        return lambda x: chosen(x)

    @basic.numba_njit
    def reduced_by_layout(x):
        return reduced(x)

    return reduced_by_layout


_COMBINED: dict[type, Callable] = {  # NaN wins, as in numpy
    Add: lambda made, value: made + value,
    Maximum: lambda made, value: value if made < value or value != value else made,
    Minimum: lambda made, value: value if made > value or value != value else made,
}


# -- products


def product(node: Apply, blas: Callable, key: str | None) -> tuple | None:
    """Return the function and key of a product; None to keep PyTensor's."""
    if float_of(node) != "float64":
        return None
    left, right = (var.type.shape for var in node.inputs)  # type: ignore[attr-defined]
    by_column, of_row = _products()
    # PyTensor's key does not include the types, by which the function is chosen here.
    if len(left) == 2 and (len(right) == 1 or right[1:] == (1,)):
        return by_column, own_key(key, "by column", _VERSION)
    if len(right) == 2 and left[:1] == (1,):
        return of_row, own_key(key, "of row", _VERSION)
    return None


def products(node: Apply, assigned: Callable, key: str | None) -> tuple | None:
    """Return the function and key of a stack's products; None to keep PyTensor's."""
    if float_of(node) is None:
        return None
    return _of_stack(), own_key(key, "of stack", _VERSION)


@cache
def _of_stack() -> Callable:
    """Return a numba function of two arrays: the products of their entries."""
    from pytensor.link.numba.dispatch import basic

    @basic.numba_njit
    def of_stack(x, y):
        made = np.empty((*x.shape[:-1], *y.shape[2:]), x.dtype)
        for i in range(made.shape[0]):
            np.dot(x[i], y[i], made[i])
        return made

    return of_stack


@cache
def _products() -> tuple[Callable, Callable]:
    """Return numba functions: of a matrix times a column, and a row times a matrix."""
    from numba.extending import overload
    from pytensor.link.numba.dispatch import basic

    def into(x, w, out):
        """Write a product to `out`; numba chooses the overload by layout."""

    # LLVM may add in any order, as BLAS does; infinities and NaN stay exact.
    @overload(into, jit_options={"fastmath": {"reassoc", "contract"}}, strict=False)
    def into_for(x, w, out):
        if x.layout != "C":
            return lambda x, w, out: np.dot(x, np.ascontiguousarray(w), out)

        def by_rows(x, w, out):
            for i in range(x.shape[0]):
                total = 0.0
                for j in range(x.shape[1]):
                    total += x[i, j] * w[j]
                out[i] = total

        return by_rows

    @basic.numba_njit
    def by_column(x, w, out=None):
        if x.shape[1] != w.shape[0]:
            raise ValueError("incompatible array sizes for np.dot(a, b)")
        if out is None:
            out = np.empty((x.shape[0], *w.shape[1:]))
        into(x, w.ravel(), out.reshape(x.shape[0]))
        return out

    @basic.numba_njit
    def of_row(w, x, out=None):
        if out is None:
            out = np.empty((1, x.shape[1]))
        by_column(x.T, w.ravel(), out.reshape(x.shape[1]))
        return out

    for made in (by_column, of_row):  # `Blockwise` reads this, from PyTensor 3.0.6 on
        made.handles_out = True  # type: ignore[attr-defined]
    return by_column, of_row
