"""How the ranks hold the shared variables of a function, before and after a call.

The reductions of a function were placed for replicated variables. So before a call the
master brings the ranks the values that the script has set, and raises if a variable is
not replicated. After the call it enters the updated variables into the ledger.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, partial
from typing import TypeVar

import numpy as np
from pytensor.compile import SharedVariable
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import walk

from ..compiler.placement.streams import CommonStream
from ..compiler.proof import warn_user
from ..compiler.rules.base import is_stream
from ..compiler.spec import FunctionSpec
from ..errors import SplitError
from ..memory.partition import part_lengths
from ..ops import COLLECTIVES, Local
from ..programs.transaction import Transaction, insist
from ..ranks.ledger import Holding, LedgerEntry, mark_converted, set_by_script
from ..ranks.pool import Pool
from ..ranks.replication import master_bring
from ..ranks.session import SESSION
from ..ranks.undoing import Launch
from ..report.facts import Held
from ..user_frames import made_in

Result = TypeVar("Result")


class PlacementCheck:
    """Checks, before and after calls, how ranks hold one function's variables."""

    def __init__(self, spec: FunctionSpec) -> None:
        self._spec = spec
        self._what = spec.label
        self._made_for: weakref.ref[Pool] | None = None
        # The ledger's versions at which `_parts` and `_is_replicated` were found.
        self._version = self._version_known = -1
        self._is_replicated = False
        self._parts: tuple[SharedVariable, ...] = ()
        # The variables' entries in the present session's ledger.
        self._entries: dict[SharedVariable, LedgerEntry] = {}
        self.entries: list[LedgerEntry] = []
        self._streams: list[LedgerEntry] = []
        # How ranks hold the updated variables since the last call, and its ranks' rows.
        self._made: list[tuple[LedgerEntry, Holding]] | None = None
        self._rows: tuple[int, ...] | None = None
        self._has_complained = False
        # The number of a training rule's workers, if calls are their steps; and whether
        # all ranks of a machine are one worker.
        self.workers: int | None = None
        self.are_nodes = False

    def train_as(self, workers: int | None, are_nodes: bool = False) -> None:
        """Make calls steps of a training rule's workers; None ends that.

        `workers` is their number in `RankContext.workers`. With `are_nodes` the ranks
        of a machine are one worker.
        """
        self.workers, self.are_nodes = workers, are_nodes
        self._version = -1

    @cached_property
    def variables(self) -> list[SharedVariable]:
        """The variables that the function reads or updates."""
        return self._spec.shared_variables()

    @property
    def is_replicated(self) -> bool:
        """Whether all variables are replicated, so that the master has all values."""
        self._look_up()
        if self._version_known != SESSION.ledger.version:
            self._is_replicated = all(
                entry.is_set or entry.holding.kind == "replicated"
                for entry in self.entries
            )
            self._version_known = SESSION.ledger.version
        return self._is_replicated

    def check(self) -> tuple[SharedVariable, ...]:
        """Bring ranks the values that the script has set; raise if others do not fit.

        Return the sharded variables that the function reads as replicated.
        """
        self._look_up()
        if changed := set_by_script(self.entries):
            master_bring([v for v, entry in self._entries.items() if entry in changed])
        ledger = SESSION.ledger
        if ledger.version != self._version:
            self._parts = self._scattered_reads()
            self._made = None
            self._version = ledger.version
        return self._parts

    def _look_up(self) -> None:
        """Look up the variables in the ledger, if the session is a new one."""
        if SESSION.is_of(self._made_for):
            return
        self.entries = SESSION.ledger.entries(self.variables)
        self._entries = dict(zip(self.variables, self.entries, strict=True))
        known = self._entries.items()
        self._streams = [entry for var, entry in known if is_stream(var)]
        self._version = self._version_known = -1
        # Last: after an interrupt before this line, the next call looks them up again.
        self._made_for = weakref.ref(SESSION.pool)

    def check_parts(self, bounds: Sequence[int]) -> None:
        """Raise unless rows of inputs, cut at `bounds`, fit the sharded variables."""
        parts = self._spec.parts
        rows = [self._entries[var].holding.rows for var in parts]
        names = [str(var) for var in parts]
        if self._spec.inputs:
            rows.append(tuple(part_lengths(bounds)))
            names.append("the inputs")
        for name, of_rank in zip(names, rows, strict=True):
            if of_rank != rows[0]:
                raise SplitError(
                    f"{self._what} takes rows of {names[0]} together with those of"
                    f" {name}, and the ranks have {_shown(rows[0])} rows of the one and"
                    f" {_shown(of_rank)} of the other"
                )

    def note(self, rows: tuple[int, ...], batch_s: list | None = None) -> None:
        """Enter the updates of a call, on `rows[r]` rows of rank r, into the ledger."""
        ledger = SESSION.ledger
        made = self._made
        if made is None or rows != self._rows or self._spec.row_updates:
            made = self._made = self._holdings(rows, batch_s)
            self._rows = rows
        for entry, holding in made:
            if entry.holding is not holding:
                ledger.note_entry(entry, holding)
            else:
                entry.known = entry.storage[0]  # like `mark_known`, but faster
        self._note_without_updates()
        if ledger.version != self._version and not self._not_replicated():
            self._parts, self._version = (), ledger.version

    def launch(
        self, streams: Sequence[CommonStream], calls: Sequence[Sequence[int]] = ((),)
    ) -> Launch:
        """Return a launch, to be made in a ``with`` block, which is undone if it fails.

        `calls` has the bounds of rows in each call of a run. If it fails, those calls
        stay that all ranks have made.
        """
        return Launch(streams, len(calls), partial(self._failed, calls))

    def _failed(
        self, calls: Sequence[Sequence[int]], launch: Launch, error: BaseException
    ) -> None:
        """Enter the calls of a failed launch that stay into the ledger."""
        if SESSION.state not in ("running", "broken"):
            return
        if launch.calls_kept is None:
            holding = Holding("unknown", f"{self._what} failed: {error!r}")
            SESSION.ledger.note((var for var, _ in self._spec.updates), holding)
        elif launch.calls_kept:
            self.note(tuple(part_lengths(calls[launch.calls_kept - 1])))
        else:
            for var, _ in self._spec.updates:
                self._entries[var].mark_known()
            self._note_without_updates()

    def _note_without_updates(self) -> None:
        """Note changes of variables without updates: streams, and converted arrays."""
        for entry in self._streams:
            entry.mark_known()
        mark_converted(self.entries)

    def in_master(self, run: Callable[[Transaction], Result]) -> Result:
        """Return ``run(transaction)``, made in the master alone, undone if it fails.

        `run` begins a call of the transaction, and stores its updates by it. Raise
        SplitError if a variable is sharded, so that the master has only a part.
        """
        transaction, unset = Transaction(), self._unset_in_master()

        def undo() -> None:
            transaction.undo_to(0, 0)
            for entry in unset:  # an engine may have converted the value
                entry.mark_known()

        transaction.begin(0)
        # Not a context manager: an interrupt may come as Python enters `__exit__`.
        try:
            result = run(transaction)
            for entry in unset:
                if id(entry.storage) in self._updated:
                    entry.mark_unknown()
                else:
                    entry.mark_known()
        except BaseException:
            insist(undo)
            raise
        return result

    @cached_property
    def _updated(self) -> set[int]:
        """The ids of the updated storages; several variables may share one."""
        return {id(var.container.storage) for var, _ in self._spec.updates}

    def _unset_in_master(self) -> list[LedgerEntry]:
        """Return the entries not set since the ranks got them; raise as `in_master`."""
        if SESSION.state != "running":
            return []
        if not self.is_replicated:
            ledger = SESSION.ledger
            for var in self._needed if SESSION.size > 1 else ():
                if ledger.of(var).kind == "sharded":
                    raise SplitError(
                        f"{self._what}, run in the master alone, takes all of {var},"
                        f" and it is {ledger.of(var)}. Gather it by synk.all_gather"
                        " before"
                    )
        return [entry for entry in self.entries if not entry.is_set]

    def facts(self) -> list[Held]:
        """Return how the ranks hold the variables, for an explanation."""
        if SESSION.state != "running" or SESSION.size == 1:
            return []
        by_state: dict[str, list[SharedVariable]] = {}
        for var in self.variables:
            if not is_stream(var):
                by_state.setdefault(str(SESSION.ledger.of(var)), []).append(var)
        found = []
        for state, some in by_state.items():
            entries = SESSION.ledger.entries(some)
            times = sum(entry.times_brought for entry in entries)
            nbytes = sum(entry.bytes_brought for entry in entries)
            found.append(Held(list(map(str, some)), state, times, nbytes))
        return found

    def changes_what_it_reads(self, calls: Sequence[Sequence[int]]) -> bool:
        """Return whether a call makes a variable that the function reads, say, sharded.

        Then the next call needs another variant, or is refused.
        """
        spec = self._spec
        makes_others = spec.own_updates or spec.row_updates or self._not_replicated()
        if spec.is_local or self.are_nodes or not makes_others:
            return False
        taken = {*self._needed, *spec.parts}
        read = {entry for var, entry in self._entries.items() if var in taken}
        for rows in {tuple(part_lengths(bounds)) for bounds in calls}:
            for entry, after in self._holdings(rows, None):
                held = entry.holding
                if entry in read and (held.kind, held.rows) != (after.kind, after.rows):
                    return True
        return False

    # -- before a call

    def _not_replicated(self) -> list[tuple[SharedVariable, Holding]]:
        """Return the variables that are not replicated, and how ranks hold them.

        A single rank's own value is as good as a replicated one; but a sharded variable
        has rows, which slices divide.
        """
        fine = ["replicated"]
        if SESSION.size == 1:
            fine += ["local", "unknown"]
        return [
            (var, entry.holding)
            for var, entry in self._entries.items()
            if entry.holding.kind not in fine and not is_stream(var)
        ]

    def _scattered_reads(self) -> tuple[SharedVariable, ...]:
        """Return the sharded variables read as replicated; raise for local ones."""
        others = self._not_replicated()
        if not others or self.are_nodes:
            return ()
        if self._spec.is_local:
            if self.workers is None:
                self._complain(others)
            return ()
        taken = [(var, holding) for var, holding in others if var in self._needed]
        for var, holding in taken:
            if holding.kind != "sharded" or holding.rows is None:
                raise SplitError(
                    f"{self._what} takes {var} as replicated, and it is"
                    f" {holding}. {_REMEDIES[holding.kind]}"
                )
        return tuple([var for var, _ in taken])

    @cached_property
    def _needed(self) -> set[SharedVariable]:
        """The variables that must be replicated.

        Outputs and updates with an op named by the user may read a rank's own values.
        """
        spec = self._spec
        outputs = set(range(len(spec.plain_outputs))) - set(spec.unplaced_outputs)
        updates = set(range(len(spec.plain_updates))) - set(spec.unplaced_updates)
        news = [spec.plain_updates[i][1] for i in updates]
        return _read([*(spec.plain_outputs[i] for i in outputs), *news])

    def _complain(self, others: list[tuple[SharedVariable, Holding]]) -> None:
        """Warn if an output's op was proven for variables that are not replicated."""
        spec = self._spec
        if self._has_complained:
            return
        for var, finding in zip(spec.outputs, spec.findings, strict=True):
            if finding.named or not finding.agrees:
                continue
            read = _read([var])
            for shared, holding in others:
                if shared in read:
                    text = (
                        f"{finding.label} was shown to be {finding.kind}, with {shared}"
                        f" replicated, and that is {holding}. Give all ranks"
                        " one value first, by synk.all_reduce or synk.broadcast, or"
                        " name the op of the output, if it is meant: (variable, op)"
                    )
                    self._has_complained = not spec.is_strict
                    warn_user(text, spec.is_strict)
                    return

    # -- after a call

    def _holdings(
        self, rows: tuple[int, ...], batch_s: list | None
    ) -> list[tuple[LedgerEntry, Holding]]:
        """Return how the ranks hold the updated variables after a call."""
        spec, made = self._spec, []
        own = set(spec.own_updates)
        since = f"{self._what} has updated it"
        of_rows = rows if spec.row_inputs else None
        replicated = Holding("replicated", since)
        whole = Holding("replicated", since, None, True)
        others = dict(self._not_replicated())
        for i, (var, new) in enumerate(spec.updates):
            if is_stream(var):
                continue
            entry = self._entries[var]
            holding = whole if var in spec.made_whole else replicated
            if i in spec.row_updates:
                holding = self._of_rows(entry.holding, since, of_rows, batch_s)
            elif i in own:
                holding = Holding("local", _since(since, new), of_rows)
            elif self.are_nodes and SESSION.nodes > 1:
                holding = Holding("local", since)
            elif others:
                holding = self._inherited(new, others, since) or holding
            made.append((entry, holding))
        return made

    def _of_rows(
        self,
        before: Holding,
        since: str,
        rows: tuple[int, ...] | None,
        batch_s: list | None,
    ) -> Holding:
        """Return how ranks hold a variable whose new rows stay on each rank."""
        if self._spec.inputs:
            return Holding("sharded", since, rows)
        if before.kind == "replicated":
            held = {self._entries[var].holding.kind for var in self._spec.sliceable}
            chosen = batch_s or [None]
            alike = all(np.array_equal(some, chosen[0]) for some in chosen)
            if held != {"replicated"} or not alike:
                return Holding("local", since)
        return Holding(before.kind, since, before.rows)

    def _inherited(
        self, new: Variable, others: dict[SharedVariable, Holding], since: str
    ) -> Holding | None:
        """Return how ranks hold an update made from `others`; None if it reads none."""
        read = [others[var] for var in _read([new]) if var in others]
        if not read:
            return None
        if any(holding.kind == "unknown" for holding in read):
            return Holding("unknown", since)
        rows = {holding.rows for holding in read if holding.kind == "local"}
        return Holding("local", since, rows.pop() if len(rows) == 1 else None)


