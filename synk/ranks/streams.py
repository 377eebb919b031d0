"""Random streams: those that all ranks have alike, and each rank's own.

No rank keeps *common* streams (`compiler.placement.streams`): every launch tells them
the state of the master's variable, which the common stream's last state replaces when
all ranks have come to the end. So they cannot come apart, whatever has failed before.

Where ranks draw for themselves, the stream of rank r follows from the original's
present state and r (see `draws.derived`). Rank 0 keeps the original.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from pytensor.compile import SharedVariable

from ..compiler.placement.streams import CommonStream
from ..draws import RANK, ROWS, derived, generator_in
from ..engines import host

State = tuple[type[np.random.BitGenerator], Any]
"""The kind of a generator, and its state."""


def value_for_rank(value: Any, rank: int) -> Any:
    """Return `value`, or for a random generator the stream of `rank`."""
    if rank and isinstance(value, np.random.Generator):
        return derived(value, RANK, rank)
    return value


def master_states(streams: Sequence[CommonStream]) -> list[State]:
    """Return what the common streams of a launch begin with, for the master too."""
    bits = [host.get_value(stream.source).bit_generator for stream in streams]
    states = [(type(each), each.state) for each in bits]
    worker_states(streams, states)
    return states


def lead_on(streams: Sequence[CommonStream]) -> None:
    """Have the user's variables go on where a launch's common streams have ended."""
    # After an error that is where they are when it has been undone.
    for stream in streams:
        bits = host.get_value(stream.common).bit_generator
        _set_state(stream.source, type(bits), bits.state)


def worker_states(streams: Sequence[CommonStream], states: Sequence[State]) -> None:
    """Take what the common streams of a launch begin with."""
    for stream, state in zip(streams, states, strict=True):
        _set_state(stream.common, *state)


def _set_state(
    variable: SharedVariable, kind: type[np.random.BitGenerator], state: Any
) -> None:
    """Have a variable's generator go on from a state."""
    # The generator is the same one from call to call: numba has to prepare one that it
    # has not met.
    bits: Any = host.get_value(variable).bit_generator
    if type(bits) is kind:
        bits.state = state
    else:
        host.set_value(variable, generator_in(kind, state))


def split(streams: Sequence[CommonStream], rank: int) -> None:
    """Derive from common streams what this rank draws for its rows in one call."""
    for stream in streams:
        if stream.is_split:
            common = host.get_value(stream.common)
            host.set_value(stream.source, derived(common, ROWS, rank))
