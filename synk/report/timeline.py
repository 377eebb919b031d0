"""`synk.trace`: a timeline of what every rank does, for Perfetto or chrome://tracing.

While a trace is on, every rank keeps a list of events. At the end the master collects
the lists and writes them. The ranks of a machine have one clock (see `timing`). The
clocks of several nodes are compared when the trace begins and ends (`cluster.clocks`).

The file is in the Trace Event Format of Chromium's tracing. On one machine the session
is a process, and each rank a thread of it. With several nodes, each node is a process,
with a further thread for its master's exchanges with other masters.
"""

from __future__ import annotations

import contextlib
import json
import operator
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

from ..cluster.clocks import Clock, Sample, between
from ..cluster.launcher import Node
from ..errors import StateError, SynkError
from ..ranks.context import RankContext
from ..ranks.forking import nodes as synk_nodes
from ..ranks.pool import Pool
from ..ranks.session import SESSION
from ..times.timing import TraceEvent, Tracer
from ..variables.checkpoint_files import replacing
from .words import count


class TraceOfRank(NamedTuple):
    """A rank's part of a trace.

    `between` has a node's exchanges with other nodes, on its master; None on other
    ranks. `clocks` has comparisons of the nodes' clocks at the end, on rank 0.
    """

    own: Tracer
    between: Tracer | None = None
    clocks: Sequence[Sample] = ()


@contextlib.contextmanager
def trace(path: str | os.PathLike, *, limit: int = 100_000) -> Iterator[None]:
    """Write a timeline of what the ranks do in a ``with`` block.

    The file opens in https://ui.perfetto.dev and in chrome://tracing. It has a row for
    each rank. A "call" is a rank's share of a call, and is divided into "rows",
    "compute" (of one stage), "reduce" and "wait", as :doc:`speed` has them. Under a
    training rule there is an "exchange" after some calls, with its "wait" for a lock or
    for all to meet, if that is longer than 20 us. Around them on rank 0 is the
    "Function call" or "Function run" as the script sees it. Other commands, such as
    compilations and collectives, have events of their own names.

    With several machines, each is a process in the file, named by its node and host. A
    reduction has "nodes" as well: the exchange between the nodes after all have met. A
    further row of each node shows its master's exchanges with other masters: "nodes:
    heads" (a round in which they meet), "nodes: idle" (waiting for a command), and
    "command", "rows", "all-to-all", "reduce", "all-gather" and "replies". The machines'
    clocks are compared when the trace begins and when it ends, and all times are by
    that of the first. ``otherData`` says how far the others were ahead of it, and the
    largest possible error. In between, synk assumes that clocks run evenly.

    The file is written when the block ends, also by an exception. It appears as a whole
    or not at all.

    Parameters
    ----------
    path : str or path-like
        The file to write, or to replace.
    limit : int
        How many events a rank keeps, some 0.5 kB each; a call has about five. Later
        events are dropped, and ``otherData`` in the file has their number.

    Yields
    ------
    None

    Raises
    ------
    StateError
        If not forked, in a worker, or within another trace.
    FileNotFoundError, IsADirectoryError, ValueError
        If no file can be written there, or the limit is below 1.

    Examples
    --------
    >>> import json, pathlib, tempfile
    >>> import numpy as np, pytensor.tensor as pt, synk
    >>> x = pt.vector("x")
    >>> f = synk.function([x], x.sum(), name="total")
    >>> with tempfile.TemporaryDirectory() as folder, synk.session(2):
    ...     path = pathlib.Path(folder, "calls.json")
    ...     with synk.trace(path):
    ...         total = f(np.ones(100_000))
    ...     events = json.loads(path.read_text())["traceEvents"]
    >>> sorted({e["tid"] for e in events if e["name"] == "compute"})
    [0, 1]
    """
    target = Path(path)
    SESSION.enter()
    context = SESSION.context
    if context.tracer is not None:
        raise StateError("a trace is on already: one file at a time")
    if operator.index(limit) < 1:
        raise ValueError(f"the limit must be at least 1 event, got {limit}")
    if target.is_dir():
        raise IsADirectoryError(f"{target} is a folder: a trace is a file")
    if not target.parent.is_dir():
        raise FileNotFoundError(f"there is no folder {target.parent} for the trace")
    began, nodes, pool = perf_counter(), synk_nodes(), SESSION.pool
    try:
        clocks = SESSION.run(worker_start_trace, limit)[0]
        tracer = context.tracer
        assert tracer is not None
        try:
            yield
        finally:
            kept, trouble = _collect(tracer, pool)
            compared = between(clocks, kept[0].clocks) if trouble is None else []
            document = _document(kept, nodes, compared, began, limit, trouble)
            with replacing(target) as temporary:
                temporary.write_text(json.dumps(document))
    finally:
        _stop(context)  # in the master, if the command could not run


def worker_start_trace(context: RankContext, limit: int) -> list[Sample]:
    """Begin to keep events; return comparisons of nodes' clocks, on rank 0."""
    clocks = _compare_clocks(context)
    if (link := _link(context)) is not None:
        link.tracer = Tracer(limit)
    context.tracer = Tracer(limit)
    return clocks


