"""Precisions of products: their names, what they mean, and which Ops are products.

PyTensor has no type for bfloat16, and its float16 makes float16 of all that it meets.
So graphs stay those of float32, and the precision is one of the functions compiled from
them; see `engines.jax_products`.
"""

from __future__ import annotations

from typing import Any

from pytensor.compile.builders import OpFromGraph
from pytensor.graph.basic import Apply
from pytensor.scan.op import Scan
from pytensor.tensor.blas import BatchedDot
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.einsum import Einsum
from pytensor.tensor.math import Dot
from pytensor.tensor.signal.conv import Convolve1d

from ..nn.conv_op import ConvOp

PRECISIONS = ("float32", "tensorfloat32", "bfloat16", "float16")
"""What `synk.function` takes."""

SHORT = ("bfloat16", "float16")
"""Those of 16 bits, which factors and products are rounded to."""

EPSILONS = {"tensorfloat32": 2.0**-10, "bfloat16": 2.0**-7, "float16": 2.0**-10}
"""The distance from 1 to the next number."""

PRODUCTS: tuple[type, ...] = (Dot, BatchedDot, Einsum, Convolve1d, ConvOp)
"""The Ops that are computed in a precision."""


def check_precision(precision: Any) -> None:
    """Raise for a name that is none.

    Raises
    ------
    ValueError
        If there is no such precision.
    """
    if precision is not None and precision not in PRECISIONS:
        raise ValueError(
            f"precision must be None or one of {', '.join(PRECISIONS)},"
            f" got {precision!r}"
        )


def check_engine(precision: str | None, engine: Any) -> None:
    """Raise where a function is compiled by what has one precision only.

    Raises
    ------
    ValueError
        In other modes than JAX's. There float32 is computed as such.
    """
    if precision not in (None, "float32") and not engine.HAS_PRECISIONS:
        raise ValueError(
            f"precision={precision!r} needs mode='JAX': in other modes products of"
            " float32 are computed as such"
        )


def is_product(node: Apply) -> bool:
    """Tell whether a node is a product of float32."""
    op = node.op.core_op if isinstance(node.op, Blockwise) else node.op
    return (
        isinstance(op, PRODUCTS)
        and len(node.inputs) > 1  # an Einsum of one factor is a sum, or a diagonal
        and node.outputs[0].type.dtype == "float32"
    )


def contains_product(node: Apply) -> bool:
    """Tell whether a node is a product of float32, or has one in a graph within."""
    if is_product(node):
        return True
    if not isinstance(node.op, (OpFromGraph, Scan)):
        return False
    return any(map(contains_product, node.op.fgraph.apply_nodes))
