"""What users' Ops do to rows: the rule that follows from their shardings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pytensor.graph.basic import Apply, Variable
from pytensor.tensor.random.type import RandomType

from ...reduce_ops import ReduceOp
from ..domain import (
    Partial,
    Power,
    Refused,
    Replicated,
    Sharded,
    Value,
    align,
    describe,
    independent,
    is_replicated,
    product,
    times,
    unlisted,
)
from ..rules.base import any_function, name
from ..rules.reductions import fold
from ..table import entry_of
from .registry import shardings_of
from .sharding import Sharding


def own_op(node: Apply, values: list[Value]) -> list[Value]:
    """Return what the results are, by the first sharding that the operands suit."""
    ways = shardings_of(node)
    if ways is None or any(isinstance(var.type, RandomType) for var in node.inputs):
        return any_function(node, values)
    values = [unlisted(value) for value in values]
    if all(map(is_replicated, values)):
        return [Replicated() for _ in node.outputs]
    why = "takes all rows at once, as it is registered"
    for way in ways:
        try:
            if any(isinstance(value, Sharded) for value in values):
                return of_rows(way, node.inputs, values)
            return [_linear(way, values)] * len(node.outputs)
        except Refused as refused:
            why = str(refused)
    raise Refused(why)


def advice(node: Apply) -> str:
    """Say of a node that takes all rows at once what can be done; "" if nothing."""
    ways = shardings_of(node)
    if ways:
        shown = " or ".join(map(str, ways))
        return f" It is registered as {shown}: its operands are not so here."
    if ways is None and entry_of(node.op).placement in (None, own_op):
        return " If it is your Op, synk.register_sharding tells how it goes by parts."
    return ""


def _linear(way: Sharding, values: Sequence[Value]) -> Value:
    """Return what it is without rows: the same everywhere, or linear in what is not."""
    independent(_others(way, values))
    factors = [values[i] for i in way.linear]
    for value in factors:
        if isinstance(value, Partial) and value.op != "sum":
            raise Refused(f"takes {describe(value)}")  # linear, but not monotonic
    return product(factors)


def of_rows(
    way: Sharding, operands: Sequence[Variable], values: Sequence[Value]
) -> list[Value]:
    """Return what it is with rows, where the sharding has them and nowhere else."""
    moved: list[Value] = []
    for var, axis, value in zip(operands, way.inputs, values, strict=True):
        if isinstance(value, Sharded):
            if value.axis != axis:
                where = "whole" if axis is None else f"with rows along axis {axis}"
                raise Refused(f"is registered to take {name(var)} {where}")
            value = replace(value, axis=0)
        elif axis is not None:
            raise Refused(f"is registered to take rows of {name(var)}, which has none")
        moved.append(value)
    independent(_others(way, moved))
    rows = align(moved)
    assert rows is not None
    power = times(*(_power(moved[i]) for i in way.linear))
    return [_result(output, rows, power) for output in way.outputs]


def _others(way: Sharding, values: Sequence[Value]) -> list[Value]:
    return [value for i, value in enumerate(values) if i not in way.linear]


def _power(value: Value) -> Power:
    if not isinstance(value, (Sharded, Replicated)):
        raise Refused(f"multiplies single rows with {describe(value)}")
    return value.power


def _result(output: int | ReduceOp | None, rows: Sharded, power: Power) -> Value:
    """Return what a result is, of a power of the number of rows."""
    if isinstance(output, int):
        return replace(rows, axis=output, power=power)
    if output is None:
        if power:
            raise Refused("is registered to give something that is not of the rows")
        return Replicated()
    if output == "avg":  # a sum, divided by the number of rows
        return fold("sum", replace(rows, power=times(power, -1)))
    return fold(output, replace(rows, power=power))
