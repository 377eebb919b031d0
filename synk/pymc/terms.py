"""A model's log-density as a sum of terms, as PyMC writes them, and its data.

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

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.compile import SharedVariable
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
from ..errors import SplitError
from ..user_frames import where_made
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


# -- data


class Given:
    """What of a graph follows from data alone, and where the rest takes it.

    Data are all leaves but the `free` ones.

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
        self._computed = [
            var
            for var in dict.fromkeys(variables)
            if not isinstance(var, (Constant, SharedVariable))
        ]
        self._plain = [var for var in variables if var not in set(self._computed)]
        self.shared = [
            var
            for var in dict.fromkeys(ancestors(list(variables)))
            if isinstance(var, SharedVariable)
        ]
        if any(isinstance(var.type, RandomType) for var in self.shared):
            raise SplitError(DRAWN)
        self._function = None
        if self._computed:
            self._function = pytensor.function(
                [], self._computed, mode="FAST_COMPILE", on_unused_input="ignore"
            )
        self._held: list[Any] = []
        self.values: dict[Variable, np.ndarray] = {}
        self.read()

    def read(self) -> None:
        """Take the values as they are now."""
        self._held = [var.get_value(borrow=True) for var in self.shared]
        values = {
            var: var.get_value(borrow=True)
            if isinstance(var, SharedVariable)
            else var.data  # type: ignore[attr-defined]
            for var in self._plain
        }
        if self._function is not None:
            values |= dict(zip(self._computed, self._function(), strict=True))
        self.values = values

    @property
    def are_changed(self) -> bool:
        """Whether a shared variable has got another value, as by ``pm.set_data``."""
        return any(
            var.get_value(borrow=True) is not held
            for var, held in zip(self.shared, self._held, strict=True)
        )


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
