"""Where the time of a call goes, as bars: what HTML and the picture show alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from .facts import Facts, RankTimes
from .words import number


class Phase(NamedTuple):
    """A part of a bar: its key, what it is called, and its colour.

    The colours are those of Okabe and Ito, told apart by the colour-blind, with a grey
    for waiting; they are seen on white as on black.
    """

    key: str
    label: str
    colour: str


PHASES = (
    Phase("rows", "taking rows", "#56b4e9"),
    Phase("compute", "compute on rows", "#0072b2"),
    Phase("common", "compute on every rank", "#009e73"),
    Phase("wait", "wait", "#999999"),
    Phase("reduce", "reduce", "#e69f00"),
    Phase("nodes", "between nodes", "#d55e00"),
    Phase("serial", "serial run", "#cc79a7"),
)
"""In the order in which they are stacked."""


@dataclass(frozen=True)
class Bar:
    """A rank's mean time in a call, or that of the serial run.

    Attributes
    ----------
    label : str
    rows : float
    parts : dict of str to float
        Milliseconds by the phases' keys; `compute` is without `common` here.
    """

    label: str
    rows: float
    parts: dict[str, float]

    @property
    def total(self) -> float:
        """Milliseconds of all parts."""
        return sum(self.parts.values())


def bars(facts: Facts) -> list[Bar]:
    """Return a bar for each rank whose times are known, and for the serial run."""
    calls, serial = facts.calls, facts.serial
    several = len(facts.nodes) > 1
    ranks = [] if calls is None else calls.ranks
    found = [_of_rank(times, several) for times in ranks]
    if serial is not None:
        found.append(Bar("serial run", serial.rows, {"serial": serial.milliseconds}))
    return found


def phases(shown: list[Bar]) -> list[Phase]:
    """Return what the bars are divided into.

    Where no stage follows an all-reduce nothing is common, and computing is one part.
    """
    used = [phase for phase in PHASES if any(phase.key in bar.parts for bar in shown)]
    if any(bar.parts.get("common") for bar in shown):
        return used
    return [
        phase._replace(label="compute") if phase.key == "compute" else phase
        for phase in used
        if phase.key != "common"
    ]


def label_with_rows(bar: Bar, shown: list[Bar]) -> str:
    """Return a bar's label, and its rows if the serial run is of another call's."""
    of_ranks = sum(other.rows for other in shown if "serial" not in other.parts)
    if "serial" in bar.parts and of_ranks and abs(bar.rows - of_ranks) >= 0.5:
        return f"{bar.label},\n{number(bar.rows)} rows"
    return bar.label.replace(" (", "\n(")  # the node below the rank: bars are narrow


def _of_rank(times: RankTimes, several_nodes: bool) -> Bar:
    parts = {
        "rows": times.rows,
        "compute": times.compute - times.common,
        "common": times.common,
        "wait": times.wait,
        "reduce": times.reduce,
    }
    if not several_nodes:
        return Bar(f"rank {times.rank}", times.share, parts)
    parts["nodes"] = times.nodes
    return Bar(f"rank {times.rank} (node {times.node})", times.share, parts)
