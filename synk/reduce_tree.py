"""Sums in a fixed binary tree: the same bits, whatever the number of ranks.

The rows of a call are numbered, and cut into *blocks* of equal numbers of rows. Every
rank computes the value of a block in the same way. Blocks are added in a binary tree
over their numbers: 0 to 1, 2 to 3, the first of these pairs to the second, and so on;
subtrees left over at the right edge are added last. Ranks begin and end at blocks.

A rank keeps a stack of finished subtrees: it pushes a block, and adds the two on top as
long as they are siblings, as a binary counter carries. So it hands on at most two
subtrees for each level of the tree, in order. Merging all ranks' subtrees in the same
way gives the same tree.

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

from .compiled import compile_kernel, copy_block
from .errors import ShapeMismatch
from .reduce_ops import ReduceOp, finish


def has_order(op: object, dtype: str) -> bool:
    """Return whether an op rounds, so that the order of the values changes the bits."""
    floats = ("float16", "float32", "float64")
    return op in ("sum", "avg", "prod") and dtype in floats


@dataclass(frozen=True)
class BlockCut:
    """How the rows of a call are cut into blocks, and the blocks between ranks."""

    # Rank r has rows bounds[r] to bounds[r + 1]. Bounds are multiples of `block`, or
    # the end of all rows.
    bounds: tuple[int, ...]
    block: int  # rows of a block; the last one may have fewer

    @cached_property
    def rows(self) -> int:
        """The number of rows of all ranks."""
        return self.bounds[-1] - self.bounds[0]

    @cached_property
    def start(self) -> int:
        """The number of the first block of rank 0."""
        return self.first(0)

    def first(self, rank: int) -> int:
        """Return the number of a rank's first block."""
        return -(-self.bounds[rank] // self.block)

    @cached_property
    def counts(self) -> np.ndarray:
        """The number of subtrees of each rank."""
        return np.array(list(map(len, self._levels)), np.int64)

    @cached_property
    def most(self) -> int:
        """The largest of the `counts`."""
        return int(self.counts.max())

    @cached_property
    def _levels(self) -> list[list[int]]:
        ends = map(self.first, range(len(self.bounds)))
        return [subtrees(start, stop) for start, stop in itertools.pairwise(ends)]

    @cached_property
    def levels(self) -> np.ndarray:
        """The levels of all ranks' subtrees, in the order of blocks."""
        return np.array([level for some in self._levels for level in some], np.int64)


@lru_cache(maxsize=256)
def block_cut(bounds: tuple[int, ...], block: int) -> BlockCut | None:
    """Return how rows are cut into blocks, or None if there is no tree over blocks.

    There is none if `block` is 0 or holds all rows, or if ranks do not begin at blocks,
    as with rows of files of which each machine has read its own ranks' part.
    """
    last = bounds[-1]
    if not block or last - bounds[0] <= block:
        return None
    if any(bound % block and bound != last for bound in bounds):
        return None
    return BlockCut(bounds, block)


def subtrees(start: int, stop: int) -> list[int]:
    """Return the levels of the largest subtrees that make up some blocks, in order.

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
    """Return the most entries that a stack needs for a number of blocks."""
    return 2 * blocks.bit_length() + 2


class TreeColumn(NamedTuple):
    """The place of a value in an entry of a stack, and its op."""

    start: int
    shape: tuple[int, ...]
    dtype: np.dtype
    op: ReduceOp

    @property
    def stop(self) -> int:
        """The end of the value in an entry."""
        return self.start + math.prod(self.shape)

    def write(self, entry: np.ndarray, value: np.ndarray, rows: int) -> None:
        """Write a block's value to its place in an entry; an average times `rows`."""
        if value.shape != self.shape:
            raise ShapeMismatch(
                f"values of shapes {self.shape} and {value.shape} cannot be combined by"
                f" {self.op!r}; are they to be gathered?"
            )
        flat = value.astype(np.float64).reshape(-1)
        entry[self.start : self.stop] = flat * rows if self.op == "avg" else flat


class Columns:
    """The layout of an entry: values side by side, of a (shape, dtype, op) each."""

    def __init__(self, kinds: Sequence[tuple[tuple[int, ...], Any, ReduceOp]]) -> None:
        columns: list[TreeColumn] = []
        self.width = 0  # elements of an entry, all of float64
        for shape, dtype, op in kinds:
            columns.append(TreeColumn(self.width, shape, np.dtype(dtype), op))
            self.width = columns[-1].stop
        self.each = tuple(columns)
        self._ends = [(*col[:2], col.stop, col.dtype) for col in columns]
        # (start, stop) of averages, which `fold` divides by the rows, and of products.
        self.averages, self.products = (self._elements(op) for op in ("avg", "prod"))

    def _elements(self, op: str) -> np.ndarray:
        found = [(col.start, col.stop) for col in self.each if col.op == op]
        return np.array(found, np.int64).reshape(-1, 2)

    def values(self, total: np.ndarray) -> list[np.ndarray]:
        """Return the values of a merged entry, in their shapes and dtypes."""
        return [
            finish(total[start:stop].reshape(shape), dtype)
            for start, shape, stop, dtype in self._ends
        ]


class Subtrees(NamedTuple):
    """The subtrees of one rank, of values that are combined in a tree."""

    entries: np.ndarray  # a row for each; averages are sums of values times rows
    columns: Columns


class TreeOutput(NamedTuple):
    """An output of which each rank has subtrees, for the master to merge."""

    key: tuple  # identifies these subtrees within the call
    subtrees: Subtrees  # this rank's
    cut: BlockCut
    place: int  # the position of the output among the columns


def merge_trees(
    outputs: Sequence[Any],
    others: Callable[[tuple], Sequence[np.ndarray]] | None = None,
) -> list[Any]:
    """Return outputs of rank 0, with each `TreeOutput` merged to its value.

    ``others(key)`` returns the entries of the other ranks, in their order.
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
    """Return the values from all ranks' entries, `stacks`, in the order of columns."""
    entries = np.concatenate(stacks)
    fold(entries, cut.levels, cut.start, columns.averages, columns.products, cut.rows)
    return columns.values(entries[0])


class Stack:
    """A stack of finished subtrees, to which a rank pushes its blocks in order."""

    def __init__(self, first: int, blocks: int, columns: Columns) -> None:
        room = depth(blocks)
        self._entries = np.empty((room, columns.width))
        self._levels = np.zeros(room, np.int64)
        self._number, self._top = first, 0
        self._products = columns.products

    @property
    def next(self) -> np.ndarray:
        """The entry to write the next block's values to."""
        return self._entries[self._top]

    def push(self) -> None:
        """Push the block whose values were written to `next`."""
        made = self._entries, self._levels, self._top, self._number, self._products
        self._top = push(*made)
        self._number += 1

    @property
    def entries(self) -> np.ndarray:
        """The entries of the finished subtrees."""
        return self._entries[: self._top]


@compile_kernel
def _merge(entries, top, products):
    """Combine the two top entries, in place."""
    left, right = entries[top - 2], entries[top - 1]
    for k in range(products.shape[0]):
        for j in range(products[k, 0], products[k, 1]):
            right[j] *= left[j]
            left[j] = -0.0  # so that the addition below changes no bit
    for j in range(left.size):
        left[j] += right[j]


@compile_kernel
def _merge_siblings(entries, levels, top, number, products):
    """Merge the top subtree, from block `number` on, with siblings; return `top`."""
    place = number >> levels[top - 1]
    while top > 1 and levels[top - 2] == levels[top - 1] and place & 1:
        _merge(entries, top, products)
        top -= 1
        levels[top - 1] += 1
        place >>= 1
    return top


@compile_kernel
def push(entries, levels, top, number, products):
    """Push a block that was written at `top`; return the new number of entries."""
    levels[top] = 0
    return _merge_siblings(entries, levels, top + 1, number, products)


@compile_kernel
def fold(entries, levels, start, averages, products, rows):
    """Merge the entries of all ranks, in place: the first one becomes the result.

    `start` is the number of the first block; averages are divided by `rows`.
    """
    here = np.empty_like(levels)
    top, number = 0, start
    for k in range(levels.size):
        here[top] = levels[k]
        if top != k:
            copy_block(entries[top], entries[k])
        top = _merge_siblings(entries, here, top + 1, number, products)
        number += 1 << levels[k]
    while top > 1:  # the right edge, from its end
        _merge(entries, top, products)
        top -= 1
    first = entries[0]
    for k in range(averages.shape[0]):
        for j in range(averages[k, 0], averages[k, 1]):
            first[j] /= float(rows)
