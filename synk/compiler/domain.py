"""What a value is as a function of the rows: the domain of the splitting proof.

Let the rows of a call be cut into parts A and B, and write v(A) for what a rank with
the rows A computes for a variable, v(AB) for what the serial run computes. Each element
of the domain is an equation that holds for every cut into parts that have rows, and so,
by induction, for any number of ranks with any numbers of rows:

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

Rows need not stand one after the other. Reshaped from (t, n, k) to (t n, k) they come
in t blocks with all rows in each; ``x[::-1]`` has the last row first. Their `Layout`
says so: the equation is that of the array with the blocks as an axis of their own, and
the parts in the order of the layout. Where all rows have the same value they have any
layout, as zeros have.

Values are known *up to a power of n*, the number of a rank's rows: with ``power=p``, it
is the value divided by n**p that fulfils the equation. So means are understood:

* ``x.shape[0]`` is ``Replicated(power=1)``, so ``x.sum() / x.shape[0]`` is
  ``Partial("sum", power=-1)``: a mean, in which ranks weigh what they have rows.
  Gradients of a mean have the power -1 from the loss down to the parameters.
* A value that is the same everywhere is a mean of itself: ``Replicated(power=p)`` is
  ``Partial("sum", power=p - 1)`` as well. Therefore a mean plus a regulariser is a
  mean, n times a constant is a sum, and a sum plus a constant is neither.
* Zeros fulfil every equation. Their power is None, which goes with any other.

The equations, and not the way in which a value was computed, are what a rule has to
preserve; it raises `Refused` where it cannot show that it does. Whatever lengths and
shapes a serial run may have, the rules hold as long as no rank raises an error: two
values that are combined elementwise have the same length, on each rank and as a whole.
Floats are taken for real numbers: overflow and rounding are not the proof's business.
Integers wrap around, and what holds of numbers only is not claimed of them; see
`rules.wrapping`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..reduce_ops import ReduceOp
from .lengths import ONE, Length
from .table import Refused as Refused

# Of the number of rows; None is that of zeros, which fits any.
Power = int | None


@dataclass(frozen=True)
class Replicated:
    """The same on every rank, up to a power of the number of rows."""

    power: Power = 0
    exact: bool = False  # with power 1: it is n itself, and not some multiple
    # What every element is, where the graph says so; of integers the exact one.
    number: float | int | None = None


REPLICATED = Replicated()  # most values are that, and no more is known of them


def constant(number: Any) -> Replicated:
    """Return what a number is that the graph tells; zeros are of any power."""
    return Replicated(0 if number else None, number=number)


@dataclass(frozen=True)
class Layout:
    """How rows stand along their axis."""

    blocks: Length = ONE  # how often all come, each time some entries of each
    reverse: bool = False  # whether the last rank's come first
    # How long each block is, if that is known. It follows from the blocks and the
    # axis's length, and tells of axes of equal length whether their blocks are equal.
    block: Length | None = field(default=None, compare=False)

    def agrees(self, other: Layout) -> bool:
        """Tell whether another axis, equally long, is known to have this layout."""
        same = self.block is not None and self.block == other.block
        return self.reverse == other.reverse and (self.blocks == other.blocks or same)


IN_ORDER = Layout()


@dataclass(frozen=True)
class Sharded:
    """A value for each row, concatenated along an axis, times n**power."""

    axis: int
    power: Power = 0
    # Of the axis: "n"; "kn", a multiple that is the same on every rank; "some", the
    # number of those rows that a mask selects; or "?", that of other rows than those
    # that ranks are weighed by.
    length: str = "n"
    layout: Layout | None = IN_ORDER  # None if nothing differs along the axis

    @property
    def is_counted(self) -> bool:
        """Whether the length follows from that of the rows."""
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
    """Numbers from 0 on, within each part, along an axis; other axes have length 1."""

    axis: int = 0
    length: str = "n"  # or "kn", of entries of merged axes
    count: Length | None = None  # how many there are; None if there are n


@dataclass(frozen=True)
class OwnStream:
    """The state of a random stream that is another one on each rank.

    That of a stream which all ranks have alike is `Replicated`.
    """


@dataclass(frozen=True)
class Unknown:
    """What an Op computes, a variable, is not shown to be anything."""

    op: str
    variable: str
    why: str
    made: str | None = None  # the user's line that made it

    def __str__(self) -> str:
        if self.variable.startswith(self.op):
            return f"{self.variable} {self.why}"
        return f"{self.op}, in {self.variable}, {self.why}"


Value = Replicated | Sharded | Partial | Listed | Position | OwnStream | Unknown


def describe(value: Value) -> str:
    """Say what a value is, as part of a sentence."""
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


def without_block(value: Value) -> Value:
    """Forget how long blocks are, where that may be another length, or unequal ones."""
    if not isinstance(value, Sharded) or value.layout is None:
        return value
    return replace(value, layout=replace(value.layout, block=None))


# -- powers


def times(*powers: Power) -> Power:
    """Return the power of a product."""
    return None if None in powers else sum(p for p in powers if p is not None)


def common_power(powers: Sequence[Power]) -> Power:
    """Return the power that all have, or raise."""
    given = {power for power in powers if power is not None}
    if len(given) > 1:
        raise Refused(
            "combines values that grow differently with the number of rows, such as a"
            " sum over the rows and a constant"
        )
    return given.pop() if given else None


def is_replicated(value: Value) -> bool:
    """Tell whether a value is the same on every rank, whatever their rows."""
    return isinstance(value, Replicated) and not value.power


def _with_power(rows: Sharded, power: Power) -> Sharded:
    return rows if rows.power == power else replace(rows, power=power)


# -- combining values


def unlisted(value: Value) -> Value:
    """Return a listed vector as what all its entries are; raise for special values."""
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
    """Return the axis and length that the row-wise values share; None without any."""
    rows = [value for value in values if isinstance(value, Sharded)]
    if len(rows) < 2:
        return rows[0] if rows else None
    if len({value.axis for value in rows}) > 1:
        raise Refused("pairs every row with every other row")
    # Lengths along the axis are equal, or else some rank raises: the most that is known
    # of one is true of all.
    length = min((value.length for value in rows), key=["n", "kn", "some", "?"].index)
    layouts = [value.layout for value in rows if value.layout is not None]
    if not all(layouts[0].agrees(layout) for layout in layouts):
        raise Refused("pairs rows in one order with rows in another")
    return replace(rows[0], length=length, layout=layouts[0] if layouts else None)


def negated(value: Value) -> Value:
    """Return what the negative of a value is."""
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
    """Return the rows of values, what is partial and replicated, and all powers."""
    if any(isinstance(value, (Position, Unknown)) for value in values):
        raise Refused(f"computes with {describe(Position())}")
    values = [unlisted(value) for value in values]
    partials = [value for value in values if isinstance(value, Partial)]
    replicated = [value for value in values if isinstance(value, Replicated)]
    powers = [v.power for v in values if isinstance(v, Sharded | Replicated | Partial)]
    return align(values), partials, replicated, powers


def total(values: Sequence[Value]) -> Value:
    """Return what a sum of values is."""
    return selected(values, is_sum=True)


def selected(values: Sequence[Value], is_sum: bool = False) -> Value:
    """Return what an array is whose elements are each taken from one of several.

    Which element comes from where must be the same on every rank, or for every row.
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
    if is_sum and (len(partials) > 1 or op == "prod"):
        raise Refused(f"adds something to {describe(partials[0])}")
    return Partial(op)


def product(values: Sequence[Value]) -> Value:
    """Return what a product of values is."""
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
    """Return what 1 / value is."""
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
    """Return what any function of the values is, elementwise along the rows."""
    values = [unlisted(value) for value in values]
    for value in values:
        if not isinstance(value, (Sharded, Replicated)):
            raise Refused(f"is no linear function of {describe(value)}")
        if value.power:
            raise Refused(f"is no linear function of what is {describe(value)}")
    rows = align(values)
    return _with_power(rows, 0) if rows else Replicated()
