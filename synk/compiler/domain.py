"""The domain of the splitting proof: how a value depends on the rows of a call.

Let the rows of a call be cut into parts A and B. Write v(A) for the value that a rank
with the rows A computes for a variable, and v(AB) for the value of the serial run. Each
element of the domain, a `Value`, is an equation that holds for every cut into parts
with rows, and so, by induction, for any number of ranks with any numbers of rows:

====================  ================================================================
``Replicated()``      v(AB) = v(A) = v(B): shared variables, constants, reduced values
``Sharded(axis)``     v(AB) = v(A), v(B) concatenated along the axis: a value per row
``Partial("sum")``    v(AB) = v(A) + v(B)
``Partial("prod")``   v(AB) = v(A) * v(B)
``Partial("max")``    v(AB) = maximum(v(A), v(B)); ``"min"`` likewise
``Listed(...)``       a short vector known entry by entry, such as a shape
``Position(axis)``    0, 1, ... along the axis: numbers of rows, within each rank
``OwnStream()``       a random stream that each rank has for itself
``Unknown(...)``      nothing is known; says why
====================  ================================================================

Rows need not be adjacent. A reshape from (t, n, k) to (t n, k) gives t blocks, each
with entries of all rows; ``x[::-1]`` has the last row first. A `Layout` says this: the
equation then holds for the array with the blocks as an axis of their own, and with the
parts in the order of the layout. If all rows have the same value, as zeros do, the
layout is None, which agrees with any other.

Values are known *up to a power of n*, the number of a rank's rows: with ``power=p``,
the value divided by n**p fulfils the equation. This covers means:

* ``x.shape[0]`` is ``Replicated(power=1)``, so ``x.sum() / x.shape[0]`` is
  ``Partial("sum", power=-1)``: a mean, in which the weight of a rank is its number of
  rows. Gradients of a mean have the power -1 from the loss down to the parameters.
* A value that is the same everywhere is a mean of itself: ``Replicated(power=p)`` is
  ``Partial("sum", power=p - 1)`` as well. Therefore a mean plus a regulariser is a
  mean, n times a constant is a sum, and a sum plus a constant is neither.
* Zeros fulfil every equation. Their power is None, which agrees with any other.

A rule has to preserve these equations, in whatever way a value is computed. It raises
`Refused` if it cannot show that it does. Rules may assume that no rank raises an error:
two values that are combined elementwise have the same length, on each rank and in the
serial run. The proof treats floats as real numbers, without overflow and rounding.
Integers wrap around, so equations that hold only for numbers are not claimed of them;
see `rules.wrapping`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from ..reduce_ops import ReduceOp
from .lengths import ONE, Length
from .table import Refused as Refused

# An exponent of the number of rows; None, that of zeros, agrees with any other.
Power = int | None


@dataclass(frozen=True)
class Replicated:
    """The same on every rank, up to a power of the number of rows."""

    power: Power = 0
    exact: bool = False  # with power 1: the value is n itself, not a multiple of n
    number: float | int | None = None  # that all elements are equal to, if known


REPLICATED = Replicated()


def constant(number: Any) -> Replicated:
    """Return the `Value` of a constant; zeros have any power."""
    return Replicated(0 if number else None, number=number)


@dataclass(frozen=True)
class Layout:
    """The order of rows along their axis."""

    blocks: Length = ONE  # the number of blocks, each with entries of all rows
    reverse: bool = False  # whether the last rank's rows come first
    # The length of a block; None if it is not known. If two axes of one length have
    # equal blocks, they have equally many, even if `blocks` does not show it.
    block: Length | None = field(default=None, compare=False)

    def agrees(self, other: Layout) -> bool:
        """Return whether an axis of equal length with layout `other` has this one."""
        same = self.block is not None and self.block == other.block
        return self.reverse == other.reverse and (self.blocks == other.blocks or same)


IN_ORDER = Layout()


@dataclass(frozen=True)
class Sharded:
    """A value for each row, concatenated along an axis, times n**power."""

    axis: int
    power: Power = 0
    # The length of the axis: "n"; "kn", the same multiple of n on every rank; "some",
    # the number of rows that a mask selects; or "?", the number of rows of a variable
    # that may have another number of rows than the inputs.
    length: str = "n"
    layout: Layout | None = IN_ORDER  # None if nothing differs along the axis

    @property
    def is_counted(self) -> bool:
        """Whether the axis's length is a multiple of n."""
        return self.length in ("n", "kn")

    @property
    def in_order(self) -> bool:
        """Whether each rank's entries are a contiguous part of the whole."""
        return self.layout in (None, IN_ORDER)


@dataclass(frozen=True)
class Partial:
    """A sum, product, maximum or minimum over the rows; a sum times n**power."""

    op: ReduceOp
    power: Power = 0


@dataclass(frozen=True)
class Listed:
    """A vector whose entries are known one by one."""

    entries: tuple[Value, ...]


