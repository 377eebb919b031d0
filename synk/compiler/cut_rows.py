"""Slices of data that a call's arguments choose, made scattered inputs.

Scripts of Theano's time keep all rows in shared variables, and a function takes the
number of a batch: ``givens={x: data[i * 600 : (i + 1) * 600]}``. Here such slices are
replaced by inputs. For each call, the master computes which rows are chosen, and
scatters them as if the script had passed the data with ``batch=``. The result is the
same, as the placer keeps the serial run's numbers whatever is scattered.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytensor.scalar as ps
import pytensor.tensor as pt
from pytensor.compile import SharedVariable
from pytensor.graph.basic import Apply, Constant, Variable, equal_computations
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import ancestors, io_toposort, walk
from pytensor.tensor.basic import (
    ARange,
    MakeVector,
    ScalarFromTensor,
    TensorFromScalar,
)
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.shape import Reshape, Shape, Shape_i, SpecifyShape
from pytensor.tensor.subtensor import Subtensor
from pytensor.tensor.type import DenseTensorType
from pytensor.tensor.type_other import NoneTypeT

from .rules.base import TAKING
from .rules.index import entries_of_index

_INDEXING = (Subtensor, *TAKING)

# Ops that the choice of rows may use, as the master computes it for each call.
_CHEAP = (
    *(*_INDEXING, ARange, DimShuffle, Elemwise, MakeVector, ScalarFromTensor),
    *(Shape, Shape_i, TensorFromScalar, ps.ScalarOp),
)


class Choice(NamedTuple):
    """A choice of rows: from `start` to `stop`, or the row numbers `numbers`.

    If `numbers` is None, a `start` or `stop` of None is the end of the data.
    """

    start: Variable | None = None
    stop: Variable | None = None
    numbers: Variable | None = None

    @property
    def variables(self) -> list[Any]:
        """The variables among the fields, which each call computes."""
        return [var for var in self if var is not None]

    def equals(self, other: Choice) -> bool:
        """Return whether the other choice has equal graphs."""
        if [var is None for var in self] != [var is None for var in other]:
            return False
        return equal_computations(self.variables, other.variables)


@dataclass(eq=False)
class CutRows:
    """A function's slices of data as scattered inputs."""

    outputs: list[Variable]  # of the function, with inputs in place of slices
    updates: list[tuple[SharedVariable, Variable]]
    rows: list[Variable] = field(default_factory=list)  # these inputs
    # For each of `rows`, the shared variable or argument that is sliced.
    sources: list[Variable] = field(default_factory=list)
    choices: list[Choice] = field(default_factory=list)
    choice_of: list[int] = field(default_factory=list)  # for each of `rows`, its choice
    # By input that receives the shape of a source, that source.
    shapes: dict[Variable, Variable] = field(default_factory=dict)
    # The arguments that only choose rows.
    choosing: list[Variable] = field(default_factory=list)
    # The numbers of chosen rows that the graph fixes; each call checks them.
    lengths: set[int] = field(default_factory=set)


def cut_rows(
    outputs: Sequence[Variable],
    updates: Sequence[tuple[SharedVariable, Variable]],
    arguments: Sequence[Variable],
) -> CutRows | None:
    """Return a function's slices of data, chosen by `arguments`, as scattered inputs.

    None if it has no such slices, or if an argument with axes chooses rows and is also
    used otherwise, so that it could be rows itself.
    """
    graph = [*outputs, *(new for _, new in updates)]
    cut = CutRows(list(outputs), list(updates))
    finder = _Finder(cut, arguments)
    found = finder.find(graph)
    if not found:
        return None
    graph = clone_replace(graph, finder.replaced(found))
    graph = clone_replace(graph, _with_any_rows(graph, cut), rebuild_strict=False)
    shapes = {}  # of sources, which become inputs
    for node in io_toposort([], graph):
        if isinstance(node.op, Shape) and node.inputs[0] in cut.sources:
            shape = node.outputs[0]
            shapes[shape] = shape.type(name=f"shape of {_name(node.inputs[0])}")
            cut.shapes[shapes[shape]] = node.inputs[0]
    graph = clone_replace(graph, shapes)
    used = set(ancestors(graph))
    if any(var.type.ndim and var in used for var in finder.choosers):  # type: ignore[attr-defined]
        return None
    cut.choosing = [
        var for var in arguments if var not in used and var in finder.choosers
    ]
    cut.outputs, news = graph[: len(outputs)], graph[len(outputs) :]
    cut.updates = [(var, new) for (var, _), new in zip(updates, news, strict=True)]
    return cut


