"""The centre of a training rule, in memory that all workers share.

The parameters are one vector, cut into blocks. Each block of each of the centre's
vectors is there twice: an exchange reads the one that is valid and writes the other,
and then one word says that this is valid now. So a rank that is killed at any moment
leaves every block as it was before or after, never in between. Where all meet, the word
that counts a fragment's moves is that of all its blocks, so all of it moves, or none.

A block has a lock. Ranks exchange one block after the other, in order, and take the
lock of the next one before they give back that of the last: they follow one another
through the blocks, and nobody overtakes. So ranks work on different blocks at once, and
the centre moves as if one whole exchange had come after the other.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..memory.partition import cuts
from ..memory.segment import layout
from ..reduce_ops import shares
from .graphs import Arrays, RuleGraphs

BLOCK = 1 << 18
"""Bytes of a block: what an exchange reads and writes of it stays in a core's cache."""

TURN = 0  # the word that says how many exchanges have begun, in order="turns"
_HEAD = 8  # words before those of the blocks


class Block(NamedTuple):
    """A piece of the vector of parameters that is exchanged at once."""

    number: int
    start: int
    stop: int
    fragment: int


class Centre:
    """What all workers see of a rule's centre, for `size` parameters.

    So many `givers`, the workers of this machine, leave what they give here where all
    meet (`given`). If it moves at once, all blocks of a fragment move together.
    `memory` returns so many bytes to lie in, as a `Segment`, which are zeros at first.

    `words` has `TURN`, and from these numbers on one for each fragment, block or
    worker. `moves`: how often a fragment has moved, which is written under its first
    lock. `locks`, `valid`: the lock of a block, and which side of it is valid; see
    `turned`. `fetched`, `finished`: at what move a worker has come last, plus one;
    whether it makes no more steps.

    `sides` are both sides of what the centre keeps, of shape (2, size); of a scalar
    each block has its own.
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
        # The words that go on from one session to the next
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
        """Begin anew with parameters `w`; in the master, while no rank exchanges."""
        self.words[:] = 0
        for name, value in self.graphs.start(w)[1].items():
            self.sides[name][0] = value

    def ready(self) -> None:
        """Have all locks free: ranks that died had some; while no rank exchanges."""
        self.words[self.locks : self.valid] = 0

    def state(self) -> Arrays:
        """Return all of the centre's state, and how often it has moved."""
        found = {name: self._read(name) for name in self.sides}
        return found | {"counts": self.words[self._counts]}

    def restore(self, state: Arrays) -> None:
        """Go on with what `state` has returned; while no rank exchanges."""
        self.words[:] = 0
        for name, both in self.sides.items():
            both[:] = state[name]  # whichever is valid by the counts
        self.words[self._counts] = state["counts"]

    @property
    def parameters(self) -> np.ndarray:
        """A copy of the centre's parameters."""
        return self._read("c")

    def _read(self, name: str) -> np.ndarray:
        """Return a copy of what is valid of a vector, or of a scalar of each block."""
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
        """Return 1 if all sides of a fragment are the others than their words say."""
        return int(self.words[self.moves + fragment]) & 1 if self.moves_at_once else 0


def shared_arrays(
    forms: dict[str, tuple[tuple[int, ...], Any]], memory: Callable[[int], Any]
) -> tuple[Any, Arrays]:
    """Return memory for arrays of shapes and dtypes, and these, side by side in it."""
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
    """Return the blocks of each fragment, as equal as can be."""
    found, numbers = [], itertools.count()
    for fragment, (low, high) in enumerate(itertools.pairwise(cuts(size, fragments))):
        parts = max(1, math.ceil((high - low) * itemsize / BLOCK))
        ends = itertools.pairwise(cuts(high - low, parts))
        found.append(
            [Block(next(numbers), low + i, low + j, fragment) for i, j in ends]
        )
    return found


def summed(vectors: Sequence[np.ndarray]) -> np.ndarray:
    """Return the sum of vectors, added in their order."""
    total = np.array(vectors[0])
    for more in vectors[1:]:
        total += more
    return total


def weighed(vectors: Iterable[np.ndarray], rows: np.ndarray) -> np.ndarray:
    """Return the mean of vectors, each of so many rows."""
    parts = zip(shares(rows.tolist()), vectors, strict=True)
    return summed([share * vector for share, vector in parts])


def may_come(moves: int, others: Iterable[int], most: int) -> bool:
    """Tell whether after one worker's exchange all others can still come in time.

    The others come in the order in which they came last: the one that has waited
    longest is the next, and so on. If that keeps the bound, it can be kept; and the one
    that has waited longest may always come itself, so nobody waits for ever.

    `moves` is how often the centre has moved, and `others` has of every other worker
    that will come again how often it had when that one's last exchange was over. At
    most so many exchanges of others come between two of a worker: no less than there
    are others.
    """
    return all(moves + 1 + k - came <= most for k, came in enumerate(sorted(others)))
