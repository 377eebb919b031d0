"""What the death of ranks has left of the shared variables.

The master's values are there. A variable that was equal on all ranks is what the master
has, as it has undone its own share of a call that failed. Of the others, the values of
the ranks are gone with these.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from pytensor.compile import SharedVariable

from ..errors import WorkerDied
from ..user_frames import callers_level
from .ledger import Holding, Ledger


def carry_over(ledger: Ledger, death: WorkerDied, to: Ledger) -> list[SharedVariable]:
    """Tell a new session's ledger what the old one says of the script's variables.

    Parameters
    ----------
    ledger : Ledger
        Of the session that broke.
    death : WorkerDied
    to : Ledger

    Returns
    -------
    list of SharedVariable
        Of which values are lost.
    """
    lost = []
    for var in ledger.variables():
        (entry,) = ledger.entries([var])
        if entry.is_set or entry.holding.kind == "replicated":
            continue  # all ranks are given what the master has
        (new,) = to.entries([var])
        if entry.kept is not None:
            to.note_entry(new, entry.holding)
            new.kept = entry.kept
            continue
        holding = entry.holding
        if holding.kind != "unknown":
            holding = Holding("unknown", f"{death.who} died")
        to.note_entry(new, holding)
        lost.append(var)
    return lost


def warn_of_restart(
    death: WorkerDied, lost: Sequence[SharedVariable], restarts_left: int
) -> None:
    """Say that all ranks were started again, and what is lost."""
    text = f"{death.what_happened}; synk has started all ranks again"
    text += f" ({restarts_left} restarts left)"
    if lost:
        names = ", ".join(map(str, lost))
        text += f". The ranks' own values of {names} are lost: see synk.state"
    warnings.warn(text, RuntimeWarning, stacklevel=callers_level())
