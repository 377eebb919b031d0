"""Graphs of ``pymc.dims`` as graphs of tensors.

A model of ``pymc.dims`` computes with tensors of PyTensor's `xtensor`, whose axes have
names. PyTensor lowers their Ops to those of tensors when it compiles, by rewrites that
are known by the name ``lower_xtensor``. So does synk, before it looks for rows: then
only the leaves are xtensors, each of which an Op shows as a tensor.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import pytensor.tensor as pt
from pytensor.graph.basic import Variable
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import ancestors
from pytensor.tensor.type import TensorType

LOWERING = "lower_xtensor"


def is_labelled(var: Any) -> bool:
    """Tell whether a variable is an xtensor.

    PyTensor's module of these warns where it is imported, as an experimental one; a
    script that has not imported it has none.
    """
    module: Any = sys.modules.get("pytensor.xtensor.type")
    return module is not None and isinstance(var.type, module.XTensorType)


def rewrites(graph: Sequence[Variable]) -> tuple[str, ...]:
    """Return the names of the rewrites that lower a graph; none without xtensors."""
    return (LOWERING,) if any(map(is_labelled, ancestors(list(graph)))) else ()


def as_tensor(var: Any) -> Any:
    """Return a variable as a tensor."""
    if not is_labelled(var):
        return pt.as_tensor_variable(var)
    return pt.as_tensor_variable(var, allow_xtensor_conversion=True)


def without_labels(
    graph: Sequence[Variable], leaves: Sequence[Variable]
) -> tuple[list[Variable], list[Variable]]:
    """Have tensors stand for leaves that are xtensors, in a graph that is lowered.

    Parameters
    ----------
    graph, leaves : sequence of Variable

    Returns
    -------
    list of Variable
        The graph of tensors. What shows the value of another xtensor, such as
        ``pymc.dims.Data``, has its name.
    list of Variable
        The leaves, with tensors of the same names in the place of xtensors.
    """
    free = [_as_free(var) if is_labelled(var) else var for var in leaves]
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
