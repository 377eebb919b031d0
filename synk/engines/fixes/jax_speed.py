"""JAX mode on the CPU: other forms of what XLA takes long for. Still needed in 3.3.8.

*Element by element.* XLA's power is slow (of 1,000,000 float64 on one core ``x ** 1.5``
12 ms, by a root 0.9), and so is PyTensor's softplus, which chooses among four formulas.
Errors are at most one unit in the last place more for softplus, and two for powers.
NaN, infinities and the zeros of powers are as before, and so is that XLA returns 0 for
what is below the smallest normal number. ``log1mexp`` stays as it is: what is exact and
faster was not found.

*Products of a vector with all rows of a matrix*, ``X.T @ r``. PyTensor has XLA compute
them as the product of a transposed matrix with a column, and XLA then copies X in every
call, which takes longer than all else. ``r @ X`` reads X as it lies, once for every few
columns; so X goes through the cache several times, which is fast if it is there
already. Of a large X blocks of rows are multiplied one by one, therefore, and added up.
Their sums are also the more exact, by two digits of 1,000,000 numbers. Matrices on the
right stay with PyTensor: there is nothing to gain.
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


def softplus(theirs: Callable, op: Any, node: Apply) -> Callable:
    """``log(1 + exp(x))`` in one formula."""
    import jax
    import jax.numpy as jnp

    function = theirs(op, node)

    def call(x: Any) -> Any:
        if not _is_float(x) or jax.default_backend() != "cpu":
            return function(x)
        return jnp.maximum(x, 0) + jnp.log1p(jnp.exp(-jnp.abs(x)))

    return call


def power(theirs: Callable, op: Any, node: Apply) -> Callable:
    """Roots for some constant exponents."""
    import jax
    import jax.numpy as jnp

    function = theirs(op, node)
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
            # That of -inf is defined, and not as that of other negative numbers NaN.
            made = _POWERS[exponent](jnp.abs(x), jnp.sqrt)
            return jnp.where((x < 0) & (x > -jnp.inf), jnp.nan, made)
        return function(x, given)

    return call


_POWERS: dict[float, Callable] = {
    1.5: lambda x, sqrt: x * sqrt(x),
    2.5: lambda x, sqrt: x * (x * sqrt(x)),
    -1.5: lambda x, sqrt: (1 / x) * sqrt(1 / x),
}
"""What is computed of positive numbers. Others would be off by more than two units in
the last place, or overflow on the way."""


def _is_float(x: Any) -> bool:
    return getattr(x, "dtype", None) in ("float32", "float64")


# Where one form overtakes the other, on AMD EPYC (AVX-512), JAX 0.10.2.
_BLOCK = 2**16
"""Numbers in a block at most: 512 KiB of float64, a half of a level 2 cache."""
_ROWS = (8, 1024)
"""Rows in a block: fewer are slow, more not faster and less exact."""
_LARGE = 2**18
"""Bytes from which blocks pay, if they divide the matrix."""
_HUGE = 2**25
"""Bytes from which blocks pay that are cut out, and a rest multiplied by itself."""
_NARROW = 32
"""Bytes of a row that is copied quickly, in a matrix of at most `_COPIED`."""
_COPIED = 2**25
_ONE_PASS = 64
"""Bytes of a row under which ``r @ X`` reads X once."""
_CORES = 2
"""XLA divides ``r @ X`` between all cores, and blocks not."""


def product_by_rows(theirs: Callable, op: Any, node: Apply) -> Callable:
    """Products of a transpose and a column, which read the matrix as it lies."""
    import jax

    function = theirs(op, node)
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
            # XLA takes two transpositions for none.
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
    """Return ``r @ x``; slices are copied, but block by block they stay in cache."""
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