@dataclass(frozen=True)
class Position:
    """0, 1, ... along an axis, on each rank anew; all other axes have length 1."""

    axis: int = 0
    length: str = "n"  # or "kn", if the entries of merged axes are counted
    count: Length | None = None  # the axis's length; None if it is n


@dataclass(frozen=True)
class OwnStream:
    """The state of a random stream that differs between ranks.

    The state of a common stream, which is equal on all ranks, is `Replicated`.
    """


@dataclass(frozen=True)
class Unknown:
    """No equation is shown to hold for a variable, nor for what follows from it."""

    op: str  # the name of the Op whose rule first refused
    variable: str  # the name of that Op's result
    why: str  # continues "the Op ..."
    made: str | None = None  # the user's line that made the variable

    def __str__(self) -> str:
        if self.variable.startswith(self.op):
            return f"{self.variable} {self.why}"
        return f"{self.op}, in {self.variable}, {self.why}"


Value = Replicated | Sharded | Partial | Listed | Position | OwnStream | Unknown
AnyValue = TypeVar("AnyValue", bound=Value)


def describe(value: Value) -> str:
    """Return words for a value, to be part of a sentence."""
    if isinstance(value, Sharded):
        text = f"one value for each row, along axis {value.axis}"
        if not value.in_order:
            assert value.layout is not None
            text += ", from the last" if value.layout.reverse else ", again and again"
        return text + _scale(value.power)
    if isinstance(value, Partial):
        if value.op == "sum" and value.power == -1:
            return "a mean over the rows"
        noun = {"sum": "sum", "prod": "product", "max": "maximum", "min": "minimum"}
        return f"a {noun[value.op]} over the rows{_scale(value.power)}"
    if isinstance(value, Replicated):
        if value.power == 1:
            return "the number of rows" if value.exact else "a multiple of their number"
        return "the same on every rank" + _scale(value.power)
    return _DESCRIBED.get(type(value), "unknown")


_DESCRIBED: dict[type, str] = {
    Position: "row numbers, which start again on every rank",
    Listed: "a shape that depends on the number of rows",
    OwnStream: "a random stream of each rank's own",
}


def _scale(power: Power) -> str:
    if not power:
        return ""
    if power == -1:
        return ", divided by their number"
    return f", times the {power}th power of their number"


def without_block(value: AnyValue) -> AnyValue:
    """Return a value without `Layout.block`, as where the blocks' length may change."""
    if not isinstance(value, Sharded) or value.layout is None:
        return value
    return replace(value, layout=replace(value.layout, block=None))


# -- powers


def times(*powers: Power) -> Power:
    """Return the power of a product."""
    return None if None in powers else sum(p for p in powers if p is not None)


def common_power(powers: Sequence[Power]) -> Power:
    """Return the one power that all agree with; raise `Refused` if there is none."""
    given = {power for power in powers if power is not None}
    if len(given) > 1:
        raise Refused(
            "combines values that grow differently with the number of rows, such as a"
            " sum over the rows and a constant"
        )
    return given.pop() if given else None


def is_replicated(value: Value) -> bool:
    """Return whether a value is equal on all ranks, for any numbers of rows."""
    return isinstance(value, Replicated) and not value.power


def is_n(value: Value) -> bool:
    """Return whether a value is the number of rows."""
    return isinstance(value, Replicated) and value.exact


def is_sum(value: Value) -> bool:
    """Return whether a value is a sum over the rows, or a mean."""
    return isinstance(value, Partial) and value.op == "sum"


def number_of(value: Value) -> float | int | None:
    """Return the number that all elements are equal to; None if it is not known."""
    return value.number if isinstance(value, Replicated) else None


def _with_power(rows: Sharded, power: Power) -> Sharded:
    return rows if rows.power == power else replace(rows, power=power)


# -- combining values


def unlisted(value: Value) -> Value:
    """Return a `Listed` vector as one `Replicated`; other values as they are.

    Raises `Refused` for an `OwnStream`, and if the entries have no one power.
    """
    if isinstance(value, (Sharded, Replicated, Partial)):
        return value  # nearly all are such
    if isinstance(value, OwnStream):
        raise Refused(f"computes with {describe(value)}")
    if not isinstance(value, Listed):
        return value
    entries = [unlisted(entry) for entry in value.entries]
    if all(isinstance(entry, Replicated) for entry in entries):
        powers = [entry.power for entry in entries if isinstance(entry, Replicated)]
        return Replicated(common_power(powers))
    raise Refused(f"takes {describe(value)} as a vector of numbers")


def align(values: Sequence[Value]) -> Sharded | None:
    """Return the axis, length and layout that all `Sharded` values share.

    None if no value is sharded; raises `Refused` if their axes or layouts differ.
    """
    rows = [value for value in values if isinstance(value, Sharded)]
    if len(rows) < 2:
        return rows[0] if rows else None
    if len({value.axis for value in rows}) > 1:
        raise Refused("pairs every row with every other row")
    # If the lengths differ a rank raises: so what is known of one length holds of all.
    length = min((value.length for value in rows), key=["n", "kn", "some", "?"].index)
    layouts = [value.layout for value in rows if value.layout is not None]
    if not all(layouts[0].agrees(layout) for layout in layouts):
        raise Refused("pairs rows in one order with rows in another")
    return replace(rows[0], length=length, layout=layouts[0] if layouts else None)


