"""Sweeps of one worker through the blocks of a centre, to compute what the rule says.

A sweep is one compiled call, whose text is written for the rule's graph: it takes the
lock of each block, computes its elements, says that they are valid, and hands the lock
on. Python comes between two blocks only where a lock is not free. A graph that cannot
be written is computed by PyTensor, in the same steps (`_plain_sweep`). Ranks and the
simulator compute by the same sweeps.
"""

from __future__ import annotations

import bisect
import contextlib
import hashlib
import math
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
from .graphs import (
    KINDS,
    RuleGraphs,
    SweepKind,
    compiled_text,
    written,
)
from .rule import Group

NEXT, HELD, TURNED, OWNER, LOOKS, FIRST_LOCK, FIRST_VALID, RANK, WORDS = range(9)
"""Places in the array `at` of a sweep. NEXT: the block it has come to, by its place in
the sweep. HELD: the last one whose lock this rank has, or -1. TURNED: see
`Centre.turned`. The others stay."""

_LOOKS = 100
"""How often a sweep looks at a lock before Python waits, and times it."""

Sweep: TypeAlias = Callable[..., bool]
"""Returns whether it is at its end, or a lock was not free. Its arguments are `at`; the
centre's words; the tables of a `Course`; the addresses of the arrays that the
parameters lie in, or if it is not compiled these themselves; what workers have given;
the scalars of a `Group`, what the worker keeps, and both sides of the centre's."""


