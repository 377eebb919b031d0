"""Lengths of axes as symbols, so that two that a graph computes can be compared.

``x.shape[1]`` is a symbol, the length of axis 1 of the input x. What a graph makes of
it, as ``(x.T @ w).shape[0]`` or ``x.shape[1] * 2``, is followed back to such symbols.
What cannot be followed is a symbol of its own. So lengths that are found equal are
equal, on every rank and in the serial run, and lengths that are not may be equal too.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import numpy as np
from pytensor import scalar as ps
from pytensor.compile.ops import DeepCopyOp, ViewOp
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.printing import Print
from pytensor.raise_op import CheckAndRaise
from pytensor.scan.op import Scan
from pytensor.tensor import basic as ptb
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.elemwise import CAReduce, DimShuffle, Elemwise
from pytensor.tensor.math import Dot
from pytensor.tensor.shape import Reshape, Shape, Shape_i, SpecifyShape
from pytensor.tensor.special import LogSoftmax, Softmax
from pytensor.tensor.subtensor import (
    AdvancedIncSubtensor,
    AdvancedSubtensor,
    IncSubtensor,
    Subtensor,
    indices_from_subtensor,
)

from ..ops import OwnRows
from .axes import apart
from .by_class import entry_for

SizeRule = Callable[[Apply, Variable, int], "Length | None"]

Symbol = tuple[Variable, Any]
"""A variable and an axis of it, whose length it is; or what tells one of its values."""


@dataclass(frozen=True)
class Length:
    """A number times symbols.

    Attributes
    ----------
    number : int
    symbols : frozenset of (Symbol, int)
        With how often each of them is a factor.
    """

    number: int = 1
    symbols: frozenset[tuple[Symbol, int]] = frozenset()

    def __truediv__(self, other: Length) -> Length | None:
        """Return the quotient, if it is a length again."""
        if other.number < 1 or self.number < 1 or self.number % other.number:
            return None
        left = Counter(dict(self.symbols))
        left.subtract(dict(other.symbols))
        if any(many < 0 for many in left.values()):
            return None
        symbols = frozenset((s, many) for s, many in left.items() if many)
        return Length(self.number // other.number, symbols)

    def symbols_only(self) -> set[Symbol]:
        """Return the symbols."""
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
    """What was found so far, and how deep a search is."""

    depth = 0


_found: ContextVar[_Found | None] = ContextVar("_found", default=None)


@contextlib.contextmanager
def remembered(rows: Sequence[Variable] = ()) -> Iterator[None]:
    """Follow no length twice, as long as the graphs stay as they are.

    Of `rows` the first axes are taken to be equally long.
    """
    found = _found.get()
    token = None
    if found is None:
        found = _Found()
        token = _found.set(found)
    try:
        for var in rows:
            found[var, 0] = _symbol((rows[0], 0))
        yield
    finally:
        if token is not None:
            _found.reset(token)


def size(var: Variable, axis: int) -> Length:
    """Return the length of an axis of a tensor."""
    fixed = var.type.shape[axis]
    if fixed is not None:
        return Length(fixed)
    return _follow((var, axis), _size_rules)


def value_of(var: Variable) -> Length:
    """Return a scalar, an integer, as a length."""
    if isinstance(var, Constant):
        data = np.asarray(var.data)
        if data.size == 1 and data.dtype.kind in "iu":
            return Length(int(data.item()))
    return _follow((var, "value"), _value_rules)


def entries_of(var: Variable) -> list[Length]:
    """Return the entries of a vector that holds a shape."""
    found = _entries(var)
    if found is None:
        return [_symbol((var, f"entry {i}")) for i in range(var.type.shape[0])]
    return found


def reshaped(node: Apply) -> list[Length]:
    """Return the lengths that a reshape gives; -1 in place of one that is not found."""
    lengths = entries_of(node.inputs[1])
    for axis, length in enumerate(lengths):
        if length.number < 0:  # what is left of all elements
            source = node.inputs[0]
            sizes = [size(source, i) for i in range(source.type.ndim)]
            others = product([*lengths[:axis], *lengths[axis + 1 :]])
            lengths[axis] = product(sizes) / others or length
    return lengths


def length_rule(*ops: type) -> Callable[[SizeRule], SizeRule]:
    """Make a function the rule for the lengths of what some Ops compute.

    It takes a node, an output and an axis, and returns None if it knows nothing.
    """

    def register(function: SizeRule) -> SizeRule:
        _size_rules.update(dict.fromkeys(ops, function))
        return function

    return register


def selected_by(mask: Variable) -> Length:
    """Return how many elements a vector of bools selects."""
    return _symbol((mask, "true"))


def _symbol(symbol: Symbol) -> Length:
    return Length(1, frozenset([(symbol, 1)]))


def _follow(symbol: Symbol, rules: dict[type, Callable]) -> Length:
    found = _found.get()
    if found is None:
        with remembered():
            return _follow(symbol, rules)
    if symbol in found:
        return found[symbol]
    var, which = symbol
    result = None
    if var.owner is not None:
        rule = entry_for(var.owner.op, rules)
        if rule is not None:
            if found.depth == _DEEP:
                _follow_all(var, found)
            found.depth += 1
            try:
                result = rule(var.owner, var, which)
            finally:
                found.depth -= 1
    found[symbol] = _symbol(symbol) if result is None else result
    return found[symbol]


_DEEP = 50
"""Nodes that are followed by recursion, at a few of Python's frames for each."""


