"""The stages of a call as blocks, one below the other: what all drawings show.

A block is what ranks do side by side, or where they meet::

    rows       every rank computes on rows of its own
    common     every rank computes the same
    meeting    all ranks combine values
    end        rank 0 has the results
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from . import words
from .facts import Facts, StageFacts

_MOST = 4
"""Lines, Ops and variables of a stage that are named."""

Kind = Literal["rows", "common", "meeting", "end"]


@dataclass(frozen=True)
class Block:
    """A part of a drawing: what it is, a title, and what it says below."""

    kind: Kind
    title: str
    texts: list[str]


def title(facts: Facts) -> str:
    """Say how often ranks meet in a call, and over how much."""
    meetings = [stage for stage in facts.stages if stage.bytes]
    sizes = [size for stage in meetings for size in stage.bytes.values()]
    known = [size for size in sizes if size is not None]
    total = sum(known) if len(known) == len(sizes) else None
    values = sum(value.op != "read" for stage in meetings for value in stage.reduces)
    several = "ranks meet"
    if facts.ranks == 1:
        several = "it runs the graph in one piece, and several would meet"
    if not meetings:
        return f"{words.head(facts)}; {several} at the end of a call alone"
    return (
        f"{words.head(facts)}; {several} {_count(len(meetings), 'time')} in a call,"
        f" over {_count(values, 'value')} of {words.nbytes(total)}"
    )


def lanes(facts: Facts) -> int:
    """Return how many ranks are drawn beside each other."""
    return min(8, max(2, facts.ranks or 2))


def blocks(facts: Facts) -> Iterator[Block]:
    """Return what happens in a call, from its begin to its end."""
    for level, stage in words.levels(facts.stages):
        if stage is None:
            yield Block("rows", f"and {level} more stages with their meetings", [])
        else:
            yield from _of_stage(level, stage)
    after = [
        f"{words.short(output.name)}: {output.op or 'of rank 0'}"
        for output in facts.outputs
        if output.combined == "combined after the call"
    ]
    if after:
        yield Block("end", "after the call", after)


def _of_stage(level: int, stage: StageFacts) -> Iterator[Block]:
    is_own = stage.computes == "on rows"
    on = "each rank on its own rows" if is_own else "every rank the same"
    texts = stage.lines[:_MOST]
    if len(stage.lines) > _MOST:
        texts = [*texts, f"and {len(stage.lines) - _MOST} more lines"]
    if stage.repeats:
        texts = [*texts, f"of all rows, on every rank: {words.some(stage.repeats)}"]
    made = [f"gives {words.short(name)}" for name in stage.outputs]
    if stage.updates:
        values = "values" if len(stage.updates) > 1 else "value"
        made.append(f"gives the new {values} of {words.some(stage.updates)}")
    if stage.computes != "nothing" or texts or made:
        kind: Kind = "rows" if is_own else "common"
        yield Block(kind, f"stage {level}, {on}", [*texts, *made])
    if stage.bytes:
        is_gather = all(value.op in ("gather", "read") for value in stage.reduces)
        what = "gather" if is_gather else "all-reduce"
        yield Block("meeting", f"{what} {words.sizes(stage)}", words.reductions(stage))
    elif stage.reduces:
        yield Block("common", "no meeting: inputs are read", words.reductions(stage))


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"
