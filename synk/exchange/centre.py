"""The centre of a training rule, in memory that all ranks share.

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
from typing import NamedTuple

import numpy as np

from ..comm.locks import write
from ..memory.segment import Segment
from ..rules.graphs import Arrays, Functions
from ..rules.simulate import pieces

BLOCK = 1 << 18
"""Bytes of a block: what an exchange reads and writes of it stays in a core's cache."""

TURN = 0  # how many exchanges have begun, in order="turns"
_HEAD = 8  # words before those of the blocks


class Block(NamedTuple):
    """A piece of the vector of parameters that is exchanged at once."""

    number: int
    start: int
    stop: int
    fragment: int


class Centre:
    """What all ranks see of a rule's centre.

    Parameters
    ----------
    functions : Functions
        The rule's.
    size : int
        How many parameters there are.
    ranks, givers, fragments : int
        All workers, those of this machine, and pieces of the parameters.
    moves_at_once : bool
        Whether all blocks of a fragment move together.
    segment : Segment
        Where it lies: a new one, of `nbytes`, is all zeros.

    Attributes
    ----------
    functions : Functions
    words : numpy.ndarray of int64
        See `lock`, `TURN`, `moves`.
    given : numpy.ndarray, shape (givers, size)
        What each rank of this machine has given, where all meet.
    fragments : list of list of Block
    """

    def __init__(
        self,
        functions: Functions,
        size: int,
        ranks: int,
        givers: int,
        fragments: int,
        moves_at_once: bool,
        segment: Segment,
    ) -> None:
        self.functions, self.size = functions, size
        self.fragments = _blocks(size, fragments, np.dtype(functions.dtype).itemsize)
        self.count = sum(map(len, self.fragments))
        self.moves_at_once = moves_at_once
        self.segment = segment
        place = 0

        def array(dtype: str, *shape: int) -> np.ndarray:
            nonlocal place
            found = segment.array(np.dtype(dtype), shape, place)
            place += math.ceil(found.nbytes / 64) * 64
            return found

        self.words = array("int64", _HEAD + fragments + 2 * self.count + 2 * ranks)
        self._first_lock = _HEAD + fragments
        self._first_valid = self._first_lock + self.count
        self._of_ranks, self._ranks = self._first_valid + self.count, ranks
        kind = functions.dtype
        self._vectors = {
            name: array(kind, 2, size)
            for name in functions.of_centre
            if name not in functions.scalars
        }
        start = functions.start(np.zeros(1, kind))[1]
        self._scalars = {
            name: array(start[name].dtype.str, 2, self.count)
            for name in functions.scalars
        }
        self.given = array(kind, givers, size)

    @staticmethod
    def nbytes(
        functions: Functions, size: int, ranks: int, givers: int, fragments: int
    ) -> int:
        """Return how much memory a centre takes."""
        item = np.dtype(functions.dtype).itemsize
        blocks = sum(map(len, _blocks(size, fragments, item)))
        arrays = 2 * len(functions.of_centre) + givers
        words = _HEAD + fragments + 2 * blocks + 2 * ranks
        scalars = 2 * 8 * blocks * len(functions.scalars)
        return 8 * words + item * size * arrays + scalars + 64 * (arrays + 1)

    def fill(self, w: np.ndarray) -> None:
        """Begin anew with parameters `w`; in the master, while no rank exchanges."""
        start = self.functions.start(w)[1]
        self.words[:] = 0
        for name, both in self._vectors.items():
            both[0] = start[name]
        for name, both in self._scalars.items():
            both[0] = start[name]

    def ready(self) -> None:
        """Have all locks free; while no rank exchanges."""
        first, last = self.locks
        self.words[first:last] = 0

    def state(self) -> Arrays:
        """Return all of the centre's state, and how often it has moved."""
        found = {
            name: np.empty(self.size, both.dtype)
            for name, both in self._vectors.items()
        }
        scalars = {
            name: np.empty(self.count, both.dtype)
            for name, both in self._scalars.items()
        }
        for block in itertools.chain(*self.fragments):
            for name, value in self.read(block).items():
                if name in scalars:
                    scalars[name][block.number] = value
                else:
                    found[name][block.start : block.stop] = value
        return found | scalars | {"counts": self.words[self._counts]}

    def restore(self, state: Arrays) -> None:
        """Go on with what `state` has returned; while no rank exchanges."""
        self.words[:] = 0
        for name, both in (self._vectors | self._scalars).items():
            both[:] = state[name]  # whichever is valid by the counts
        self.words[self._counts] = state["counts"]

    @property
    def _counts(self) -> list[int]:
        """The words that go on from one session to the next."""
        moves = map(self.moves, range(len(self.fragments)))
        return [TURN, *moves, *map(self.fetched, range(self._ranks))]

    @property
    def sides(self) -> list[np.ndarray]:
        """Both sides of what the centre keeps, shapes (2, size) and (2, blocks)."""
        both = self._vectors | self._scalars
        return [both[name] for name in self.functions.of_centre]

    def read(self, block: Block) -> Arrays:
        """Return the centre's state of a block: views."""
        return self._side(block, self.valid(block))

    def other(self, block: Block) -> Arrays:
        """Return where a block's new state is to be written, all of it: views."""
        return self._side(block, 1 - self.valid(block))

    def valid(self, block: Block) -> int:
        """Return which side of a block is valid."""
        word = int(self.words[self._first_valid + block.number])
        return word ^ self.turned(block.fragment)

    def turned(self, fragment: int) -> int:
        """Return 1 if all sides of a fragment are the others than their words say."""
        return int(self.words[self.moves(fragment)]) & 1 if self.moves_at_once else 0

    def _side(self, block: Block, side: int) -> Arrays:
        number, start, stop, _ = block
        found = {name: both[side, start:stop] for name, both in self._vectors.items()}
        for name, both in self._scalars.items():
            found[name] = both[side, number : number + 1].reshape(())
        return found

    def make_valid(self, block: Block) -> None:
        """Say that what was written of a block is valid now."""
        index = self._first_valid + block.number
        write(self.words, index, 1 - self.words[index])

    def lock(self, block: Block) -> int:
        """Return which word is a block's lock."""
        return self._first_lock + block.number

    @property
    def locks(self) -> tuple[int, int]:
        """The first word that is a lock, and the first behind them."""
        return self._first_lock, self._first_valid

    def moves(self, fragment: int) -> int:
        """Return which word counts the moves of a fragment; under its first lock."""
        return _HEAD + fragment

    def fetched(self, rank: int) -> int:
        """Return which word says at what move a rank has come last, plus one."""
        return self._of_ranks + rank

    def finished(self, rank: int) -> int:
        """Return which word says whether a rank makes no more steps."""
        return self._of_ranks + self._ranks + rank

    @property
    def parameters(self) -> np.ndarray:
        """A copy of the centre's parameters."""
        whole = np.empty(self.size, self.functions.dtype)
        for blocks in self.fragments:
            for block in blocks:
                whole[block.start : block.stop] = self.read(block)["c"]
        return whole


def _blocks(size: int, fragments: int, itemsize: int) -> list[list[Block]]:
    """Return the blocks of each fragment, as equal as can be."""
    found, number = [], 0
    for fragment, piece in enumerate(pieces(size, fragments)):
        parts = max(1, math.ceil((piece.stop - piece.start) * itemsize / BLOCK))
        of_fragment = []
        for part in pieces(piece.stop - piece.start, parts):
            ends = piece.start + part.start, piece.start + part.stop
            of_fragment.append(Block(number, *ends, fragment))
            number += 1
        found.append(of_fragment)
    return found