def _follow_all(var: Variable, found: _Found) -> None:
    """Find the lengths of all that a variable is computed from, the first one first."""
    depth, found.depth = found.depth, 0
    seen: set[Variable] = set()
    todo = [(var, False)]
    while todo:
        var, is_ready = todo.pop()
        if is_ready:
            for axis in range(var.type.ndim):
                size(var, axis)
        elif var not in seen and var.owner is not None:
            seen.add(var)
            if getattr(var.type, "ndim", 0) and (var, 0) not in found:
                todo.append((var, True))
                todo.extend((given, False) for given in var.owner.inputs)
    found.depth = depth


# -- the length of an axis


def _of_first(node: Apply, var: Variable, axis: int) -> Length:
    return size(node.inputs[0], axis)


def _of_elemwise(node: Apply, var: Variable, axis: int) -> Length | None:
    """All that is not repeated has the same length; a root's tells most."""
    found = [size(given, axis) for given in node.inputs if given.type.shape[axis] != 1]
    for length in found:
        if all(root.owner is None for root, _ in length.symbols_only()):
            return length
    return found[0] if found else None


def _of_dimshuffle(node: Apply, var: Variable, axis: int) -> Length:
    return size(node.inputs[0], node.op.new_order[axis])


def _of_reshape(node: Apply, var: Variable, axis: int) -> Length | None:
    length = reshaped(node)[axis]
    return length if length.number >= 0 else None


def _of_alloc(node: Apply, var: Variable, axis: int) -> Length:
    return value_of(node.inputs[axis + 1])


def _of_alloc_empty(node: Apply, var: Variable, axis: int) -> Length:
    return value_of(node.inputs[axis])


def _of_reduction(node: Apply, var: Variable, axis: int) -> Length | None:
    gone = node.op.axis
    if gone is None:
        return None
    source = node.inputs[0]
    gone = {int(i) % source.type.ndim for i in np.atleast_1d(gone)}
    kept = [i for i in range(source.type.ndim) if i not in gone]
    return size(source, kept[axis])


def _of_diagonal(node: Apply, var: Variable, axis: int) -> Length | None:
    source, gone = node.inputs[0], (node.op.axis1, node.op.axis2)
    kept = [i for i in range(source.type.ndim) if i not in gone]
    return size(source, kept[axis]) if axis < len(kept) else None


def _of_dot(node: Apply, var: Variable, axis: int) -> Length:
    first, second = node.inputs
    if axis < first.type.ndim - 1:
        return size(first, axis)
    return size(second, second.type.ndim - 1)


