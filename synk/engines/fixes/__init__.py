"""Fixes: conversions of Ops that replace PyTensor's, where those are wrong or slow.

A fix for JAX is called as ``fix(original, op, node)``, where `original` is PyTensor's
conversion ``original(op, node)``, and returns JAX's function for the Op. Several fixes
for an Op wrap each other, the last of the table outermost. A fix for numba is called
with the node, and the function and cache key to which PyTensor converts it. It returns
another function and key, or None to keep PyTensor's.

Each fix says until which PyTensor it is needed, as far as that is known; they were made
with PyTensor 2.38.3 and 3.0.7 and JAX 0.10.2. ``test_nn_jax_fixes.py`` and
``test_modes_mended.py`` fail for a fix that is no longer needed and can go.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytensor
import pytensor.scalar as ps
from pytensor.compile.ops import DeepCopyOp
from pytensor.graph.op import Op
from pytensor.scalar import Composite
from pytensor.scan.op import Scan
from pytensor.tensor.basic import Alloc, ARange, Split
from pytensor.tensor.blas import BatchedDot
from pytensor.tensor.elemwise import CAReduce, DimShuffle, Elemwise
from pytensor.tensor.math import Dot, Max, Min, ProdWithoutZeros, Sum
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.shape import Reshape
from pytensor.tensor.subtensor import IncSubtensor

from ..jax_bounds import INDEXING
from . import jax_compile_time, jax_shapes, jax_speed, jax_values, numba_arrays
from . import numba_elementwise as by_element
from .hinge import CountNonzero

JAX_FIXES: list[tuple[type | tuple[type, ...], Callable]] = [
    (ARange, jax_shapes.arange),
    (tuple(jax_shapes.REFUSED), jax_shapes.refuse),
    (Reshape, jax_shapes.reshape),
    (Split, jax_shapes.split),
    (Scan, jax_shapes.scan),
    (tuple(jax_shapes.SIZES), jax_shapes.with_sizes),
    (RandomVariable, jax_shapes.random),
    (IncSubtensor, jax_values.set_all),
    ((Alloc, *INDEXING), jax_values.with_arrays),
    (INDEXING, jax_shapes.explained),
    (ProdWithoutZeros, jax_values.prod_without_zeros),
    ((CAReduce, Elemwise), jax_values.of_declared_dtype),
    (DeepCopyOp, jax_values.copied_stream),
    (ps.Softplus, jax_speed.softplus),
    (ps.Pow, jax_speed.power),
    (Dot, jax_speed.product_by_rows),
    (Op, jax_compile_time.sizes_at_compile_time),
]

JAX_REWRITES = [(CountNonzero(), -1)]
"""Rewrites, and their positions among PyTensor's."""

NUMBA_FIXES: dict[type, Callable[[Any, Callable, str | None], tuple | None]] = {
    **({DimShuffle: numba_arrays.with_layout} if numba_arrays.IS_NEEDED else {}),
    Dot: numba_arrays.product,
    **({BatchedDot: numba_arrays.products} if numba_arrays.ASSIGNS_PRODUCTS else {}),
    Alloc: numba_arrays.filled,
    **dict.fromkeys((Sum, Max, Min), numba_arrays.reduction),
    **dict.fromkeys(by_element.KINDS, by_element.function),
    Composite: by_element.composite,
}


def wrong_rewrites() -> list[str]:
    """Return the names of PyTensor's rewrites to leave out.

    ``local_add_of_sparse_write`` (PyTensor 3.0.7; not in 2.38.3, right in 3.3.7) makes
    ``set_subtensor(zeros[::2], x) + b`` an addition into b, as if b always had the
    shape of the zeros. If b is broadcast, such as a bias, the result has b's shape, or
    the call raises.
    """
    version = tuple(map(int, pytensor.__version__.split(".")[:2]))
    return ["local_add_of_sparse_write"] if (3, 0) <= version < (3, 3) else []
