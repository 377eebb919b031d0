"""Messages on gathered rows, and on what every rank computes from all rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from pytensor.graph.basic import Apply, Variable
from pytensor.graph.traversal import io_toposort
from pytensor.tensor.shape import Shape, Shape_i
from pytensor.tensor.type import DenseTensorType

from ..ops import COLLECTIVES, AllGather
from ..user_frames import made_in, where_made
from .lengths import cached_lengths, size
from .own_ops.register import advice
from .rules.base import name, op_name
from .spec import PlacedSpec
from .stages import contributed, costs_nothing

_MOST = 3  # gathered values that a message names


class Repetition(NamedTuple):
    """The Ops that every rank computes from all rows, so that ranks repeat them."""

    nodes: list[Apply]  # the repeated ones
    of: int  # the number of all Ops on rows
    gathered: list[Variable]  # the gathered rows that they take


def besides_shapes(
    inputs: Sequence[Variable], outputs: Sequence[Variable]
) -> tuple[list[Apply], list[Variable]]:
    """Return the nodes of a graph except those needed for shapes only, and the shapes.

    PyTensor does not compute a value only to take its shape.
    """
    shapes = [
        node.outputs[0]
        for node in io_toposort(inputs, outputs)
        if isinstance(node.op, (Shape, Shape_i))
    ]
    return io_toposort([*inputs, *shapes], outputs), shapes


def repetition(spec: PlacedSpec) -> Repetition:
    """Return which Ops on rows every rank repeats.

    An Op is on rows if an operand or result is as long as the rows. Views, shapes and
    arithmetic of integer scalars do not count.
    """
    graph = spec.graph
    own, total = spec.row_values(graph), 0
    repeated: list[Apply] = []
    # By variable computed from all rows, the gathers that it uses, as ordered sets.
    whole: dict[Variable, dict[Variable, None]] = {}
    found: dict[Variable, None] = {}
    viewed: dict[Variable, None] = {}

    def is_from_rows(var: Variable) -> bool:
        return var in own or var in whole

    with cached_lengths(spec.inputs):
        for node in besides_shapes([], graph)[0]:
            if isinstance(node.op, COLLECTIVES):
                if isinstance(node.op, AllGather):
                    whole[node.outputs[0]] = {node.outputs[0]: None}
                continue
            is_own = not own.isdisjoint(node.inputs)
            of = {made: None for var in node.inputs for made in whole.get(var, ())}
            if of and not is_own:
                whole.update((var, of) for var in node.outputs)
                viewed |= of
            if costs_nothing(node):
                continue
            variables = filter(is_from_rows, (*node.inputs, *node.outputs))
            if any(_is_long(var, is_from_rows) for var in variables):
                total += 1
                if not is_own:
                    repeated.append(node)
                    found |= of
    return Repetition(repeated, total, list(found or viewed))


def _is_long(var: Variable, is_from_rows: Callable[[Variable], bool]) -> bool:
    """Return whether an axis of a variable may be as long as a rank's or all rows.

    A length that follows from rows, and cannot be followed to inputs, may be.
    """
    if not isinstance(var.type, DenseTensorType):
        return False
    for axis in range(var.type.ndim):
        for root, which in size(var, axis).symbols_only():
            is_end = root.owner is None or isinstance(root.owner.op, AllGather)
            if is_from_rows(root) and (which == 0 or not is_end):
                return True
    return False


def repeated(spec: PlacedSpec) -> str:
    """Return the warning on Ops that every rank computes from all rows."""
    first, *others = spec.repeated
    var = first.outputs[0]
    more = f" and {len(others)} more Op{'s' * (len(others) > 1)}" if others else ""
    made = made_in(var)
    where = "" if made is None else f", made in {made}"
    verb = "need" if others else "needs"
    counted = repetition(spec)
    share = (
        f" With what follows, every rank repeats {len(counted.nodes)} of the"
        f" {counted.of} Ops on rows."
    )
    return (
        f"{op_name(first.op)} ({name(var)}{where}){more} {verb} all rows at once:"
        " every rank computes it from all of them, which is right, and no faster than"
        f" one.{share if counted.nodes else ''} For that"
        f" {_brought(counted.gathered, spec)}.{advice(first)}"
        " synk.Function.explain() tells the bytes of a call."
    )


def rows_exchanged(spec: PlacedSpec) -> str | None:
    """Return the message on the first gather that the placer added; None if none."""
    for node in io_toposort([], spec.graph):
        need = spec.needs.get(node.outputs[0])
        if need is not None and isinstance(node.op, AllGather):
            taker = f"{name(need.variable)}{where_made(need.variable)}"
            if need.taker == "update":
                taker = f"the new value of {need.variable}"
            return (
                f"{taker} needs rows of all ranks: {_brought(node.outputs, spec)}."
                " That is right, and refused with strict=True."
            )
    return None


def _brought(gathered: list[Variable], spec: PlacedSpec) -> str:
    """Return words for how rows reach all ranks: exchanged, or read as inputs."""
    given = list(map(contributed, gathered))
    read = [var for var in given if var in spec.inputs]
    exchanged = [var for var in given if var not in spec.inputs]
    texts = []
    if exchanged:
        texts.append(f"the ranks exchange {_rows(exchanged)}")
    if read:
        texts.append(f"every rank reads all rows of {_rows(read)}")
    return ", and ".join(texts)


def _rows(gathered: list[Any]) -> str:
    """Return the names of gathered values, as "x (24 bytes a row)"."""
    found: dict[str, None] = {}
    for var in gathered:
        size_of, shape = var.type.numpy_dtype.itemsize, var.type.shape[1:]
        each = f"{size_of} bytes a number"
        if None not in shape:
            each = f"{size_of * math.prod(shape)} bytes a row"
        found[f"{name(var)} ({each})"] = None
    more = f" and {len(found) - _MOST} more" if len(found) > _MOST else ""
    return ", ".join([*found][:_MOST]) + more
