"""Sums in a fixed tree: the same bits, however many ranks add up how much of it.

The rows of a call are numbered from its first one on, and cut into *blocks* of as many
rows each. A block's value is computed in the same way whoever has it, and the blocks
are added in a binary tree over their numbers: 0 to 1, 2 to 3, the first of these pairs
to the second, and so on; what is left over at the right edge comes last. Ranks begin
and end at blocks. A rank keeps a stack of subtrees that are finished, as a counter in
binary has digits: it pushes a block, and adds the two on top as long as they are
siblings. What it hands on is at most two for each level of the tree, in order. Whoever
combines merges all ranks' in the same way, and comes to the same tree.

The error is that of pairwise summation, and grows with the logarithm of the number of
blocks (N. J. Higham 1993, "The accuracy of floating point summation").
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np

from .compiled import compile_kernel
from .errors import ShapeMismatch
from .reduce_ops import ReduceOp, finish


def has_order(op: object, dtype: str) -> bool:
    """Tell whether values are combined by an op in an order that counts: it rounds."""
    floats = ("float16", "float32", "float64")
    return op in ("sum", "avg", "prod") and dtype in floats


@dataclass(frozen=True)
class BlockCut:
    """How the rows of a call are cut into blocks, and the blocks between ranks."""

    # Where the rows of each rank begin, and where the last one's end: at multiples of
    # `block`, or at the end of all rows.
    bounds: tuple[int, ...]
    block: int  # rows of one; the last one may have fewer

    @cached_property
    def rows(self) -> int:
        """The rows of all ranks."""
        return self.bounds[-1] - self.bounds[0]

    @cached_property
    def start(self) -> int:
        """The number of the first block of all."""
        return self.first(0)

    def of(self, rank: int) -> BlockCut:
        """Return that of one rank's rows alone."""
        return BlockCut(self.bounds[rank : rank + 2], self.block)

    def first(self, rank: int) -> int:
        """Return the number of a rank's first block."""
        return -(-self.bounds[rank] // self.block)

    @cached_property
    def counts(self) -> np.ndarray:
        """How many subtrees each rank hands on."""
        return np.array(list(map(len, self._levels)), np.int64)

    @cached_property
    def most(self) -> int:
        """The largest of these numbers."""
        return int(self.counts.max())

    @cached_property
    def _levels(self) -> list[list[int]]:
        ends = map(self.first, range(len(self.bounds)))
        return [subtrees(start, stop) for start, stop in itertools.pairwise(ends)]

    @cached_property
    def levels(self) -> np.ndarray:
        """The levels of the subtrees of all ranks, in their order."""
        return np.array([level for some in self._levels for level in some], np.int64)


@lru_cache(maxsize=256)
def block_cut(bounds: tuple[int, ...], block: int) -> BlockCut | None:
    """Return how rows are cut into blocks; None if they are not.

    That is so if they are gone through in one go, by one rank, and where ranks do not
    begin at blocks, as for rows of files that each machine has read its own part of.
    """
    last = bounds[-1]
    if not block or last - bounds[0] <= block:
        return None
    if any(bound % block and bound != last for bound in bounds):
        return None
    return BlockCut(bounds, block)


def subtrees(start: int, stop: int) -> list[int]:
    """Return the levels of the largest subtrees that some blocks consist of.

    >>> subtrees(5, 12)  # 5; 6 and 7; 8 to 11
    [0, 1, 2]
    """
    levels = []
    while start < stop:
        level = (stop - start).bit_length() - 1
        if start:
            level = min(level, (start & -start).bit_length() - 1)
        levels.append(level)
        start += 1 << level
    return levels


def depth(blocks: int) -> int:
    """Return how many subtrees there are at a time, at the most, of some blocks."""
    return 2 * blocks.bit_length() + 2


class TreeColumn(NamedTuple):
    """Where in an entry of a stack a value lies, and what becomes of it."""

    start: int
    shape: tuple[int, ...]
    dtype: np.dtype
    op: ReduceOp

    @property
    def stop(self) -> int:
        """Where it ends."""
        return self.start + math.prod(self.shape)

    def write(self, entry: np.ndarray, value: np.ndarray, rows: int) -> None:
        """Write a block's value to its place in an entry."""
        if value.shape != self.shape:
            raise ShapeMismatch(
                f"values of shapes {self.shape} and {value.shape} cannot be combined by"
                f" {self.op!r}; are they to be gathered?"
            )
        flat = value.astype(np.float64).reshape(-1)
        entry[self.start : self.stop] = flat * rows if self.op == "avg" else flat


class Columns:
    """Values that lie side by side in entries, by shape, dtype and op of each."""

    def __init__(self, kinds: Sequence[tuple[tuple[int, ...], Any, ReduceOp]]) -> None:
        columns: list[TreeColumn] = []
        self.width = 0  # elements of an entry
        for shape, dtype, op in kinds:
            columns.append(TreeColumn(self.width, shape, np.dtype(dtype), op))
            self.width = columns[-1].stop
        self.each = tuple(columns)
        self._ends = [(*col[:2], col.stop, col.dtype) for col in columns]
        # Where elements that are divided by the number of rows begin and end, and those
        # that are multiplied.
        self.averages, self.products = (self._elements(op) for op in ("avg", "prod"))

    def _elements(self, op: str) -> np.ndarray:
        found = [(col.start, col.stop) for col in self.each if col.op == op]
        return np.array(found, np.int64).reshape(-1, 2)

    def values(self, total: np.ndarray) -> list[np.ndarray]:
        """Return the values of an entry that is the last one."""
        return [
            finish(total[start:stop].reshape(shape), dtype)
            for start, shape, stop, dtype in self._ends
        ]


class Subtrees(NamedTuple):
    """What one rank gives for values that are combined in a tree."""

    entries: np.ndarray  # in the order of blocks; of averages sums of values times rows
    columns: Columns


class TreeOutput(NamedTuple):
    """An output that ranks have subtrees of."""

    key: tuple  # tells these subtrees from others of the call
    subtrees: Subtrees
    cut: BlockCut
    place: int  # which of their values it is


def merge_trees(
    outputs: Sequence[Any],
    others: Callable[[tuple], Sequence[np.ndarray]] | None = None,
) -> list[Any]:
    """Return outputs of rank 0 with those that ranks have subtrees of.

    `others` returns the entries of the other ranks, in their order, by the key.
    """
    found: dict[tuple, list[np.ndarray]] = {}
    results = []
    for output in outputs:
        if type(output) is TreeOutput:
            key, subtrees, cut, place = output
            if key not in found:
                stacks = [subtrees.entries, *(others(key) if others else ())]
                found[key] = combined(cut, stacks, subtrees.columns)
            output = found[key][place]
        results.append(output)
    return results


def combined(
    cut: BlockCut, stacks: Sequence[np.ndarray], columns: Columns
) -> list[np.ndarray]:
    """Return the values that the subtrees of ranks come to, in their order."""
    entries = np.concatenate(stacks)
    fold(entries, cut.levels, cut.start, columns.averages, columns.products, cut.rows)
    return columns.values(entries[0])


class Stack:
    """The finished subtrees of a rank's blocks, that come one after the other."""

    def __init__(self, first: int, blocks: int, columns: Columns) -> None:
        room = depth(blocks)
        self._entries = np.empty((room, columns.width))
        self._levels = np.zeros(room, np.int64)
        self._number, self._top = first, 0
        self._products = columns.products

    @property
    def next(self) -> np.ndarray:
        """What the next block's values are to be written to."""
        return self._entries[self._top]

    def push(self) -> None:
        """Take the block whose values were written."""
        made = self._entries, self._levels, self._top, self._number, self._products
        self._top = push(*made)
        self._number += 1

    @property
    def entries(self) -> np.ndarray:
        """What is finished."""
        return self._entries[: self._top]


@compile_kernel
def _merge(entries, top, products):
    """Combine the two entries on top."""
    left, right = entries[top - 2], entries[top - 1]
    for k in range(products.shape[0]):
        for j in range(products[k, 0], products[k, 1]):
            right[j] *= left[j]
            left[j] = -0.0  # to which a number is added as it is
    for j in range(left.size):
        left[j] += right[j]


@compile_kernel
def _merge_siblings(entries, levels, top, number, products):
    """Combine what is finished with the subtree on top, which begins at a block."""
    place = number >> levels[top - 1]
    while top > 1 and levels[top - 2] == levels[top - 1] and place & 1:
        _merge(entries, top, products)
        top -= 1
        levels[top - 1] += 1
        place >>= 1
    return top


@compile_kernel
def push(entries, levels, top, number, products):
    """Take a block that was written on top; return how many entries there are then."""
    levels[top] = 0
    return _merge_siblings(entries, levels, top + 1, number, products)


@compile_kernel
def fold(entries, levels, start, averages, products, rows):
    """Combine the entries of all ranks; the first one becomes the result.

    `start` is the number of the first block, and `rows` what averages are divided by.
    """
    here = np.empty_like(levels)
    top, number = 0, start
    for k in range(levels.size):
        here[top] = levels[k]
        if top != k:
            entries[top] = entries[k]
        top = _merge_siblings(entries, here, top + 1, number, products)
        number += 1 << levels[k]
    while top > 1:  # the right edge, from its end
        _merge(entries, top, products)
        top -= 1
    first = entries[0]
    for k in range(averages.shape[0]):
        for j in range(averages[k, 0], averages[k, 1]):
            first[j] /= float(rows)
