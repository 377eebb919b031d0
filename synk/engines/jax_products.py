"""Products of float32 in another precision, in JAX mode.

What PyTensor has JAX call for a product is wrapped when a graph is converted, by the
precision that is set then (`lowered_in`), in whatever graph it is: that of a loop, too.

In tensorfloat32 and float32 it is called with JAX's setting for that, which becomes an
argument of XLA's product (``Precision.HIGH`` and ``HIGHEST``). In bfloat16 and float16
its factors are converted to that type, and what it returns is converted back. XLA then
computes a product of 16 bits, which it accumulates in float32 and rounds at the end.

XLA takes some freedom with these conversions (``xla_allow_excess_precision``): where
one down is followed by one up, on the CPU for one, it may leave out both and go on with
the float32. So results lie between those of 16 bits and those of float32, and which it
is may differ between functions.

A product with a vector it computes element by element, on GPUs in 16 bits, so that each
term of the sum is rounded. Such products are left float32, of rounded factors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any

from pytensor.graph.basic import Apply
from pytensor.tensor.math import Dot

from .precision import PRODUCTS, SHORT, is_product

_precision: ContextVar[str | None] = ContextVar("precision", default=None)


@contextmanager
def lowered_in(precision: str | None) -> Iterator[None]:
    """Have what is compiled meanwhile compute products in a precision, if any."""
    if precision is not None:
        _register()
    token = _precision.set(precision)
    try:
        yield
    finally:
        _precision.reset(token)


@cache
def _register() -> None:
    """Wrap what PyTensor has for products, and the package for convolutions."""
    from pytensor.link.jax.dispatch import jax_funcify

    from .nn_kernels import register_jax

    register_jax()
    for cls in PRODUCTS:
        jax_funcify.register(cls)(_in_precision(jax_funcify.dispatch(cls)))


def _in_precision(funcify: Callable) -> Callable:
    import jax

    def convert(op: Any, node: Apply | None = None, **kwargs: Any) -> Callable:
        function = funcify(op, node=node, **kwargs)
        precision = _precision.get()
        if precision is None or node is None or not is_product(node):
            return function
        short = precision if precision in SHORT else None
        setting = "default" if short else precision

        def call(*factors: Any) -> Any:
            with jax.default_matmul_precision(setting):
                if short is None:
                    return function(*factors)
                if isinstance(op, Dot) and any(map(_is_vector, factors)):
                    rounded = (_rounded_to(short, factor) for factor in factors)
                    return _rounded_to(short, function(*rounded))
                return function(*(_as(short, factor) for factor in factors)).astype(
                    "float32"
                )

        return call

    return convert


def _as(dtype: str, factor: Any) -> Any:
    """Return a factor in 16 bits; whole numbers, which JAX converts itself, as such."""
    import jax.numpy as jnp

    factor = jnp.asarray(factor)
    return factor.astype(dtype) if factor.dtype.kind == "f" else factor


def _is_vector(factor: Any) -> bool:
    """Tell whether a factor is a vector, or a matrix of one row or column."""
    return len(factor.shape) < 2 or 1 in factor.shape


def _rounded_to(dtype: str, value: Any) -> Any:
    """Return a number as float32, rounded to 16 bits, which XLA does not leave out."""
    import jax
    import jax.numpy as jnp

    value, bits = jnp.asarray(value), jnp.finfo(dtype)
    if not jnp.issubdtype(value.dtype, jnp.floating):
        return value
    # Some factors are in 16 bits already, see `jax_factors`.
    return jax.lax.reduce_precision(value.astype("float32"), bits.nexp, bits.nmant)
