"""The global generators of a script, of NumPy and of Python: each rank has its own.

They are a copy in every process that is forked, and an Op that draws from ``np.random``
would add the same noise on all ranks. Rank 0 keeps the script's. Those of rank r follow
from their states when ranks are started, and r: the same script draws the same again.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np


class ScriptSeeds(NamedTuple):
    """What the generators of ranks other than 0 follow from.

    Attributes
    ----------
    numpy, python : int
        From the states of ``np.random`` and ``random`` in the script.
    comeback : int
        How often these ranks have been started again: they are not to draw once more
        what they have drawn, though rank 0 may have drawn nothing since.
    """

    numpy: int
    python: int
    comeback: int

    @classmethod
    def of_this_process(cls, comeback: int) -> ScriptSeeds:
        """Return those of the script's process; its generators stay as they are."""
        return cls(
            _digest(np.random.get_state(legacy=False)),
            _digest(random.getstate()),
            comeback,
        )

    def adopt(self, rank: int) -> None:
        """Seed the generators of this process, which is not rank 0."""
        seeds = np.random.SeedSequence(self.numpy, spawn_key=(rank, self.comeback))
        # A script may have put another one in the place of MT19937.
        kind = type(np.random.get_bit_generator())  # type: ignore[attr-defined]
        state = dict(kind(seeds).state)
        np.random.set_state({**state, "has_gauss": 0, "gauss": 0.0})
        random.seed(_digest((self.python, rank, self.comeback)))


def _digest(state: Any) -> int:
    """Return a number that follows from a state, whatever that is made of."""
    digest = hashlib.sha256()
    for part in _parts(state):
        digest.update(part)
    return int.from_bytes(digest.digest(), "big")


def _parts(state: Any) -> Iterator[bytes]:
    if isinstance(state, Mapping):
        for key in sorted(state):
            yield from _parts((key, state[key]))
    elif isinstance(state, tuple):
        for each in state:
            yield from _parts(each)
    elif isinstance(state, np.ndarray):
        yield state.tobytes()
    else:
        yield f"{state!r};".encode()
