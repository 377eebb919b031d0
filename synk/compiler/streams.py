"""Random streams: each rank has its own, derived from the user's seed.

Ranks that drew from copies of one stream would all drop the same units. The stream of
rank r comes from a child of the original's ``SeedSequence`` (as in
``SeedSequence.spawn``), so it is independent of the others and the same in every run.
Rank 0 keeps the original.
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
    bits = generator.bit_generator
    parent = bits.seed_seq
    if not isinstance(parent, np.random.SeedSequence):
        # A state without a seed, as after unpickling an old one: derive from the state.
        draws = copy.deepcopy(generator).integers(0, 2**32, 8)
        parent = np.random.SeedSequence([int(draw) for draw in draws])
    child = np.random.SeedSequence(
        parent.entropy,
        spawn_key=(*parent.spawn_key, _TAG, rank),
        pool_size=parent.pool_size,
    )
    return np.random.Generator(type(bits)(child))
