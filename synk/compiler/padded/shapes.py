"""Ops that arrange elements in another shape, and arrays of a given one."""

from __future__ import annotations

from dataclasses import replace

from pytensor.compile.ops import DeepCopyOp, ViewOp
from pytensor.graph.basic import Apply, Variable
from pytensor.printing import Print
from pytensor.tensor import basic as ptb
from pytensor.tensor.elemwise import DimShuffle
from pytensor.tensor.extra_ops import CpuContiguous
from pytensor.tensor.shape import Reshape, SpecifyShape
from pytensor.tensor.type_other import NoneTypeT

from ...ops import OwnRows
from ..axes import apart
from ..domain import Refused
from ..lengths import ONE, Length, product
from .sizes import lengths, of_sizes, one_length, row_axis
from .walk import Padded, Padder, check_spread, constant_of, rule


@rule(ViewOp, DeepCopyOp, CpuContiguous, Print, OwnRows)
def identity(padder: Padder, node: Apply) -> None:
    """The first input, as it is."""
    state = padder.state(node.inputs[0])
    if state is None:
        of_sizes(padder, node)
    else:
        padder.row_by_row(node, state)


@rule(DimShuffle)
def dimshuffle(padder: Padder, node: Apply) -> None:
    """Axes in another order, added or dropped."""
    state = padder.state(node.inputs[0])
    if state is None:
        of_sizes(padder, node)
        return
    order = list(node.op.new_order)
    if state.axis not in order:
        raise Refused("drops the rows' axis")
    padder.row_by_row(node, replace(state, axis=order.index(state.axis)))


@rule(Reshape)
def reshape(padder: Padder, node: Apply) -> None:
    """The copies lie where they did, with as many blocks before as there were."""
    source, shape = node.inputs
    state, new = padder.state(source), lengths(padder, shape)
    if state is None:
        if row_axis(new) is not None:
            raise Refused("gives something without rows a length that depends on them")
        if source in padder.long:
            of_sizes(padder, node)
        else:
            padder.row_by_row(node, None)
        return
    old = [padder.length(source, axis) for axis in range(source.type.ndim)]
    _infer(node.outputs[0], old, new)
    axis = row_axis(new)
    if axis is None:
        raise Refused("gives the rows' axis a length that does not follow theirs")
    made = padder.made(node, [padder.new[source], padder.long_of(shape)])
    padder.become(node.outputs, made, _moved(state, old, new, axis))


def _infer(
    out: Variable, old: list[tuple[int, Length]], new: list[tuple[int, Length]]
) -> None:
    """Replace a length of -1 by what is left of all elements."""
    for axis, (power, length) in enumerate(new):
        if not power and not length.symbols and length.number < 0:
            others = [*new[:axis], *new[axis + 1 :]]
            power = sum(p for p, _ in old) - sum(p for p, _ in others)
            rest = _product(old) / _product(others)
            # A length of its own, if it cannot be divided.
            new[axis] = power, rest or Length(1, frozenset([((out, axis), 1)]))


def _moved(
    state: Padded, old: list[tuple[int, Length]], new: list, axis: int
) -> Padded:
    """Return how rows lie along an axis of a new shape.

    In memory there are L blocks with S elements of each row, where L is the product of
    the lengths before the rows' axis and of the blocks along it, and S of what each row
    has in a block, along the axis and after it. A reshape keeps the order of elements,
    and their number: what is found of L says the same of S.
    """
    before, after = _product(old[: state.axis]), _product(old[state.axis + 1 :])
    new_before, new_after = _product(new[:axis]), _product(new[axis + 1 :])
    many = new[axis][1]
    if state.blocks is None and many == state.many and new_after == after:
        return Padded(axis, many, None)
    in_axis = state.blocks or ONE
    blocks = product([before, in_axis]) / new_before
    if blocks is None or not many / blocks:
        each = state.many / in_axis
        in_block = each and product([each, after]) / new_after
        blocks = many / in_block if in_block else None
    if blocks is None:
        raise Refused("reshapes rows to lie elsewhere than they did")
    return Padded(axis, many, blocks)


