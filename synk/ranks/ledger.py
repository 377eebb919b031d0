"""The ledger of state: what the ranks hold of each shared variable, and since when.

The master's shared variables are the script's, and those of the other ranks replicas.
Mostly all ranks have one value. What makes them differ is a command of the master's, a
function or a collective, which notes here what it has made of each variable. Before a
function or a collective reads a variable, the ledger tells whether the script has given
it another value meanwhile, which all ranks are to get then.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
from pytensor.compile import SharedVariable

from ..engines import plain_functions

Kind: TypeAlias = Literal["replicated", "local", "sharded", "unknown"]


@dataclass(frozen=True)
class Holding:
    """What the ranks hold of a shared variable, and `since` when."""

    # The same value on all ranks; a value of each rank's own; the rows of a whole that
    # was scattered; or what nothing is known of.
    kind: Kind
    since: str
    # From how many rows each rank's own value was computed; how many its part has.
    rows: tuple[int, ...] | None = None
    # Replicated, as a function reduces what was written for a rank's own rows.
    made_whole: bool = False

    def __str__(self) -> str:
        rows = ", ".join(map(str, self.rows or ()))
        what: str = self.kind
        if what == "local":
            what = "local to each rank" + (f", from {rows} rows" if rows else "")
        elif what == "sharded":
            what = f"sharded in {rows} rows"
        return f"{what}, since {self.since}"


OF_SCRIPT = Holding("replicated", "it was set in the script")
REPLICATED = Holding("replicated", "the ranks were given its value")


class LedgerEntry:
    """One variable in the ledger, or several that share one value."""

    def __init__(self, variable: SharedVariable) -> None:
        self.storage = variable.container.storage
        self.holding = REPLICATED
        # What was scattered, all of its rows, as long as the ranks have just that, and
        # if it is to come back after a death.
        self.kept: np.ndarray | None = None
        # How often the ranks got what the script had set, and how many bytes each.
        self.times_brought = self.bytes_brought = 0
        # How often a plain function may have written to the value's array.
        self.times_written = 0
        # The value that the ranks know, or NOTHING if it was written over. The ledger
        # holds it, so that no other object can come to have its identity.
        self.seen: Any = self.storage[0]

    def see(self) -> None:
        """Take the value that the variable has now for what the ranks know."""
        self.seen = self.storage[0]

    def unsee(self) -> None:
        """Take the value for another one than the ranks know."""
        self.seen = NOTHING

    @property
    def is_set(self) -> bool:
        """Whether the script has given the variable another value since."""
        return self.storage[0] is not self.seen


NOTHING = object()


def set_among(entries: Iterable[LedgerEntry]) -> list[LedgerEntry]:
    """Return the variables that the script has given another value; in every call."""
    return [entry for entry in entries if entry.storage[0] is not entry.seen]


def see_converted(entries: Iterable[LedgerEntry]) -> None:
    """Take values for what the ranks know that an engine has brought into its form."""
    for entry in entries:
        value, seen = entry.storage[0], entry.seen
        if value is not seen and type(value) is not type(seen):
            entry.seen = value


class Ledger:
    """What the ranks of one session hold."""

    def __init__(self) -> None:
        self.version = 0  # another one whenever some variable is held in another way
        # What is being made, see `undoing`. It is there until it is made, or undone:
        # who finds it in a later call finds one that an interrupt has cut short.
        self.launch: Any = None
        # What was noted before it of what it has changed.
        self.former: list[tuple[LedgerEntry, Holding, np.ndarray | None]] = []
        self._entries: weakref.WeakKeyDictionary[Any, LedgerEntry]
        self._entries = weakref.WeakKeyDictionary()
        self._by_storage: weakref.WeakValueDictionary[int, LedgerEntry]
        self._by_storage = weakref.WeakValueDictionary()
        self._variables: weakref.WeakSet[SharedVariable] = weakref.WeakSet()
        plain_functions.tell(self._set_in_place, self.moved)

    def close(self) -> None:
        """Leave plain functions as PyTensor has them."""
        plain_functions.tell_no_more(self._set_in_place)

    def variables(self) -> list[SharedVariable]:
        """Return the variables that have entries, and are there still."""
        return list(self._variables)

    def entries(self, variables: Iterable[SharedVariable]) -> list[LedgerEntry]:
        """Return variables' entries; new ones say that all ranks have their values."""
        found: list[LedgerEntry] = []
        for var in variables:
            self._variables.add(var)
            entry = self._entries.get(var.container)
            if entry is None:
                entry = self._entries[var.container] = LedgerEntry(var)
                self._by_storage[id(entry.storage)] = entry
            found.append(entry)
        return found

    def of(self, variable: SharedVariable) -> Holding:
        """Return what the ranks hold of a variable, or are about to be given."""
        (entry,) = self.entries([variable])
        return OF_SCRIPT if entry.is_set else entry.holding

    def note(self, variables: Iterable[SharedVariable], holding: Holding) -> None:
        """Take note that the ranks hold variables in a new way, or another value."""
        for entry in self.entries(variables):
            self.note_entry(entry, holding)

    def note_entry(self, entry: LedgerEntry, holding: Holding) -> None:
        """Take note of it by the entry."""
        former = entry.holding
        # First: an interrupt may come between the two, and `take_back` is to find it.
        self.former.append((entry, former, entry.kept))
        entry.holding, entry.kept = holding, None
        if (former.kind, former.rows) != (holding.kind, holding.rows):
            self.version += 1  # functions look at their variables again
        entry.see()

    def keep(
        self, variables: Iterable[SharedVariable], wholes: Iterable[np.ndarray]
    ) -> None:
        """Keep copies of what was scattered, until something else becomes of it."""
        for entry, whole in zip(self.entries(variables), wholes, strict=True):
            entry.kept = np.array(whole, entry.storage[0].dtype)

    # -- launches, of which everything is noted or nothing

    def take_back(self) -> None:
        """Take back what was noted in the launch."""
        for entry, holding, kept in reversed(self.former):
            entry.holding, entry.kept = holding, kept
            self.version += 1

    def settle(self) -> None:
        """Undo a launch that an interrupt kept from doing so itself."""
        # That is one which comes as Python enters `Launch.__exit__`, or each time that
        # the launch is being undone.
        launch = self.launch
        if launch is None:
            return
        launch.check_abandoned()
        # What the script has set since the interrupt is not the launch's, and stays:
        # to undo that puts back what there was before, so it is set once more.
        since = [
            (entry, entry.storage[0])
            for entry in list(self._entries.values())
            if entry.is_set and not launch.has_stored(entry.storage)
        ]
        try:
            launch.fail(KeyboardInterrupt())
        finally:
            for entry, value in since:
                entry.storage[0] = value
                entry.unsee()

    # -- values

    def bring(self, variables: Iterable[SharedVariable]) -> None:
        """Take note that the ranks are given what the script has set."""
        for entry in self.entries(variables):
            self.note_entry(entry, OF_SCRIPT)
            entry.times_brought += 1
            entry.bytes_brought += getattr(entry.storage[0], "nbytes", 0)

    def see(self, variables: Iterable[SharedVariable]) -> None:
        """Take note that the master's values are what the ranks know of."""
        for entry in self.entries(variables):
            entry.see()

    def moved(self, values: Iterable[tuple[Any, Any]]) -> None:
        """Take note that values, (old, new) arrays, were copied to elsewhere."""
        for entry in list(self._entries.values()):
            for old, new in values:
                if entry.seen is old and entry.storage[0] is new:
                    entry.see()

    def _set_in_place(self, storage: list[Any]) -> None:
        """Take note that a plain function may have written to a variable's array."""
        entry = self._by_storage.get(id(storage))
        # Another list may have the number of one that is gone.
        if entry is not None and entry.storage is storage:
            entry.times_written += 1
            entry.unsee()
