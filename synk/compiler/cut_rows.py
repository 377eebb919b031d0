"""Slices of what all ranks have, which a call's arguments choose, are rows.

Scripts of Theano's time keep all rows in shared variables, and a function takes the
number of a batch: ``givens={x: data[i * 600 : (i + 1) * 600]}``. Such a slice is a
choice of rows, and what follows from it can go by rows, as what follows from scattered
inputs does. So slices are replaced by inputs here, and for each call the master chooses
the same rows of the same data, as if the script had passed them with ``batch=``.

Any graph is placed exactly, so this changes no number: it says what is scattered.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytensor.scalar as ps
import pytensor.tensor as pt
from pytensor.compile import SharedVariable
from pytensor.graph.basic import Apply, Constant, Variable, equal_computations
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import ancestors, io_toposort
from pytensor.tensor.basic import (
    ARange,
    MakeVector,
    ScalarFromTensor,
    TensorFromScalar,
)
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.shape import Shape, Shape_i
from pytensor.tensor.subtensor import Subtensor
from pytensor.tensor.type import DenseTensorType

from .rules.base import TAKING
from .rules.index import entries_of_index

_INDEXING = (Subtensor, *TAKING)

_CHEAP = (
    *(*_INDEXING, ARange, DimShuffle, Elemwise, MakeVector, ScalarFromTensor),
    *(Shape, Shape_i, TensorFromScalar, ps.ScalarOp),
)
"""Ops of which the master computes which rows a call has."""


class Choice(NamedTuple):
    """Which rows are chosen: from `start` to `stop`, or by `numbers`.

    None stands for the end of the rows on that side.
    """

    start: Variable | None = None
    stop: Variable | None = None
    numbers: Variable | None = None

    @property
    def variables(self) -> list[Any]:
        """What of it is computed in each call."""
        return [var for var in self if var is not None]

    def is_as(self, other: Choice) -> bool:
        """Tell whether two are written alike."""
        if [var is None for var in self] != [var is None for var in other]:
            return False
        return equal_computations(self.variables, other.variables)


@dataclass(frozen=True, eq=False)
class CutRows:
    """A function's slices of data, as scattered inputs.

    Attributes
    ----------
    outputs, updates : list
        Of the function, with inputs in the place of slices.
    rows : list of Variable
        These inputs.
    sources : list of Variable
        What each one's rows are cut out of: a shared variable, or an argument.
    choices : list of Choice
    choice_of : list of int
        By which of these the rows of each are chosen.
    shapes : dict of Variable to Variable
        Inputs that hold the shapes of sources.
    choosing : list of Variable
        The arguments that do nothing but choose.
    """

    outputs: list[Variable]
    updates: list[tuple[SharedVariable, Variable]]
    rows: list[Variable]
    sources: list[Variable]
    choices: list[Choice]
    choice_of: list[int]
    shapes: dict[Variable, Variable]
    choosing: list[Variable]


def cut_rows(
    outputs: Sequence[Variable],
    updates: Sequence[tuple[SharedVariable, Variable]],
    arguments: Sequence[Variable],
) -> CutRows | None:
    """Replace slices of data that a call's arguments choose.

    Parameters
    ----------
    outputs, updates, arguments
        Of a function without scattered inputs, or with such as may choose rows alone.

    Returns
    -------
    CutRows or None
        None if there are no slices of this kind, or if an argument chooses rows and
        could be rows itself besides.
    """
    graph = [*outputs, *(new for _, new in updates)]
    finder = _Finder(arguments, [var for var, _ in updates])
    found = finder.find(graph)
    if not found:
        return None
    graph = clone_replace(graph, finder.replaced(found))
    shapes = _shapes_of(graph, set(finder.sources))
    graph = clone_replace(graph, shapes)
    used = set(ancestors(graph))
    choosing = [var for var in arguments if var not in used]
    if any(var.type.ndim and var in used for var in finder.choosers):
        return None
    replaced = graph[: len(outputs)], graph[len(outputs) :]
    return CutRows(
        outputs=replaced[0],
        updates=[
            (var, new) for (var, _), new in zip(updates, replaced[1], strict=True)
        ],
        rows=finder.rows,
        sources=finder.sources,
        choices=finder.choices,
        choice_of=finder.choice_of,
        shapes={made: var.owner.inputs[0] for var, made in shapes.items()},
        choosing=[var for var in choosing if var in finder.choosers],
    )


class _Finder:
    """What is found in one graph."""

    def __init__(
        self, arguments: Sequence[Variable], updated: Collection[SharedVariable]
    ) -> None:
        self._arguments = set(arguments)
        self._updated = set(updated)
        self.choosers: set[Variable] = set()
        self.rows: list[Variable] = []
        self.sources: list[Variable] = []
        self.choices: list[Choice] = []
        self.choice_of: list[int] = []

    def find(self, graph: Sequence[Variable]) -> list[tuple[Apply, Choice]]:
        """Return the slices that outputs reach by no other slice, with their choices.

        What only chooses rows, as ``perm[a:b]`` in ``data[perm[a:b]]``, is not among
        them.
        """
        found: dict[Apply, Choice] = {}
        seen: set[Variable] = set()
        left = list(graph)
        while left:
            var = left.pop()
            if var in seen or var.owner is None:
                continue
            seen.add(var)
            choice = self._choice(var.owner)
            if choice is None:
                left.extend(var.owner.inputs)
            else:
                found[var.owner] = choice
        order = {node: i for i, node in enumerate(io_toposort([], list(graph)))}
        return sorted(found.items(), key=lambda pair: order[pair[0]])

    def _choice(self, node: Apply) -> Choice | None:
        """Return which rows of data a node takes, if that is all it does."""
        choice = _written_choice(node)
        if choice is None or not self._is_data(node.inputs[0]):
            return None
        by = self._chosen_by(choice.variables)
        if not by:
            return None
        self.choosers |= by
        return choice

    def _is_source(self, var: Variable) -> bool:
        """Tell whether all ranks have it, with rows, and no call changes it."""
        is_tensor = isinstance(var.type, DenseTensorType) and var.type.ndim > 0
        if isinstance(var, SharedVariable):
            return is_tensor and var not in self._updated
        return is_tensor and var in self._arguments

    def _is_data(self, var: Variable) -> bool:
        """Tell whether a row of it follows from the same row of a source."""
        node = var.owner
        if node is None:
            return self._is_source(var)
        if isinstance(node.op, Elemwise) and len(node.outputs) == 1:
            with_rows = [each for each in node.inputs if _has_rows(each)]
            return bool(with_rows) and all(map(self._is_data, with_rows))
        return _keeps_rows(node) and self._is_data(node.inputs[0])

    def _chosen_by(self, variables: Sequence[Variable]) -> set[Variable]:
        """Return the arguments that something is computed of; none if it is not cheap.

        Whatever else it is computed of the master knows as well when a call begins.
        """
        nodes = io_toposort([], list(variables))
        if not all(isinstance(node.op, _CHEAP) for node in nodes):
            return set()
        roots = {var for var in ancestors(variables) if var.owner is None}
        known = {var for var in roots if isinstance(var, (Constant, SharedVariable))}
        if any(not hasattr(var.type, "dtype") for var in roots):
            return set()
        by = roots - known
        return by if by <= self._arguments else set()

    def replaced(
        self, found: Sequence[tuple[Apply, Choice]]
    ) -> dict[Variable, Variable]:
        """Return what takes the places of slices."""
        places: dict[Variable, Variable] = {}
        for node, choice in found:
            rows: Any = self._rows_of(node.inputs[0], self._number(choice))
            others = _index(node)[1:]
            places[node.outputs[0]] = rows[(slice(None), *others)] if others else rows
        return places

    def _number(self, choice: Choice) -> int:
        """Return the number of a choice, the same for those that are written alike."""
        for i, known in enumerate(self.choices):
            if choice.is_as(known):
                return i
        self.choices.append(choice)
        return len(self.choices) - 1

    def _rows_of(self, var: Variable, choice: int) -> Variable:
        """Return the chosen rows of data, of inputs that hold sources' rows."""
        node = var.owner
        if node is None:
            for made, source, of in zip(
                self.rows, self.sources, self.choice_of, strict=True
            ):
                if source is var and of == choice:
                    return made
            kind = var.type.clone(shape=(None, *var.type.shape[1:]))
            made = kind(name=f"rows of {var.name or 'data'}")
            self.rows.append(made)
            self.sources.append(var)
            self.choice_of.append(choice)
            return made
        inputs = list(node.inputs)
        for i, each in enumerate(inputs):
            if _has_rows(each) and (i == 0 or isinstance(node.op, Elemwise)):
                inputs[i] = self._rows_of(each, choice)
        return node.op.make_node(*inputs).outputs[0]