def negated(value: Value) -> Value:
    """Return the `Value` of ``-value``."""
    if isinstance(value, Partial):
        if value.op == "prod":
            raise Refused("changes the sign of a product over the rows")
        of_negative: dict[ReduceOp, ReduceOp] = {"max": "min", "min": "max"}
        return replace(value, op=of_negative.get(value.op, value.op))
    if isinstance(value, Replicated):
        number = None if value.number is None else -value.number
        return Replicated(value.power, number=number)
    return value


def _by_kind(
    values: Sequence[Value],
) -> tuple[Sharded | None, list[Partial], list[Replicated], list[Power]]:
    """Return the shared `Sharded`, the `Partial`, the `Replicated`, and all powers."""
    if any(isinstance(value, (Position, Unknown)) for value in values):
        raise Refused(f"computes with {describe(Position())}")
    values = [unlisted(value) for value in values]
    partials = [value for value in values if isinstance(value, Partial)]
    replicated = [value for value in values if isinstance(value, Replicated)]
    powers = [v.power for v in values if isinstance(v, Sharded | Replicated | Partial)]
    return align(values), partials, replicated, powers


def total(values: Sequence[Value]) -> Value:
    """Return the `Value` of a sum."""
    return selected(values, are_added=True)


def selected(values: Sequence[Value], are_added: bool = False) -> Value:
    """Return the `Value` of an array whose elements are each taken from one of several.

    The choice has to be the same on every rank, or for every row. With `are_added`, the
    values are added instead.
    """
    rows, partials, replicated, powers = _by_kind(values)
    if rows:
        if partials:
            raise Refused(f"combines single rows with {describe(partials[0])}")
        return _with_power(rows, common_power(powers))
    if not partials:
        return Replicated(common_power(powers))
    if len({value.op for value in partials}) > 1:
        raise Refused(f"combines {describe(partials[0])} with {describe(partials[-1])}")
    op = partials[0].op
    if op == "sum":
        lifted = [None if s.power is None else s.power - 1 for s in replicated]
        return Partial("sum", common_power([*(f.power for f in partials), *lifted]))
    if not all(map(is_replicated, replicated)):
        raise Refused(f"combines {describe(partials[0])} with the number of rows")
    if op == "prod" and replicated:
        raise Refused("combines a product over the rows with a constant")
    if are_added and (len(partials) > 1 or op == "prod"):
        raise Refused(f"adds something to {describe(partials[0])}")
    return Partial(op)


def product(values: Sequence[Value]) -> Value:
    """Return the `Value` of a product."""
    rows, partials, replicated, powers = _by_kind(values)
    power = times(*powers)
    if rows and partials:
        raise Refused(f"multiplies single rows with {describe(partials[0])}")
    if rows:
        return _with_power(rows, power)
    if not partials:
        return Replicated(power)
    if all(fold.op == "prod" for fold in partials) and not replicated:
        return Partial("prod")
    if len(partials) > 1:
        raise Refused(
            f"multiplies {describe(partials[0])} with {describe(partials[1])}"
        )
    if partials[0].op == "sum":
        return Partial("sum", power)
    if partials[0].op == "prod" or not all(map(is_replicated, replicated)):
        raise Refused(f"multiplies {describe(partials[0])}")
    numbers = [same.number for same in replicated]
    if not all(number and math.isfinite(number) for number in numbers):
        raise Refused(  # infinity times 0 is NaN
            f"multiplies {describe(partials[0])} by something that may be negative,"
            " or no number"
        )
    is_negative = sum(number < 0 for number in numbers if number) % 2
    return negated(partials[0]) if is_negative else partials[0]


def inverse(value: Value) -> Value:
    """Return the `Value` of ``1 / value``."""
    value = unlisted(value)
    if isinstance(value, Partial) and value.op == "prod":
        return value
    if isinstance(value, Sharded):
        return _with_power(value, -(value.power or 0))
    if isinstance(value, Replicated):
        number = 1 / value.number if value.number else None
        return Replicated(-(value.power or 0), number=number)
    raise Refused(f"divides by {describe(value)}")


def independent(values: Sequence[Value]) -> Value:
    """Return the `Value` of any function that is elementwise along the rows."""
    values = [unlisted(value) for value in values]
    for value in values:
        if not isinstance(value, (Sharded, Replicated)):
            raise Refused(f"is no linear function of {describe(value)}")
        if value.power:
            raise Refused(f"is no linear function of what is {describe(value)}")
    rows = align(values)
    return _with_power(rows, 0) if rows else Replicated()