def _of_blockwise(node: Apply, var: Variable, axis: int) -> Length | None:
    if not isinstance(node.op.core_op, Dot):
        return None
    back = axis - var.type.ndim
    first, second = node.inputs
    if back == -2:
        return size(first, first.type.ndim - 2)
    if back == -1:
        return size(second, second.type.ndim - 1)
    for given in (first, second):
        if given.type.ndim >= -back and given.type.shape[back] != 1:
            return size(given, given.type.ndim + back)
    return None


def _of_subtensor(node: Apply, var: Variable, axis: int) -> Length | None:
    source = node.inputs[0]
    entries = list(indices_from_subtensor(node.inputs[1:], node.op.idx_list))
    kept = [i for i, entry in enumerate(entries) if isinstance(entry, slice)]
    kept += range(len(entries), source.type.ndim)
    place = kept[axis]
    whole = size(source, place)
    if place >= len(entries):
        return whole
    taken: Any = entries[place]
    start, stop, step = (
        None if part is None else _number(part)
        for part in (taken.start, taken.stop, taken.step)
    )
    if start is None and stop is None and step == Length(-1):
        return whole
    if start in (None, Length(0)) and stop in (None, whole) and step in (None, ONE):
        return whole
    return None


def _of_advanced_subtensor(node: Apply, var: Variable, axis: int) -> Length | None:
    """Elements that one array chooses, along the first axis."""
    source, *given = node.inputs
    if len(given) != 1 or getattr(node.op, "idx_list", (0,)) != (0,):
        return None
    (index,) = given
    if getattr(index.type, "dtype", "bool") == "bool":
        if getattr(index.type, "ndim", 0) != 1:
            return None
        return size(source, axis) if axis else selected_by(index)
    if axis < index.type.ndim:
        return size(index, axis)
    return size(source, axis - index.type.ndim + 1)


def _number(part: Any) -> Length:
    return value_of(part) if isinstance(part, Variable) else Length(int(part))


def _of_join(node: Apply, var: Variable, axis: int) -> Length | None:
    where, parts = apart(node, node.inputs)
    return size(parts[0], axis) if isinstance(where, int) and where != axis else None


def _of_scan(node: Apply, var: Variable, axis: int) -> Length | None:
    """Traced states lie in the buffers that they were given."""
    op = node.op
    buffers = [*op.outer_mitmot(node.inputs), *op.outer_mitsot(node.inputs)]
    buffers += op.outer_sitsot(node.inputs)
    place = node.outputs.index(var)
    if place < len(buffers):
        return size(buffers[place], axis)
    is_stacked = place < len(buffers) + op.info.n_nit_sot
    return value_of(node.inputs[0]) if is_stacked and not axis else None


_size_rules: dict[type, SizeRule] = {
    Elemwise: _of_elemwise,
    DimShuffle: _of_dimshuffle,
    Reshape: _of_reshape,
    ptb.Alloc: _of_alloc,
    ptb.AllocEmpty: _of_alloc_empty,
    CAReduce: _of_reduction,
    ptb.ExtractDiag: _of_diagonal,
    Dot: _of_dot,
    Blockwise: _of_blockwise,
    Subtensor: _of_subtensor,
    AdvancedSubtensor: _of_advanced_subtensor,
    ptb.Join: _of_join,
    Scan: _of_scan,
    **dict.fromkeys(
        [
            AdvancedIncSubtensor,
            IncSubtensor,
            Softmax,
            LogSoftmax,
            SpecifyShape,
            CheckAndRaise,
            Print,
            ViewOp,
            DeepCopyOp,
            OwnRows,
        ],
        _of_first,
    ),
}


# -- scalars


def _value_of_element(node: Apply, var: Variable, which: str) -> Length | None:
    entry = _one_index(node)
    entries = _entries(node.inputs[0]) if node.inputs[0].type.ndim == 1 else None
    if entry is None or entries is None or not -len(entries) <= entry < len(entries):
        return None
    return entries[entry]