def _index(node: Apply) -> list:
    """Return by what a node indexes its first input; nothing, if it does not."""
    return entries_of_index(node, 1) if isinstance(node.op, _INDEXING) else []


def _written_choice(node: Apply) -> Choice | None:
    """Return which rows a node takes; None if it takes none, or one."""
    first, *others = _index(node) or [None]
    if isinstance(first, slice):
        is_plain = first.step is None and isinstance(node.op, Subtensor)
        ends = [None if end is None else pt.as_tensor(end) for end in _ends(first)]
        return Choice(*ends) if is_plain else None
    kind = getattr(first, "type", None)
    is_vector = isinstance(kind, DenseTensorType) and kind.ndim == 1
    return Choice(numbers=first) if is_vector and not others else None


def _ends(index: slice) -> tuple:
    return index.start, index.stop


def _has_rows(var: Variable) -> bool:
    """Tell whether a value has a first axis, of other lengths than 1."""
    return var.type.ndim > 0 and not var.type.broadcastable[0]  # type: ignore[attr-defined]


def _keeps_rows(node: Apply) -> bool:
    """Tell whether a node does the same with each row, wherever it is."""
    if isinstance(node.op, DimShuffle):
        return node.op.new_order[:1] == (0,)
    if isinstance(node.op, Subtensor):
        return _index(node)[0] == slice(None)
    return False


def _shapes_of(
    graph: Sequence[Variable], sources: Collection[Variable]
) -> dict[Variable, Variable]:
    """Return inputs for the shapes of sources, which are told rather than computed."""
    return {
        node.outputs[0]: node.outputs[0].type(
            name=f"shape of {node.inputs[0].name or 'data'}"
        )
        for node in io_toposort([], list(graph))
        if isinstance(node.op, Shape) and node.inputs[0] in sources
    }