def worker_stop_trace(context: RankContext) -> TraceOfRank:
    """Stop keeping events; return those kept."""
    own, link = context.tracer, _link(context)
    assert own is not None
    between_nodes = None if link is None else link.tracer
    _stop(context)
    return TraceOfRank(own, between_nodes, _compare_clocks(context))


def _stop(context: RankContext) -> None:
    """Remove this rank's tracer, and that between nodes."""
    context.tracer = None
    if (link := _link(context)) is not None:
        link.tracer = None


def _link(context: RankContext) -> Any:
    """Return the link between masters of several nodes, on a master; else None."""
    return getattr(context.comm, "link", None)


def _compare_clocks(context: RankContext) -> list[Sample]:
    """Return comparisons of nodes' clocks, on masters; [] for one node."""
    alone = context.comm is context.local
    return [] if alone else context.comm.compare_clocks()


def _collect(tracer: Tracer, pool: Pool) -> tuple[list[TraceOfRank], str | None]:
    """Return the events of all ranks and None, or those of rank 0 and the reason."""
    try:
        if SESSION.is_of(lambda: pool) or SESSION.state != "running":
            return SESSION.run(worker_stop_trace), None
        trouble = "synk was forked anew within the block"
    except SynkError as error:
        trouble = str(error)
    return [TraceOfRank(tracer)], trouble


# -- the file


def _document(
    kept: list[TraceOfRank],
    nodes: list[Node],
    clocks: list[Clock],
    began: float,
    limit: int,
    trouble: str | None,
) -> dict[str, Any]:
    """Return the contents of the file.

    `kept` has the ranks' parts in order, or rank 0's alone, if `trouble` says why.
    `clocks` is [] for one node, or if unknown. The trace began at `began`, by rank 0's
    clock in seconds.
    """
    size, several = sum(node.ranks for node in nodes), len(nodes) > 1
    owners = [i for i, node in enumerate(nodes) for _ in range(node.ranks)]
    events: list[dict[str, Any]] = []
    dropped: dict[str, int] = {}
    for rank, of_rank in enumerate(kept):
        node = owners[rank]
        process = node + 1 if several else os.getpid()  # pids of machines may be alike
        clock = clocks[node].here if clocks else float
        label, role = f"rank {rank}", ""
        if not rank or owners[rank - 1] != node:
            role = f" (master of node {node})" if rank else " (master)"
            events += _named_process(node, nodes, process)
        rows = [(rank, label, label + role, of_rank.own)]
        if of_rank.between is not None:
            label = f"node {node}"
            name = f"{label}, with other nodes"
            rows.append((size + node, label, name, of_rank.between))
        for thread, label, name, tracer in rows:
            dropped[label] = tracer.dropped
            place = {"pid": process, "tid": thread}
            events.append(_metadata("thread_name", place, name=name))
            events.append(_metadata("thread_sort_index", place, sort_index=thread))
            events += _of_row(tracer.events, place, clock, began)
    other = {"ranks": size, "limit per rank": limit, "dropped": dropped}
    if several:
        other["nodes"] = _facts_of_nodes(nodes, clocks)
    if trouble is not None:
        other["incomplete"] = f"rank 0 only: {trouble}"
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": other}


def _named_process(node: int, nodes: list[Node], process: int) -> Iterator[dict]:
    found, place = nodes[node], {"pid": process, "tid": 0}
    if len(nodes) == 1:
        yield _metadata("process_name", place, name=f"synk, {found.ranks} ranks")
        return
    name = f"synk, node {node} on {found.host}, {count(found.ranks, 'rank')}"
    yield _metadata("process_name", place, name=name)
    yield _metadata("process_sort_index", place, sort_index=node)


def _metadata(what: str, place: dict[str, int], **args: Any) -> dict[str, Any]:
    return {"ph": "M", "name": what, **place, "args": args}


def _of_row(
    events: list[TraceEvent],
    place: dict[str, int],
    clock: Callable[[float], float],
    began: float,
) -> Iterator[dict[str, Any]]:
    """Yield a row's events; `clock` converts the row's times to those of node 0."""
    # Of events with one start, the format wants enclosing ones first.
    for event in sorted(events, key=lambda event: (event.start, -event.end)):
        times = clock(event.start), clock(event.end)
        # Rounded to whole nanoseconds, which keeps nested events nested.
        start, end = (round((time - began) * 1e9) for time in times)
        of_event = {"ph": "X", "name": event.name, "cat": event.category, **place}
        when = {"ts": start / 1000, "dur": (end - start) / 1000}
        yield {**of_event, **when, "args": event.args}


def _facts_of_nodes(nodes: list[Node], clocks: list[Clock]) -> dict[str, Any]:
    told: dict[str, Any] = {}
    for i, node in enumerate(nodes):
        told[f"node {i}"] = of_node = {"host": node.host, "ranks": node.ranks}
        if clocks:
            of_node["seconds ahead of node 0, at begin and end"] = clocks[i].ahead
            of_node["seconds of error, at most"] = clocks[i].error
    return told
