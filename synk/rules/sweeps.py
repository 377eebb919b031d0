"""Sweeps of one worker through the blocks of a centre, which compute the rule.

A sweep is one compiled call, whose source is generated from the rule's graph. For each
block it takes the lock, computes the elements, marks the new side as valid, and
releases the lock. It returns to Python only at its end, or if a lock is not free. If a
graph cannot be translated, PyTensor computes it, in the same order (`_plain_sweep`).
Ranks and the simulator use the same sweeps.
"""

from __future__ import annotations

import bisect
import contextlib
import hashlib
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pytensor

from .. import compiled
from ..comm import locks, shm
from ..comm.locks import give_back, take, write
from ..compiled import compile_kernel
from ..memory.mapping import address
from .centre import Block, Centre
from .graphs import KINDS, RuleGraphs, SweepKind, compile_source, translate
from .rule import Group

NEXT, HELD, TURNED, OWNER, LOOKS, FIRST_LOCK, FIRST_VALID, RANK, WORDS = range(9)
"""Indices of the array `at`, a sweep's state. NEXT: the place in the sweep of the block
to do next. HELD: the place of the last block whose lock this rank has, or -1. TURNED:
see `Centre.turned`. The others are constants of the worker."""

_LOOKS = 100
"""How often a sweep reads a taken lock before it returns, and Python waits."""

Sweep: TypeAlias = Callable[..., bool]
"""Returns True at its end, or False if a lock was not free. Its arguments: `at`; the
centre's words; the two tables of a `Course`; the addresses of the parameters' arrays
(the arrays themselves, if not compiled); the vectors given; the scalars of a `Group`;
the worker's state besides its parameters; and both sides of the centre's state."""


@compile_kernel
def enter(at, words, blocks, j):
    """Take the lock of the sweep's block j, then release that of block j - 1.

    Python may have taken the lock before, that of block `at[NEXT]`. Returns False if
    the lock is not free.
    """
    if at[HELD] != j:
        if not take(words, at[FIRST_LOCK] + blocks[j, 0], at[OWNER], at[LOOKS]):
            at[NEXT] = j
            return False
        at[HELD] = j
    if j > 0:
        give_back(words, at[FIRST_LOCK] + blocks[j - 1, 0])
    return True


@compile_kernel
def leave(at, words, blocks):
    """Release the lock of the last block."""
    if blocks.shape[0] > 0:
        give_back(words, at[FIRST_LOCK] + blocks[blocks.shape[0] - 1, 0])
        at[HELD] = -1


class Course(NamedTuple):
    """Blocks to sweep through, cut into segments at the ends of parameters' arrays."""

    blocks: tuple[Block, ...]
    table: np.ndarray
    """For each block: its number, its first segment, and the one after its last."""
    segments: np.ndarray
    """For each segment: its first element and the one after its last, in the vector of
    all parameters; the number of the worker's array, and the first element there."""