@compile_kernel
def enter(at, words, blocks, j):
    """Take the lock of a block; only then give back that of the last: nobody overtakes.

    Where Python has taken it for the sweep, it is the one at `at[NEXT]`.
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
    """Give back the lock of the last block."""
    if blocks.shape[0] > 0:
        give_back(words, at[FIRST_LOCK] + blocks[blocks.shape[0] - 1, 0])
        at[HELD] = -1


class Course(NamedTuple):
    """Blocks to sweep through, which are cut where one parameter ends."""

    blocks: tuple[Block, ...]
    table: np.ndarray
    """The number of each, and its first segment and the one after its last."""
    segments: np.ndarray
    """First element and the one after the last; which of the worker's arrays they lie
    in, and from which element on."""


class Sweeper:
    """One worker's side of a centre: its sweeps, and how far it has come.

    The parameters lie in arrays of these sizes; `arrays` returns them, C-contiguous, as
    they are now. `rank` counts those that share the centre's memory. `acquire` waits
    for a lock, by its word, and takes it; a worker that is alone needs none. The centre
    moves by the sum of `summands`, that part of `Centre.given`, by default of all.
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
        self._group: tuple[float, list[np.ndarray]] = (math.nan, [])
        self._at = np.zeros(WORDS, np.int64)
        self._at[[OWNER, LOOKS, RANK]] = rank + 1, _LOOKS, rank
        self._at[[FIRST_LOCK, FIRST_VALID]] = centre.locks, centre.valid
        self.courses = [self.course(blocks) for blocks in centre.fragments]
        self.begin(np.zeros(1))

    def begin(self, w: np.ndarray) -> None:
        """Begin anew, with parameters `w`."""
        self.kept = self._centre.graphs.start(w)[0]  # besides its parameters
        del self.kept["w"]
        # Of each fragment, how often it had moved when the worker came last.
        self.fetched = [0] * len(self.courses)
        # After which step it takes which fragment.
        self.to_take: list[tuple[int, int]] = []

    def course(self, blocks: Sequence[Block]) -> Course:
        """Return how to sweep through blocks."""
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
        """Yield the fragments that the worker takes after a step."""
        while self.to_take and self.to_take[0][0] == step:
            yield self.to_take.pop(0)[1]

    def count_move(self, k: int) -> tuple[int, int]:
        """Count a move of a fragment by this worker; return its number, and staleness.

        Who calls has the lock of its first block, or is alone.
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
        """Sweep through blocks, by one of `KINDS`.

        By default all workers have equal shares (see `Group`). `is_locked` says whether
        it has the lock of the first block.
        """
        arrays, kept = self._arrays(), self.kept
        share = 1 / self._n if share is None else share  # one without rows has 0
        centre, at = self._centre, self._at
        sweep, is_compiled = _sweep_of(centre.graphs, kind)
        if self._group[0] != share:
            scalars = np.asarray([self._n, share], centre.graphs.dtype)
            self._group = share, [scalars[:1].reshape(()), scalars[1:].reshape(())]
        given = self._summands if _adds(KINDS[kind]) else centre.given
        where: Any = arrays
        if is_compiled:
            where = np.array([address(array) for array in arrays], np.int64)
        states = (*kept.values(), *centre.sides.values())
        arguments = course.table, course.segments, where, given, *self._group[1]
        at[NEXT], at[HELD] = 0, 0 if is_locked else -1
        at[TURNED] = centre.turned(course.blocks[0].fragment) if course.blocks else 0
        while not sweep(at, centre.words, *arguments, *states):
            assert self._acquire is not None
            self._acquire(centre.locks + course.blocks[at[NEXT]].number)
            at[HELD] = at[NEXT]


def _adds(kind: SweepKind) -> bool:
    """Tell whether the centre moves by what all have left, which is added."""
    return kind.moves and not kind.gives


def _sweep_of(graphs: RuleGraphs, kind: str) -> tuple[Sweep, bool]:
    """Return a sweep, made once for all workers, and whether it is compiled."""
    if kind not in graphs.sweeps:
        how = KINDS[kind]
        found: tuple[Sweep, bool] | None = None
        if graphs.mode is None:
            # It cannot be written, or there is no place for its file.
            with contextlib.suppress(NotImplementedError, OSError):
                found = _compiled_sweep(graphs, how), True
        graphs.sweeps[kind] = found or (_plain_sweep(graphs, how), False)
    return graphs.sweeps[kind]


def _lines_of(graphs: RuleGraphs, kind: SweepKind) -> list[list[str]]:
    """Write what a sweep does within a block, or raise NotImplementedError.

    That is once, for each segment and element, and at its end. Of an array ``x`` there
    are views: ``v_x``, and of its other side ``o_x``.
    """
    of_scalars, of_vectors, values = written(graphs.inputs, graphs.outputs(kind))
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
    if _adds(kind):
        views += [
            "v_given = given[0, start:stop]",
            "for rank in range(1, given.shape[0]):",
            "    more = given[rank, start:stop]",
            "    for i in range(stop - start):",
            "        v_given[i] += more[i]",
        ]
        read.append("given")
    each, ends = [f"{name}_ = v_{name}[i]" for name in read] + of_vectors, []
    if kind.moves:  # all of the other side counts afterwards
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
    if kind.moves and kind.locks:  # where all meet, one word is that of all blocks
        ends.append(f"store(words, at[{FIRST_VALID}] + number, 1 - side)")
    return [once + of_scalars, views, each, ends]


def _compiled_sweep(graphs: RuleGraphs, kind: SweepKind) -> Sweep:
    """Write a sweep, for numba to compile when it is called first; see `_lines_of`."""
    once, views, each, ends = _lines_of(graphs, kind)
    arguments = ["at", "words", "blocks", "segments", "addresses", "given"]
    arguments += [*Group._fields, *graphs.kept, *graphs.sides]
    entering = ["if not enter(at, words, blocks, j):", "    return False"]
    lines = [
        "import numpy as np",
        "from numba import types",
        "",
        "from synk.comm.shm import load, store",
        "from synk.compiled import array_at",
        "from synk.rules.sweeps import enter, leave",
        "",
        f"# What it is compiled with: {_digest()}",
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
    return compiled_text(lines, "sweep")


@cache
def _digest() -> str:
    """Return what changes with the functions that numba compiles into a sweep."""
    digest = hashlib.sha256()
    for path in (compiled.__file__, locks.__file__, shm.__file__, __file__):
        assert path is not None
        digest.update(Path(path).read_bytes())
    return digest.hexdigest()[:20]


def _plain_sweep(graphs: RuleGraphs, kind: SweepKind) -> Sweep:
    """Return a sweep in Python, in which PyTensor's function computes."""
    outputs = graphs.outputs(kind)
    # Results have memory of their own: what is returned may be an input itself.
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
                if _adds(kind):
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
                if kind.moves:  # all of the other side counts afterwards
                    new = {name: old[name] for name in sides} | new
                for name, value in new.items():
                    places[name][...] = value
            if kind.moves and kind.locks:
                write(words, valid, 1 - side)
        if kind.locks:
            leave(at, words, blocks)
        return True

    return sweep
