"""A family's run: start its peers, check their results, let them take turns."""

import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import psutil

from .driver import Peer, PeerError, Spec
from .work import Options

MOST_CALLS = 10_000
"""Calls in one turn."""

SETTLING = 5
"""Looks within which peers are to come to rest: some are busy after their start."""

QUIET = 2
"""Percent of all processors that may be taken then."""

Say = Callable[[str], object]


class Entry(NamedTuple):
    """A row of a table: what one peer is asked, with ``{}`` for the column."""

    label: str
    peer: str
    time: str = "time {}"  # for the seconds of a call
    check: str = "check {}"  # for what is to be right
    run: str | None = None  # for the seconds of the first call
    tune: str | None = None  # a first call; answered with how it is computed


@dataclass
class Family:
    """Implementations of one thing; others are compared with the first entry."""

    title: str
    columns: dict[str, str]  # what stands for ``{}`` in questions, and the heading
    peers: dict[str, Spec]
    entries: list[Entry]
    # Called with a column and the answers of a peer's processes; says what is wrong.
    judge: Callable[[str, list], str | None]
    steps: int = 1  # the number in the question that checks an entry
    first: tuple[str, ...] = ()  # columns of which first calls are measured


@dataclass
class Table:
    """What a run of a family gave, by the entries' labels."""

    family: Family
    # Seconds of a call, by column and round.
    rounds: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    busy: float = 0.0  # percent of all processors, while nobody was asked
    chosen: dict[str, dict[str, str | None]] = field(default_factory=dict)
    memory: dict[str, int] = field(default_factory=dict)
    # Of the first calls of a process that finds nothing on disk, and of the next one.
    firsts: dict[str, dict[str, list[float]]] = field(default_factory=dict)

    def median(self, label: str, column: str) -> float | None:
        """Return the median over the rounds, in seconds."""
        values = self.rounds.get(label, {}).get(column)
        return statistics.median(values) if values else None

    def ratio(self, label: str, column: str) -> float | None:
        """Return the median as a multiple of the first entry's."""
        ours = self.median(self.family.entries[0].label, column)
        theirs = self.median(label, column)
        return None if ours is None or theirs is None else theirs / ours


def run(family: Family, options: Options, say: Say) -> Table:
    """Measure; peers that are missing or fail are noted in the table, not raised."""
    table = Table(family)
    peers: dict[str, Peer] = {}
    try:
        _start(table, peers, options, say)
        entries = [entry for entry in family.entries if entry.peer in peers]
        calls = {}
        for entry in list(entries):
            say(f"checking {entry.label}")
            try:
                calls[entry] = _prepare(table, entry, peers[entry.peer], options)
            except PeerError as error:
                _drop(table, entries, entry, str(error), say)
        for _ in range(SETTLING):
            table.busy = psutil.cpu_percent(options.look)
            if table.busy < QUIET:
                break
        _take_turns(table, entries, calls, peers, options, say)
        for entry in entries:
            table.memory[entry.label] = peers[entry.peer].memory()
    finally:
        for peer in peers.values():
            peer.end()
    return table


def _start(table: Table, peers: dict[str, Peer], options: Options, say: Say) -> None:
    """Start all peers at once, and wait for them."""
    for name, spec in table.family.peers.items():
        if missing := spec.missing():
            _note(table.skipped, table, name, f"needs {', '.join(missing)}")
        else:
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
        if complaint := table.family.judge(column, answers):
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


def _take_turns(
    table: Table, entries: list, calls: dict, peers: dict, options: Options, say: Say
) -> None:
    for i in range(options.repeats):
        say(f"{table.family.title}: round {i + 1} of {options.repeats}")
        for column in table.family.columns:
            # Another one begins in every round: none always comes after the same one.
            first = i % max(1, len(entries))
            for entry in [*entries[first:], *entries[:first]]:
                time.sleep(options.pause)
                question = entry.time.format(column)
                try:
                    answers = peers[entry.peer].ask(question, calls[entry][column])
                except PeerError as error:
                    _drop(table, entries, entry, str(error), say)
                    continue
                row = table.rounds.setdefault(entry.label, {})
                row.setdefault(column, []).append(max(answers))


def _drop(table: Table, entries: list, entry: Entry, text: str, say: Say) -> None:
    """Go on without a peer that failed, and without the times it gave."""
    say(f"failed: {text}")
    for other in [other for other in entries if other.peer == entry.peer]:
        entries.remove(other)
        table.failed[other.label] = text
        table.rounds.pop(other.label, None)


def measure_firsts(table: Table, options: Options, say: Say) -> None:
    """Fill `firsts` of a table, for the rows that have rounds.

    A process serves one column: what two columns share would make the second one's
    first call faster. It ends before the next one starts.
    """
    for entry in table.family.entries:
        if entry.run is None or entry.label not in table.rounds:
            continue
        for column in table.family.first:
            say(f"first calls: {entry.label}, {column}")
            try:
                with tempfile.TemporaryDirectory(prefix="bench-") as folder:
                    spec = table.family.peers[entry.peer].caching_in(folder)
                    found = [_first(spec, entry, column, options) for _ in range(2)]
            except PeerError as error:
                table.failed[f"{entry.label}, first calls"] = str(error)
                say(f"failed: {error}")
                break
            table.firsts.setdefault(entry.label, {})[column] = found


def _first(spec: Spec, entry: Entry, column: str, options: Options) -> float:
    assert entry.run is not None
    peer = Peer(entry.peer, spec, options)
    try:
        peer.wait_until_ready()
        return max(peer.ask(entry.run.format(column), 0))
    finally:
        peer.end()