class Sweeper:
    """One worker's access to a centre: its sweeps, and its state in the exchanges.

    ``arrays()`` returns the present arrays of the parameters, C-contiguous, of these
    `sizes`. `rank` is the worker's number among those that share the centre's memory,
    and `n` the number of all workers. ``acquire(word)`` waits for a lock and takes it;
    the simulator needs none. In "together" the centre moves by the sum of `summands`,
    some rows of `Centre.given`, by default all.
    """

    def __init__(
        self,
        centre: Centre,
        sizes: Sequence[int],
        arrays: Callable[[], Sequence[np.ndarray]],
        rank: int,
        n: int,
        acquire: Callable[[int], object] | None = None,
        summands: np.ndarray | None = None,
    ) -> None:
        self._centre, self._n, self._acquire = centre, n, acquire
        self._arrays = arrays
        self._summands = centre.given if summands is None else summands
        self._ends = np.cumsum(sizes).tolist()
        self._at = np.zeros(WORDS, np.int64)
        self._at[[OWNER, LOOKS, RANK]] = rank + 1, _LOOKS, rank
        self._at[[FIRST_LOCK, FIRST_VALID]] = centre.locks, centre.valid
        self.courses = [self.course(blocks) for blocks in centre.fragments]
        self.begin(np.zeros(1))

    def begin(self, w: np.ndarray) -> None:
        """Begin anew, with parameters `w`."""
        self.kept = self._centre.graphs.start(w)[0]  # its state without parameters
        del self.kept["w"]
        # For each fragment, its number of moves after the worker's last exchange.
        self.fetched = [0] * len(self.courses)
        # The steps after which the worker takes, and the fragments.
        self.to_take: list[tuple[int, int]] = []

    def course(self, blocks: Sequence[Block]) -> Course:
        """Return the course through `blocks`."""
        table: list[tuple[int, ...]] = []
        segments: list[tuple[int, ...]] = []
        for block in blocks:
            first, start = len(segments), block.start
            array = bisect.bisect_right(self._ends, start)
            while start < block.stop:
                before = self._ends[array - 1] if array else 0
                stop = min(self._ends[array], block.stop)
                segments.append((start, stop, array, start - before))
                start, array = stop, array + 1
            table.append((block.number, first, len(segments)))
        return Course(
            tuple(blocks),
            np.array(table, np.int64).reshape(-1, 3),
            np.array(segments, np.int64).reshape(-1, 4),
        )

    def due(self, step: int) -> Iterator[int]:
        """Yield the fragments to take after a step, and remove them from `to_take`."""
        while self.to_take and self.to_take[0][0] == step:
            yield self.to_take.pop(0)[1]

    def count_move(self, k: int) -> tuple[int, int]:
        """Count this worker's move of fragment `k`; return its number, and staleness.

        The caller has the lock of the fragment's first block, or runs alone.
        """
        word = self._centre.moves + k
        move = int(self._centre.words[word])
        write(self._centre.words, word, move + 1)
        staleness, self.fetched[k] = move - self.fetched[k], move + 1
        return move, staleness

    def go(
        self,
        kind: str,
        course: Course,
        share: float | None = None,
        is_locked: bool = False,
    ) -> None:
        """Make a sweep of one of `KINDS` through a course.

        `share` is as in `Group`, by default 1 / n. `is_locked` says whether this rank
        has the lock of the first block already.
        """
        arrays, kept = self._arrays(), self.kept
        share = 1 / self._n if share is None else share  # 0 for a worker without rows
        centre, at = self._centre, self._at
        sweep, is_compiled = _sweep_of(centre.graphs, kind)
        group = [np.array(value, centre.graphs.dtype) for value in (self._n, share)]
        given = self._summands if _moves_by_sum(KINDS[kind]) else centre.given
        where: Any = arrays
        if is_compiled:
            where = np.array([address(array) for array in arrays], np.int64)
        states = (*kept.values(), *centre.sides.values())
        arguments = course.table, course.segments, where, given, *group
        at[NEXT], at[HELD] = 0, 0 if is_locked else -1
        at[TURNED] = centre.turned(course.blocks[0].fragment) if course.blocks else 0
        while not sweep(at, centre.words, *arguments, *states):
            assert self._acquire is not None
            self._acquire(centre.locks + course.blocks[at[NEXT]].number)
            at[HELD] = at[NEXT]


def _moves_by_sum(kind: SweepKind) -> bool:
    """Return whether the centre moves by the sum of all vectors given."""
    return kind.moves and not kind.gives


def _sweep_of(graphs: RuleGraphs, kind: str) -> tuple[Sweep, bool]:
    """Return a sweep, made once for each `RuleGraphs`, and whether it is compiled."""
    if kind not in graphs.sweeps:
        how = KINDS[kind]
        found: tuple[Sweep, bool] | None = None
        if graphs.mode is None:
            # The graph cannot be translated, or its file cannot be written.
            with contextlib.suppress(NotImplementedError, OSError):
                found = _compiled_sweep(graphs, how), True
        graphs.sweeps[kind] = found or (_plain_sweep(graphs, how), False)
    return graphs.sweeps[kind]


def _block_source(graphs: RuleGraphs, kind: SweepKind) -> list[list[str]]:
    """Return the source of a sweep within a block, or raise NotImplementedError.

    The four lists of lines are for the block's beginning, each segment, each element,
    and the block's end. For an array ``x``, ``v_x`` is a view of the segment, and
    ``o_x`` one of its other side.
    """
    of_scalars, of_vectors, values = translate(graphs.inputs, graphs.outputs(kind))
    kept, sides, scalars = graphs.kept, graphs.sides, graphs.scalars
    vectors = [name for name in sides if name not in scalars]
    once = [f"{name}_ = {name}[()]" for name in Group._fields]
    once += [f"{name}_ = {name}[side, number]" for name in scalars]
    place = f"addresses[segments[s, 2]] + {np.dtype(graphs.dtype).itemsize}"
    views = [
        f"start_of_w = {place} * segments[s, 3]",
        f"v_ww = array_at(start_of_w, types.{graphs.dtype}, stop - start)",
        *[f"v_{name} = {name}[start:stop]" for name in kept],
        *[f"v_{name} = {name}[side, start:stop]" for name in vectors],
    ]
    read = ["ww", *kept, *vectors]
    if _moves_by_sum(kind):
        views += [
            "v_given = given[0, start:stop]",
            "for rank in range(1, given.shape[0]):",
            "    more = given[rank, start:stop]",
            "    for i in range(stop - start):",
            "        v_given[i] += more[i]",
        ]
        read.append("given")
    each, ends = [f"{name}_ = v_{name}[i]" for name in read] + of_vectors, []
    if kind.moves:  # the other side becomes valid: copy what the rule leaves as it is
        values = {name: f"{name}_" for name in sides} | values
    for name, value in values.items():
        if name in scalars:
            ends.append(f"{name}[1 - side, number] = {value}")
            continue
        if name == "given":
            views.append(f"o_given = given[at[{RANK}], start:stop]")
        elif name in sides:
            views.append(f"o_{name} = {name}[1 - side, start:stop]")
        is_in_place = name == "ww" or name in kept
        each.append(f"{'v' if is_in_place else 'o'}_{name}[i] = {value}")
    if kind.moves and kind.locks:  # in "together" one word makes all blocks valid
        ends.append(f"store(words, at[{FIRST_VALID}] + number, 1 - side)")
    return [once + of_scalars, views, each, ends]


