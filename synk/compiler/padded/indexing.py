"""Indexing: what takes elements out of arrays, and puts them in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Variable
from pytensor.tensor.subtensor import (
    AdvancedIncSubtensor,
    AdvancedSubtensor,
    IncSubtensor,
    Subtensor,
)

from ..domain import Refused, Replicated
from ..rules.index_arrays import before_3_1, layout_of
from ..rules.indexing import Index
from .sizes import of_sizes, one_length
from .walk import Padded, Padder, aligned, check_spread, constant_of, rule


def _index(node: Apply, first: int) -> Index:
    return Index(node, first, [Replicated()] * len(node.inputs))


def _is_all(padder: Padder, index: Index, state: Padded) -> bool:
    """Tell whether a slice takes all rows."""
    entry = index.entries[state.axis]
    if not isinstance(entry, slice):
        return False
    start, stop, step = entry.start, entry.stop, entry.step
    return (
        (start is None or _number(start) == 0)
        and (step is None or _number(step) == 1)
        and (
            stop is None
            or (
                isinstance(stop, Variable)
                and one_length(padder, stop) == (1, state.many)
            )
        )
    )


def _number(part: Any) -> int | None:
    return constant_of(part) if isinstance(part, Variable) else part


def _check_fixed(padder: Padder, index: Index, but: int | None = None) -> None:
    """Raise unless the entries, of all other axes, have nothing to do with rows."""
    for axis, entry in enumerate(index.entries):
        if axis == but:
            continue
        parts = [entry]
        if isinstance(entry, slice):
            parts = [entry.start, entry.stop, entry.step]
        for part in parts:
            if isinstance(part, Variable) and (
                part in padder.found or part in padder.long
            ):
                raise Refused("takes as an index what follows from the rows")


def _inputs(padder: Padder, node: Apply, first: int) -> list[Variable]:
    """Return a node's inputs; a bound that is the number of rows is that of all."""
    return [
        padder.new[var] if i < first else padder.long_of(var)
        for i, var in enumerate(node.inputs)
    ]


@rule(Subtensor)
def subtensor(padder: Padder, node: Apply) -> None:
    """All rows, and of each of them the same elements; or the first row."""
    var, index = node.inputs[0], _index(node, 1)
    state = padder.state(var)
    if state is None:
        _check_fixed(padder, index)
        of_sizes(padder, node)
        return
    _check_fixed(padder, index, but=state.axis)
    made = padder.made(node, _inputs(padder, node, 1))
    if _is_all(padder, index, state):
        axis = index.kept().index(state.axis)
        padder.become(node.outputs, made, replace(state, axis=axis, numbers=False))
    elif _is_first(index.entries[state.axis]):
        padder.become(node.outputs, made)
    else:
        raise Refused("takes some of the rows, or another order of them")


def _is_first(entry: Any) -> bool:
    return not isinstance(entry, slice) and _number(entry) == 0


@rule(IncSubtensor)
def inc_subtensor(padder: Padder, node: Apply) -> None:
    """Elements set or increased, in all rows or in the first, or where there are none.

    The first row is the first of the first block.
    """
    var, other = node.inputs[:2]
    index = _index(node, 2)
    state, put = padder.state(var), padder.state(other)
    if state is None:
        _check_fixed(padder, index)
        if put is not None:
            raise Refused("puts rows into something of fixed length")
        padder.check_no_sizes([var, other])
        padder.row_by_row(node, None)
        return
    _check_fixed(padder, index, but=state.axis)
    if _is_all(padder, index, state):
        kept = index.kept()
        state = _at(padder, other, state, kept.index(state.axis) - len(kept))
    elif put is not None or not _is_first(index.entries[state.axis]):
        raise Refused("changes some of the rows")
    made = padder.made(node, _inputs(padder, node, 2))
    padder.become(node.outputs, made, replace(state, numbers=False))


def _at(padder: Padder, other: Variable, rows: Padded, back: int) -> Padded:
    """Check that `other` meets the rows with its own; return how the rows lie.

    `back` counts their axis from the last one, as broadcasting does.
    """
    state = padder.state(other)
    if state is None:
        check_spread(padder, [other], back)
        return rows
    if state.axis - other.type.ndim != back:
        raise Refused("pairs every row with every other row")
    found = aligned([rows, replace(state, axis=rows.axis)])
    assert found is not None
    return found


# -- arrays as indices


