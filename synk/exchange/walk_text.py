"""A walk through the blocks of a centre as one compiled call, made for a rule.

Each rank takes the blocks one after the other, computes what the rule says of their
elements, and hands locks on; see `centre`. Python comes between two blocks only where a
lock is not free. The program is written for the rule's graph, and kept as the loops in
`rules.kernels` are.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple, TypeAlias

from pytensor.graph.basic import Variable

from .. import compiled
from ..comm import locks, sync
from ..rules.graphs import Functions
from ..rules.kernels import compiled_text, is_vector, written

NEXT, HELD, TURNED, OWNER, LOOKS, FIRST_LOCK, FIRST_VALID, RANK, WORDS = range(9)
"""Places in the array `at` of a walk. NEXT: the block it has come to, by its place in
the walk. HELD: the last one whose lock this rank has, or -1. TURNED: see
`Centre.turned`. The others stay."""

Walk: TypeAlias = Callable[..., bool]
"""Returns whether it is at its end, or a lock was not free."""


class Way(NamedTuple):
    """What a walk does.

    Attributes
    ----------
    has_locks : bool
        Whether it takes the lock of each block.
    moves : bool
        Whether the centre's new values are valid from then on.
    adds : bool
        Whether the centre is moved by what all have given, which is added.
    """

    has_locks: bool = False
    moves: bool = False
    adds: bool = False


def make_walk(functions: Functions, outputs: Mapping[str, Variable], way: Way) -> Walk:
    """Return a compiled walk.

    Its arguments are the centre's words; `at`; the blocks, shape (blocks, 3): the
    number of each, and its first segment and the one after its last; the segments,
    shape (segments, 4): first and last element, which of the worker's arrays they lie
    in, and at which byte; the addresses of these arrays; what ranks have given, shape
    (ranks, parameters); and what the rule's functions take: the group's scalars, the
    vectors that the worker keeps besides its parameters, and of the centre both sides
    of each vector and each scalar.

    Parameters
    ----------
    functions : Functions
    outputs : dict of str to variable
        New values: ``"w"`` or ``"c"`` and the name in the state, or ``"given"``.
    way : Way

    Raises
    ------
    NotImplementedError
        If there is an Op that cannot be written.
    """
    group = functions.inputs_of_group
    states = functions.inputs_of_states
    given = {"given": functions.inputs_of_move["given"]} if way.adds else {}
    graph = written(group | given | states, outputs)
    vectors = [name for name, var in states.items() if is_vector(var)]
    sides = [name for name in states if name[0] == "c"]
    moved = [name for name in outputs if name[0] == "c"]

    once = [f"{name}_ = {name}[()]" for name in group]
    once += [f"{k}_ = {k}[side, number]" for k in sides if k not in vectors]
    once += graph.scalars
    views, each = [], []
    for name in vectors:
        if name == "ww":
            kind = f"types.{functions.dtype}"
            views.append("start_of_w = addresses[segments[s, 2]] + segments[s, 3]")
            views.append(f"v_ww = array_at(start_of_w, {kind}, stop - start)")
        elif name in sides:
            views.append(f"v_{name} = {name}[side, start:stop]")
        else:
            views.append(f"v_{name} = {name}[start:stop]")
        each.append(f"{name}_ = v_{name}[i]")
    if way.adds:
        views += [
            "v_given = given[0, start:stop]",
            "for rank in range(1, given.shape[0]):",
            "    more = given[rank, start:stop]",
            "    for i in range(stop - start):",
            "        v_given[i] += more[i]",
        ]
        each.append("given_ = v_given[i]")
    each += graph.vectors
    ends = []
    for name, value in graph.values.items():
        if name == "given":
            views.append(f"v_given = given[at[{RANK}], start:stop]")
            each.append(f"v_given[i] = {value}")
        elif name not in vectors:
            ends.append(f"{name}[1 - side, number] = {value}")
        elif name in sides:
            views.append(f"o_{name} = {name}[1 - side, start:stop]")
            each.append(f"o_{name}[i] = {value}")
        else:
            each.append(f"v_{name}[i] = {value}")
    if moved:  # all of the other side counts afterwards
        for name in [name for name in sides if name not in moved]:
            if name in vectors:
                views.append(f"{name}[1 - side, start:stop] = v_{name}")
            else:
                ends.append(f"{name}[1 - side, number] = {name}_")
    arguments = ["words", "at", "blocks", "segments", "addresses", "given"]
    lines = [
        "import numpy as np",
        "from numba import types",
        "",
        "from synk.comm.locks import give_back, take",
        "from synk.comm.sync import load, store",
        "from synk.compiled import array_at",
        "",
        f"# What it is compiled with: {_digest()}",
        "",
        "",
        f"def walk({', '.join([*arguments, *group, *list(states)[1:]])}):",
        f"    first_lock, first_valid = at[{FIRST_LOCK}], at[{FIRST_VALID}]",
        f"    for j in range(at[{NEXT}], blocks.shape[0]):",
        "        number = blocks[j, 0]",
        *(_LOCKING if way.has_locks else []),
        f"        side = load(words, first_valid + number) ^ at[{TURNED}]",
        *[f"        {line}" for line in once],
        "        for s in range(blocks[j, 1], blocks[j, 2]):",
        "            start, stop = segments[s, 0], segments[s, 1]",
        *[f"            {line}" for line in views],
        "            for i in range(stop - start):",
        *[f"                {line}" for line in each],
        *[f"        {line}" for line in ends],
        *(_MOVING if way.moves else []),
        *(_UNLOCKING if way.has_locks else []),
        "    return True",
    ]
    return compiled_text(lines, "walk")


# A walk has the lock of a block before it gives back that of the last: nobody
# overtakes. Where it is taken for it, by Python, it is the one at `at[NEXT]`.
_LOCKING = f"""
        if at[{HELD}] != j:
            if not take(words, first_lock + number, at[{OWNER}], at[{LOOKS}]):
                at[{NEXT}] = j
                return False
            at[{HELD}] = j
        if j > 0:
            give_back(words, first_lock + blocks[j - 1, 0])
""".strip("\n").split("\n")

# One after the other nothing is turned.
_MOVING = ["        store(words, first_valid + number, 1 - side)"]

_UNLOCKING = f"""
    if blocks.shape[0] > 0:
        give_back(words, first_lock + blocks[blocks.shape[0] - 1, 0])
        at[{HELD}] = -1
""".strip("\n").split("\n")


@cache
def _digest() -> str:
    """Return what changes with the functions that numba compiles into a walk."""
    digest = hashlib.sha256()
    for module in (compiled, locks, sync):
        assert module.__file__ is not None
        digest.update(Path(module.__file__).read_bytes())
    return digest.hexdigest()[:20]
