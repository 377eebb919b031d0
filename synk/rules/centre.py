"""The centre of a training rule, in memory that all workers share.

The parameters are one vector, cut into blocks. Each block of each of the centre's
vectors has two sides: an exchange reads the valid side and writes the other one, and
then sets one word, which makes the new side valid. So a rank that is killed at any
moment leaves each block with its old or its new values, never a mixture. In the order
"together" one word, the count of a fragment's moves, makes the new sides of all its
blocks valid at once.

A block has a lock. A rank exchanges the blocks in order, and takes the lock of a block
before it releases that of the block before, so no rank overtakes another. Ranks work on
different blocks at once, and the result is as if they had exchanged one after the
other.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

from ..memory.partition import cuts
from ..memory.segment import layout
from ..reduce_ops import shares
from .graphs import Arrays, RuleGraphs

BLOCK = 1 << 18
"""Bytes of a block, such that its data in an exchange fit into a core's cache."""

TURN = 0  # the word that counts the exchanges that have begun, in order="turns"
_HEAD = 8  # words before those of the blocks


class Block(NamedTuple):
    """A piece of the vector of parameters: elements `start` to `stop`."""

    number: int
    start: int
    stop: int
    fragment: int


class Centre:
    """A rule's centre in memory that all workers share, for `size` parameters.

    `given` has a row for each of the `givers`, this machine's workers in the order
    "together", for the vectors that they give. With `moves_at_once` all blocks of a
    fragment become valid together. ``memory(nbytes)`` returns a `Segment` of zeros, or
    an object with its method `array`.

    `words` has word `TURN`, and the following groups, each from the index of its name
    on. `moves`: the number of moves of each fragment, written under the lock of its
    first block. `locks`, `valid`: the lock of each block, and its valid side (but see
    `turned`). `fetched`: the number of the move at each worker's last exchange, plus
    one. `finished`: 1 for a worker that makes no more steps.

    `sides` has both sides of each vector of the centre's state, of shape (2, size); of
    a scalar each block has its own copy.
    """

    def __init__(
        self,
        graphs: RuleGraphs,
        size: int,
        workers: int,
        givers: int,
        moves_at_once: bool,
        memory: Callable[[int], Any],
    ) -> None:
        self.graphs, self.size, self.moves_at_once = graphs, size, moves_at_once
        itemsize = np.dtype(graphs.dtype).itemsize
        self.fragments = _blocks(size, graphs.rule.fragments, itemsize)
        count, fragments = sum(map(len, self.fragments)), len(self.fragments)
        lengths = _HEAD, fragments, count, count, workers, workers
        self.moves, self.locks, self.valid, self.fetched, self.finished, end = (
            itertools.accumulate(lengths)
        )
        # The words that a file has, to go on in another session
        every = *range(self.moves, self.locks), *range(self.fetched, self.finished)
        self._counts = [TURN, *every]
        _, start = graphs.start(np.zeros(1))
        forms: dict[str, tuple[tuple[int, ...], Any]] = {
            "words": ((end,), "int64"),
            "given": ((givers, size), graphs.dtype),
        }
        for name, value in start.items():
            length = count if f"c{name}" in graphs.scalars else size
            forms[f"c{name}"] = (2, length), value.dtype
        self.segment, arrays = shared_arrays(forms, memory)
        self.words, self.given = arrays["words"], arrays["given"]
        self.sides = {name: arrays[f"c{name}"] for name in start}

    def fill(self, w: np.ndarray) -> None:
        """Begin anew with parameters `w`; call it while no rank exchanges."""
        self.words[:] = 0
        for name, value in self.graphs.start(w)[1].items():
            self.sides[name][0] = value

    def ready(self) -> None:
        """Free all locks, also those of ranks that died; while no rank exchanges."""
        self.words[self.locks : self.valid] = 0

    def state(self) -> Arrays:
        """Return the centre's state, and the words that count moves and turns."""
        found = {name: self._read(name) for name in self.sides}
        return found | {"counts": self.words[self._counts]}

    def restore(self, state: Arrays) -> None:
        """Go on with what `state` has returned; while no rank exchanges."""
        self.words[:] = 0
        for name, both in self.sides.items():
            both[:] = state[name]  # both sides, as the counts say which is valid
        self.words[self._counts] = state["counts"]

    @property
    def parameters(self) -> np.ndarray:
        """A copy of the centre's parameters."""
        return self._read("c")

    def _read(self, name: str) -> np.ndarray:
        """Return a copy of a vector's valid sides; of a scalar, one for each block."""
        both = self.sides[name]
        found = np.empty(both.shape[1], both.dtype)
        for block in itertools.chain(*self.fragments):
            start, stop = block.start, block.stop
            if f"c{name}" in self.graphs.scalars:
                start, stop = block.number, block.number + 1
            word = int(self.words[self.valid + block.number])
            side = word ^ self.turned(block.fragment)
            found[start:stop] = both[side, start:stop]
        return found

    def turned(self, fragment: int) -> int:
        """Return 1 if a fragment's words name its blocks' invalid sides, else 0."""
        return int(self.words[self.moves + fragment]) & 1 if self.moves_at_once else 0


def shared_arrays(
    forms: dict[str, tuple[tuple[int, ...], Any]], memory: Callable[[int], Any]
) -> tuple[Any, Arrays]:
    """Return a segment for arrays of shapes and dtypes in `forms`, and the arrays."""
    kinds = {name: (shape, np.dtype(dtype)) for name, (shape, dtype) in forms.items()}
    sizes = [math.prod(shape) * dtype.itemsize for shape, dtype in kinds.values()]
    offsets, nbytes = layout(sizes)
    segment = memory(nbytes)
    arrays = {
        name: segment.array(dtype, shape, offset)
        for (name, (shape, dtype)), offset in zip(kinds.items(), offsets, strict=True)
    }
    return segment, arrays


def _blocks(size: int, fragments: int, itemsize: int) -> list[list[Block]]:
    """Return the blocks of each fragment, of about equal length."""
    found, numbers = [], itertools.count()
    for fragment, (low, high) in enumerate(itertools.pairwise(cuts(size, fragments))):
        parts = max(1, math.ceil((high - low) * itemsize / BLOCK))
        ends = itertools.pairwise(cuts(high - low, parts))
        found.append(
            [Block(next(numbers), low + i, low + j, fragment) for i, j in ends]
        )
    return found


def mean_by_rows(vectors: Iterable[np.ndarray], rows: np.ndarray) -> np.ndarray:
    """Return the mean of vectors, weighed by their numbers of rows."""
    parts = zip(shares(rows.tolist()), vectors, strict=True)
    return functools.reduce(np.add, [share * vector for share, vector in parts])


def may_come(moves: int, others: Iterable[int], most: int) -> bool:
    """Return whether, after one worker's exchange now, all others can be in time.

    `moves` is the number of moves of the centre so far. `others` has, for every other
    worker that will exchange again, the number of moves after its last exchange. `most`
    is the most exchanges of others between two of a worker, and is no less than the
    number of others.

    The best order for the others is that of their last exchanges, so only this order is
    checked. A worker that has waited longest may always come, so none waits forever.
    """
    return all(moves + 1 + k - came <= most for k, came in enumerate(sorted(others)))
