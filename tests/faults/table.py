"""The fault table: moments and faults, and what is to come of them."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import deaths
import hosts
import lines
import masters
import outputs
import strikes
from deaths import DEATHS, raise_
from moments import MOMENTS, at, computing
from strikes import any_rank, at_random, idle, ranks, zygote
from trial import EITHER, GOES_ON, GONE, Row

import synk
from synk.errors import RankTimeout, RemoteError, WorkerDied

KILL, STOP = signal.SIGKILL, signal.SIGSTOP
TERM, CONT, HUP = signal.SIGTERM, signal.SIGCONT, signal.SIGHUP

# -- a rank dies -----------------------------------------------------------------------

DEATHS_AT_MOMENTS = [
    Row(f"SIGKILL, {moment}", at(moment, fault), WorkerDied, f"rank 2 .*{text}")
    for moment in MOMENTS
    for fault, text in [DEATHS["SIGKILL"]]
]

DEATHS_IN_AN_OP = [
    Row(f"{how}, computing", computing(fault), WorkerDied, f"rank 2 .*{text}")
    for how, (fault, text) in DEATHS.items()
]

LOCKED = deaths.die_with_the_compile_lock

DEATHS_OF_OTHERS = [
    Row("SIGKILL, idle", idle(KILL, ranks(2)), WorkerDied, "rank 2 .*SIGKILL"),
    Row("SIGTERM, idle", idle(TERM, ranks(2)), WorkerDied, "rank 2 .*SIGTERM"),
    Row(
        "SIGKILL, with the lock of compiled code",
        computing(LOCKED),
        WorkerDied,
        "rank 2 .*SIGKILL",
    ),
    Row(
        "SIGKILL of all ranks",
        strikes.computing(KILL, ranks(1, 2, 3), n=4),
        WorkerDied,
        "rank [123] .*SIGKILL",
    ),
    Row(
        "SIGKILL of half of the ranks",
        strikes.computing(KILL, ranks(2, 4), n=5),
        WorkerDied,
        "rank [24] .*SIGKILL",
    ),
    Row(
        "SIGKILL of two ranks in a millisecond, idle",
        idle(KILL, ranks(1, 2)),
        WorkerDied,
        "rank [12] .*SIGKILL",
    ),
    Row("SIGKILL of the zygote, idle", idle(KILL, zygote), WorkerDied, "SIGKILL"),
    Row(
        "SIGKILL of the zygote, computing",
        strikes.computing(KILL, zygote),
        WorkerDied,
        "SIGKILL",
    ),
]

CLOSING = [
    Row(
        f"SIGKILL of {who}, closing",
        strikes.closing(KILL, victims),
        None,
        session=GONE,
    )
    for who, victims in {"a rank": ranks(1), "the zygote": zygote}.items()
]

ACTIVITIES = ("step", "scores", "collective", "new_function", "save")

AT_RANDOM = [
    *[
        Row(
            f"{number.name} at a random moment of {activity}",
            at_random(number, any_rank, activity),
            WorkerDied,
            f"rank [12] .*{number.name}",
        )
        for activity in ACTIVITIES
        for number in (KILL, TERM)
    ],
    Row(
        "SIGKILL of the zygote at a random moment",
        at_random(KILL, zygote, "step"),
        WorkerDied,
        "SIGKILL",
    ),
    Row(
        "SIGKILL of a rank at a random moment of fork, step and close",
        at_random(KILL, any_rank, "fork"),
        (None, WorkerDied),
        session=EITHER,
    ),
    Row(
        "SIGKILL of the zygote at a random moment of fork, step and close",
        at_random(KILL, strikes.any_zygote, "fork"),
        (None, WorkerDied),
        session=EITHER,
    ),
]

AT_LINES = [
    *[
        Row(
            f"SIGKILL of a rank at any line of {activity}",
            lines.killed("rank", activity),
            WorkerDied,
            "rank 1 .*SIGKILL",
        )
        for activity in ACTIVITIES
    ],
    *[
        Row(
            f"SIGKILL of a {who} at any line of fork, step and close",
            lines.killed(who, "fork"),
            (None, WorkerDied),
            session=EITHER,
        )
        for who in ("rank", "zygote")
    ],
    *[
        Row(
            f"SIGKILL of the master at any line of {activity}",
            lines.killed("master", activity),
            None,
            status=-KILL,
        )
        for activity in (*ACTIVITIES, "fork")
    ],
]

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
        ExceptionGroup,
        "not all in the same way",
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

# -- the master ------------------------------------------------------------------------

CTRL_C = KeyboardInterrupt

INTERRUPTS = [
    Row(
        "Ctrl-C between calls",
        masters.interrupted_between_calls,
        CTRL_C,
        session=GOES_ON,
    ),
    Row("Ctrl-C computing", masters.interrupted(), CTRL_C, session=GOES_ON),
    Row(
        "Ctrl-C in a collective",
        masters.interrupted_in_a_collective,
        CTRL_C,
        session=GOES_ON,
    ),
    Row("Ctrl-C closing", masters.interrupted_closing, CTRL_C, session=GONE),
    Row(
        "Ctrl-C twice, the ranks being deaf",
        masters.interrupted_twice,
        CTRL_C,
    ),
    *[
        Row(
            f"Ctrl-C every 10 ms of {activity}",
            masters.interrupted_every_10_ms(activity),
            None,
            session=EITHER,
        )
        for activity in (*ACTIVITIES, "fork")
    ],
    Row(
        "SIGTERM with a handler that closes",
        masters.handler_that_closes,
        SystemExit,
        "7",
        session=GONE,
    ),
]

ENDS = [
    *[
        Row(
            f"{number.name} of the master, computing",
            masters.killed_computing(number),
            None,
            status=-number,
        )
        for number in (KILL, TERM, HUP)
    ],
    *[
        Row(
            f"{number.name} of the master at a random moment",
            partial(masters.at_any_time, number),
            None,
            status=-number,
        )
        for number in (KILL, TERM)
    ],
]

SCRIPTS = [
    Row(
        "an exception between calls",
        masters.exception_between_calls,
        LookupError,
        "of the script",
        session=GOES_ON,
    ),
    Row(
        "an exception in the master's share",
        computing(FAILURES["ValueError"][0], 0),
        ValueError,
        "bad value",
        session=GOES_ON,
    ),
    Row(
        "calls from two threads",
        masters.two_threads,
        synk.StateError,
        "one at a time",
        session=GOES_ON,
    ),
    Row(
        "a call in a call",
        masters.call_in_a_call,
        synk.StateError,
        "inside a synk call",
        session=GOES_ON,
    ),
    Row(
        "garbage collected in a call", masters.garbage_in_a_call, None, session=GOES_ON
    ),
    Row(
        "the script's own multiprocessing",
        masters.child_processes,
        None,
        session=GOES_ON,
    ),
]

# -- what a session runs on ------------------------------------------------------------

NO_MOUNTS, NOT_ROOT = hosts.no_mounts, hosts.not_root

HOSTS = [
    *[
        Row(
            f"/dev/shm {what}",
            play,
            None,
            session=GOES_ON,
            needs=NO_MOUNTS,
        )
        for what, play in {
            "of 64 MB": hosts.with_shm("size=64m"),
            "full": hosts.with_shm("size=64k", fill=True),
            "read-only": hosts.with_shm("size=64m", hosts.READ_ONLY),
        }.items()
    ],
    Row(
        "ulimit -n 64",
        hosts.with_descriptors(64),
        None,
        seconds=10,
        session=GOES_ON,
    ),
    *[
        Row(
            f"{spare} descriptors more than the script has",
            hosts.without_descriptors(spare),
            (None, synk.SynkError),
            "ulimit -n",
            session=GONE,
        )
        for spare in (0, 1, 2, 4)
    ],
    Row(
        "ulimit -u 1",
        hosts.without_processes,
        synk.SynkError,
        "ulimit -u",
        session=GONE,
        needs=NOT_ROOT,
    ),
    Row(
        "privileges dropped before the fork",
        hosts.privileges_dropped_before,
        None,
        session=GOES_ON,
        needs=NOT_ROOT,
    ),
    Row(
        "privileges dropped after the fork",
        hosts.privileges_dropped_after,
        synk.StateError,
        "uid 65534",
        seconds=3,
        session=GONE,
        needs=NOT_ROOT,
    ),
    Row("one core", hosts.on_one_core, None, session=GONE),
    Row(
        "SIGKILL with another time of day",
        hosts.other_time_of_day,
        WorkerDied,
        "rank 2 .*SIGKILL",
    ),
    Row(
        "a checkpoint cut short",
        hosts.truncated_checkpoint,
        synk.CheckpointError,
        "weights.npz",
        session=GOES_ON,
    ),
    Row(
        "a full disk while saving",
        hosts.full_disk,
        OSError,
        "No space",
        session=GOES_ON,
        needs=NO_MOUNTS,
    ),
]


def times(repeats: int, rows: Sequence[Row]) -> list[Row]:
    """Return rows that the tests play so many times."""
    return [replace(row, repeats=repeats) for row in rows]


TABLE = [
    *times(
        3,
        [
            *DEATHS_AT_MOMENTS,
            *DEATHS_IN_AN_OP,
            *DEATHS_OF_OTHERS,
            *CLOSING,
            *AT_RANDOM,
            *AT_LINES,
            *INTERRUPTS,
            *ENDS,
        ],
    ),
    # The moment is the same each time, or it takes long.
    *times(1, [*ERRORS, *RESULTS, *HANGS, *SCRIPTS, *HOSTS]),
]