class _Arrays:
    """Index arrays, broadcast against one another.

    Attributes
    ----------
    rows : Padded or None
        How the rows lie along an axis that is counted from the last one.
    """

    def __init__(
        self, padder: Padder, index: Index, paired: Variable | None = None
    ) -> None:
        self.padder = padder
        arrays = index.arrays
        states = []
        for var in arrays:
            state = padder.state(var)
            if state is not None:
                # What pairs the entries with rows has whatever order they have.
                blocks = None if var is paired else state.blocks
                axis = state.axis - var.type.ndim
                state = replace(state, axis=axis, blocks=blocks)
            elif var in padder.long:
                raise Refused("takes as an index what follows from the rows")
            states.append(state)
        self.rows = aligned(states)
        if self.rows is not None:
            check_spread(padder, arrays, self.rows.axis)
        self.place, kept = layout_of(index)
        self.kept: Sequence[int] = kept
        self.ndim = max((var.type.ndim for var in arrays), default=0)
        self._arrays = arrays

    @property
    def axis(self) -> int:
        """The rows' axis in the result."""
        assert self.rows is not None
        return self.place + self.ndim + self.rows.axis

    @property
    def some_rows(self) -> Variable:
        """One of the arrays that have rows."""
        return next(var for var in self._arrays if var in self.padder.found)


def _taken(padder: Padder, index: Index, state: Padded) -> Padded:
    """Return how rows lie in what an index takes of them; raise unless it is all."""
    entry = index.entries[state.axis]
    if isinstance(entry, slice):
        if not _is_all(padder, index, state):
            raise Refused("takes some of the rows, or another order of them")
        arrays = _Arrays(padder, index)
        if arrays.rows is not None:
            raise Refused("pairs every row with every other row")
        _check_fixed(padder, index, but=state.axis)
        return replace(state, axis=arrays.kept.index(state.axis), numbers=False)
    numbers = padder.state(entry)
    is_whole = numbers is not None and numbers.numbers and numbers.many == state.many
    if not is_whole or sum(var is entry for var in index.arrays) > 1:
        raise Refused("takes some of the rows, or another order of them")
    arrays = _Arrays(padder, index, paired=entry)
    _check_slices(padder, index)
    assert arrays.rows is not None
    found = aligned([replace(state, axis=0), replace(arrays.rows, axis=0)])
    assert found is not None
    return replace(found, axis=arrays.axis)


def _check_slices(padder: Padder, index: Index) -> None:
    for entry in index.entries:
        if isinstance(entry, slice):
            parts = [entry.start, entry.stop, entry.step]
            padder.check_no_sizes(part for part in parts if isinstance(part, Variable))


@rule(AdvancedSubtensor, *before_3_1("AdvancedSubtensor1"))
def advanced_subtensor(padder: Padder, node: Apply) -> None:
    """Elements of each row, or for each row elements of what is the same for all."""
    var, index = node.inputs[0], _index(node, 1)
    state = padder.state(var)
    if state is not None:
        taken = _taken(padder, index, state)
        made = padder.made(node, _inputs(padder, node, 1))
        padder.become(node.outputs, made, taken)
        return
    padder.check_no_sizes([var])
    _check_slices(padder, index)
    arrays = _Arrays(padder, index)
    found = arrays.rows and replace(arrays.rows, axis=arrays.axis)
    padder.row_by_row(node, found)


@rule(AdvancedIncSubtensor, *before_3_1("AdvancedIncSubtensor1"))
def advanced_inc_subtensor(padder: Padder, node: Apply) -> None:
    """As for reading; where every row adds to places of its own choice, copies do not.

    What they add is zero.
    """
    var, other = node.inputs[:2]
    index = _index(node, 2)
    state = padder.state(var)
    if state is not None:
        taken = _taken(padder, index, state)
        back = taken.axis - len(layout_of(index)[1])
        met = _at(padder, other, taken, back)
        made = padder.made(node, _inputs(padder, node, 2))
        found = replace(met, axis=state.axis, numbers=False)
        padder.become(node.outputs, made, found)
        return
    _check_slices(padder, index)
    arrays = _Arrays(padder, index)
    if arrays.rows is None:
        if other in padder.found:
            raise Refused("puts rows into something of fixed length")
        padder.check_no_sizes([var, other])
        padder.row_by_row(node, None)
        return
    if node.op.set_instead_of_inc or getattr(node.op, "ignore_duplicates", False):
        raise Refused("lets the last of the rows win that write to one place")
    inputs = padder.given(node)
    inputs[1] = _zero_in_copies(padder, other, arrays)
    padder.become(node.outputs, padder.made(node, inputs))


def _zero_in_copies(padder: Padder, other: Variable, arrays: _Arrays) -> Variable:
    """Return what rows add to places of their choice, with nothing where copies are.

    What is the same for all rows is repeated for it.
    """
    rows = arrays.rows
    assert rows is not None
    back = arrays.axis - len(arrays.kept)
    ndim = max(other.type.ndim, -back)
    found = _at(padder, other, replace(rows, axis=ndim + back), back)
    new = padder.new[other]
    if other in padder.found:
        return padder.chosen(new, found, 0)
    like = arrays.some_rows
    axis = rows.axis + like.type.ndim
    real = padder.real_places(padder.new[like].shape[axis], found)
    order: list[Any] = ["x"] * ndim
    order[back] = 0
    return pt.switch(real.dimshuffle(order), new, np.zeros((), new.type.dtype))