def _compiled_sweep(graphs: RuleGraphs, kind: SweepKind) -> Sweep:
    """Return a sweep that numba compiles at the first call; see `_block_source`."""
    once, views, each, ends = _block_source(graphs, kind)
    arguments = ["at", "words", "blocks", "segments", "addresses", "given"]
    arguments += [*Group._fields, *graphs.kept, *graphs.sides]
    entering = ["if not enter(at, words, blocks, j):", "    return False"]
    lines = [
        '"""Of a training rule; made by synk."""',
        "",
        "import numpy as np",
        "from numba import types",
        "",
        "from synk.comm.shm import load, store",
        "from synk.compiled import array_at",
        "from synk.rules.sweeps import enter, leave",
        "",
        f"# What it is compiled with: {_helpers_digest()}",
        "",
        "",
        f"def sweep({', '.join(arguments)}):",
        f"    for j in range(at[{NEXT}], blocks.shape[0]):",
        *[f"        {line}" for line in entering if kind.locks],
        "        number = blocks[j, 0]",
        f"        side = load(words, at[{FIRST_VALID}] + number) ^ at[{TURNED}]",
        *[f"        {line}" for line in once],
        "        for s in range(blocks[j, 1], blocks[j, 2]):",
        "            start, stop = segments[s, 0], segments[s, 1]",
        *[f"            {line}" for line in views],
        "            for i in range(stop - start):",
        *[f"                {line}" for line in each],
        *[f"        {line}" for line in ends],
        *["    leave(at, words, blocks)"] * kind.locks,
        "    return True",
    ]
    return compile_source("\n".join([*lines, ""]))


@cache
def _helpers_digest() -> str:
    """Return a hash of the files with functions that numba compiles into a sweep."""
    digest = hashlib.sha256()
    for path in (compiled.__file__, locks.__file__, shm.__file__, __file__):
        assert path is not None
        digest.update(Path(path).read_bytes())
    return digest.hexdigest()[:20]


def _plain_sweep(graphs: RuleGraphs, kind: SweepKind) -> Sweep:
    """Return a sweep in Python, which computes by a compiled PyTensor function."""
    outputs = graphs.outputs(kind)
    # Without `borrow`, an output that is an input itself is returned as a copy.
    compute = pytensor.function(
        [*graphs.inputs.values()],
        [*outputs.values()],
        mode=graphs.mode or "NUMBA",
        on_unused_input="ignore",
        trust_input=True,
    )

    def sweep(at, words, blocks, segments, arrays, given, n, share, *states):
        kept = dict(zip(graphs.kept, states, strict=False))
        sides = dict(zip(graphs.sides, states[len(kept) :], strict=True))
        for j in range(at[NEXT], len(blocks)):
            if kind.locks and not enter(at, words, blocks, j):
                return False
            number, first, behind = blocks[j]
            valid = at[FIRST_VALID] + number
            side = words[valid] ^ at[TURNED]
            for start, stop, array, place in segments[first:behind]:
                piece = slice(start, stop)
                w = arrays[array].reshape(-1)[place : place + stop - start]
                places = {name: value[piece] for name, value in kept.items()}
                places |= {"ww": w, "given": w}
                if _moves_by_sum(kind):
                    places["given"] = given[0, piece]
                    for more in given[1:, piece]:
                        places["given"] += more
                elif "given" in outputs:
                    places["given"] = given[at[RANK], piece]
                old = dict(places)
                for name, both in sides.items():
                    where = (number, ...) if name in graphs.scalars else piece
                    old[name], places[name] = both[side][where], both[1 - side][where]
                states_now = [old[name] for name in list(graphs.inputs)[2:]]
                new = dict(zip(outputs, compute(n, share, *states_now), strict=True))
                if kind.moves:  # the other side becomes valid, as in `_block_source`
                    new = {name: old[name] for name in sides} | new
                for name, value in new.items():
                    places[name][...] = value
            if kind.moves and kind.locks:
                write(words, valid, 1 - side)
        if kind.locks:
            leave(at, words, blocks)
        return True

    return sweep
