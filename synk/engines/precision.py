"""Products of float32 in another precision, in JAX mode.

PyTensor has no type for bfloat16, and its float16 makes results float16 as well.
So graphs stay in float32. The precision belongs to the compiled function, and holds for
products in inner graphs, such as loops, too (`in_precision`).

In tensorfloat32 and float32 a product is computed with JAX's setting for that, which
becomes an argument of XLA's (``Precision.HIGH`` and ``HIGHEST``). In bfloat16 and
float16 its factors are converted to that type, and its result is converted back.
XLA then computes a product of 16 bits, accumulates it in float32 and rounds at the end.

XLA may leave out a conversion down that is followed by one up
(``xla_allow_excess_precision``). So results have 16 bits of precision or more, which
may differ between functions. On GPUs XLA computes a product with a vector element by
element in 16 bits, and rounds each term of the sum. So synk computes such products in
float32, from rounded factors.

`ConvertFactors` rewrites the graph as well. *Each value is converted once*, before it
is reshaped or transposed on the way to its products: XLA reads a transposed factor
without a copy, but not if a conversion is in between. *Images are kept in 16 bits*:
Ops other than convolutions, too, read an image's 16 bits and convert them. A barrier
keeps XLA from giving these Ops the original float32, and so from storing both. This
halves the bytes of activations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pytensor.compile import SharedVariable
from pytensor.compile.builders import OpFromGraph
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.fg import Output
from pytensor.graph.op import Op
from pytensor.graph.rewriting.basic import GraphRewriter
from pytensor.scan.op import Scan
from pytensor.tensor.blas import BatchedDot
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.einsum import Einsum
from pytensor.tensor.elemwise import DimShuffle
from pytensor.tensor.math import Dot
from pytensor.tensor.shape import Reshape
from pytensor.tensor.signal.conv import Convolve1d

from ..nn.convops import Conv
from ..nn.windows import ConvOp

PRECISIONS = ("float32", "tensorfloat32", "bfloat16", "float16")
"""The precisions that `synk.function` accepts."""

SHORT = ("bfloat16", "float16")
"""The precisions of 16 bits, to which factors and products are rounded."""

EPSILONS = {"tensorfloat32": 2.0**-10, "bfloat16": 2.0**-7, "float16": 2.0**-10}
"""The distance from 1 to the next number, by precision."""

PRODUCTS: tuple[type, ...] = (Dot, BatchedDot, Einsum, Convolve1d, ConvOp)
"""The Ops that a precision applies to."""


def check_precision(precision: Any) -> None:
    """Raise ValueError if `precision` is neither None nor one of `PRECISIONS`."""
    if precision is not None and precision not in PRECISIONS:
        raise ValueError(
            f"precision must be None or one of {', '.join(PRECISIONS)},"
            f" got {precision!r}"
        )


def check_engine(precision: str | None, engine: Any) -> None:
    """Raise ValueError if `engine` cannot compute products in `precision`."""
    if precision not in (None, "float32") and not engine.HAS_PRECISIONS:
        raise ValueError(
            f"precision={precision!r} needs mode='JAX': in other modes products of"
            " float32 are computed as such"
        )


def is_product(node: Apply) -> bool:
    """Return whether a node is a product of float32."""
    op = node.op.core_op if isinstance(node.op, Blockwise) else node.op
    return (
        isinstance(op, PRODUCTS)
        and len(node.inputs) > 1  # an Einsum of one factor is a sum, or a diagonal
        and node.outputs[0].type.dtype == "float32"
    )


def contains_product(node: Apply) -> bool:
    """Return whether a node is a product of float32, or has one in an inner graph."""
    if is_product(node):
        return True
    if not isinstance(node.op, (OpFromGraph, Scan)):
        return False
    return any(map(contains_product, node.op.fgraph.apply_nodes))


# -- in JAX


def in_precision(precision: str, original: Callable, op: Any, node: Apply) -> Callable:
    """Return JAX's function for a product, in a precision; a fix of `engines.fixes`."""
    import jax

    function = original(op, node)
    if not is_product(node):
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
            made = function(*(_as(short, factor) for factor in factors))
            return made.astype("float32")

    return call


def _as(dtype: str, factor: Any) -> Any:
    """Return a factor in 16 bits; integers unchanged, as JAX converts them itself."""
    import jax.numpy as jnp

    factor = jnp.asarray(factor)
    return factor.astype(dtype) if factor.dtype.kind == "f" else factor


def _is_vector(factor: Any) -> bool:
    """Return whether a factor is a vector, or a matrix of one row or column."""
    return len(factor.shape) < 2 or 1 in factor.shape