def _product(found: list[tuple[int, Length]]) -> Length:
    return product([factor for _, factor in found])


@rule(SpecifyShape)
def specify_shape(padder: Padder, node: Apply) -> None:
    """The first input; its rows must not be fixed in number."""
    var, *sizes = node.inputs
    state = padder.state(var)
    padder.check_no_sizes(
        size for axis, size in enumerate(sizes) if state is None or axis != state.axis
    )
    if state is None:
        of_sizes(padder, node)
        return
    fixed = sizes[state.axis]
    inputs = padder.given(node)
    if not isinstance(fixed.type, NoneTypeT):
        if one_length(padder, fixed) != (1, state.many):
            raise Refused("fixes the number of rows")
        inputs[1 + state.axis] = padder.long_of(fixed)
    padder.become(node.outputs, padder.made(node, inputs), state)


@rule(ptb.Alloc)
def alloc(padder: Padder, node: Apply) -> None:
    """A value repeated."""
    value, *sizes = node.inputs
    found = [one_length(padder, var) for var in sizes]
    axis, state = row_axis(found), padder.state(value)
    inputs = [padder.new[value], *map(padder.long_of, sizes)]
    if axis is None:
        if state is not None:
            raise Refused("repeats rows along another axis")
        padder.become(node.outputs, padder.made(node, inputs))
        return
    if state is None:
        check_spread(padder, [value], axis - len(sizes))
        state = Padded(axis, found[axis][1], None)
    elif state.axis + len(sizes) - value.type.ndim != axis:
        raise Refused("repeats rows along another axis")
    state = replace(state, axis=axis, numbers=False)
    padder.become(node.outputs, padder.made(node, inputs), state)


@rule(ptb.AllocEmpty)
def alloc_empty(padder: Padder, node: Apply) -> None:
    """What is to be overwritten."""
    found = [one_length(padder, var) for var in node.inputs]
    axis = row_axis(found)
    state = None if axis is None else Padded(axis, found[axis][1], None)
    made = padder.made(node, [padder.long_of(var) for var in node.inputs])
    padder.become(node.outputs, made, state)


@rule(ptb.ARange)
def arange(padder: Padder, node: Apply) -> None:
    """From 0 to a multiple of the number of rows."""
    start, stop, step = node.inputs
    power, many = one_length(padder, stop)
    if constant_of(start) != 0 or constant_of(step) != 1 or power != 1:
        raise Refused("counts something else than rows")
    made = padder.made(node, [padder.long_of(var) for var in node.inputs])
    padder.become(node.outputs, made, Padded(0, many, ONE, numbers=True))


@rule(ptb.Join)
def join(padder: Padder, node: Apply) -> None:
    """Side by side along another axis than the rows'."""
    axis, parts = apart(node, node.inputs)
    states = [padder.state(part) for part in parts]
    if all(state is None for state in states):
        of_sizes(padder, node)
        return
    first = states[0]
    if not isinstance(axis, int) or first is None or None in states:
        raise Refused("joins rows with something of fixed length")
    if any(s != first for s in states) or axis == first.axis:
        raise Refused("joins along the rows: copies would come to lie among them")
    padder.row_by_row(node, replace(first, numbers=False))


@rule(ptb.ExtractDiag)
def diagonal(padder: Padder, node: Apply) -> None:
    """Some elements of each row."""
    state = padder.state(node.inputs[0])
    if state is None:
        raise Refused("takes the diagonal of sizes")
    axes = node.op.axis1, node.op.axis2
    if state.axis in axes:
        raise Refused("takes a diagonal, along the rows")
    before = sum(axis < state.axis for axis in axes)
    padder.row_by_row(node, replace(state, axis=state.axis - before, numbers=False))


@rule(ptb.Split)
def split(padder: Padder, node: Apply) -> None:
    """Cut along another axis than the rows'."""
    axis, (value, sizes) = apart(node, node.inputs)
    state = padder.state(value)
    padder.check_no_sizes([sizes])
    if state is None:
        raise Refused("splits a size")
    if not isinstance(axis, int) or axis == state.axis:
        raise Refused("splits along the rows")
    padder.row_by_row(node, replace(state, numbers=False))
