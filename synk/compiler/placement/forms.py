"""Other forms of an operation's operands, where a rule cannot take them as they are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from pytensor.graph.basic import Apply, Variable
from pytensor.tensor.elemwise import Elemwise

from ..domain import (
    Count,
    Listed,
    Partial,
    Position,
    Refused,
    Replicated,
    Sharded,
    Unknown,
    Value,
)
from .gathered import Gathered


def forms(
    whole: Gathered, node: Apply, inputs: Sequence[Variable]
) -> Iterator[list[Variable]]:
    """Yield operands of a node in other forms, those first that cost least.

    Parameters
    ----------
    whole : Gathered
        Where placed variables are kept.
    node : Apply
        The user's.
    inputs : sequence of Variable
        Its operands, placed.
    """
    values = [whole.value(var) for var in inputs]
    if any(isinstance(value, Unknown) for value in values):
        return
    counts = [i for i, value in enumerate(values) if _counts_rows(value)]
    partial = [i for i, value in enumerate(values) if isinstance(value, Partial)]
    yield from changed(inputs, counts, whole.whole)
    yield from changed(inputs, partial, whole.whole)
    yield from changed(inputs, [*counts, *partial], whole.whole)
    if any(isinstance(value, Sharded) for value in values):
        yield from _local(whole, node, inputs, values)
        yield from _paired(whole, inputs, values)
        yield from _in_power(whole, inputs, values, [*counts, *partial])


def changed(
    inputs: Sequence[Variable],
    places: Iterable[int],
    form: Callable[[Variable], Variable],
) -> Iterator[list[Variable]]:
    """Yield operands with some of them in another form, if they have it."""
    places = list(places)
    if not places:
        return
    made = list(inputs)
    try:
        for i in places:
            made[i] = form(made[i])
    except Refused:
        return
    yield made


def _local(
    whole: Gathered, node: Apply, inputs: Sequence[Variable], values: list[Value]
) -> Iterator[list[Variable]]:
    """Yield operands of which those as long as all rows are cut to this rank's.

    An elementwise Op takes operands of one length only: what meets rows, and is not
    repeated along them, has a value for each of all rows.
    """
    if not isinstance(node.op, Elemwise):
        return
    rows = [
        (value.length, value.axis - var.type.ndim)
        for var, value in zip(inputs, values, strict=True)
        if isinstance(value, (Sharded, Position))
    ]
    back = {axis for _, axis in rows}
    if len(back) > 1 or any(length != "n" for length, _ in rows):
        return  # which of several entries of a row are this rank's is not known
    (axis,) = back

    def form(var: Variable) -> Variable:
        value = whole.value(var)
        if isinstance(value, Position):
            return whole.numbered(var, value)
        has_axis = var.type.ndim >= -axis and var.type.shape[axis] != 1
        if isinstance(value, Sharded) or not has_axis:
            return whole.whole(var) if isinstance(value, Partial) else var
        return whole.local(whole.whole(var), axis + var.type.ndim)

    yield from changed(inputs, range(len(inputs)), form)


def _paired(
    whole: Gathered, inputs: Sequence[Variable], values: list[Value]
) -> Iterator[list[Variable]]:
    """Yield operands such that each rank pairs its own rows with those of all."""
    axes = {
        i: value.axis - inputs[i].type.ndim
        for i, value in enumerate(values)
        if isinstance(value, Sharded)
    }
    for own in dict.fromkeys(axes.values()):
        others = [i for i, axis in axes.items() if axis != own]
        yield from changed(inputs, others, whole.gathered)


def _in_power(
    whole: Gathered,
    inputs: Sequence[Variable],
    values: list[Value],
    others: list[int],
) -> Iterator[list[Variable]]:
    """Yield operands whose powers of the number of rows are all 0."""
    scaled = [
        i
        for i, value in enumerate(values)
        if isinstance(value, Sharded) and value.power
    ]

    def form(var: Variable) -> Variable:
        value = whole.value(var)
        if isinstance(value, Sharded):
            return whole.scaled(var, -(value.power or 0))
        return whole.whole(var)

    yield from changed(inputs, scaled, form)
    yield from changed(inputs, [*scaled, *others], form)


def _counts_rows(value: Value) -> bool:
    """Tell whether a value follows from the number of a rank's rows alone."""
    if isinstance(value, Listed):
        return any(map(_counts_rows, value.entries))
    return isinstance(value, Count) or (
        isinstance(value, Replicated) and bool(value.power)
    )
