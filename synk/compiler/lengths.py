"""Lengths of axes as symbols, so that two that a graph computes can be compared.

``x.shape[1]`` is a symbol, the length of axis 1 of the input x. What a graph makes of
it, as ``(x.T @ w).shape[0]`` or ``x.shape[1] * 2``, is followed back to such symbols,
as the table of Ops tells. What cannot be followed is a symbol of its own. So lengths
that are found equal are equal, on every rank and in the serial run, and lengths that
are not may be equal too.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import numpy as np
from pytensor.graph.basic import Constant, Variable

from . import table

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
    return _follow((var, axis), "length")


def length_of(part: Any) -> Length:
    """Return a part of an index, be it a variable or a number, as a length."""
    return value_of(part) if isinstance(part, Variable) else Length(int(part))


def value_of(var: Variable) -> Length:
    """Return a scalar, an integer, as a length."""
    if isinstance(var, Constant):
        data = np.asarray(var.data)
        if data.size == 1 and data.dtype.kind in "iu":
            return Length(int(data.item()))
    return _follow((var, "value"), "value")


def entries_of(var: Variable) -> list[Length]:
    """Return the entries of a vector that holds a shape."""
    found = known_entries(var)
    if found is None:
        return [_symbol((var, f"entry {i}")) for i in range(var.type.shape[0])]
    return found


def known_entries(var: Variable) -> list[Length] | None:
    """Return the entries of a vector of integers, None if they are not known."""
    if isinstance(var, Constant):
        return [Length(int(number)) for number in np.atleast_1d(var.data)]
    if var.owner is None:
        return None
    return table.told(table.entry_of(var.owner.op).entries, var.owner)


def selected_by(mask: Variable) -> Length:
    """Return how many elements a vector of bools selects."""
    return _symbol((mask, "true"))


def _symbol(symbol: Symbol) -> Length:
    return Length(1, frozenset([(symbol, 1)]))


def _follow(symbol: Symbol, word: str) -> Length:
    """Return a length, or a value, as far as it can be followed back."""
    found = _found.get()
    if found is None:
        with remembered():
            return _follow(symbol, word)
    if symbol in found:
        return found[symbol]
    var = symbol[0]
    result = None
    if var.owner is not None:
        rule = getattr(table.entry_of(var.owner.op), word)
        if rule is not None:
            if found.depth == _DEEP:
                _follow_all(var, found)
            found.depth += 1
            try:
                result = table.told(rule, var.owner, *symbol)
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
