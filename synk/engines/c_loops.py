"""C mode: sums and elementwise Ops whose loops gcc makes vector code of.

PyTensor's C code takes the strides of arrays and the order of axes as it finds them
when it runs: loops go along one axis at a time, and sums add one number after another.
``c_sums.py`` and ``c_elemwise.py`` have Ops with another loop for arrays in C order, as
they are mostly; for others they have PyTensor's. They replace PyTensor's in what synk
compiles to C; a ``pytensor.function`` beside it is compiled as without synk.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar, copy_context
from typing import Any, ParamSpec, TypeVar

from pytensor.compile.mode import optdb
from pytensor.graph.basic import Apply
from pytensor.graph.rewriting.basic import GraphRewriter

from . import c_elemwise, c_sums

_P = ParamSpec("_P")
_R = TypeVar("_R")

_is_for_c: ContextVar[bool] = ContextVar("is_for_c", default=False)


def with_vector_loops(
    compile_it: Callable[_P, _R], /, *args: _P.args, **kwargs: _P.kwargs
) -> _R:
    """Call `compile_it`, which compiles graphs to C, such that they have these loops.

    It is said in a copy of the context, which ends with the call: an interrupt finds
    nothing that it could leave behind.
    """
    context = copy_context()
    context.run(_is_for_c.set, True)
    return context.run(compile_it, *args, **kwargs)


class VectorLoops(GraphRewriter):
    """Replaces Ops by those with other loops, after all that looks for PyTensor's."""

    def apply(self, fgraph: Any) -> None:
        """Replace Ops, if the graph is compiled to C by synk."""
        if not _is_for_c.get():
            return
        for node in fgraph.toposort():
            op = c_sums.with_vectors(node) or c_elemwise.with_vectors(node)
            if op is not None:
                made = Apply(op, node.inputs, [var.clone() for var in node.outputs])
                pairs = list(zip(node.outputs, made.outputs, strict=True))
                fgraph.replace_all_validate(pairs, reason="synk_c_loops")


# 100: PyTensor's last merging of nodes, long after it has made them work in place
optdb.register("synk_c_loops", VectorLoops(), "fast_run", position=100.1)
