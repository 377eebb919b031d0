"""JAX and numba learn of the Ops when the first graph is compiled for them.

PyTensor finds an Op's JAX kernel in a table of its module ``pytensor.link.jax``, which
imports JAX: too much for ``import synk``. But what compiles a graph for JAX rewrites it
first, by the rewriters tagged "jax"; so one of these fills the table in.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

from pytensor.compile.mode import optdb
from pytensor.graph.basic import Apply
from pytensor.graph.rewriting.basic import GraphRewriter

from ..nn.base import KernelOp
from . import jax_fixes, passed_draws, rewrite_fixes


class PrepareJAX(GraphRewriter):
    """Readies JAX for a graph, which is left as it is."""

    def apply(self, fgraph: Any) -> None:
        """Let JAX compute the Ops."""
        register_jax()
        jax_fixes.count_nonzero(fgraph)


class PrepareNumba(GraphRewriter):
    """Readies numba for a graph, which is left as it is."""

    def apply(self, fgraph: Any) -> None:
        """Let numba call the Ops."""
        register_numba()


@cache
def register_jax() -> None:
    """Tell PyTensor how JAX computes the Ops, and mend what it gets wrong itself."""
    import jax
    from pytensor.link.jax.dispatch import jax_funcify

    # With floatX=float32 PyTensor has JAX make 32 bits of all that is declared as 64.
    jax.config.update("jax_enable_x64", True)
    jax_funcify.register(KernelOp)(_jax_kernel)
    jax_fixes.register()
    passed_draws.register_jax()


def _jax_kernel(op: KernelOp, **kwargs: Any) -> Callable:
    return op.jax_kernel


@cache
def register_numba() -> None:
    """Let numba call ``perform``, as it does with any Op, without a warning each."""
    from pytensor.link.numba.dispatch import numba_funcify
    from pytensor.link.numba.dispatch.basic import generate_fallback_impl

    def call_perform(op: KernelOp, node: Apply, **kwargs: Any) -> Callable:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Numba will use object mode")
            return generate_fallback_impl(op, node=node, **kwargs)

    numba_funcify.register(KernelOp)(call_perform)
    passed_draws.register_numba()


optdb.register("synk_nn_jax", PrepareJAX(), "jax", position=-1)
optdb.register("synk_nn_numba", PrepareNumba(), "numba", position=-1)
rewrite_fixes.register()
