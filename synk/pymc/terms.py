"""A model's log-density as a sum of terms, as PyMC writes them.

PyTensor's rewrites run first, with the data in place: what follows from data alone is
computed then, once, and is data as well. So is what PyTensor makes safe from overflow.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.rewriting.utils import rewrite_graph
from pytensor.graph.traversal import io_toposort
from pytensor.tensor.basic import Join
from pytensor.tensor.einsum import Einsum
from pytensor.tensor.math import Sum

from ..compiler.cloning import inlined
from ..user_frames import where_made
from .labelled import as_tensor, rewrites, without_labels
from .numbers import is_view
from .picks import lifted
from .rebuilding import rebuilt


class Terms:
    """The terms of a log-density.

    Parameters
    ----------
    model : pymc.Model
    variables : sequence of Variable, optional
        Those whose terms there are to be; by default all of the model.
    jacobian : bool
        Whether the terms of transformed variables have the Jacobians.

    Attributes
    ----------
    names, lines : list of str
        Of each term, and where the script has made it, as messages have it.
    sums : list of Variable
        Of each term, the sum of its values.
    priors : set of str
        The names of those that are of free random variables.
    free : list of Variable
        What the density is of: the values of the free random variables.
    stands : dict of Variable to Variable
        The model's own variables of these values, with those of `free`.
    """

    def __init__(
        self,
        model: Any,
        variables: Sequence[Variable] | None = None,
        jacobian: bool = True,
    ) -> None:
        if variables is None:
            variables = [*model.free_RVs, *model.observed_RVs, *model.potentials]
        factors = model.logp(vars=list(variables), jacobian=jacobian, sum=False)
        self.priors = {str(var.name) for var in variables if var in model.free_RVs}
        self.names = [str(var.name) for var in variables]
        self.lines = [where_made(var) for var in variables]
        sums = [as_tensor(factor).sum() for factor in factors]
        rewritten: Any = rewrite_graph(
            _inlined(sums),
            include=(*rewrites(sums), "canonicalize", "stabilize"),
            clone=False,
        )
        rewritten, self.free = without_labels(rewritten, list(model.value_vars))
        self.stands = dict(zip(model.value_vars, self.free, strict=True))
        self.sums = [_by_parts(total) for total in lifted(rewritten, self.free)]


def _inlined(sums: list[Variable]) -> list[Variable]:
    """Put what computes an Einsum in the place of it: products of matrices."""
    made: dict[Variable, Variable] = {}
    rebuilt(
        io_toposort([], sums),
        made,
        lambda node: [made.get(var, var) for var in node.inputs],
        lambda node, inputs: (
            inlined(node, inputs) if isinstance(node.op, Einsum) else None
        ),
    )
    return [made.get(total, total) for total in sums]


def _by_parts(total: Variable) -> Variable:
    """Return the sum of a vector that is joined from parts as the sum of their sums.

    So PyMC has the density of a random walk: that of its beginning, and of each step.
    """
    if total.owner is None or not isinstance(total.owner.op, Sum):
        return total
    (vector,) = total.owner.inputs
    if vector.owner is None or not isinstance(vector.owner.op, Join):
        return total
    if total.type.ndim:  # type: ignore[attr-defined]
        return total
    parts: list[Any] = [v for v in vector.owner.inputs if v.type.ndim]
    return pt.add(*(_by_parts(part.sum()) for part in parts))


class Given:
    """What of a graph follows from data alone, and where the rest takes it.

    Parameters
    ----------
    graph : sequence of Variable
    free : sequence of Variable
        All other leaves are data.

    Attributes
    ----------
    nodes : list of Apply
        Those that are to be computed in each call, in order.
    uses : list of (Apply, int)
        Which inputs of these are data, or follow from data.
    """

    def __init__(self, graph: Sequence[Variable], free: Sequence[Variable]) -> None:
        nodes = io_toposort([], list(graph))
        found: set[Variable] = set(free)
        kept: set[Apply] = set()
        for node in nodes:
            if not found.isdisjoint(node.inputs):
                found.update(node.outputs)
                kept.add(node)
        needed = {var for node in kept for var in node.inputs} | set(graph)
        for node in reversed(nodes):
            # Another view of data is made in a call, and takes no memory of its own.
            if node not in kept and _is_view(node) and node.outputs[0] in needed:
                kept.add(node)
                needed.update(node.inputs)
        self.nodes = [node for node in nodes if node in kept]
        made = {var for node in self.nodes for var in node.outputs} | set(free)
        self.uses = [
            (node, i)
            for node in self.nodes
            for i, var in enumerate(node.inputs)
            if var not in made
        ]


def _is_view(node: Apply) -> bool:
    if not is_view(node.op):
        return False
    return not isinstance(node.inputs[0], Constant)
