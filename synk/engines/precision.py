"""Products of float32 in another precision, in JAX mode.

PyTensor has no type for bfloat16, and its float16 makes float16 of all that it meets.
So graphs stay those of float32, and the precision is one of the functions compiled from
them, in whatever graph a product is: that of a loop, too (`in_precision`).

In tensorfloat32 and float32 a product is computed with JAX's setting for that, which
becomes an argument of XLA's (``Precision.HIGH`` and ``HIGHEST``). In bfloat16 and
float16 its factors are converted to that type, and what it returns is converted back.
XLA then computes a product of 16 bits, which it accumulates in float32 and rounds at
the end.

XLA may leave out a conversion down that is followed by one up
(``xla_allow_excess_precision``). So results lie between those of 16 bits and those of
float32, and which it is may differ between functions. A product with a vector it
computes element by element, on GPUs in 16 bits, so that each term of the sum is
rounded. Such products are left float32, of rounded factors.

`ConvertFactors` goes further, for the sake of memory and of XLA. *Each value is
converted once*, before it is reshaped or transposed on the way to its products: XLA
takes a transposed factor as it is, but not if a conversion is in between. *Images are
kept in 16 bits*: others than convolutions read those of 16 bits, too, and convert them
for themselves. A barrier keeps XLA from giving them the float32 that it was made of,
and so from storing both. Half the bytes of activations, then.
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
"""What `synk.function` takes."""

SHORT = ("bfloat16", "float16")
"""Those of 16 bits, which factors and products are rounded to."""

EPSILONS = {"tensorfloat32": 2.0**-10, "bfloat16": 2.0**-7, "float16": 2.0**-10}
"""The distance from 1 to the next number."""

PRODUCTS: tuple[type, ...] = (Dot, BatchedDot, Einsum, Convolve1d, ConvOp)
"""The Ops that are computed in a precision."""


def check_precision(precision: Any) -> None:
    """Raise ValueError for a name that is none."""
    if precision is not None and precision not in PRECISIONS:
        raise ValueError(
            f"precision must be None or one of {', '.join(PRECISIONS)},"
            f" got {precision!r}"
        )


def check_engine(precision: str | None, engine: Any) -> None:
    """Raise ValueError where a function is compiled by what has one precision only."""
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


# -- in JAX


def in_precision(precision: str, theirs: Callable, op: Any, node: Apply) -> Callable:
    """Return the function of a product, in a precision; a fix of `engines.fixes`."""
    import jax

    function = theirs(op, node)
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
    # Some factors are in 16 bits already, see `ConvertFactors`.
    return jax.lax.reduce_precision(value.astype("float32"), bits.nexp, bits.nmant)


LAST = 1000
"""A position after all of PyTensor's rewrites."""


class Convert(Op):
    """Converts a value of float32 to 16 bits for products, or back.

    To PyTensor it is float32 in both cases. What is in 16 bits is seen by views and
    products only, which take any type in JAX. With `keep` all readers are to have this
    one, and no more exact one.
    """

    __props__ = ("dtype", "keep")

    def __init__(self, dtype: str, keep: bool = False) -> None:
        self.dtype, self.keep = dtype, keep

    def make_node(self, *inputs: Any) -> Apply:
        """Apply the Op to a tensor."""
        (x,) = inputs
        return Apply(self, [x], [x.type()])

    def perform(self, node: Apply, inputs: Sequence, output_storage: Sequence) -> None:
        """Refuse: numpy has no such types."""
        raise NotImplementedError(f"{self} is for JAX mode")


class ConvertFactors(GraphRewriter):
    """Puts `Convert` into a graph that is otherwise ready to be compiled."""

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
        """Return what is computed from inputs and convolved."""
        computed = {var for var in fgraph.inputs if not isinstance(var, SharedVariable)}
        for node in fgraph.toposort():
            if not computed.isdisjoint(node.inputs):
                computed.update(node.outputs)
        found = dict.fromkeys(
            _seen_through(node.inputs[0])
            for node in products
            if isinstance(node.op, Conv)
        )
        return [
            var
            for var in found
            if var.owner is not None
            and var in computed
            and not is_product(var.owner)  # which is of 16 bits already
        ]

    def _shortened(self, factor: Any, short: dict) -> Any:
        """Return a factor converted where it was made, with its views after that."""
        if factor not in short:
            if _is_view(factor):
                x, *rest = factor.owner.inputs
                viewed = self._shortened(x, short)
                # The type stays, which may tell more than the Op alone would.
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


def _seen_through(var: Variable) -> Variable:
    while _is_view(var):
        var = var.owner.inputs[0]
    return var


def register_convert() -> None:
    """Let JAX compute `Convert`."""
    import jax.numpy as jnp
    from jax import lax
    from pytensor.link.jax.dispatch import jax_funcify

    @jax_funcify.register(Convert)
    def convert(op: Convert, **kwargs: Any) -> Any:
        def call(x: Any) -> Any:
            converted = jnp.asarray(x).astype(op.dtype)
            return lax.optimization_barrier(converted) if op.keep else converted

        return call
