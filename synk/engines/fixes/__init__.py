"""What PyTensor gets wrong, or slow, and how synk's functions have it instead.

A fix for JAX is a function of PyTensor's conversion, an Op and its node, and returns
the function for JAX. Those for an Op are in one another, the last of the table
outermost. One for numba is a function of the node and of what PyTensor converts it to,
a function and the key of its code; it returns another such pair, or None.

Each fix says until which PyTensor it is needed, as far as that is known; it was found
with PyTensor 2.38.3 and 3.0.7 and JAX 0.10.2. ``test_nn_jax_fixes.py`` and
``test_modes_mended.py`` fail for a fix that is not needed any more: then it can go.
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
from pytensor.tensor.elemwise import CAReduce, DimShuffle, Elemwise
from pytensor.tensor.math import Dot, ProdWithoutZeros, Sum
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.shape import Reshape
from pytensor.tensor.subtensor import IncSubtensor

from ..jax_bounds import INDEXING
from . import jax_compile_time, jax_shapes, jax_speed, jax_values, numba_arrays
from . import numba_elementwise as by_element
from .hinge import CountNonzero
from .hinge import register as register_counted
from .jax_compile_time import typified
from .jax_values import sampled

__all__ = [
    "JAX_FIXES",
    "JAX_REWRITES",
    "NUMBA_FIXES",
    "register_counted",
    "sampled",
    "typified",
    "wrong_rewrites",
]

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
"""And where they come among PyTensor's."""

NUMBA_FIXES: dict[type, Callable[[Any, Callable, str | None], tuple | None]] = {
    **({DimShuffle: numba_arrays.with_layout} if numba_arrays.IS_NEEDED else {}),
    Dot: numba_arrays.product,
    Alloc: numba_arrays.filled,
    Sum: numba_arrays.total,
    **dict.fromkeys(by_element.KINDS, by_element.function),
    Composite: by_element.composite,
}


def wrong_rewrites() -> list[str]:
    """Return which of PyTensor's rewrites are left out.

    ``local_add_of_sparse_write`` (PyTensor 3.0.7; not in 2.38.3, right in 3.3.7) makes
    ``set_subtensor(zeros[::2], x) + b`` an addition into b, which it takes to have the
    shape of the zeros. Where it has not, as a bias, the result has b's shape, or the
    shapes are refused.
    """
    version = tuple(map(int, pytensor.__version__.split(".")[:2]))
    return ["local_add_of_sparse_write"] if (3, 0) <= version < (3, 3) else []
