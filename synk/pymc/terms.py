"""A model's log-density as a sum of terms, one for each variable, and its data.

PyTensor's rewrites (canonicalize, stabilize) run first, on graphs with the data.
Values that follow from data alone are computed once, and are data as well.

A model of ``pymc.dims`` computes with tensors of PyTensor's `xtensor`, whose axes have
names. Their Ops are lowered to Ops of plain tensors here, as PyTensor does when it
compiles. Then only the leaves are xtensors, each converted by ``TensorFromXTensor``.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.compile import SharedVariable
from pytensor.compile.ops import FromFunctionOp
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.replace import graph_replace
from pytensor.graph.rewriting.utils import rewrite_graph
from pytensor.graph.traversal import ancestors, io_toposort
from pytensor.scalar import Cast
from pytensor.tensor.basic import Join
from pytensor.tensor.einsum import Einsum
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.math import Sum
from pytensor.tensor.random.type import RandomType
from pytensor.tensor.type import TensorType

from ..compiler.cloning import inlined
from ..compiler.rules.base import op_name
from ..errors import SplitError
from ..user_frames import is_users, where_made
from .lifting import with_gathered_data
from .rebuilding import rebuilt

DRAWN = "the model's data are drawn at random in each call, as by pm.Minibatch"


class Term(NamedTuple):
    """A term of the density: its variable's name, the script's line, and the sum."""

    name: str
    line: str
    total: Variable
    is_prior: bool


class Terms:
    """The terms of a model's log-density: `all`, or those of some `variables`.

    `free` are the free variables of the graphs, and `stands` has them by the model's
    value variables. `jacobian`: whether to add the Jacobians of transforms.
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
        tensors = [
            pt.as_tensor_variable(each, allow_xtensor_conversion=True)
            for each in factors
        ]
        # Included only if registered: PyTensor could not register a queried name later.
        has_labels = "pytensor.xtensor.rewriting" in sys.modules
        rewritten: Any = rewrite_graph(
            # An Einsum is replaced by its inner graph, of products of matrices.
            rebuilt([each.sum() for each in tensors], _without_einsum),
            include=(*["lower_xtensor"] * has_labels, "canonicalize", "stabilize"),
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


def _without_einsum(node: Apply, inputs: list[Variable]) -> list[Variable] | None:
    return inlined(node, inputs) if isinstance(node.op, Einsum) else None


def _by_parts(total: Variable) -> Variable:
    """Return the sum of a joined vector as the sum of its parts' sums.

    PyMC's density of a random walk is joined so: from that of its start and its steps.
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


def _without_labels(
    graph: Sequence[Variable], leaves: Sequence[Variable]
) -> tuple[list[Variable], list[Variable]]:
    """Replace leaves that are xtensors by tensors, in a graph that has been lowered.

    Returns the graph, and the leaves with tensors of the same names in their places.
    Conversions of other xtensors, such as ``pymc.dims.Data``, get the names of these.
    """
    # Types by name, as importing PyTensor's module of xtensors would warn.
    stands: dict[Variable, Any] = {
        var: TensorType(var.type.dtype, var.type.shape)(var.name)  # type: ignore[attr-defined]
        if type(var.type).__name__ == "XTensorType"
        else var
        for var in leaves
    }
    shown: dict[Variable, Variable] = {}
    for var in ancestors(list(graph)):
        if type(getattr(var.owner, "op", None)).__name__ != "TensorFromXTensor":
            continue
        (leaf,) = var.owner.inputs  # type: ignore[union-attr]
        if leaf in stands:
            shown[var] = stands[leaf]
        else:
            var.name = var.name or leaf.name
    if shown:
        graph = graph_replace(list(graph), shown, strict=False)
    return list(graph), list(stands.values())


# -- data


class ComputedPart:
    """The part of a graph that each call computes, as it depends on `free` variables.

    `nodes` are its nodes in order. `uses` has pairs (node, i) as keys: input i of the
    node is data, or follows from data. All leaves but the free variables are data.
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
            # A view of data that varies is part of a call, to take no memory.
            if node in kept or node.outputs[0] not in needed:
                continue
            if is_view(node) and not isinstance(node.inputs[0], Constant):
                kept.add(node)
                needed.update(node.inputs)
        self.nodes = [node for node in nodes if node in kept]
        made = {var for node in self.nodes for var in node.outputs} | set(free)
        self.uses = {
            (node, i): None
            for node in self.nodes
            for i, var in enumerate(node.inputs)
            if var not in made
        }


def is_view(node: Apply) -> bool:
    """Return whether a node only reorders an array's axes, or casts it."""
    op = node.op
    is_cast = isinstance(op, Elemwise) and isinstance(op.scalar_op, Cast)
    return is_cast or isinstance(op, DimShuffle)


class Sources:
    """The `values` of variables that follow from data alone, by variable.

    `read` computes them from the present values of shared variables, such as
    ``pm.Data``. Raises SplitError if they are drawn at random.
    """

    def __init__(self, variables: Sequence[Variable]) -> None:
        self._plain: list[Any] = []
        self._computed: list[Variable] = []
        for var in dict.fromkeys(variables):
            is_plain = isinstance(var, (Constant, SharedVariable))
            (self._plain if is_plain else self._computed).append(var)
        self._shared = shared_in(variables)
        if any(isinstance(var.type, RandomType) for var in self._shared):
            raise SplitError(DRAWN)
        self._function = None
        if self._computed:
            self._function = pytensor.function(
                [], self._computed, mode="FAST_COMPILE", on_unused_input="ignore"
            )
        self._holders: dict[tuple[Variable, tuple], Any] = {}
        self.values: dict[Variable, Any] = {}
        self.read()

    def read(self) -> None:
        """Update all values, from the shared variables as they are now."""
        computed = [] if self._function is None else self._function()
        self.values = {var: value_of(var) for var in self._plain}
        self.values.update(zip(self._computed, computed, strict=True))
        for (var, _), holder in self._holders.items():
            holder.set_value(self.values[var])

    def holder(self, var: Variable, shape: Sequence[int | None]) -> Variable:
        """Return a shared variable with a variable's values, updated by `read`.

        Its type has the static shape `shape`.
        """
        key = var, tuple(shape)
        if key not in self._holders:
            value = self.values[var]
            self._holders[key] = pytensor.shared(value, var.name, shape=key[1])
        return self._holders[key]

    def held(self) -> list[Any]:
        """Return the arrays of the shared variables; others after ``pm.set_data``."""
        return [var.get_value(borrow=True) for var in self._shared]


def shared_in(graph: Sequence[Variable]) -> list[SharedVariable]:
    """Return the shared variables of a graph."""
    return [var for var in ancestors(list(graph)) if isinstance(var, SharedVariable)]


def are_same(some: Sequence[Any], others: Sequence[Any]) -> bool:
    """Return whether two lists have the same objects."""
    return all(one is other for one, other in zip(some, others, strict=True))


def value_of(var: Any) -> Any:
    """Return the value of a constant or shared variable; None for others."""
    if isinstance(var, SharedVariable):
        return var.get_value(borrow=True)
    return var.data if isinstance(var, Constant) else None


def is_constant_along(var: Variable, axis: int) -> bool:
    """Return whether `var` is a constant that is equal all along an axis."""
    if not isinstance(var, Constant):
        return False
    values = np.asarray(var.data)
    first = values.take([0], axis)
    is_nan = values.dtype.kind in "fc"
    return np.array_equal(
        values, np.broadcast_to(first, values.shape), equal_nan=is_nan
    )


# -- variables in messages
#
# A graph of a density has Ops that the script has written, and Ops that PyMC makes in
# the call of ``pm.sample``. The line of that call would not help, so
# `without_present_lines` removes it from messages.


def shown(var: Variable) -> str:
    """Return words for a variable in a message: its name or Op, and its line."""
    if var.name and var.owner is None:
        return f"the data {var.name!r}"
    if var.owner is not None:
        name = repr(var.name) if var.name else op_name(var.owner.op)
        return f"{name}{where_made(var)}"
    value = value_of(var)
    return "data" if value is None else f"data of shape {np.shape(value)}"


def without_present_lines(text: str) -> str:
    """Return a message without lines on the call stack, such as ``pm.sample``'s."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        path = frame.f_code.co_filename
        if is_users(path):
            name = "a cell" if "ipykernel_" in path else path.rpartition("/")[2]
            line = re.escape(f"{name}:{frame.f_lineno}:")
            text = re.sub(rf" \(made in {line} `[^`]*`\)", "", text)
        frame = frame.f_back
    return text


_KNOWN = ("pytensor", "pymc", "pymc_extras", "synk", "blackjax")
"""Packages whose Ops contain no data: these are inputs of the Ops."""


def hidden_in(graph: Sequence[Variable]) -> list[str]:
    """Return names and lines of a graph's Ops that may contain data.

    These are Ops of the script, or of packages other than `_KNOWN`.
    """
    found: dict[str, None] = {}
    for var in ancestors(list(graph)):
        if var.owner is None:
            continue
        kind = type(var.owner.op)
        if kind.__module__.partition(".")[0] not in _KNOWN or kind is FromFunctionOp:
            text = str(var.owner.op)
            name = kind.__name__ if text.startswith("<") else text
            found[without_present_lines(f"{name}{where_made(var)}")] = None
    return list(found)