def _rounded_to(dtype: str, value: Any) -> Any:
    """Return a value as float32, rounded to 16 bits; XLA does not leave that out."""
    import jax
    import jax.numpy as jnp

    value, bits = jnp.asarray(value), jnp.finfo(dtype)
    if not jnp.issubdtype(value.dtype, jnp.floating):
        return value
    # Some factors are in 16 bits already, see `ConvertFactors`.
    return jax.lax.reduce_precision(value.astype("float32"), bits.nexp, bits.nmant)


LAST = 1000
"""A position in a mode's order of rewrites, after all of PyTensor's."""


class Convert(Op):
    """Converts a value of float32 to 16 bits for products, or back.

    For PyTensor the result is float32 in both cases. Only views and products read
    values of 16 bits, and these take any type in JAX. With `keep`, XLA may not give
    readers the float32 value in place of the rounded one.
    """

    __props__ = ("dtype", "keep")

    def __init__(self, dtype: str, keep: bool = False) -> None:
        self.dtype, self.keep = dtype, keep

    def make_node(self, *inputs: Any) -> Apply:
        """Apply the Op to a tensor."""
        (x,) = inputs
        return Apply(self, [x], [x.type()])

    def perform(self, node: Apply, inputs: Sequence, output_storage: Sequence) -> None:
        """Raise NotImplementedError: only JAX computes this Op."""
        raise NotImplementedError(f"{self} is for JAX mode")


class ConvertFactors(GraphRewriter):
    """A last rewrite, which puts `Convert` into a graph before it is compiled."""

    def __init__(self, dtype: str) -> None:
        super().__init__()
        self._dtype = dtype

    def apply(self, fgraph: Any) -> None:
        """Convert all factors of float32, and keep images."""
        products = [node for node in fgraph.toposort() if is_product(node)]
        images = self._images(fgraph, products)
        short = {image: Convert(self._dtype, keep=True)(image) for image in images}
        for node in products:
            for i, factor in enumerate(node.inputs):
                if i in getattr(node.op, "UNCONNECTED", ()):
                    continue  # only its shape counts
                if factor.type.dtype == "float32":
                    found = self._shortened(factor, short)
                    fgraph.change_node_input(node, i, found, import_missing=True)
        for image in images:
            wide = Convert("float32")(short[image])
            for node, i in list(fgraph.clients[image]):
                if not isinstance(node.op, (Output, Convert)):
                    fgraph.change_node_input(node, i, wide, import_missing=True)

    def _images(self, fgraph: Any, products: list[Apply]) -> list[Variable]:
        """Return convolved values that are computed from inputs."""
        computed = {var for var in fgraph.inputs if not isinstance(var, SharedVariable)}
        for node in fgraph.toposort():
            if not computed.isdisjoint(node.inputs):
                computed.update(node.outputs)
        found = dict.fromkeys(
            _base_of(node.inputs[0]) for node in products if isinstance(node.op, Conv)
        )
        return [
            var
            for var in found
            if var.owner is not None
            and var in computed
            and not is_product(var.owner)  # its result has 16 bits already
        ]

    def _shortened(self, factor: Any, short: dict) -> Any:
        """Return a factor in 16 bits: its base converted, then its views of that."""
        if factor not in short:
            if _is_view(factor):
                x, *rest = factor.owner.inputs
                viewed = self._shortened(x, short)
                # Cloned, as its type may have more static lengths than the Op infers.
                node = factor.owner.clone_with_new_inputs([viewed, *rest])
                short[factor] = node.outputs[0]
            else:
                short[factor] = Convert(self._dtype)(factor)
        return short[factor]


def _is_view(var: Variable) -> bool:
    node = var.owner
    return (
        node is not None
        and isinstance(node.op, (DimShuffle, Reshape))
        and node.inputs[0].type.dtype == "float32"
    )


def _base_of(var: Variable) -> Variable:
    """Return the value that `var` is a view of, or `var` itself."""
    while _is_view(var):
        var = var.owner.inputs[0]
    return var


def register_convert() -> None:
    """Register how JAX computes `Convert`."""
    import jax.numpy as jnp
    from jax import lax
    from pytensor.link.jax.dispatch import jax_funcify

    @jax_funcify.register(Convert)
    def convert(op: Convert, **kwargs: Any) -> Any:
        def call(x: Any) -> Any:
            converted = jnp.asarray(x).astype(op.dtype)
            return lax.optimization_barrier(converted) if op.keep else converted

        return call
