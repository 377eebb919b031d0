"""Rows of the fault table: a rank, the zygote or the master is killed."""

from __future__ import annotations

import signal
from functools import partial

import deaths
import lines
import masters
import strikes
from deaths import DEATHS
from moments import MOMENTS, at, computing
from strikes import any_rank, at_random, idle, ranks, zygote
from trial import EITHER, GONE, Row
from work import ACTIVITIES

from synk.errors import WorkerDied

KILL, TERM, HUP = signal.SIGKILL, signal.SIGTERM, signal.SIGHUP

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