def _one_index(node: Apply) -> int | None:
    (entry,) = indices_from_subtensor(node.inputs[1:], node.op.idx_list)
    if isinstance(entry, slice):
        return None
    found = _number(entry)
    return None if found.symbols else found.number


def _value_of_elemwise(node: Apply, var: Variable, which: str) -> Length | None:
    return _of_scalars(node.op.scalar_op, node.inputs, var)


def _value_of_scalar(node: Apply, var: Variable, which: str) -> Length | None:
    return _of_scalars(node.op, node.inputs, var)


def _of_scalars(op: Any, inputs: Sequence[Variable], var: Variable) -> Length | None:
    dtypes = [np.dtype(given.type.dtype) for given in inputs]
    wide = var.type.dtype == "int64" and all(dtype.kind in "iu" for dtype in dtypes)
    if not wide:
        return None
    found = [value_of(given) for given in inputs]
    if isinstance(op, ps.Mul):
        return product(found)
    same = isinstance(op, (ps.Cast, ps.Identity, ps.ScalarMinimum, ps.ScalarMaximum))
    return found[0] if same and len(set(found)) == 1 else None


def _value_of_first(node: Apply, var: Variable, which: str) -> Length:
    return value_of(node.inputs[0])


def _value_of_dimshuffle(node: Apply, var: Variable, which: str) -> Length | None:
    """Return the entry of a shape, as PyTensor rewrites a vector's ``x.shape[0]``."""
    (given,) = node.inputs
    entries = _entries(given) if given.type.ndim else [value_of(given)]
    return None if entries is None else entries[0]


def _value_of_length(node: Apply, var: Variable, which: str) -> Length:
    return size(node.inputs[0], node.op.i)


def _value_of_product(node: Apply, var: Variable, which: str) -> Length | None:
    """``x.size`` is the product of the shape."""
    if not isinstance(node.op.scalar_op, ps.Mul) or node.inputs[0].type.ndim != 1:
        return None
    entries = _entries(node.inputs[0])
    return None if entries is None else product(entries)


_value_rules: dict[type, Callable[[Apply, Variable, str], Length | None]] = {
    Subtensor: _value_of_element,
    Elemwise: _value_of_elemwise,
    ps.ScalarOp: _value_of_scalar,
    ptb.ScalarFromTensor: _value_of_first,
    ptb.TensorFromScalar: _value_of_first,
    Shape_i: _value_of_length,
    DimShuffle: _value_of_dimshuffle,
    CAReduce: _value_of_product,
}


# -- vectors


def _entries(var: Variable) -> list[Length] | None:
    if isinstance(var, Constant):
        return [Length(int(number)) for number in np.atleast_1d(var.data)]
    if var.owner is None:
        return None
    op, inputs = var.owner.op, var.owner.inputs
    if isinstance(op, Shape):
        return [size(inputs[0], i) for i in range(inputs[0].type.ndim)]
    if isinstance(op, ptb.MakeVector):
        return [value_of(given) for given in inputs]
    if isinstance(op, DimShuffle) and inputs[0].type.ndim == 0:
        return [value_of(inputs[0])]
    if isinstance(op, ptb.Join):
        parts = [_entries(part) for part in apart(var.owner, inputs)[1]]
        if any(part is None for part in parts):
            return None
        return [entry for part in parts if part is not None for entry in part]
    if isinstance(op, Elemwise) and isinstance(op.scalar_op, (ps.Cast, ps.Identity)):
        return _entries(inputs[0]) if var.type.dtype == "int64" else None
    if isinstance(op, Subtensor):
        return _some_entries(var.owner)
    return None


def _some_entries(node: Apply) -> list[Length] | None:
    entries = _entries(node.inputs[0])
    (entry,) = indices_from_subtensor(node.inputs[1:], node.op.idx_list)
    if entries is None or not isinstance(entry, slice):
        return None
    parts = []
    for part in (entry.start, entry.stop, entry.step):
        found = None if part is None else _number(part)
        if found is not None and found.symbols:
            return None
        parts.append(None if found is None else found.number)
    return entries[slice(*parts)]
