"""Factors of products in 16 bits: where a graph converts them.

A product converts its factors itself (`jax_products`). This goes further, for the sake
of memory and of XLA:

*Each value is converted once*, before it is reshaped or transposed on the way to its
products. XLA takes a transposed factor as it is, but not if a conversion is in between.

*Images are kept in 16 bits.* What is convolved is read by others as well: by what adds
it to the outputs of a block, and by the gradients. All of them read the image of 16
bits that the convolution needs, and convert it to float32 for themselves; a barrier
keeps XLA from giving them the float32 that it was made of, and so from storing both.
Half the bytes of activations, then, as where a program is written for 16 bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from pytensor.compile import SharedVariable, get_mode
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.fg import Output
from pytensor.graph.op import Op
from pytensor.graph.rewriting.basic import GraphRewriter
from pytensor.tensor.elemwise import DimShuffle
from pytensor.tensor.shape import Reshape

from ..nn.convops import Conv
from .precision import SHORT, is_product

LAST = 1000
"""A position after all of PyTensor's rewrites."""


def mode_for(mode: Any, precision: str | None) -> Any:
    """Return a mode that converts factors, if the precision is one of 16 bits.

    Nothing is fused, which XLA does by itself. Where PyTensor makes one node of sizes
    and of values that are computed from them, JAX would know neither when it compiles.
    """
    mode = get_mode(mode).excluding("fusion")
    if precision not in SHORT:
        return mode
    return mode.register((ConvertFactors(precision), LAST))


class Convert(Op):
    """Converts a value of float32 to 16 bits for products, or back.

    To PyTensor it is float32 in both cases. What is in 16 bits is seen by views and
    products only, which take any type in JAX.

    Parameters
    ----------
    dtype : str
        To what.
    keep : bool
        Whether all readers are to have this one, and no more exact one.
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
    """Puts `Convert` into a graph that is otherwise ready to be compiled.

    Parameters
    ----------
    dtype : {"bfloat16", "float16"}
    """

    def __init__(self, dtype: str) -> None:
        super().__init__()
        self._dtype = dtype

    def add_requirements(self, fgraph: Any) -> None:
        """Have the conversions known to JAX before they are there."""
        _register()

    def apply(self, fgraph: Any) -> None:
        """Convert all factors of float32, and keep images."""
        products = [node for node in fgraph.toposort() if is_product(node)]
        images = self._images(fgraph, products)
        short = {image: Convert(self._dtype, keep=True)(image) for image in images}
        for node in products:
            for i, factor in enumerate(node.inputs):
                if getattr(node.op, "shaped_like", None) == i:
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


@cache
def _register() -> None:
    import jax.numpy as jnp
    from jax import lax
    from pytensor.link.jax.dispatch import jax_funcify

    def convert(op: Convert, **kwargs: Any) -> Any:
        def call(x: Any) -> Any:
            converted = jnp.asarray(x).astype(op.dtype)
            return lax.optimization_barrier(converted) if op.keep else converted

        return call

    jax_funcify.register(Convert)(convert)
