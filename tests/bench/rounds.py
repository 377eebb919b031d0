"""A family's run: start its peers, check their results, let them take turns."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import psutil

from .driver import Memory, Peer, PeerError, Spec
from .work import Options

MOST_CALLS = 10_000
"""Calls in one turn."""


SETTLING = 5
"""Seconds within which peers are to come to rest."""

QUIET = 0.05
"""Of a core; what all peers together may take."""


class Entry(NamedTuple):
    """A row of a table: what one peer is asked, with ``{}`` for the column.

    Attributes
    ----------
    label, peer : str
    time, check : str
        Questions: for the seconds of a call, and for what is to be right.
    skip : str, optional
        Why it is not measured.
    run : str, optional
        Question for the times from the first call on.
    tune : str, optional
        Question that has it choose how to compute, if it does so by itself otherwise,
        as calls come; answered with its choice.
    """

    label: str
    peer: str
    time: str
    check: str
    skip: str | None = None
    run: str | None = None
    tune: str | None = None


class Aim(NamedTuple):
    """How many times synk's time others should take at least.

    Attributes
    ----------
    label : str
        How the others' labels begin; the fastest of them counts.
    at_least : dict of str to float
        By column.
    ours : tuple of str
        Labels of synk, of which the fastest counts, too; by default the first row.
    """

    label: str
    at_least: dict[str, float]
    ours: tuple[str, ...] = ()


@dataclass
class Family:
    """Implementations of one thing.

    Attributes
    ----------
    title : str
    columns : dict of str to str
        What stands for ``{}`` in questions, and the heading.
    peers : dict of str to Spec
    entries : list of Entry
        The first one is what the others are compared with.
    steps : int
        The number in the question that checks an entry.
    judge : callable
        Called with a column and the answers of a peer's processes; returns what is
        wrong, or None.
    pause : float
        Seconds before every turn.
    aims : list of Aim
    first : tuple of str
        Columns of which first calls are measured.
    """

    title: str
    columns: dict[str, str]
    peers: dict[str, Spec]
    entries: list[Entry]
    steps: int
    judge: Callable[[str, list], str | None]
    pause: float
    aims: list[Aim] = field(default_factory=list)
    first: tuple[str, ...] = ()


@dataclass
class Table:
    """What a run of a family gave, by the entries' labels.

    Attributes
    ----------
    family : Family
    rounds : dict
        Seconds of a call, by column and round.
    skipped, failed : dict
        Reasons.
    versions : dict
        What peers said of themselves.
    idle : dict
        Shares of a core, by peer.
    chosen : dict
        How to compute a column, by what chooses that by itself.
    memory : dict
        During the rounds.
    cold, warm : dict
        Seconds of each call from the first one on, by column: in a process that finds
        nothing compiled on disk, and in the next one.
    """

    family: Family
    rounds: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    idle: dict[str, float] = field(default_factory=dict)
    chosen: dict[str, dict[str, str | None]] = field(default_factory=dict)
    memory: dict[str, Memory] = field(default_factory=dict)
    cold: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    warm: dict[str, dict[str, list[float]]] = field(default_factory=dict)

    def median(self, label: str, column: str) -> float | None:
        """Return the median over the rounds, in seconds."""
        values = self.rounds.get(label, {}).get(column)
        return statistics.median(values) if values else None

    def ratio(self, label: str, column: str) -> float | None:
        """Return the median as a multiple of the first entry's."""
        ours = self.median(self.family.entries[0].label, column)
        theirs = self.median(label, column)
        return None if ours is None or theirs is None else theirs / ours


def run(family: Family, options: Options, say: Callable[[str], object]) -> Table:
    """Measure; peers that are missing or fail are noted in the table, not raised."""
    table = Table(family)
    peers: dict[str, Peer] = {}
    try:
        _start(table, peers, options, say)
        entries = [entry for entry in family.entries if _is_fit(table, entry, peers)]
        calls = {}
        for entry in list(entries):
            say(f"checking {entry.label}")
            try:
                calls[entry] = _prepare(table, entry, peers[entry.peer], options)
            except PeerError as error:
                _drop(table, entries, entry, str(error), say)
        table.idle = _idle(peers, options.look)
        for peer in peers.values():
            peer.forget_peaks()
        _take_turns(table, entries, calls, peers, options, say)
        for entry in entries:
            table.memory[entry.label] = peers[entry.peer].memory()
    finally:
        for peer in peers.values():
            peer.end()
    return table


