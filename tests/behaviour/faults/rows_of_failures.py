"""Rows of the fault table: a rank raises, gives wrong values, or hangs."""

from __future__ import annotations

from functools import partial

import deaths
import outputs
import strikes
from deaths import raise_
from moments import MOMENTS, at, computing
from trial import GOES_ON, Row

import synk
from synk.errors import RankTimeout, RemoteError

# -- a rank fails, and the session goes on ---------------------------------------------

FAILURES = {
    "ValueError": (partial(raise_, ValueError, "bad value"), ValueError, "bad value"),
    "an exception that cannot be pickled": (
        partial(raise_, deaths.NotPicklable, 6, "nothing to be done"),
        (RemoteError, deaths.NotPicklable),
        "nothing to be done",
    ),
    "an exception whose __str__ raises": (
        partial(raise_, deaths.Unprintable),
        deaths.Unprintable,
        "",
    ),
    "an exception whose __notes__ raises": (
        partial(raise_, deaths.BadNotes),
        (deaths.BadNotes, RemoteError, ZeroDivisionError),
        "",
    ),
    "an exception whose __reduce__ exits": (
        partial(raise_, deaths.ExitsInReduce),
        (RemoteError, deaths.ExitsInReduce),
        "",
    ),
    "a BaseException": (partial(raise_, deaths.Base, "base"), deaths.Base, "base"),
    "sys.exit": (partial(raise_, SystemExit, 3), SystemExit, "3"),
    "KeyboardInterrupt": (partial(raise_, KeyboardInterrupt), KeyboardInterrupt, ""),
    "RankTimeout": (partial(raise_, RankTimeout, "own"), RankTimeout, "own"),
    "RecursionError": (deaths.recurse, RecursionError, "recursion"),
    "MemoryError by RLIMIT_AS": (deaths.take_all_memory, MemoryError, "allocate"),
}

ERRORS = [
    Row(f"{what} on {where}", computing(fault, rank), error, text, session=GOES_ON)
    for what, (fault, error, text) in FAILURES.items()
    for where, rank in (("one rank", 2), ("all ranks", None))
] + [
    Row(
        "another exception on each rank",
        computing(deaths.raise_by_rank, None),
        (ExceptionGroup, ValueError, LookupError, TypeError),  # who stops the others
        "not all in the same way|rank [012]",
        session=GOES_ON,
    ),
    Row(
        "a message of 100 MB",
        computing(deaths.raise_with_100_mb),
        ValueError,
        "mmm",
        seconds=20,
        session=GOES_ON,
    ),
    *[
        Row(
            f"ValueError, {moment}",
            at(moment, FAILURES["ValueError"][0]),
            ValueError,
            "bad value",
            session=GOES_ON,
        )
        for moment in MOMENTS
    ],
]

RESULTS = [
    Row(
        "an output of another shape from one rank",
        outputs.of_another_shape,
        (synk.ShapeMismatch, ValueError),
        "shape",
        session=GOES_ON,
    ),
    Row(
        "a variable of another shape on one rank",
        outputs.variable_of_another_shape,
        synk.ShapeMismatch,
        "rank 1",
        session=GOES_ON,
    ),
    Row("NaN from one rank", outputs.not_a_number, None, session=GOES_ON),
    Row(
        'NaN in one rank\'s rows, with check="finite"',
        outputs.not_a_number_is_looked_for,
        synk.NotFinite,
        "row 12 .* rank 2",
        seconds=20,
        session=GOES_ON,
    ),
    Row("10 MB on a rank's stdout", outputs.much_output, None, session=GOES_ON),
]

# -- a rank hangs ----------------------------------------------------------------------

BRIEF = 1

HANGS = [
    *[
        Row(
            f"{what}, with a timeout",
            computing(fault, timeout=BRIEF),
            RankTimeout,
            r"within 1(\.0)? s",
            seconds=BRIEF + 3,
        )
        for what, fault in {
            "an endless loop": deaths.loop_for_ever,
            "stuck in C with the GIL": deaths.hold_the_gil,
            "SIGSTOP": deaths.stop,
        }.items()
    ],
    Row(
        "an endless loop, with a timeout of the call",
        computing(deaths.loop_for_ever, of_call={"timeout": BRIEF}),
        RankTimeout,
        r"within 1(\.0)? s.* in loop_for_ever",
        seconds=BRIEF + 3,
    ),
    Row(
        "SIGSTOP before a barrier, with a timeout",
        at("before a barrier", deaths.stop, timeout=BRIEF),
        RankTimeout,
        r"within 1(\.0)? s",
        seconds=BRIEF + 3,
    ),
    Row(
        "SIGSTOP and SIGCONT in a step",
        strikes.stopped_for_a_while("step"),
        None,
        session=GOES_ON,
    ),
    Row(
        "SIGSTOP and SIGCONT in a collective",
        strikes.stopped_for_a_while("collective"),
        None,
        session=GOES_ON,
    ),
]
