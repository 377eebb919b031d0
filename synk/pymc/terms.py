"""A model's log-density as a sum of terms, as PyMC writes them.

PyTensor's rewrites run first, with the data in place: what follows from data alone is
computed then, once, and is data as well. So is what PyTensor makes safe from overflow.

A model of ``pymc.dims`` computes with tensors of PyTensor's `xtensor`, whose axes have
names. Their Ops are lowered to those of tensors here, as PyTensor does when it
compiles: then only the leaves are xtensors, each of which an Op shows as a tensor.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import pytensor.tensor as pt
from pytensor.graph.basic import Variable
from pytensor.graph.replace import graph_replace
from pytensor.graph.rewriting.utils import rewrite_graph
from pytensor.graph.traversal import ancestors
from pytensor.tensor.basic import Join
from pytensor.tensor.einsum import Einsum
from pytensor.tensor.math import Sum
from pytensor.tensor.type import TensorType

from ..compiler.cloning import inlined
from ..user_frames import where_made
from .lifting import with_gathered_data
from .rebuilding import rebuilt


class Term(NamedTuple):
    """A term: the sum of its values, and where the script has made it."""

    name: str
    line: str
    total: Variable
    is_prior: bool


class Terms:
    """The terms of a log-density: those of some variables, or of all of the model.

    Attributes
    ----------
    all : list of Term
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
        sums = [_as_tensor(factor).sum() for factor in factors]
        rewritten: Any = rewrite_graph(
            _inlined(sums),
            include=(*_rewrites(sums), "canonicalize", "stabilize"),
            clone=False,
        )
        rewritten, self.free = _without_labels(rewritten, list(model.value_vars))
        self.stands = dict(zip(model.value_vars, self.free, strict=True))
        gathered = with_gathered_data(rewritten, self.free)
        self.all = [
            Term(
                str(var.name), where_made(var), _by_parts(total), var in model.free_RVs
            )
            for var, total in zip(variables, gathered, strict=True)
        ]


def _inlined(sums: list[Variable]) -> list[Variable]:
    """Put what computes an Einsum in the place of it: products of matrices."""
    return rebuilt(
        sums,
        lambda node, inputs: (
            inlined(node, inputs) if isinstance(node.op, Einsum) else None
        ),
    )


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


# -- tensors whose axes have names


def _is_labelled(var: Any) -> bool:
    """Tell whether a variable is an xtensor.

    PyTensor's module of these warns where it is imported, as an experimental one; a
    script that has not imported it has none.
    """
    module: Any = sys.modules.get("pytensor.xtensor.type")
    return module is not None and isinstance(var.type, module.XTensorType)


def _rewrites(graph: Sequence[Variable]) -> tuple[str, ...]:
    """Return the names of the rewrites that lower a graph; none without xtensors."""
    return ("lower_xtensor",) if any(map(_is_labelled, ancestors(list(graph)))) else ()


def _as_tensor(var: Any) -> Any:
    """Return a variable as a tensor."""
    if not _is_labelled(var):
        return pt.as_tensor_variable(var)
    return pt.as_tensor_variable(var, allow_xtensor_conversion=True)


def _without_labels(
    graph: Sequence[Variable], leaves: Sequence[Variable]
) -> tuple[list[Variable], list[Variable]]:
    """Have tensors stand for leaves that are xtensors, in a graph that is lowered.

    Returns the graph, and the leaves with tensors of the same names in their places.
    What shows the value of another xtensor, such as ``pymc.dims.Data``, has its name.
    """
    free = [_as_free(var) if _is_labelled(var) else var for var in leaves]
    stands = dict(zip(leaves, free, strict=True))
    shown: dict[Variable, Variable] = {}
    for var in ancestors(list(graph)):
        leaf = _shown_by(var)
        if leaf is None:
            continue
        if leaf in stands:
            shown[var] = stands[leaf]
        else:
            var.name = var.name or leaf.name
    if shown:
        graph = graph_replace(list(graph), shown, strict=False)
    return list(graph), free


def _shown_by(var: Variable) -> Variable | None:
    """Return the xtensor whose value a tensor is."""
    module: Any = sys.modules.get("pytensor.xtensor.basic")
    if module is None or var.owner is None:
        return None
    is_shown = isinstance(var.owner.op, module.TensorFromXTensor)
    return var.owner.inputs[0] if is_shown else None


def _as_free(var: Any) -> Variable:
    made: Variable = TensorType(var.type.dtype, var.type.shape)(var.name)
    return made