_REMEDIES = {
    "local": (
        "Give all ranks one value first, by synk.all_reduce, synk.broadcast or the"
        " variable's set_value, or make the function with local=True if each rank is"
        " to compute with its own"
    ),
    "sharded": (
        "Name it in sliceable_shareds, or gather it by synk.all_gather if every rank"
        " is to have all of it"
    ),
    "unknown": (
        "Give all ranks one value first, by synk.broadcast or the variable's set_value"
    ),
}


def _shown(rows: tuple[int, ...] | None) -> str:
    return "unknown numbers of" if rows is None else ", ".join(map(str, rows))


def _since(since: str, new: Variable) -> str:
    made = made_in(new)
    by = "by what its own rows or random streams give"
    return f"{since}, on each rank {by}" + ("" if made is None else f" ({made})")


def _read(graph: Iterable[Variable]) -> set[SharedVariable]:
    """Return the shared variables that a graph reads, but not below a collective.

    A reduced value is equal on all ranks. Nor below `Local`, which allows own values.
    """

    def inputs_of(var: Variable) -> list[Variable] | None:
        node = var.owner
        if node is None or isinstance(node.op, (*COLLECTIVES, Local)):
            return None
        return node.inputs

    return {var for var in walk(graph, inputs_of) if isinstance(var, SharedVariable)}