def _start(table: Table, peers: dict[str, Peer], options: Options, say) -> None:
    """Start all peers at once, and wait for them."""
    family = table.family
    names = {entry.peer for entry in family.entries if entry.skip is None}
    for name, spec in family.peers.items():
        missing = spec.missing()
        if missing:
            _note(table.skipped, table, name, f"needs {', '.join(missing)}")
        elif name in names:
            peers[name] = Peer(name, spec, options)
    for name, peer in list(peers.items()):
        say(f"starting {name}")
        try:
            peer.wait_until_ready()
            table.versions.update(peer.versions)
        except PeerError as error:
            _note(table.failed, table, name, str(error))
            say(f"failed: {error}")
            peers.pop(name).end()


def _note(notes: dict[str, str], table: Table, peer: str, text: str) -> None:
    """Take note of what concerns all rows of a peer."""
    for entry in table.family.entries:
        if entry.peer == peer:
            notes[entry.label] = text


def _is_fit(table: Table, entry: Entry, peers: dict[str, Peer]) -> bool:
    if entry.skip is not None:
        table.skipped[entry.label] = entry.skip
    return entry.skip is None and entry.peer in peers


def _prepare(
    table: Table, entry: Entry, peer: Peer, options: Options
) -> dict[str, int]:
    """Check an entry's results, and find how many calls make a turn."""
    calls = {}
    for column in table.family.columns:
        if entry.tune:
            (choice,) = peer.ask(entry.tune.format(column), 0)
            table.chosen.setdefault(entry.label, {})[column] = choice
        answers = peer.ask(entry.check.format(column), table.family.steps)
        complaint = table.family.judge(column, answers)
        if complaint:
            raise PeerError(f"{entry.label}, {column}: {complaint}")
        calls[column] = _calls_in_a_turn(peer, entry.time.format(column), options.turn)
    return calls


def _calls_in_a_turn(peer: Peer, question: str, turn: float) -> int:
    number = 1
    while True:
        seconds = max(1e-9, *peer.ask(question, number))
        if number * seconds >= turn / 10 or number == MOST_CALLS:
            return max(1, min(MOST_CALLS, round(turn / seconds)))
        number = min(MOST_CALLS, 10 * number)


def _idle(peers: dict[str, Peer], look: float) -> dict[str, float]:
    """Return the share of one core that peers take while nobody asks them, and others.

    What waits must not take a core from the one whose turn it is. Some are busy for a
    few seconds after their start.
    """
    shares: dict[str, float] = {}
    for _ in range(SETTLING):
        before = {name: peer.cpu_seconds() for name, peer in peers.items()}
        busy, start = _busy_seconds(), time.perf_counter()
        time.sleep(look)
        seconds = time.perf_counter() - start
        everybody = (_busy_seconds() - busy) / seconds
        shares = {
            name: (peer.cpu_seconds() - before[name]) / seconds
            for name, peer in peers.items()
        }
        if sum(shares.values()) < QUIET:
            break
    return {**shares, "other programs": max(0.0, everybody - sum(shares.values()))}


def _busy_seconds() -> float:
    times = psutil.cpu_times()
    return sum(times) - times.idle - times.iowait - times.guest - times.guest_nice


def _take_turns(table: Table, entries, calls, peers, options: Options, say) -> None:
    for i in range(options.repeats):
        say(f"{table.family.title}: round {i + 1} of {options.repeats}")
        for column in table.family.columns:
            # Another one begins in every round: none always comes after the same one.
            first = i % max(1, len(entries))
            for entry in [*entries[first:], *entries[:first]]:
                time.sleep(table.family.pause)
                question = entry.time.format(column)
                try:
                    answers = peers[entry.peer].ask(question, calls[entry][column])
                except PeerError as error:
                    _drop(table, entries, entry, str(error), say)
                    continue
                row = table.rounds.setdefault(entry.label, {})
                row.setdefault(column, []).append(max(answers))


def _drop(
    table: Table, entries: list[Entry], entry: Entry, text: str, say: Any
) -> None:
    """Go on without a peer that failed, and without the times it gave."""
    say(f"failed: {text}")
    for other in [other for other in entries if other.peer == entry.peer]:
        entries.remove(other)
        table.failed[other.label] = text
        table.rounds.pop(other.label, None)


# -- first calls: of every peer alone, with nothing compiled on disk, and again

FAST = 1.2
"""Times the median of the rounds: what counts as the speed that is reached."""

IN_A_ROW = 5
"""Calls whose median is to be as fast."""


def measure_firsts(
    table: Table, options: Options, say: Callable[[str], object]
) -> None:
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
