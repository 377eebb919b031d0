"""Terms whose entries lie in another arrangement than their data: arranged anew.

A term that is not found to go by rows is looked at again, with what rearranges entries
(reshapes, repetitions, what is joined) taken to the data. See `lifting`. What is joined
of parts that have nothing in common becomes a sum for each part, with rows of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Constant, Variable, clone
from pytensor.graph.rewriting.utils import rewrite_graph
from pytensor.graph.traversal import ancestors, io_toposort
from pytensor.raise_op import Assert
from pytensor.tensor.basic import ARange, Join
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.extra_ops import Repeat
from pytensor.tensor.math import Sum
from pytensor.tensor.shape import Reshape, Shape, Shape_i
from pytensor.tensor.signal.conv import Convolve1d

from ..compiler.rules.base import apart
from .lifting import Computed, Lifting
from .rebuilding import rebuilt

MOST = 12
"""Parts that one term is taken apart into."""


def arranged(
    total: Variable, free: Mapping[Variable, Sequence[int]], check: type
) -> list[Variable]:
    """Return a term, a scalar, as terms whose entries lie as those of the data do.

    It is the term itself, if there is nothing to be arranged. `free` has the shapes of
    what the density is of; `check` is the Op that checks parameters.
    """
    (copied,) = clone([], [total], copy_inputs=False, copy_orphans=False)[1]
    computed = Computed(list(free))
    numbered = _numbered(copied, computed)
    if numbered:  # as many as an array has rows: then that of the data
        copied = _folded(copied, "ShapeOpt")

    def visit(node: Apply, inputs: list[Variable]) -> list[Variable] | None:
        if node.outputs[0] not in computed:
            return None
        if isinstance(node.op, Reshape):
            found = _of_reshape(node, inputs[0], computed, free)
        elif isinstance(node.op, Repeat):
            found = _of_repeat(node, inputs, computed, free)
        elif _is_convolution(node.op):
            found = _of_convolution(node, inputs, computed, free)
        else:
            return None
        return None if found is None else [found]

    left = rebuilt([copied], visit)
    done: list[Variable] = []
    while left:
        each = left.pop()
        parts = _parts(each, computed, check) if len(left) + len(done) < MOST else []
        left += parts
        done += [] if parts else [each]
    if done == [copied] and not numbered:
        return [total]
    return [_folded(each) for each in reversed(done)]


def _folded(total: Variable, *others: str) -> Variable:
    include = (*others, "canonicalize", "stabilize")
    found: Any = rewrite_graph(total, include=include, clone=False)
    return found


def _numbered(total: Variable, computed: Computed) -> bool:
    """Tell whether numbers of rows are counted by what is computed of these."""
    return any(
        isinstance(node.op, ARange) and node.outputs[0] in computed
        for node in io_toposort([], [total])
    )


# -- entries in another arrangement


def _of_reshape(
    node: Apply, var: Any, computed: Computed, free: Mapping[Variable, Sequence[int]]
) -> Any:
    """Return what a reshape gives as entries of what it is given."""
    out: Any = node.outputs[0].type
    old, new = list(var.type.shape), list(out.shape)
    first = last = 0
    while first < min(len(old), len(new)) and _same(old[first], new[first]):
        first += 1
    while last < min(len(old), len(new)) - first and _same(
        old[-1 - last], new[-1 - last]
    ):
        last += 1
    axes = range(first, len(old) - last)
    shape = new[first : len(new) - last]
    if not len(axes) or all(
        length == 1 for length in (*old[first : len(old) - last], *shape)
    ):
        return None
    entries_of_shape: Any = node.inputs[1]
    told = [
        length if length is not None else entries_of_shape[first + i]
        for i, length in enumerate(shape)
    ]
    lengths = [old[a] if old[a] is not None else var.shape[a] for a in axes]
    index = _unravelled(told, lengths)
    if not all(isinstance(each, np.ndarray) for each in index):
        found = [_of_data(each, computed, free) for each in index]
        if None in found:
            return None
        index = found
    lifting = Lifting(computed, len(shape))
    entries = lifting.of(var, dict(zip(axes, index, strict=True)))
    rest = len(old) - len(axes)
    order = [*range(len(shape), len(shape) + first), *range(len(shape))]
    order += range(len(shape) + first, len(shape) + rest)
    return entries.dimshuffle(order)


def _same(one: int | None, other: int | None) -> bool:
    return one is not None and one == other


def _unravelled(shape: Sequence[Any], lengths: Sequence[Any]) -> list[Any]:
    """Return of each axis of an array which entries lie where in another shape."""
    if all(isinstance(length, int) for length in (*shape, *lengths)):
        numbers = np.arange(int(np.prod(shape))).reshape(shape)
        return list(np.unravel_index(numbers, lengths))
    size: Any = pt.prod(pt.stack(lengths))
    flat = pt.arange(size).reshape([*shape], ndim=len(shape))
    found: list[Any] = []
    for length in reversed(lengths[1:]):
        found.insert(0, flat % length)
        flat = flat // length
    return [flat, *found]


def _of_repeat(
    node: Apply,
    inputs: Sequence[Any],
    computed: Computed,
    free: Mapping[Variable, Sequence[int]],
) -> Any:
    """Return what is repeated as entries, each as often as its count says."""
    var, counts = inputs
    axis = node.op.axis  # type: ignore[attr-defined]
    if axis is None or counts in computed or counts.type.ndim > 1:
        return None
    axis %= var.type.ndim
    length = var.type.shape[axis]
    if isinstance(counts, Constant) and length is not None:
        index: Any = np.repeat(np.arange(length), counts.data)
    else:
        size = var.shape[axis] if length is None else length
        index = _of_data(pt.repeat(pt.arange(size), counts), computed, free)
        if index is None:
            return None
    entries = Lifting(computed, 1).of(var, {axis: index})
    return pt.moveaxis(entries, 0, axis)


def _is_convolution(op: Any) -> bool:
    return isinstance(op.core_op if isinstance(op, Blockwise) else op, Convolve1d)


def _of_convolution(
    node: Apply,
    inputs: Sequence[Any],
    computed: Computed,
    free: Mapping[Variable, Sequence[int]],
) -> Any:
    """Return a convolution as products with what the kernel lies over, for each entry.

    These windows are data where the array is: an entry of an adstock then is of a row.
    """
    array, kernel, mode = inputs
    width = kernel.type.shape[-1]
    if not isinstance(mode, Constant) or np.any(mode.data) or width is None:
        return None
    length: Any = array.type.shape[-1]
    if length is not None and length < width:
        return None
    last = np.arange(width)[::-1]
    if length is not None:
        index: Any = np.arange(length - width + 1)[:, None] + last
    else:
        length = _long_enough(array.shape[-1], pt.ge(array.shape[-1], width))
        index = pt.arange(length - width + 1)[:, None] + last
        index = _of_data(index, computed, free)
        if index is None:
            return None
    batch = range(array.type.ndim - 1)
    windows = Lifting(computed, 2).of(array, {array.type.ndim - 1: index})
    windows = windows.dimshuffle([0, *(2 + axis for axis in batch), 1])
    return pt.moveaxis((windows * kernel).sum(axis=-1), 0, -1)


_long_enough = Assert("an array that is convolved is shorter than the kernel")


def _of_data(
    index: Variable, computed: Computed, free: Mapping[Variable, Sequence[int]]
) -> Any:
    """Return an index that is computed from lengths alone as one of data; else None.

    The lengths of free variables are given, and so they stand for these.
    """
    found: Any = rewrite_graph(index, include=("ShapeOpt", "canonicalize"), clone=False)
    stands: dict[Variable, Variable] = {}
    for node in io_toposort([], [found]):
        for var in node.inputs:
            if var in free:
                if not isinstance(node.op, (Shape, Shape_i)):
                    return None
                stands[var] = pt.constant(np.zeros(free[var], var.type.dtype))  # type: ignore[attr-defined]
    if stands:
        (found,) = rebuilt([found], lambda node, inputs: None, stands)
        found = rewrite_graph(found, include=("canonicalize",), clone=False)
    return None if found in computed else found


# -- parts that are joined


def _parts(total: Variable, computed: Computed, check: type) -> list[Variable]:
    """Return the sums of the parts that the entries of a sum are joined from."""
    node = total.owner
    if node is None or not isinstance(node.op, Sum) or total.type.ndim:  # type: ignore[attr-defined]
        return []
    (values,) = node.inputs
    for joined in ancestors([values]):
        if joined.owner is None or not isinstance(joined.owner.op, Join):
            continue
        if joined not in computed:
            continue
        for axis in range(values.type.ndim):  # type: ignore[attr-defined]
            found = _apart_at(values, axis, joined.owner, computed, check)
            if found:
                return found
    return []


def _apart_at(
    values: Any, axis: int, node: Apply, computed: Computed, check: type
) -> list[Variable]:
    """Return sums of parts, if a node joins these along an axis of what is summed."""
    along, parts = apart(node, node.inputs)
    if not isinstance(along, int):
        return []
    joined: Any = node.outputs[0]
    along %= joined.type.ndim
    whole = values.type.shape[axis], joined.type.shape[along]
    if None not in whole and whole[0] != whole[1]:
        return []
    lengths = [part.type.shape[along] for part in parts]
    end: Any = 0
    sums: list[Variable] = []
    for k, part in enumerate(parts):
        start, length = end, lengths[k]
        if length is None or not isinstance(start, int):
            length = _of_data(part.shape[along], computed, {})
            if length is None:
                return []
            end = start + length
            index: Any = pt.arange(start, end)
        else:
            end = start + length
            index = np.arange(start, end)
        lifting = Lifting(computed, 1, (node, k), check)
        taken = lifting.of(values, {axis: index})
        if joined in set(ancestors([taken])):
            return []
        sums.append(taken.sum())
    return sums
