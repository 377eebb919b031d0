"""A timeline: some calls of a training step on two ranks, as `synk.trace` wrote it."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure
from matplotlib.patches import Patch

from .steps import seen
from .style import BLUE, GREEN, GREY, ORANGE, SKY, WIDTH

COLOURS = {
    "rows": SKY,
    "compute, stage 0": BLUE,
    "compute, stage 1": GREEN,
    "wait": GREY,
    "reduce": ORANGE,
}
SHOWN = 3
"""Calls."""


def gather() -> list[dict[str, Any]]:
    """Return the phases within the shortest three calls that follow each other."""
    events = [event for event in seen().events if event["ph"] == "X"]
    calls = [event for event in events if event["name"] == "Function call"]
    spans = [
        (first["ts"], last["ts"] + last["dur"])
        for first, last in zip(calls, calls[SHOWN - 1 :], strict=False)
    ]
    start, end = min(spans, key=lambda span: span[1] - span[0])
    return [
        {**event, "name": _name(event), "ts": event["ts"] - start}
        for event in events
        if _name(event) in COLOURS and start <= event["ts"] < end
    ]


def _name(event: dict[str, Any]) -> str:
    name, stage = event["name"], event["args"].get("stage")
    return name if stage is None else f"{name}, stage {stage}"


def draw(events: list[dict[str, Any]]) -> Figure:
    """Draw a row of phases for each rank, over milliseconds."""
    figure = Figure((WIDTH, 1.9), layout="constrained")
    ax = figure.subplots()
    for name, colour in COLOURS.items():
        for rank in (0, 1):
            spans = [
                (event["ts"] / 1e3, event["dur"] / 1e3)
                for event in events
                if event["name"] == name and event["tid"] == rank
            ]
            ax.broken_barh(spans, (-rank - 0.35, 0.7), color=colour, linewidth=0)
    ax.set_yticks([0, -1], ["rank 0", "rank 1"])
    ax.set_xlim(left=0)
    ax.set_xlabel("ms")
    ax.tick_params(axis="y", length=0)
    ax.spines["left"].set_visible(False)
    patches = [Patch(color=colour, label=name) for name, colour in COLOURS.items()]
    figure.legend(handles=patches, loc="outside upper right", ncols=len(patches))
    return figure
