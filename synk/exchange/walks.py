"""How a rank goes through the blocks of a centre: in compiled calls, or one by one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple

import numpy as np

from ..comm.locks import Locks
from ..rules.graphs import Arrays
from ..rules.loops import Loops
from ..rules.simulate import summed
from .centre import Block, Centre
from .parameters import Parameters
from .walk_text import (
    FIRST_LOCK,
    FIRST_VALID,
    HELD,
    LOOKS,
    NEXT,
    OWNER,
    RANK,
    TURNED,
    WORDS,
    Walk,
    Way,
    make_walk,
)

_LOOKS = 100
"""How often a compiled walk looks at a lock before Python waits, and times it."""

WAYS = {
    "exchange": Way(has_locks=True, moves=True),
    "send": Way(has_locks=True, moves=True),
    "fetch": Way(has_locks=True),
    "give": Way(),
    "move": Way(adds=True),
    "take": Way(),
}
"""An exchange is whole, or is sent now and fetched later; where all meet they give, the
centre is moved, and they take."""


class Course(NamedTuple):
    """Blocks to walk through.

    Attributes
    ----------
    blocks : tuple of Block
    table, segments : numpy.ndarray
        As a compiled walk takes them; see `make_walk`.
    """

    blocks: tuple[Block, ...]
    table: np.ndarray
    segments: np.ndarray


class Walks:
    """One rank's walks through the blocks of a centre.

    Parameters
    ----------
    centre : Centre
    summands : numpy.ndarray, shape (n, parameters)
        What was given, where all meet: by its sum the centre is moved.
    parameters : Parameters
        The rank's, open while it walks.
    locks : Locks
    rank, n : int
    wait : callable
        Returns a context manager in which to wait for a lock.
    """

    def __init__(
        self,
        centre: Centre,
        summands: np.ndarray,
        parameters: Parameters,
        locks: Locks,
        rank: int,
        n: int,
        wait: Callable[[], AbstractContextManager],
    ) -> None:
        self._centre, self._parameters, self._locks = centre, parameters, locks
        self._summands = summands
        self._rank, self._n, self._wait = rank, n, wait
        self._functions = centre.functions
        self._loops = Loops(centre.functions)
        self._made: dict[str, Walk | None] = {}
        self._sides = centre.sides
        self._group: tuple[float, list[np.ndarray]] = (0.0, [])
        first, behind = centre.locks
        self._at = np.zeros(WORDS, np.int64)
        self._at[[OWNER, LOOKS, RANK]] = rank + 1, _LOOKS, rank
        self._at[[FIRST_LOCK, FIRST_VALID]] = first, behind

    def prepare(self, kinds: Sequence[str], kept: Arrays) -> None:
        """Have walks compiled, which then take no time of an exchange.

        Parameters
        ----------
        kinds : sequence of str
            Of `WAYS`.
        kept : dict of str to numpy.ndarray
            As in `go`, and ``"w"``.
        """
        kept = {name: value for name, value in kept.items() if name != "w"}
        nowhere = self.course([])
        for what in kinds:
            self.go(what, nowhere, kept, 1.0)

    def go(
        self,
        what: str,
        course: Course,
        kept: Arrays,
        share: float,
        is_locked: bool = False,
    ) -> None:
        """Walk through blocks.

        Parameters
        ----------
        what : str
            One of `WAYS`.
        course : Course
        kept : dict of str to numpy.ndarray
            What the worker keeps besides its parameters.
        share : float
            See `rules.rule.Group`.
        is_locked : bool
            Whether this rank has the lock of the first block.
        """
        if what not in self._made:
            self._made[what] = self._make(what)
        walk = self._made[what]
        if walk is None:
            self._go_plainly(what, course.blocks, kept, share, is_locked)
            return
        centre, at = self._centre, self._at
        if self._group[0] != share:
            self._group = share, self._functions.group(self._n, share)
        arguments = (
            *(centre.words, at, course.table, course.segments),
            self._parameters.addresses(),
            self._summands if WAYS[what].adds else centre.given,
            *(*self._group[1], *kept.values(), *self._sides),
        )
        at[NEXT], at[HELD] = 0, 0 if is_locked else -1
        at[TURNED] = centre.turned(course.blocks[0].fragment) if course.blocks else 0
        while not walk(*arguments):
            with self._wait():
                self._locks.acquire(centre.lock(course.blocks[at[NEXT]]))
            at[HELD] = at[NEXT]

    def _make(self, what: str) -> Walk | None:
        """Return a compiled walk, or None if it cannot be written."""
        functions = self._functions
        worker: dict = {}
        centre: dict = {}
        outputs = {}
        if what == "exchange":
            worker, centre = functions.graph_of_exchange()
        elif what == "send":
            worker, centre = functions.graph_of_sending()
        elif what == "give":
            worker, outputs["given"] = functions.graph_of_give()
        elif what == "move":
            centre = functions.graph_of_move()
        else:
            worker = functions.graph_of_take()
        outputs |= {f"w{name}": new for name, new in worker.items()}
        outputs |= {f"c{name}": new for name, new in centre.items()}
        try:
            return make_walk(functions, outputs, WAYS[what])
        except (NotImplementedError, OSError):  # or there is no place for its file
            return None

    def course(self, blocks: Sequence[Block]) -> Course:
        """Return how to walk through blocks, cut where one parameter ends.

        Parameters
        ----------
        blocks : sequence of Block
        """
        table: list[tuple[int, ...]] = []
        segments: list[tuple[int, ...]] = []
        itemsize = np.dtype(self._functions.dtype).itemsize
        for block in blocks:
            first = len(segments)
            for part in self._parameters.parts(block.start, block.stop):
                at = itemsize * part.at
                segments.append((part.start, part.stop, part.number, at))
            table.append((block.number, first, len(segments)))
        return Course(
            tuple(blocks),
            np.array(table, np.int64).reshape(-1, 3),
            np.array(segments, np.int64).reshape(-1, 4),
        )

    # -- in Python, for rules that cannot be written

    def _go_plainly(
        self,
        what: str,
        blocks: Sequence[Block],
        kept: Arrays,
        share: float,
        is_locked: bool,
    ) -> None:
        centre, way = self._centre, WAYS[what]
        last = None
        for block in blocks:
            if way.has_locks:
                if last is not None or not is_locked:
                    with self._wait():
                        self._locks.acquire(centre.lock(block))
                if last is not None:  # only now: nobody overtakes
                    self._locks.release(centre.lock(last))
                last = block
            with self._parameters.piece(block) as w:
                piece = slice(block.start, block.stop)
                worker = {name: value[piece] for name, value in kept.items()}
                self._compute(what, block, {"w": w, **worker}, share)
            if way.moves:
                centre.make_valid(block)
        if last is not None:
            self._locks.release(centre.lock(last))

    def _compute(self, what: str, block: Block, worker: Arrays, share: float) -> None:
        """Compute what a walk does with one block."""
        loops, centre, n = self._loops, self._centre, self._n
        old, new = centre.read(block), centre.other(block)
        given = centre.given[self._rank, block.start : block.stop]
        if what == "exchange":
            loops.exchange(worker, old, new, n, share)
        elif what == "send":
            sent = np.empty_like(worker["w"])
            loops.give(worker, old, sent, n, share)
            loops.move(old, sent, new)
        elif what == "give":
            loops.give(worker, old, given, n, share)
        elif what == "move":
            summands = self._summands[:, block.start : block.stop]
            loops.move(old, summed(list(summands)), new)
        else:
            loops.take(worker, old)
