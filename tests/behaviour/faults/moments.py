"""Moments at which a rank meets a fault, hit exactly.

A moment is a place in synk that is patched before the session forks, so that the ranks
inherit the patch. It does nothing until it is armed, and then once: the board that all
processes share says so, so that ranks forked later have nothing to fear.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from processes import acting, board, note, stamp
from trial import ARMED, Trial
from work import X, compare

import synk

VICTIM = 2


def arm(ranks: Sequence[int], visits: int = 1) -> None:
    """Have ranks act at that visit of theirs to their moment."""
    for rank in ranks:
        note(ARMED + rank, visits)


def is_due() -> bool:
    """Tell whether this rank is to act now."""
    place = ARMED + synk.rank()
    left = board(place)
    if left:
        note(place, left - 1)
    return left == 1


class Moment(NamedTuple):
    """A place in synk that ranks come to.

    Attributes
    ----------
    module, name : str
        The function there; of a class with a dot.
    activity : str
        The method of `Work` that makes ranks come there.
    visits : int
        Which time counts.
    after : bool
        Whether the function is done before the fault.
    """

    module: str
    name: str
    activity: str
    visits: int = 1
    after: bool = False


MOMENTS = {
    "before it reads the command": Moment(
        "workers.channel", "WorkerChannel.read", "step"
    ),
    "before it takes its rows": Moment("call.share", "take_share", "step"),
    "before a barrier": Moment(
        "comm.shm", "SharedMemoryComm.next_meeting", "collective"
    ),
    "between two barriers": Moment(
        "comm.shm", "SharedMemoryComm.next_meeting", "collective", visits=2
    ),
    "between stages": Moment("programs.one_call", "Call.reduce", "step", after=True),
    "storing an update": Moment("programs.transaction", "Transaction.store", "step"),
    "writing its result": Moment("memory.arena", "Arena.put", "scores"),
    "with its result written": Moment(
        "ranks.context", "RankContext.leave", "scores", after=True
    ),
    "before it replies": Moment("workers.channel", "WorkerChannel.reply", "total"),
    "in a broadcast": Moment("variables.collectives", "store", "collective"),
    "getting a function": Moment("ranks.replication", "load_graph", "new_function"),
    "compiling": Moment("programs.programs", "Programs.compile", "new_function"),
}


def at(
    moment: str,
    fault: Callable[[], object],
    ranks: Sequence[int] = (VICTIM,),
    **options: Any,
):
    """Return a row's `play`: ranks meet a fault at a moment."""
    place = MOMENTS[moment]

    def play(trial: Trial) -> Callable[[], object]:
        _patch(trial, place, fault)
        trial.fork(3, place.activity, **options)
        arm(ranks, place.visits)
        return getattr(trial.work, place.activity)

    return play


def _patch(trial: Trial, place: Moment, fault: Callable[[], object]) -> None:
    owner: Any = importlib.import_module(f"synk.{place.module}")
    *path, name = place.name.split(".")
    for part in path:
        owner = getattr(owner, part)
    original = getattr(owner, name)

    def patched(*args: Any, **options: Any) -> Any:
        if place.after:
            result = original(*args, **options)
            if is_due():
                fault()
            return result
        if is_due():
            fault()
        return original(*args, **options)

    trial.patch.setattr(owner, name, patched)


def computing(
    fault: Callable[[], object],
    rank: int | None = VICTIM,
    of_call: Mapping[str, Any] = MappingProxyType({}),
    **options: Any,
):
    """Return a row's `play`: an Op of one rank, or of all (None), meets a fault.

    Further arguments are those of the call, and of `synk.fork`.
    """

    def play(trial: Trial) -> Callable[[], object]:
        call = acting(rank, _fault_if_due, fault)
        trial.fork(3, **options)
        arm(range(3) if rank is None else [rank])
        return lambda: compare(call(X, **of_call), X.sum(), "the sum")

    return play


def _fault_if_due(fault: Callable[[], object]) -> None:
    if is_due():
        stamp()
        fault()
