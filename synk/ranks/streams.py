"""States of random streams: common ones, equal on all ranks, and each rank's own.

A *common* stream (`compiler.placement.streams`) lasts for one launch. Every rank begins
with the state of the script's variable, which the launch carries. When all ranks have
come to the end, the script's variable gets the common stream's last state. So ranks
cannot have different states, whatever failed before.

If ranks draw for themselves, rank 0 uses the script's stream, and rank r a stream
derived from the state of that and r (see `draws.derived`).
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
    """Return `value`; in place of a random generator, that of `rank`."""
    if rank and isinstance(value, np.random.Generator):
        return derived(value, RANK, rank)
    return value


def master_states(streams: Sequence[CommonStream]) -> list[State]:
    """Return the first states of a launch's common streams; set the master's."""
    bits = [host.get_value(stream.source).bit_generator for stream in streams]
    states = [(type(each), each.state) for each in bits]
    worker_states(streams, states)
    return states


def advance_sources(streams: Sequence[CommonStream]) -> None:
    """Set the script's variables to the present states of the common streams."""
    # After a launch these are the last states; after its undoing, the first ones.
    for stream in streams:
        bits = host.get_value(stream.common).bit_generator
        _set_state(stream.source, type(bits), bits.state)


def worker_states(streams: Sequence[CommonStream], states: Sequence[State]) -> None:
    """Set this rank's common streams to the states with which a launch begins."""
    for stream, state in zip(streams, states, strict=True):
        _set_state(stream.common, *state)


def _set_state(
    variable: SharedVariable, kind: type[np.random.BitGenerator], state: Any
) -> None:
    """Set the state of a variable's generator, of bit generator `kind`."""
    # The generator object stays the same from call to call, as numba takes time to
    # prepare a new one.
    bits: Any = host.get_value(variable).bit_generator
    if type(bits) is kind:
        bits.state = state
    else:
        host.set_value(variable, generator_in(kind, state))


def split(streams: Sequence[CommonStream], rank: int) -> None:
    """Derive from common streams the streams of this rank's rows, for one call."""
    for stream in streams:
        if stream.is_split:
            common = host.get_value(stream.common)
            host.set_value(stream.source, derived(common, ROWS, rank))
