"""What is in the file of a trace: the Trace Event Format of Chromium's tracing.

On one machine the session is a process, and each rank a thread of it. Of several nodes
each is a process, with a further thread for what its master does with those of others;
all times are those of node 0's clock.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from ..cluster.clocks import Clock, Sample
from ..cluster.node import Node
from ..times.tracing import Event


class Kept(NamedTuple):
    """What a rank has kept of a trace.

    Attributes
    ----------
    events : list of tuple
        As `Event`.
    dropped : int
        Events that there was no room for.
    between : tuple, optional
        In the master of one of several nodes: the same two of what it did between them.
    clocks : sequence of Sample
        On rank 0: how the nodes' clocks compared in the end.
    """

    events: list[tuple]
    dropped: int
    between: tuple[list[tuple], int] | None = None
    clocks: Sequence[Sample] = ()


class Row(NamedTuple):
    """A row of the timeline.

    Attributes
    ----------
    process, thread : int
    name : str
        Of the thread.
    label : str
        What it is called where it is told what was dropped.
    events : list of tuple
    dropped : int
    clock : callable
        Returns a time of node 0 for one of the row's.
    """

    process: int
    thread: int
    name: str
    label: str
    events: list[tuple]
    dropped: int
    clock: Callable[[float], float]


class Traced(NamedTuple):
    """A trace of all ranks.

    Attributes
    ----------
    kept : list of Kept
        Of each rank, or of rank 0 alone.
    nodes : list of Node
        The nodes, one on one machine.
    clocks : list of Clock
        Those of several nodes, if they are known.
    began : float
        When the trace began.
    limit : int
        How many events a row could have.
    trouble : str or None
        Why there is rank 0 alone.
    """

    kept: list[Kept]
    nodes: list[Node]
    clocks: list[Clock]
    began: float
    limit: int
    trouble: str | None


def document(traced: Traced) -> dict[str, Any]:
    """Return what the file says."""
    rows = list(_rows(traced))
    events = list(_names(traced.nodes, rows))
    for row in rows:
        # What encloses others first, as the format wants events of one start.
        order = sorted((Event(*event) for event in row.events), key=_enclosing_first)
        events += [_complete(event, row, traced.began) for event in order]
    other: dict[str, Any] = {
        "ranks": sum(node.ranks for node in traced.nodes),
        "limit per rank": traced.limit,
        "dropped": {row.label: row.dropped for row in rows},
    }
    if len(traced.nodes) > 1:
        other["nodes"] = _told_of_nodes(traced)
    if traced.trouble is not None:
        other["incomplete"] = f"rank 0 only: {traced.trouble}"
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": other}


def _rows(traced: Traced) -> Iterator[Row]:
    size = sum(node.ranks for node in traced.nodes)
    owners = [i for i, node in enumerate(traced.nodes) for _ in range(node.ranks)]
    for rank, kept in enumerate(traced.kept):
        node = owners[rank]
        process = _process(node, traced.nodes)
        clock = traced.clocks[node].here if traced.clocks else _as_it_is
        label, master = f"rank {rank}", "" if rank else " (master)"
        if rank and owners[rank - 1] != node:
            master = f" (master of node {node})"
        of_rank = kept.events, kept.dropped, clock
        yield Row(process, rank, label + master, label, *of_rank)
        if kept.between is not None:
            label = f"node {node}"
            name = f"{label}, with other nodes"
            yield Row(process, size + node, name, label, *kept.between, clock)


def _process(node: int, nodes: list[Node]) -> int:
    """Return a node's number as a process: on several machines pids may be alike."""
    return node + 1 if len(nodes) > 1 else os.getpid()


def _as_it_is(time: float) -> float:
    return time


def _names(nodes: list[Node], rows: list[Row]) -> Iterator[dict[str, Any]]:
    known = {row.process for row in rows}
    for i, node in enumerate(nodes):
        process = _process(i, nodes)
        if process not in known:
            continue
        ranks = f"{node.ranks} rank{'s' * (node.ranks != 1)}"
        if len(nodes) == 1:
            yield _name("process_name", process, 0, name=f"synk, {node.ranks} ranks")
            continue
        name = f"synk, node {i} on {node.host}, {ranks}"
        yield _name("process_name", process, 0, name=name)
        yield _name("process_sort_index", process, 0, sort_index=i)
    for row in rows:
        place = row.process, row.thread
        yield _name("thread_name", *place, name=row.name)
        yield _name("thread_sort_index", *place, sort_index=row.thread)


def _told_of_nodes(traced: Traced) -> dict[str, Any]:
    told: dict[str, Any] = {}
    for i, node in enumerate(traced.nodes):
        told[f"node {i}"] = of_node = {"host": node.host, "ranks": node.ranks}
        if traced.clocks:
            clock = traced.clocks[i]
            of_node["seconds ahead of node 0, at begin and end"] = clock.ahead
            of_node["seconds of error, at most"] = clock.error
    return told


def _enclosing_first(event: Event) -> tuple[float, float]:
    return event.start, -event.end


def _name(what: str, process: int, thread: int, **args: Any) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": process, "tid": thread, "args": args}


def _complete(event: Event, row: Row, began: float) -> dict[str, Any]:
    times = row.clock(event.start), row.clock(event.end)
    # In whole nanoseconds, so that what lies within an event does so after rounding.
    start, end = (round((time - began) * 1e9) for time in times)
    return {
        "ph": "X",
        "name": event.name,
        "cat": event.category,
        "pid": row.process,
        "tid": row.thread,
        "ts": start / 1000,
        "dur": (end - start) / 1000,
        "args": event.args,
    }