class _Finder:
    """Finds slices in one graph, and makes inputs of a cut for them."""

    def __init__(self, cut: CutRows, arguments: Sequence[Variable]) -> None:
        self._cut, self._arguments = cut, set(arguments)
        self._updated = {var for var, _ in cut.updates}
        self.choosers: set[Variable] = set()

    def find(self, graph: Sequence[Variable]) -> list[tuple[Apply, Choice]]:
        """Return the slices nearest to the outputs, with their choices.

        Slices above others, such as ``perm[a:b]`` in ``data[perm[a:b]]``, are left out.
        """
        found: dict[Apply, Choice] = {}

        def before(var: Variable) -> list[Variable] | None:
            if var.owner is None:
                return None
            choice = self._choice(var.owner)
            if choice is None:
                return var.owner.inputs
            found[var.owner] = choice
            return None

        for _ in walk(graph, before, bfs=False):  # type: ignore[arg-type]
            pass
        nodes = io_toposort([], list(graph)) if found else []
        return [(node, found[node]) for node in nodes if node in found]

    def _choice(self, node: Apply) -> Choice | None:
        """Return the choice of a node that takes rows of data; None of other nodes."""
        first, *others = _index(node) or [None]
        kind = getattr(first, "type", None)
        if isinstance(first, slice):
            if first.step is not None or not isinstance(node.op, Subtensor):
                return None
            ends = first.start, first.stop
            choice = Choice(
                *(None if end is None else pt.as_tensor(end) for end in ends)
            )
        elif isinstance(kind, DenseTensorType) and kind.ndim == 1 and not others:
            choice = Choice(numbers=first)
        else:
            return None
        by = self._chosen_by(choice.variables)
        if not by or not self._is_data(node.inputs[0]):
            return None
        self.choosers |= by
        return choice

    def _is_data(self, var: Variable) -> bool:
        """Return whether each row of a variable follows from the same row of sources.

        A source is an argument with axes, or a shared variable that the function does
        not update: the master has all its rows when a call begins.
        """
        node = var.owner
        if node is None:
            is_tensor = isinstance(var.type, DenseTensorType) and var.type.ndim > 0
            is_kept = isinstance(var, SharedVariable) and var not in self._updated
            return is_tensor and (is_kept or var in self._arguments)
        if isinstance(node.op, Elemwise) and len(node.outputs) == 1:
            with_rows = [each for each in node.inputs if _has_rows(each)]
            return bool(with_rows) and all(map(self._is_data, with_rows))
        if isinstance(node.op, DimShuffle):
            keeps_rows = node.op.new_order[:1] == (0,)
        else:
            keeps_rows = isinstance(node.op, Subtensor) and _index(node)[0] == slice(
                None
            )
        return keeps_rows and self._is_data(node.inputs[0])

    def _chosen_by(self, variables: Sequence[Variable]) -> set[Variable]:
        """Return the arguments that a choice is computed from; none if it is not cheap.

        Its other roots are shared variables and constants.
        """
        nodes = io_toposort([], list(variables))
        if not all(isinstance(node.op, _CHEAP) for node in nodes):
            return set()
        roots = {var for var in ancestors(variables) if var.owner is None}
        if any(not hasattr(var.type, "dtype") for var in roots):
            return set()
        by = {var for var in roots if not isinstance(var, (Constant, SharedVariable))}
        return by if by <= self._arguments else set()

    def replaced(
        self, found: Sequence[tuple[Apply, Choice]]
    ) -> dict[Variable, Variable]:
        """Return, by slice, the variable in its place; add inputs to the cut."""
        places: dict[Variable, Variable] = {}
        for node, choice in found:
            choices = self._cut.choices  # equal choices are one
            alike = (i for i, known in enumerate(choices) if choice.equals(known))
            number = next(alike, len(choices))
            if number == len(choices):
                choices.append(choice)
            rows: Any = self._rows_of(node.inputs[0], number)
            others = _index(node)[1:]
            places[node.outputs[0]] = rows[(slice(None), *others)] if others else rows
        return places

    def _rows_of(self, var: Variable, choice: int) -> Variable:
        """Return the chosen rows of a variable, computed from inputs of the cut."""
        node, cut = var.owner, self._cut
        if node is None:
            known = zip(cut.rows, cut.sources, cut.choice_of, strict=True)
            for made, source, of in known:
                if source is var and of == choice:
                    return made
            kind = var.type.clone(shape=(None, *var.type.shape[1:]))  # type: ignore[attr-defined]
            cut.rows.append(kind(name=f"rows of {_name(var)}"))
            cut.sources.append(var)
            cut.choice_of.append(choice)
            return cut.rows[-1]
        inputs = list(node.inputs)
        for i, each in enumerate(inputs):
            if _has_rows(each) and (i == 0 or isinstance(node.op, Elemwise)):
                inputs[i] = self._rows_of(each, choice)
        return node.op.make_node(*inputs).outputs[0]


def _with_any_rows(graph: Sequence[Variable], cut: CutRows) -> dict[Variable, Variable]:
    """Return, by variable with a fixed number of rows, one with any number.

    ``x.reshape((batch_size, 1, 28, 28))`` holds for all rows of a call, but not for a
    rank's. The number is added to ``cut.lengths``, which calls check.
    """
    rows: dict[Variable, Any] = {var: var for var in cut.rows}
    places: dict[Variable, Variable] = {}
    for node in io_toposort([], list(graph)):
        if (
            not isinstance(node.op, Reshape | SpecifyShape)
            or node.inputs[0] not in rows
        ):
            continue
        first, made = rows[node.inputs[0]], node.outputs[0]
        length = made.type.shape[0] if made.type.ndim else None  # type: ignore[attr-defined]
        if length is None or length == 1:
            continue
        if isinstance(node.op, Reshape):
            shape: Any = node.inputs[1]
            others = [shape[i] for i in range(1, node.op.ndim)]
            # If it does not keep rows apart, it raises in the call: a wrong size.
            rows[made] = first.reshape((first.shape[0], *others), ndim=node.op.ndim)
        else:
            others = [
                None if isinstance(each.type, NoneTypeT) else each
                for each in node.inputs[2:]
            ]
            rows[made] = pt.specify_shape(first, (None, *others))
        cut.lengths.add(length)
        places[made] = rows[made]
    return places


def _name(var: Variable) -> str:
    return var.name or "data"


def _index(node: Apply) -> list:
    """Return the entries of a node's index; an empty list if it has none."""
    return entries_of_index(node, 1) if isinstance(node.op, _INDEXING) else []


def _has_rows(var: Variable) -> bool:
    """Return whether a variable has a first axis that is not broadcast."""
    return var.type.ndim > 0 and not var.type.broadcastable[0]  # type: ignore[attr-defined]
