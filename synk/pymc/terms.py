"""A model's log-density as a sum of terms, as PyMC writes them, and its data.

PyTensor's rewrites run first, with the data in place: what follows from data alone is
computed then, once, and is data as well. So is what PyTensor makes safe from overflow.

A model of ``pymc.dims`` computes with tensors of PyTensor's `xtensor`, whose axes have
names. Their Ops are lowered to those of tensors here, as PyTensor does when it
compiles: then only the leaves are xtensors, each of which an Op shows as a tensor.
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
from ..user_frames import is_users, made_in, where_made
from .lifting import with_gathered_data
from .rebuilding import rebuilt

DRAWN = "the model's data are drawn at random in each call, as by pm.Minibatch"


class Term(NamedTuple):
    """A term: the sum of its values, and where the script has made it."""

    name: str
    line: str
    total: Variable
    is_prior: bool


class Terms:
    """The terms of a log-density: those of some variables, or of all of the model."""

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
        # Not before PyTensor has registered it: a tag that was asked for has no place.
        has_labels = "pytensor.xtensor.rewriting" in sys.modules
        rewritten: Any = rewrite_graph(
            # What computes an Einsum in the place of it: products of matrices.
            rebuilt([each.sum() for each in tensors], _without_einsum),
            include=(*["lower_xtensor"] * has_labels, "canonicalize", "stabilize"),
            clone=False,
        )
        # The values of the free random variables, of which the density is.
        rewritten, self.free = _without_labels(rewritten, list(model.value_vars))
        # The model's own variables of these, with those of `free`.
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


def _without_labels(
    graph: Sequence[Variable], leaves: Sequence[Variable]
) -> tuple[list[Variable], list[Variable]]:
    """Have tensors stand for leaves that are xtensors, in a graph that is lowered.

    Returns the graph, and the leaves with tensors of the same names in their places.
    What shows the value of another xtensor, such as ``pymc.dims.Data``, has its name.
    """
    # By names: PyTensor's module of xtensors warns where it is imported.
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


class Given:
    """What of a graph follows from data alone, and where the rest takes it.

    Data are all leaves but the `free` ones. `nodes` are those that are to be computed
    in each call, in order, and `uses` says which inputs of these are data, or follow
    from data.
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
            if node in kept or node.outputs[0] not in needed:
                continue
            if is_view(node) and not isinstance(node.inputs[0], Constant):
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


def is_view(node: Apply) -> bool:
    """Tell whether a node shows an array with other axes, or as another type."""
    op = node.op
    is_cast = isinstance(op, Elemwise) and isinstance(op.scalar_op, Cast)
    return is_cast or isinstance(op, DimShuffle)


class Sources:
    """The values of some variables that follow from data alone.

    Shared variables, such as ``pm.Data`` makes, may get other values; constants stay.
    It is a SplitError if they are drawn at random.
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
        """Take the values as they are now."""
        computed = [] if self._function is None else self._function()
        self.values = {var: value_of(var) for var in self._plain}
        self.values.update(zip(self._computed, computed, strict=True))
        for (var, _), holder in self._holders.items():
            holder.set_value(self.values[var])

    def holder(self, var: Variable, shape: Sequence[int | None]) -> Variable:
        """Return a shared variable that has a variable's values; its type, a shape."""
        key = var, tuple(shape)
        if key not in self._holders:
            value = self.values[var]
            self._holders[key] = pytensor.shared(value, var.name, shape=key[1])
        return self._holders[key]

    def held(self) -> list[Any]:
        """Return what the shared variables hold; ``pm.set_data`` gives them others."""
        return [var.get_value(borrow=True) for var in self._shared]


def shared_in(graph: Sequence[Variable]) -> list[SharedVariable]:
    """Return the shared variables of a graph."""
    return [var for var in ancestors(list(graph)) if isinstance(var, SharedVariable)]


def are_same(some: Sequence[Any], others: Sequence[Any]) -> bool:
    """Tell whether lists as long have the same objects."""
    return all(one is other for one, other in zip(some, others, strict=True))


def value_of(var: Any) -> Any:
    """Return what a variable holds; None if it is no constant, and not shared."""
    if isinstance(var, SharedVariable):
        return var.get_value(borrow=True)
    return var.data if isinstance(var, Constant) else None


def are_alike(var: Variable, axis: int) -> bool:
    """Tell whether data are the same all along an axis, and will be."""
    if not isinstance(var, Constant):
        return False
    values = np.asarray(var.data)
    first = values.take([0], axis)
    is_nan = values.dtype.kind in "fc"
    return np.array_equal(
        values, np.broadcast_to(first, values.shape), equal_nan=is_nan
    )


# -- what messages call variables
#
# A graph of a density has Ops that the script has written, and Ops that PyMC has made
# of its distributions, in the call of ``pm.sample``. Of the latter that line says
# nothing: then the term's own line is shown.


def shown(var: Variable) -> str:
    """Return what a message calls a variable: its name or its Op, and its line."""
    if var.name and var.owner is None:
        return f"the data {var.name!r}"
    if var.owner is not None:
        return f"{repr(var.name) if var.name else op_name(var.owner.op)}{_made(var)}"
    value = value_of(var)
    return "data" if value is None else f"data of shape {np.shape(value)}"


def _made(var: Variable) -> str:
    """Return the line of the script that wrote a variable, "" if PyMC has made it."""
    is_present = (made_in(var) or "").startswith(tuple(_present()))
    return "" if is_present else where_made(var)


def _present() -> list[str]:
    """Return the lines of the script that are being run, as `made_in` has them."""
    found = []
    frame: Any = sys._getframe(1)
    while frame is not None:
        path = frame.f_code.co_filename
        if is_users(path):
            name = "a cell" if "ipykernel_" in path else path.rpartition("/")[2]
            found.append(f"{name}:{frame.f_lineno}:")
        frame = frame.f_back
    return found


def without_present_lines(text: str) -> str:
    """Return a message without the lines that are being run, as of ``pm.sample``."""
    for line in _present():
        text = re.sub(rf" \(made in {re.escape(line)} `[^`]*`\)", "", text)
    return text


_KNOWN = ("pytensor", "pymc", "pymc_extras", "synk", "blackjax")
"""Packages whose Ops are shown what they compute with."""


def hidden_in(graph: Sequence[Variable]) -> list[str]:
    """Return the Ops of the script's, or of a library's, that a graph has.

    Data may lie in them, where nobody sees it.
    """
    found: dict[str, None] = {}
    for var in ancestors(list(graph)):
        if var.owner is None:
            continue
        kind = type(var.owner.op)
        if kind.__module__.partition(".")[0] not in _KNOWN or kind is FromFunctionOp:
            text = str(var.owner.op)
            name = kind.__name__ if text.startswith("<") else text
            found[f"{name}{_made(var)}"] = None
    return list(found)
