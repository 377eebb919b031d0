"""Random streams: each rank has its own, derived from the user's seed.

Ranks that drew from copies of one stream would all drop the same units. The stream of
rank r is seeded by a child of a ``SeedSequence`` (as ``SeedSequence.spawn`` makes them)
of the original's present state, so it is independent of the others and the same in
every run. Rank 0 keeps the original.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np

_TAG = 0x73796E6B
"""Keeps our children apart from those that a user spawns from the same seed."""


def value_for_rank(value: Any, rank: int) -> Any:
    """Return `value`, or for a random generator the stream of `rank`."""
    if rank and isinstance(value, np.random.Generator):
        return _generator_for_rank(value, rank)
    return value


def _generator_for_rank(generator: np.random.Generator, rank: int):
    # From the state and not the seed alone: after some draws, and in a second session,
    # the other ranks must go on to new numbers as the master does.
    draws = copy.deepcopy(generator).integers(0, 2**32, 8, dtype=np.uint64)
    parent = np.random.SeedSequence([int(draw) for draw in draws])
    child = np.random.SeedSequence(parent.entropy, spawn_key=(_TAG, rank))
    return np.random.Generator(type(generator.bit_generator)(child))
