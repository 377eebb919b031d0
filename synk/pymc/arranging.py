"""Terms whose entries are arranged differently from their data: rewritten.

If a term cannot be shared by rows, `arranged` moves Ops that rearrange entries
(reshapes, repetitions, convolutions) up to the data (see `lifting`). A term that is
joined from parts becomes a sum for each part, with rows of its own.
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

from .axes import ends_kept
from .lifting import Computed, Lifting, joined_parts
from .rebuilding import rebuilt

MOST = 12
"""The most parts into which one term is divided."""


def arranged(total: Variable, free: Mapping[Variable, Sequence[int]]) -> list[Variable]:
    """Return a term as terms, which add up to it, with entries arranged as the data.

    Returns the term itself if nothing changes. `free` has the shapes of the free
    variables.
    """
    (copied,) = clone([], [total], copy_inputs=False, copy_orphans=False)[1]
    how = _Arranging(free)
    numbered = any(
        isinstance(node.op, ARange) and node.outputs[0] in how.computed
        for node in io_toposort([], [copied])
    )
    if numbered:  # their number may be an array's length, which may be that of data
        copied = _folded(copied, "ShapeOpt")
    left = rebuilt([copied], how.visit)
    done: list[Variable] = []
    while left:
        each = left.pop()
        parts = how.parts(each) if len(left) + len(done) < MOST else []
        left += parts
        done += [] if parts else [each]
    if done == [copied] and not numbered:
        return [total]
    return [_folded(each) for each in reversed(done)]


def _folded(total: Variable, *others: str) -> Variable:
    include = (*others, "canonicalize", "stabilize")
    found: Any = rewrite_graph(total, include=include, clone=False)
    return found


_long_enough = Assert("an array that is convolved is shorter than the kernel")


class _Arranging:
    def __init__(self, free: Mapping[Variable, Sequence[int]]) -> None:
        self.computed, self._free = Computed(list(free)), free

    def visit(self, node: Apply, inputs: list[Variable]) -> list[Variable] | None:
        if node.outputs[0] not in self.computed:
            return None
        op: Any = node.op
        found: Any = None
        if isinstance(op, Reshape):
            found = self._reshaped(node, inputs[0])
        elif isinstance(op, Repeat):
            found = self._repeated(node, *inputs)
        elif isinstance(op.core_op if isinstance(op, Blockwise) else op, Convolve1d):
            found = self._convolved(*inputs)
        return None if found is None else [found]

    # -- entries in another arrangement

    def _reshaped(self, node: Apply, var: Any) -> Any:
        """Return a reshape of `var` as entries of it; None if nothing changes."""
        entries_of_shape: Any = node.inputs[1]
        old, new = var.type.shape, node.outputs[0].type.shape  # type: ignore[attr-defined]
        first, last = ends_kept(old, new)
        axes, shape = range(first, len(old) - last), new[first : len(new) - last]
        if not len(axes) or {*shape, *(old[a] for a in axes)} == {1}:
            return None
        told = [
            entries_of_shape[first + i] if length is None else length
            for i, length in enumerate(shape)
        ]
        lengths = [var.shape[a] if old[a] is None else old[a] for a in axes]
        index = self._unravelled(told, lengths)
        if any(each is None for each in index):
            return None
        lifting = Lifting(self.computed, len(shape))
        entries = lifting.of(var, dict(zip(axes, index, strict=True)))
        rest = len(old) - len(axes)
        order = [*range(len(shape), len(shape) + first), *range(len(shape))]
        order += range(len(shape) + first, len(shape) + rest)
        return entries.dimshuffle(order)

    def _unravelled(self, shape: Sequence[Any], lengths: Sequence[Any]) -> list[Any]:
        """Return, for each axis of an array, the index of its entries in a reshape.

        `lengths` is the shape of the array and `shape` that of the reshape.
        """
        if all(isinstance(length, int) for length in (*shape, *lengths)):
            numbers = np.arange(int(np.prod(shape))).reshape(shape)
            return list(np.unravel_index(numbers, lengths))
        size: Any = pt.prod(pt.stack(lengths))
        flat = pt.arange(size).reshape([*shape], ndim=len(shape))
        found: list[Any] = []
        for length in reversed(lengths[1:]):
            found.insert(0, flat % length)
            flat = flat // length
        return list(map(self._of_data, [flat, *found]))

    def _repeated(self, node: Apply, var: Any, counts: Any) -> Any:
        """Return a repetition of `var` as entries of it, or None if that is unknown."""
        axis = node.op.axis  # type: ignore[attr-defined]
        if axis is None or counts in self.computed or counts.type.ndim > 1:
            return None
        axis %= var.type.ndim
        length = var.type.shape[axis]
        if isinstance(counts, Constant) and length is not None:
            index: Any = np.repeat(np.arange(length), counts.data)
        else:
            size = var.shape[axis] if length is None else length
            index = self._of_data(pt.repeat(pt.arange(size), counts))
            if index is None:
                return None
        entries = Lifting(self.computed, 1).of(var, {axis: index})
        return pt.moveaxis(entries, 0, axis)

    def _convolved(self, array: Any, kernel: Any, mode: Variable) -> Any:
        """Return a convolution as products of the kernel with windows of the array.

        Windows of data are data with rows, as for an adstock. None if that is unknown.
        """
        width = kernel.type.shape[-1]
        if not isinstance(mode, Constant) or np.any(mode.data) or width is None:
            return None
        length: Any = array.type.shape[-1]
        last = np.arange(width)[::-1]
        if length is None:
            length = _long_enough(array.shape[-1], pt.ge(array.shape[-1], width))
            index = self._of_data(pt.arange(length - width + 1)[:, None] + last)
            if index is None:
                return None
        elif length < width:
            return None
        else:
            index = np.arange(length - width + 1)[:, None] + last
        batch = range(array.type.ndim - 1)
        windows = Lifting(self.computed, 2).of(array, {array.type.ndim - 1: index})
        windows = windows.dimshuffle([0, *(2 + axis for axis in batch), 1])
        return pt.moveaxis((windows * kernel).sum(axis=-1), 0, -1)

    def _of_data(self, index: Variable) -> Any:
        """Return an index as one without free variables, whose shapes are known.

        None if it depends on values of free variables.
        """
        include = ("ShapeOpt", "canonicalize")
        found: Any = rewrite_graph(index, include=include, clone=False)
        stands: dict[Variable, Variable] = {}
        for node in io_toposort([], [found]):
            for var in node.inputs:
                if var in self._free:
                    if not isinstance(node.op, (Shape, Shape_i)):
                        return None
                    zeros = np.zeros(self._free[var], var.type.dtype)  # type: ignore[attr-defined]
                    stands[var] = pt.constant(zeros)
        if stands:
            (found,) = rebuilt([found], replace=stands)
            found = rewrite_graph(found, include=("canonicalize",), clone=False)
        return None if found in self.computed else found

    # -- joined parts

    def parts(self, total: Variable) -> list[Variable]:
        """Return a sum of joined entries as the sums of its parts; [] if not joined."""
        node = total.owner
        if node is None or not isinstance(node.op, Sum) or total.type.ndim:  # type: ignore[attr-defined]
            return []
        (values,) = node.inputs
        for joined in ancestors([values]):
            if joined.owner is None or not isinstance(joined.owner.op, Join):
                continue
            for axis in range(values.type.ndim) if joined in self.computed else ():  # type: ignore[attr-defined]
                if found := self._apart_at(values, axis, joined.owner):
                    return found
        return []

    def _apart_at(self, values: Any, axis: int, node: Apply) -> list[Variable]:
        """Return sums of parts that `node` joins along an axis of `values`, or []."""
        if (found := joined_parts(node)) is None:
            return []
        along, parts, lengths = found
        joined: Any = node.outputs[0]
        whole = values.type.shape[axis], joined.type.shape[along]
        if None not in whole and whole[0] != whole[1]:
            return []
        end: Any = 0
        sums: list[Variable] = []
        for k, (part, length) in enumerate(zip(parts, lengths, strict=True)):
            start: Any = end
            is_known = length is not None and isinstance(start, int)
            counted: Any = length if is_known else self._of_data(part.shape[along])
            if counted is None:
                return []
            end = start + counted
            index = np.arange(start, end) if is_known else pt.arange(start, end)
            lifting = Lifting(self.computed, 1, (node, k))
            taken = lifting.of(values, {axis: index})
            if joined in set(ancestors([taken])):
                return []
            sums.append(taken.sum())
        return sums
