"""Lengths of axes as products of symbols, so that lengths can be compared.

``x.shape[1]`` is a symbol, the length of axis 1 of the input x. Lengths that a graph
computes, such as ``(x.T @ w).shape[0]`` or ``x.shape[1] * 2``, are followed back to
such symbols, by the table of Ops or by PyTensor's shape inference. A length that cannot
be followed is a symbol of its own. So if two `Length` are equal, the lengths are, on
every rank and in the serial run; if they differ, the lengths may still be equal.
"""

from __future__ import annotations

import contextlib
import inspect
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor import scalar as ps
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.op import HasInnerGraph
from pytensor.graph.traversal import io_toposort
from pytensor.tensor.basic import (
    Join,
    MakeVector,
    ScalarFromTensor,
    TensorFromScalar,
)
from pytensor.tensor.elemwise import CAReduce, DimShuffle
from pytensor.tensor.shape import Shape, Shape_i
from pytensor.tensor.subtensor import Subtensor, indices_from_subtensor

from ..user_frames import untraced
from . import table

# A variable, and the axis whose length the symbol is; or a word for one of its values:
# "value", "entry 0", or "true" for the number of True elements.
Symbol = tuple[Variable, Any]


@dataclass(frozen=True)
class Length:
    """A number times symbols; each symbol is paired with its exponent."""

    number: int = 1
    symbols: frozenset[tuple[Symbol, int]] = frozenset()

    def __truediv__(self, other: Length) -> Length | None:
        """Return the quotient if it is a `Length`; else None."""
        if other.number < 1 or self.number < 1 or self.number % other.number:
            return None
        left, right = Counter(dict(self.symbols)), Counter(dict(other.symbols))
        if not right <= left:
            return None
        symbols = frozenset((left - right).items())
        return Length(self.number // other.number, symbols)

    def symbols_only(self) -> set[Symbol]:
        """Return the symbols without their exponents."""
        return {symbol for symbol, _ in self.symbols}


ONE = Length()


def product(lengths: Iterable[Length]) -> Length:
    """Return the product of lengths."""
    number, symbols = 1, Counter[Symbol]()
    for length in lengths:
        number *= length.number
        symbols.update(dict(length.symbols))
    return Length(number, frozenset(symbols.items()))


class _Found(dict[Symbol, Length]):
    """The lengths found so far, and the depth of the running search."""

    depth = 0


_found: ContextVar[_Found | None] = ContextVar("_found", default=None)


@contextlib.contextmanager
def cached_lengths(rows: Sequence[Variable] = ()) -> Iterator[None]:
    """Within this context, cache lengths; graphs must not change meanwhile.

    The first axes of all `rows` are taken to be equally long.
    """
    found = _found.get()
    is_first = found is None
    if found is None:
        found = _Found()
        _found.set(found)
    try:
        for var in rows:
            found[var, 0] = _symbol((rows[0], 0))
        yield
    finally:
        if is_first:
            _found.set(None)


def size(var: Variable, axis: int) -> Length:
    """Return the length of an axis of a tensor."""
    fixed = var.type.shape[axis]
    if fixed is not None:
        return Length(fixed)
    return _follow((var, axis))


def length_of(part: Any) -> Length:
    """Return a part of an index, a variable or a number, as a length."""
    return value_of(part) if isinstance(part, Variable) else Length(int(part))


def value_of(var: Variable) -> Length:
    """Return an integer scalar as a length."""
    if isinstance(var, Constant):
        data = np.asarray(var.data)
        if data.size == 1 and data.dtype.kind in "iu":
            return Length(int(data.item()))
    return _follow((var, "value"))


def entries_of(var: Variable) -> list[Length]:
    """Return the entries of a vector that is a shape, as lengths."""
    found = known_entries(var)
    if found is None:
        return [_symbol((var, f"entry {i}")) for i in range(var.type.shape[0])]
    return found


def known_entries(var: Variable) -> list[Length] | None:
    """Return the entries of a vector of integers as lengths; None if unknown."""
    if isinstance(var, Constant):
        return [Length(int(number)) for number in np.atleast_1d(var.data)]
    if var.owner is None:
        return None
    return table.ask_or_none(_integers_of, var.owner)


def selected_by(mask: Variable) -> Length:
    """Return the number of elements that a vector of bools selects."""
    return _symbol((mask, "true"))


def _symbol(symbol: Symbol) -> Length:
    return Length(1, frozenset([(symbol, 1)]))


def _follow(symbol: Symbol) -> Length:
    """Return a symbol's length or value, followed back as far as possible."""
    found = _found.get()
    if found is None:
        with cached_lengths():
            return _follow(symbol)
    if symbol in found:
        return found[symbol]
    var, which = symbol
    result = None
    if var.owner is not None:
        if found.depth == 50:  # each level takes a few of Python's frames
            _follow_all(var, found)
        found.depth += 1
        try:
            if which == "value":
                numbers = table.ask_or_none(_integers_of, var.owner)
                result = None if numbers is None else numbers[0]
            else:
                rule = table.entry_of(var.owner.op).length or inferred
                result = table.ask_or_none(rule, var.owner, *symbol)
        finally:
            found.depth -= 1
    found[symbol] = _symbol(symbol) if result is None else result
    return found[symbol]


def _follow_all(var: Variable, found: _Found) -> None:
    """Find the lengths of all variables above one, in the order of computation."""
    depth, found.depth = found.depth, 0

    known = [each for each, which in found if which == 0 and each.owner is not None]
    for node in io_toposort(known, [var]):
        for made in node.outputs:
            for axis in range(getattr(made.type, "ndim", 0)):
                size(made, axis)
    found.depth = depth


# -- numbers that a graph computes of lengths


def _integers_of(node: Apply) -> list[Length] | None:
    """Return the integers in a node's scalar or vector output as lengths, or None."""
    op: Any = node.op
    first: Any = node.inputs[0] if node.inputs else None
    if isinstance(op, Shape):
        return [size(first, axis) for axis in range(first.type.ndim)]
    if isinstance(op, Shape_i):
        return [size(first, op.i)]
    if isinstance(op, MakeVector):
        return [value_of(given) for given in node.inputs]
    if isinstance(op, (TensorFromScalar, ScalarFromTensor)):
        return [value_of(first)]
    if isinstance(op, DimShuffle):  # an entry of a vector, or a scalar as a vector
        return known_entries(first) if first.type.ndim else [value_of(first)]
    if isinstance(op, Join):
        joined: list[Length] | None = []
        for given in node.inputs:
            if given.type.ndim and joined is not None:
                entries = known_entries(given)
                joined = None if entries is None else joined + entries
        return joined
    if isinstance(op, Subtensor) and first.type.ndim == 1:
        return _taken_integers(node)
    if isinstance(op, CAReduce) and isinstance(op.scalar_op, ps.Mul):
        entries = known_entries(first) if first.type.ndim == 1 else None
        return None if entries is None else [product(entries)]
    return _computed_integers(node, getattr(op, "scalar_op", op))


def _taken_integers(node: Apply) -> list[Length] | None:
    """Return the entries that a node takes of a vector by constant indices, or None."""
    entries = known_entries(node.inputs[0])
    entry: Any
    (entry,) = indices_from_subtensor(node.inputs[1:], node.op.idx_list)  # type: ignore[attr-defined]
    is_slice = isinstance(entry, slice)
    parts = (entry.start, entry.stop, entry.step) if is_slice else (entry,)
    found = [None if part is None else length_of(part) for part in parts]
    if entries is None or any(part is not None and part.symbols for part in found):
        return None
    numbers = [None if part is None else part.number for part in found]
    return entries[slice(*numbers)] if is_slice else [entries[numbers[0]]]  # type: ignore[index]


def _computed_integers(node: Apply, op: Any) -> list[Length] | None:
    """Return the integers of a product or a conversion as lengths; None of others."""
    (out,) = node.outputs
    dtypes = [np.dtype(given.type.dtype) for given in node.inputs]  # type: ignore[attr-defined]
    if out.type.dtype != "int64" or any(dtype.kind not in "iu" for dtype in dtypes):
        return None
    if getattr(out.type, "ndim", 0):
        is_same = isinstance(op, (ps.Cast, ps.Identity))
        return known_entries(node.inputs[0]) if is_same else None
    found = [value_of(given) for given in node.inputs]
    if isinstance(op, ps.Mul):
        return [product(found)]
    same = isinstance(op, (ps.Cast, ps.Identity, ps.ScalarMinimum, ps.ScalarMaximum))
    return found[:1] if same and len(set(found)) == 1 else None


# -- rules for the table


def of_input(place: int) -> Callable[[Apply, Variable, int], Length]:
    """Return the rule that an axis is as long as the same axis of an input."""
    return lambda node, var, axis: size(node.inputs[place], axis)


def of_numbers(first: int) -> Callable[[Apply, Variable, int], Length]:
    """Return the rule that the inputs from index `first` on are the lengths."""
    return lambda node, var, axis: value_of(node.inputs[first + axis])


def inferred(node: Apply, var: Variable, axis: int) -> Length | None:
    """Return the length that PyTensor infers, if it is a product of other lengths."""
    made = inferred_length(var, axis)
    length = None if made is None else value_of(made)
    # Otherwise it is a symbol of the expression that was just made.
    if length is None or not all(
        isinstance(which, int) for _, which in length.symbols_only()
    ):
        return None
    return length


def inferred_length(var: Variable, axis: int) -> Variable | None:
    """Return PyTensor's graph for a length, of the node's inputs and their shapes."""
    node = var.owner
    if node is None or isinstance(node.op, HasInnerGraph):
        return None  # to infer shapes in a graph within an Op takes long
    shapes = inferred_shapes(node, [unknown_shape(given) for given in node.inputs])
    shape = None if shapes is None else shapes[node.outputs.index(var)]
    return None if shape is None else pt.as_tensor_variable(shape[axis])


def unknown_shape(var: Any) -> tuple | None:
    """Return a variable's shape as PyTensor writes one that it knows nothing about."""
    ndim = getattr(var.type, "ndim", None)
    return None if ndim is None else tuple(Shape_i(i)(var) for i in range(ndim))


def inferred_shapes(node: Apply, shapes: Sequence[Any]) -> Sequence[Any] | None:
    """Return the shapes of a node's outputs as variables; None if its Op infers none.

    `shapes` are those of the inputs, None for an input without a shape.
    """
    infer: Any = getattr(node.op, "infer_shape", None)
    if infer is None:
        return None
    parameters = inspect.signature(infer).parameters.values()
    wanted = [one for one in parameters if one.default is one.empty]
    # Before PyTensor 3.3, the first argument is the graph that has the node.
    first = (None,) if len(wanted) == 3 else ()
    with untraced():
        found: Sequence[Any] = infer(*first, node, list(shapes))
    return found
