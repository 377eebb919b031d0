"""JAX mode on the CPU: faster forms for some Ops. Still needed in PyTensor 3.3.8.

*Element by element.* XLA's power is slow (for 1,000,000 float64 on one core, 12 ms for
``x ** 1.5``, and 0.9 by a root), and so is PyTensor's softplus, which chooses among
four formulas. Errors grow by at most one unit in the last place for softplus, and two
for powers. NaN, infinities, zeros of powers, and XLA's 0 for numbers below the smallest
normal one stay the same. For ``log1mexp`` no exact and faster form was found.

*Products* ``X.T @ r``, of a vector with all rows of a matrix. In PyTensor's form, a
transposed matrix times a column, XLA copies X in every call, which takes longer than
the product. ``r @ X`` needs no copy, but reads X once for every few columns, which is
fast only while X is in the cache. So a large X is multiplied in blocks of rows, whose
products are added up. These sums are also more exact, by two digits for 1,000,000 rows.
If the right factor is a matrix, PyTensor's form stays, as no other is faster.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from pytensor.graph.basic import Apply
from pytensor.tensor.basic import get_underlying_scalar_constant_value
from pytensor.tensor.elemwise import DimShuffle
from pytensor.tensor.exceptions import NotScalarConstantError

from ...workers.affinity import allowed_cores


def softplus(original: Callable, op: Any, node: Apply) -> Callable:
    """Convert ``log(1 + exp(x))``, in one formula."""
    import jax
    import jax.numpy as jnp

    function = original(op, node)

    def call(x: Any) -> Any:
        if not _is_float(x) or jax.default_backend() != "cpu":
            return function(x)
        return jnp.maximum(x, 0) + jnp.log1p(jnp.exp(-jnp.abs(x)))

    return call


def power(original: Callable, op: Any, node: Apply) -> Callable:
    """Convert a power; by square roots, for some constant exponents."""
    import jax
    import jax.numpy as jnp

    function = original(op, node)
    base: Any = node.inputs[0]
    try:
        exponent = float(get_underlying_scalar_constant_value(node.inputs[1]))
    except NotScalarConstantError:
        return function
    if exponent not in _POWERS or node.outputs[0].type.dtype != base.type.dtype:  # type: ignore[attr-defined]
        return function

    def call(x: Any, given: Any) -> Any:
        if (
            _is_float(x)
            and np.broadcast_shapes(np.shape(x), np.shape(given)) == np.shape(x)
            and jax.default_backend() == "cpu"
        ):
            # NaN for negative numbers but -inf, whose power is defined.
            made = _POWERS[exponent](jnp.abs(x), jnp.sqrt)
            return jnp.where((x < 0) & (x > -jnp.inf), jnp.nan, made)
        return function(x, given)

    return call


_POWERS: dict[float, Callable] = {
    1.5: lambda x, sqrt: x * sqrt(x),
    2.5: lambda x, sqrt: x * (x * sqrt(x)),
    -1.5: lambda x, sqrt: (1 / x) * sqrt(1 / x),
}
"""Forms for positive numbers. Other exponents would have errors of more than two units
in the last place, or overflow in between."""


def _is_float(x: Any) -> bool:
    return getattr(x, "dtype", None) in ("float32", "float64")


# Limits between the forms, measured on AMD EPYC (AVX-512) with JAX 0.10.2.
_BLOCK = 2**16
"""The most numbers in a block: 512 KiB of float64, half of a level 2 cache."""
_ROWS = (8, 1024)
"""The least and most rows in a block: fewer are slow, more are less exact."""
_LARGE = 2**18
"""Bytes of a matrix from which blocks are faster, if they divide it evenly."""
_HUGE = 2**25
"""Bytes of a matrix from which blocks are faster that leave a rest."""
_NARROW = 32
"""In matrices of at most `_COPIED` bytes, XLA copies rows under these bytes quickly."""
_COPIED = 2**25
_ONE_PASS = 64
"""Bytes of a row under which ``r @ X`` reads X once."""
_CORES = 2
"""With more cores, ``r @ X`` is faster: XLA divides it between them, and not blocks."""


def product_by_rows(original: Callable, op: Any, node: Apply) -> Callable:
    """Convert the product of a transposed matrix and a column, without a copy."""
    import jax

    function = original(op, node)
    made_by = node.inputs[0].owner
    if made_by is None or not isinstance(made_by.op, DimShuffle):
        return function
    if tuple(made_by.op.new_order) != (1, 0):
        return function

    def is_copied_quickly(transposed: Any) -> bool:
        d, n = transposed.shape
        row = d * transposed.dtype.itemsize
        return row < _NARROW and n * row <= _COPIED

    def call(transposed: Any, column: Any) -> Any:
        if (
            jax.default_backend() == "cpu"
            and transposed.ndim == column.ndim == 2
            and column.shape[1] == 1
            and transposed.dtype == column.dtype
            and transposed.dtype in ("float32", "float64")
            and not is_copied_quickly(transposed)
        ):
            # `transposed` is a transpose, so XLA removes both transpositions.
            return _product(column[:, 0], transposed.T)[:, None]
        return function(transposed, column)

    return call


def _product(r: Any, x: Any) -> Any:
    """Return ``r @ x`` of arrays of shapes (n,) and (n, d), computed on the CPU."""
    import jax.numpy as jnp

    n, d = x.shape
    row = d * x.dtype.itemsize
    fewest, most = _ROWS[0], min(_ROWS[1], _BLOCK // max(d, 1))
    is_whole = n * row < _LARGE or row < _ONE_PASS or most < fewest
    if is_whole or len(allowed_cores()) > _CORES:
        return jnp.dot(r, x)
    if (rows := largest_divisor(n, most)) >= fewest:
        blocks, parts = x.reshape(-1, rows, d), r.reshape(-1, rows)
        return jnp.einsum("kbd,kb->kd", blocks, parts).sum(0)
    return jnp.dot(r, x) if n * row < _HUGE else _one_by_one(r, x, most)


def _one_by_one(r: Any, x: Any, rows: int) -> Any:
    """Return ``r @ x``, in blocks of `rows` and a rest; copies stay in the cache."""
    import jax.numpy as jnp
    from jax import lax

    n, d = x.shape

    def added(i: Any, total: Any) -> Any:
        part = lax.dynamic_slice(r, (i * rows,), (rows,))
        return total + jnp.dot(part, lax.dynamic_slice(x, (i * rows, 0), (rows, d)))

    total = lax.fori_loop(0, n // rows, added, jnp.zeros(d, x.dtype))
    rest = n - n % rows
    return total + jnp.dot(r[rest:], x[rest:])


def largest_divisor(n: int, most: int) -> int:
    """Return the largest divisor of `n` that is at most `most`; both are positive."""
    return next(i for i in range(min(n, most), 0, -1) if n % i == 0)
