"""What rows of others ranks get, and what every rank computes from all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pytensor.graph.basic import Apply, Variable
from pytensor.graph.traversal import io_toposort
from pytensor.tensor.shape import Shape, Shape_i
from pytensor.tensor.type import DenseTensorType

from ..ops import COLLECTIVES, AllGather
from ..user_frames import made_in, where_made
from .lengths import remembered, size
from .own_ops.register import advice
from .rules.base import name, op_name
from .spec import PlacedSpec
from .stages import contributed, costs_nothing

_MOST = 3
"""Values that are named as gathered."""


class Repetition(NamedTuple):
    """What every rank repeats."""

    nodes: list[Apply]
    of: int
    gathered: list[Variable]


def besides_shapes(
    inputs: Sequence[Variable], outputs: Sequence[Variable]
) -> tuple[list[Apply], list[Variable]]:
    """Return the nodes of a graph without shapes and what they alone need, and shapes.

    PyTensor computes no value for the sake of its shape.
    """
    shapes = [
        node.outputs[0]
        for node in io_toposort(inputs, outputs)
        if isinstance(node.op, (Shape, Shape_i))
    ]
    return io_toposort([*inputs, *shapes], outputs), shapes


def repetition(spec: PlacedSpec) -> Repetition:
    """Find the Ops that take or make something as long as rows are.

    Views, shapes and computations with numbers are not counted.
    """
    graph = spec.graph
    own, total = set(spec.row_inputs), 0
    repeated: list[Apply] = []
    # What is of all rows, and of which gathers, in their order.
    whole: dict[Variable, dict[Variable, None]] = {}
    found: dict[Variable, None] = {}
    viewed: dict[Variable, None] = {}
    with remembered(spec.inputs):
        for node in besides_shapes([], graph)[0]:
            if isinstance(node.op, COLLECTIVES):
                if isinstance(node.op, AllGather):
                    whole[node.outputs[0]] = {node.outputs[0]: None}
                continue
            is_own = not own.isdisjoint(node.inputs)
            of = {made: None for var in node.inputs for made in whole.get(var, ())}
            if is_own:
                own.update(node.outputs)
            elif of:
                whole.update((var, of) for var in node.outputs)
                viewed |= of
            else:
                continue
            if not costs_nothing(node) and _has_rows(node, own | whole.keys()):
                total += 1
                if not is_own:
                    repeated.append(node)
                    found |= of
    return Repetition(repeated, total, list(found or viewed))


def _has_rows(node: Apply, from_rows: set[Variable]) -> bool:
    variables = [var for var in (*node.inputs, *node.outputs) if var in from_rows]
    return any(_is_long(var, from_rows) for var in variables)


def _is_long(var: Variable, from_rows: set[Variable]) -> bool:
    """Tell whether an axis of a variable is as long as rows are, or may be."""
    if not isinstance(var.type, DenseTensorType):
        return False
    symbols = {
        symbol
        for axis in range(var.type.ndim)
        for symbol in size(var, axis).symbols_only()
    }
    return any(
        root in from_rows and _is_of_rows(root, which) for root, which in symbols
    )


def _is_of_rows(root: Variable, which: object) -> bool:
    """Tell whether a length, of an axis of rows or as of a value, is that of the rows.

    What could not be followed to the rows may be as long.
    """
    if root.owner is None or isinstance(root.owner.op, AllGather):
        return which == 0
    return True


def repeated(spec: PlacedSpec) -> str:
    """Say what every rank computes from all rows, and what that takes."""
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
    """Say what rows the ranks exchange where the user has not written it, if any."""
    for gathered in _gathers(spec):
        need = spec.needs.get(gathered)
        if need is None:
            continue
        var = need.variable
        if need.taker == "update":
            taker = f"the new value of {var}"
        else:
            taker = f"{name(var)}{where_made(var)}"
        return (
            f"{taker} needs rows of all ranks: {_brought([gathered], spec)}."
            " That is right, and refused with strict=True."
        )
    return None


def _gathers(spec: PlacedSpec) -> list[Variable]:
    graph = spec.graph
    return [
        node.outputs[0]
        for node in io_toposort([], graph)
        if isinstance(node.op, AllGather)
    ]


def _brought(gathered: list[Variable], spec: PlacedSpec) -> str:
    """Say how rows come to all ranks: exchanged, or read where the inputs lie."""
    read = [var for var in gathered if contributed(var) in spec.inputs]
    exchanged = [var for var in gathered if var not in read]
    texts = []
    if exchanged:
        texts.append(f"the ranks exchange {_rows(exchanged)}")
    if read:
        texts.append(f"every rank reads all rows of {_rows(read)}")
    return ", and ".join(texts)


def _rows(gathered: list[Variable]) -> str:
    """Return what is gathered, as "x (24 bytes a row)"."""
    found = list(dict.fromkeys(map(_bytes_of_row, gathered)))
    more = f" and {len(found) - _MOST} more" if len(found) > _MOST else ""
    return ", ".join(found[:_MOST]) + more


def _bytes_of_row(gathered: Variable) -> str:
    assert gathered.owner is not None
    (var,) = gathered.owner.inputs
    each = var.type.numpy_dtype.itemsize
    for length in var.type.shape[1:]:
        if length is None:
            return f"{name(var)} ({each} bytes a number)"
        each *= length
    return f"{name(var)} ({each} bytes a row)"
