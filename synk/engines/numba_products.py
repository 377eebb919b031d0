"""Numba mode: a product of a matrix and a vector, row by row.

For ``X @ w`` of float64, rows in order, BLAS is called where it is slow: OpenBLAS 0.3
takes 0.62 ms for 100,000 rows of 20, on a core of an AMD EPYC 9004, and a loop that
LLVM compiles 0.44; with 2 or 3 columns 3.3 and 0.9. So the loop is taken. A row's
product does not depend on what rows are beside it then.

A vector may be a matrix of one column: PyTensor makes it one. By a transposed matrix
BLAS is as fast, and products of float32 and of two matrices stay BLAS's as well.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from pytensor.graph.basic import Apply

_VERSIONS = (7_300_103, 7_300_203)
"""In keys of PyTensor's cache on disk, of which a node's types are no part. They are to
change with this file."""


def product(node: Apply, blas: Callable) -> tuple[Callable, int] | None:
    """Return the code of a product, and its version, if it is not PyTensor's.

    Parameters
    ----------
    node : Apply
        Of `Dot`.
    blas : callable
        PyTensor's.
    """
    kinds: list[Any] = [var.type for var in (*node.inputs, *node.outputs)]
    if any(kind.dtype != "float64" for kind in kinds):
        return None
    left, right = (kind.shape for kind in kinds[:2])
    if len(left) == 2 and (len(right) == 1 or right[1:] == (1,)):
        return _products()[0], _VERSIONS[0]
    if len(right) == 2 and left[:1] == (1,):
        return _products()[1], _VERSIONS[1]
    return None


@cache
def _products() -> tuple[Callable, Callable]:
    """Return functions of numba's: a matrix by a column, and a row by a matrix."""
    from numba.extending import overload
    from pytensor.link.numba.dispatch import basic

    def into(x, w, out):
        """Write a product to `out`, in a way that the layout tells."""

    # Sums may be taken in any order, as in BLAS; infinities and NaN stay what they are.
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

    for made in (by_column, of_row):  # PyTensor from 3.0.6 on asks, for `Blockwise`
        made.handles_out = True  # type: ignore[attr-defined]
    return by_column, of_row
