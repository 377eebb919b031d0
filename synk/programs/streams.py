"""Random streams that are derived from another, each by a key of its own."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterable, Iterator

import numpy as np
from pytensor.compile import SharedVariable

from ..engines import host

RANK, ROWS, SLICE = 0x73796E6B, 0x726F7773, 0x736C6963
"""What a stream is derived for. A user's own children of a seed have other keys."""


def derived(generator: np.random.Generator, *key: int) -> np.random.Generator:
    """Return the stream with a key among those that follow from a generator's state.

    They are children of a ``SeedSequence``, as ``SeedSequence.spawn`` makes them, so
    independent of each other and the same in every run. The generator stays as it is.
    """
    # From the state and not the seed alone: after some draws, and in a second session,
    # the other ranks must go on to new numbers as the master does.
    draws = copy.deepcopy(generator).integers(0, 2**32, 8, dtype=np.uint64)
    parent = np.random.SeedSequence([int(draw) for draw in draws])
    child = np.random.SeedSequence(parent.entropy, spawn_key=key)
    return np.random.Generator(type(generator.bit_generator)(child))


@contextlib.contextmanager
def for_slices(variables: Iterable[SharedVariable]) -> Iterator[Callable[[int], None]]:
    """Give what has each slice draw numbers of its own, from the same variables.

    Called with the number of a slice, it gives the variables their values for that
    slice. Afterwards they are what they were.
    """
    states = {var: host.get_value(var) for var in variables}

    def take(i: int) -> None:
        for var, state in states.items():
            mine = derived(state, SLICE, i) if i else copy.deepcopy(state)
            host.set_value(var, mine)

    try:
        yield take
    finally:
        for var, state in states.items():
            host.set_value(var, state)
