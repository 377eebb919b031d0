"""First calls: of every peer alone, with nothing compiled on disk, and again."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable

from .driver import Peer, PeerError, Spec
from .options import Options
from .rounds import Entry, Table

FAST = 1.2
"""Times the median of the rounds: what counts as the speed that is reached."""

IN_A_ROW = 5
"""Calls whose median is to be as fast."""


def measure(table: Table, options: Options, say: Callable[[str], object]) -> None:
    """Fill `cold` and `warm` of a table, for the rows that have rounds.

    A process serves one column: what two columns share would make the second one's
    first call faster. It ends before the next one starts.
    """
    for entry in table.family.entries:
        if entry.run is None or entry.label not in table.rounds:
            continue
        for column in table.family.first:
            say(f"first calls: {entry.label}, {column}")
            try:
                cold, warm = _both(
                    table.family.peers[entry.peer], entry, column, options
                )
            except PeerError as error:
                table.failed[f"{entry.label}, first calls"] = str(error)
                say(f"failed: {error}")
                break
            table.cold.setdefault(entry.label, {})[column] = cold
            table.warm.setdefault(entry.label, {})[column] = warm


def _both(
    spec: Spec, entry: Entry, column: str, options: Options
) -> tuple[list[float], list[float]]:
    """Return the times of calls in a first process, and in a second one."""
    seconds = options.follow if entry.tune else 0
    assert entry.run is not None
    found = []
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        for _ in range(2):
            peer = Peer(entry.peer, spec.caching_in(folder), options)
            try:
                peer.wait_until_ready()
                answers = peer.ask(entry.run.format(column), seconds)
            finally:
                peer.end()
            found.append([max(times) for times in zip(*answers, strict=True)])
    cold, warm = found
    return cold, warm


def until_fast(times: list[float], steady: float) -> float | None:
    """Return the seconds before the calls from which on a call takes `steady`.

    None if they never do.

    >>> until_fast([3.0, 0.5, 0.5, 0.11, 0.1, 0.4, 0.1, 0.1], 0.1)
    4.0
    """
    for i in range(len(times) - IN_A_ROW + 1):
        calls = times[i : i + IN_A_ROW]
        if calls[0] <= FAST * steady and statistics.median(calls) <= FAST * steady:
            return sum(times[:i])
    return None


def calls_in(limit: float, first: float, steady: float) -> float:
    """Return how many calls fit into `limit` seconds, of which the first one is longer.

    >>> calls_in(60, 10, 0.5)
    101.0
    """
    return 1 + max(0.0, limit - first) / steady
