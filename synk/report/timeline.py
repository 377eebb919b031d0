"""`synk.trace`: a timeline of what every rank does, for Perfetto or chrome://tracing.

While a trace is on, every rank keeps a list of events. At the end the master collects
the lists and writes them in the Trace Event Format of Chromium's tracing: the session
is a process, each rank a thread of it. All times come from one clock; see `timing`.
"""

from __future__ import annotations

import contextlib
import json
import operator
import os
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

from ..errors import StateError, SynkError
from ..ranks.context import RankContext
from ..ranks.session import SESSION
from ..times.tracing import Event, Tracer
from ..variables.checkpoint_files import replacing


@contextlib.contextmanager
def trace(path: str | os.PathLike, *, limit: int = 100_000) -> Iterator[None]:
    """Write a timeline of what the ranks do in a ``with`` block.

    The file opens in https://ui.perfetto.dev and in chrome://tracing. It has a row for
    each rank. A "call" is a rank's share of a call, and is divided into "rows" (taking
    them), "compute" (of one stage), "reduce" (copying values to a buffer, and reducing
    a part of them) and "wait" (for other ranks; an all-reduce of up to 2 kB is in here
    as a whole). Under a training rule there is an "exchange" after some calls, with its
    "wait" for a lock or for all to meet, if that is longer than 20 us. Around them on
    rank 0 is the "Function call" or "Function run" as the script sees it. Other
    commands, such as compilations and collectives, have events of their own names.

    The file is written when the block is left, also by an exception, and appears as a
    whole or not at all.

    Parameters
    ----------
    path : str or path-like
        The file to write, or to replace.
    limit : int
        How many events a rank keeps, some 0.5 kB each; a call has about five. What
        comes later is dropped, and ``otherData`` in the file says how many those were.

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
    ...         total = f(np.ones(10))
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
    began, size, generation = perf_counter(), SESSION.size, SESSION.generation
    try:
        SESSION.check_one_node("a trace")
        SESSION.run(worker_start_trace, limit)
        tracer = context.tracer
        assert tracer is not None
    except BaseException:
        context.tracer = None
        raise
    try:
        yield
    finally:
        kept, trouble = _collect(context, tracer, generation)
        document = _document(kept, began, size, limit, trouble)
        with replacing(target) as temporary:
            temporary.write_text(json.dumps(document))


def worker_start_trace(context: RankContext, limit: int) -> None:
    """Begin to keep events."""
    context.tracer = Tracer(limit)


def worker_stop_trace(context: RankContext) -> tuple[list[tuple], int]:
    """Return the events as plain tuples, and how many there was no room for."""
    tracer, context.tracer = context.tracer, None
    return (
        ([], 0) if tracer is None else (list(map(tuple, tracer.events)), tracer.dropped)
    )


def _collect(
    context: RankContext, tracer: Tracer, generation: int
) -> tuple[list[tuple[list[tuple], int]], str | None]:
    """Return the events of all ranks, or of rank 0 and what is in the way."""
    try:
        if SESSION.generation == generation:
            return SESSION.run(worker_stop_trace), None
        trouble = "synk was forked anew within the block"
    except SynkError as error:
        trouble = str(error)
        context.tracer = None
    return [(list(map(tuple, tracer.events)), tracer.dropped)], trouble


def _document(
    kept: list[tuple[list[tuple], int]],
    began: float,
    size: int,
    limit: int,
    trouble: str | None,
) -> dict[str, Any]:
    names: list[dict] = [_name("process_name", 0, f"synk, {size} ranks")]
    events: list[dict] = []
    for rank, (of_rank, _) in enumerate(kept):
        names.append(
            _name("thread_name", rank, f"rank {rank}{'' if rank else ' (master)'}")
        )
        names.append({**_name("thread_sort_index", rank), "args": {"sort_index": rank}})
        # What encloses others first, as the format wants events of one start.
        order = sorted((Event(*event) for event in of_rank), key=_enclosing_first)
        events += [_complete(event, rank, began) for event in order]
    other: dict[str, Any] = {
        "ranks": size,
        "limit per rank": limit,
        "dropped": {f"rank {rank}": dropped for rank, (_, dropped) in enumerate(kept)},
    }
    if trouble is not None:
        other["incomplete"] = f"rank 0 only: {trouble}"
    return {
        "traceEvents": names + events,
        "displayTimeUnit": "ms",
        "otherData": other,
    }


def _enclosing_first(event: Event) -> tuple[float, float]:
    return event.start, -event.end


def _name(what: str, rank: int, name: str = "") -> dict[str, Any]:
    event = {"ph": "M", "name": what, "pid": os.getpid(), "tid": rank}
    return {**event, "args": {"name": name}}


def _complete(event: Event, rank: int, began: float) -> dict[str, Any]:
    # In whole nanoseconds, so that what lies within an event does so after rounding.
    start, end = (round((time - began) * 1e9) for time in (event.start, event.end))
    return {
        "ph": "X",
        "name": event.name,
        "cat": event.category,
        "pid": os.getpid(),
        "tid": rank,
        "ts": start / 1000,
        "dur": (end - start) / 1000,
        "args": event.args,
    }
