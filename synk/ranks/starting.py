"""What a session is started with, and what each of its ranks is told."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import cloudpickle

from ..cluster.launcher import copies
from ..memory import segment
from ..user_frames import callers_level
from ..workers import affinity, preconditions
from ..workers.control import Control
from ..workers.devices import Request, cores_by_rank, plan
from ..workers.records import Records
from .context import Place
from .script_seeds import ScriptSeeds
from .surroundings import Surroundings


class Asked(NamedTuple):
    """What `synk.fork` was asked for, checked; `synk.recover` starts the same again.

    Attributes
    ----------
    places : sequence of Place
        Of each rank.
    spin : bool
        Whether each has a core of its own.
    timeout : float or None
    restores : bool
        Whether what is scattered is kept, to be scattered again.
    restarts : int
    """

    places: Sequence[Place]
    spin: bool
    timeout: float | None
    restores: bool
    restarts: int


def check_asked(
    n: int | None,
    devices: Request,
    threads: int | None,
    timeout: float | None,
    on_death: str,
    restarts: int,
) -> Asked:
    """Check the arguments of `synk.fork`, and find a place for each rank."""
    cores = affinity.usable_cores()
    plans = plan(devices, preconditions.check_size(n), cores)
    preconditions.warn_of_few_cores(plans, cores)
    preconditions.warn_if_not_pinned()
    threads = preconditions.check_threads(threads)
    timeout = preconditions.check_timeout(timeout)
    if on_death not in ("report", "restore"):
        raise ValueError(f"on_death must be 'report' or 'restore', got {on_death!r}")
    restarts = preconditions.check_restarts(restarts)
    places = [
        Place(device, share, threads or len(share))
        for device, share in zip(plans, cores_by_rank(plans, cores), strict=True)
    ]
    spin = len(places) <= len(cores)
    return Asked(places, spin, timeout, on_death == "restore", restarts)


def warn_of_copies() -> None:
    """Warn in the second of the processes in which a launcher runs the script itself.

    It knows nothing of synk there: each copy forks ranks of its own, and does all.
    """
    found = copies()
    if found is None or found.rank != 1:
        return
    script = sys.argv[0] if sys.argv[0].endswith(".py") else "SCRIPT.py"
    often = "several times" if found.size is None else f"{found.size} times"
    count = "..." if found.size is None else found.size
    warnings.warn(
        f"{found.launcher} runs this script {often}: each run forks ranks of its own,"
        f" and does all of the work. Write `{found.launcher} -n {count} python -m synk"
        f" {script}` to have it run once, with ranks in all of these processes",
        RuntimeWarning,
        stacklevel=callers_level(),
    )


class Told(NamedTuple):
    """What each rank of a session is told when it is forked.

    Attributes
    ----------
    places : sequence of Place
    timeout : float or None
    control : tuple
        Where the session's control segment is.
    records : tuple
        Where the segment of its flight records is.
    surroundings : Surroundings
        Of the master.
    seeds : ScriptSeeds
        Of the script.
    nodes : tuple or None
        Where there are several: how many ranks each has, and which one this is.
    """

    places: Sequence[Place]
    timeout: float | None
    control: segment.Place
    records: segment.Place
    surroundings: Surroundings
    seeds: ScriptSeeds
    nodes: tuple[list[int], int] | None = None

    def dumps(self) -> bytes:
        """Return it as bytes; classes of the script's warnings are sent by value."""
        return cloudpickle.dumps(tuple(self))

    def find_control(self, known: Any) -> Control:
        """Return the session's control segment, which may be `known` already.

        A rank that was forked from a zygote of this very session has it, by whatever
        user the master runs meanwhile.
        """
        if isinstance(known, Control) and known.place == self.control:
            return known
        return Control.attach(self.control)

    def find_records(self, known: Any) -> Records:
        """Return the session's flight records, which may be `known` already."""
        if isinstance(known, Records) and known.place == self.records:
            return known
        return Records.attach(self.records)
