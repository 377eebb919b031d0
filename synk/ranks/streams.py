"""Random streams: each rank has its own, derived from the user's seed.

Ranks that drew from copies of one stream would all drop the same units. The stream of
rank r follows from the original's present state and r (see `programs.streams`). Rank 0
keeps the original.

What is not drawn for rows, all ranks draw alike, from *common* streams (see
`compiler.placement.streams`). No rank keeps these: every launch tells them the state of
the master's variable, which the common stream's last state replaces when all ranks have
come to the end. So they cannot come apart, whatever has failed or been set before.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..compiler.placement.streams import CommonStream
from ..engines import host
from ..programs.streams import RANK, ROWS, derived


def value_for_rank(value: Any, rank: int) -> Any:
    """Return `value`, or for a random generator the stream of `rank`."""
    if rank and isinstance(value, np.random.Generator):
        return derived(value, RANK, rank)
    return value


def master_states(streams: Sequence[CommonStream]) -> list[np.random.Generator]:
    """Return what the common streams of a launch begin with, for the master too."""
    states = [copy.deepcopy(host.get_value(stream.source)) for stream in streams]
    worker_states(streams, states)
    return states


def lead_on(streams: Sequence[CommonStream]) -> None:
    """Have the user's variables go on where the common streams of a launch have ended.

    After an error that is where they are when it has been undone.
    """
    for stream in streams:
        host.set_value(stream.source, host.get_value(stream.common))


def worker_states(
    streams: Sequence[CommonStream], states: Sequence[np.random.Generator]
) -> None:
    """Take what the common streams of a launch begin with."""
    for stream, state in zip(streams, states, strict=True):
        host.set_value(stream.common, state)


def split(streams: Sequence[CommonStream], rank: int) -> None:
    """Derive from common streams what this rank draws for its rows in one call."""
    for stream in streams:
        if stream.is_split:
            common = host.get_value(stream.common)
            host.set_value(stream.source, derived(common, ROWS, rank))
