"""The ledger: how the ranks hold each shared variable, and since when.

The master has the script's shared variables, and the other ranks have replicas. Usually
all ranks have one value. Only a command of the master, for a function or a collective,
makes them differ, and notes that here. Before a function or a collective reads a
variable, the ledger shows whether the script has set it meanwhile; then the master
sends its value to all ranks.
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
    """How the ranks hold a shared variable."""

    # "replicated": the same value on all ranks; "local": a value of each rank's own;
    # "sharded": each rank has some rows of a whole; or "unknown".
    kind: Kind
    since: str  # the reason, for messages
    # By rank. Local: the number of rows from which the value was computed, if known.
    # Sharded: the number of rows that the rank has.
    rows: tuple[int, ...] | None = None
    # Whether it is replicated because synk placed a reduction in a function's update.
    made_whole: bool = False

    def __str__(self) -> str:
        rows = ", ".join(map(str, self.rows or ()))
        what: str = self.kind
        if what == "local":
            what = "local to each rank" + (f", from {rows} rows" if rows else "")
        elif what == "sharded":
            what = f"sharded in {rows} rows"
        return f"{what}, since {self.since}"


SET_BY_SCRIPT = Holding("replicated", "it was set in the script")
REPLICATED = Holding("replicated", "the ranks were given its value")


class LedgerEntry:
    """The entry of a storage: of one variable, or of several that share one value."""

    def __init__(self, variable: SharedVariable) -> None:
        self.storage = variable.container.storage
        self.holding = REPLICATED
        # With ``on_death="restore"``: a copy of the scattered array with all its rows,
        # as long as the ranks hold just these.
        self.kept: np.ndarray | None = None
        # How often the ranks got a value that the script had set; bytes to each rank.
        self.times_brought = self.bytes_brought = 0
        # How often a function of PyTensor may have written into the value's array.
        self.times_written = 0
        # The value that the ranks know, or NOTHING if it was overwritten in place. The
        # entry keeps it alive, so that no new object can have the same identity.
        self.known: Any = self.storage[0]

    def mark_known(self) -> None:
        """Note that the ranks know the variable's present value."""
        self.known = self.storage[0]

    def mark_unknown(self) -> None:
        """Note that the ranks do not know the variable's present value."""
        self.known = NOTHING

    @property
    def is_set(self) -> bool:
        """Whether the script has set the variable to a value that ranks do not know."""
        return self.storage[0] is not self.known


NOTHING = object()


def set_by_script(entries: Iterable[LedgerEntry]) -> list[LedgerEntry]:
    """Return the entries whose value the script has set. Every call asks this."""
    return [entry for entry in entries if entry.storage[0] is not entry.known]


def mark_converted(entries: Iterable[LedgerEntry]) -> None:
    """Note that ranks know values which an engine has converted to its own arrays."""
    for entry in entries:
        value, known = entry.storage[0], entry.known
        if value is not known and type(value) is not type(known):
            entry.known = value


class Ledger:
    """The entries of one session's variables, and the launch that changes them."""

    def __init__(self) -> None:
        self.version = 0  # counts up whenever a variable is held in another way
        # The present `undoing.Launch`, until it is complete or undone. If a later call
        # finds one here, an interrupt has cut that launch short.
        self.launch: Any = None
        # Holding and copy of each entry that the launch has changed, from before it.
        self.former: list[tuple[LedgerEntry, Holding, np.ndarray | None]] = []
        self._entries: weakref.WeakKeyDictionary[Any, LedgerEntry]
        self._entries = weakref.WeakKeyDictionary()
        self._by_storage: weakref.WeakValueDictionary[int, LedgerEntry]
        self._by_storage = weakref.WeakValueDictionary()
        self._variables: weakref.WeakSet[SharedVariable] = weakref.WeakSet()
        plain_functions.watch(self)

    def close(self) -> None:
        """Stop watching PyTensor's own functions."""
        plain_functions.stop_watching(self)

    def variables(self) -> list[SharedVariable]:
        """Return the variables that have entries and were not dropped by the script."""
        return list(self._variables)

    def entries(self, variables: Iterable[SharedVariable]) -> list[LedgerEntry]:
        """Return variables' entries; a new entry says that the value is replicated."""
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
        """Return how ranks hold a variable, or will if the script has set it since."""
        (entry,) = self.entries([variable])
        return SET_BY_SCRIPT if entry.is_set else entry.holding

    def note(self, variables: Iterable[SharedVariable], holding: Holding) -> None:
        """Note that the ranks hold new values of `variables`, and how."""
        for entry in self.entries(variables):
            self.note_entry(entry, holding)

    def note_entry(self, entry: LedgerEntry, holding: Holding) -> None:
        """Note that the ranks hold a new value of an entry's variable, and how."""
        former = entry.holding
        # First, so that `take_back` finds it if an interrupt comes after this line.
        self.former.append((entry, former, entry.kept))
        entry.holding, entry.kept = holding, None
        if (former.kind, former.rows) != (holding.kind, holding.rows):
            self.version += 1  # so functions check their variables again
        entry.mark_known()

    def keep(
        self, variables: Iterable[SharedVariable], wholes: Iterable[np.ndarray]
    ) -> None:
        """Keep copies of scattered arrays, to restore them after a death."""
        for entry, whole in zip(self.entries(variables), wholes, strict=True):
            entry.kept = np.array(whole, entry.storage[0].dtype)

    # -- launches, which are noted as a whole or not at all

    def take_back(self) -> None:
        """Restore the entries that the launch has changed."""
        for entry, holding, kept in reversed(self.former):
            entry.holding, entry.kept = holding, kept
            self.version += 1

    def settle(self) -> None:
        """Undo the launch that an interrupt has cut short, if there is one."""
        # That interrupt came as Python entered `Launch.__exit__`, or again and again
        # while the launch was being undone.
        launch = self.launch
        if launch is None:
            return
        launch.check_abandoned()
        # Values that the script has set since the interrupt must stay. The undoing
        # restores the values from before the launch, so they are set once more.
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
                entry.mark_unknown()

    # -- values

    def bring(self, variables: Iterable[SharedVariable]) -> None:
        """Note that the ranks get the values that the script has set."""
        for entry in self.entries(variables):
            self.note_entry(entry, SET_BY_SCRIPT)
            entry.times_brought += 1
            entry.bytes_brought += getattr(entry.storage[0], "nbytes", 0)

    def moved(self, values: Iterable[tuple[Any, Any]]) -> None:
        """Note that values were copied to other arrays, as pairs (old, new)."""
        for entry in list(self._entries.values()):
            for old, new in values:
                if entry.known is old and entry.storage[0] is new:
                    entry.mark_known()

    def set_in_place(self, storage: list[Any]) -> None:
        """Note that PyTensor's function may have written into a variable's array."""
        entry = self._by_storage.get(id(storage))
        # A new list may have the id of one that is gone.
        if entry is not None and entry.storage is storage:
            entry.times_written += 1
            entry.mark_unknown()
