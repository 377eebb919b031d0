"""Rows of the fault table: what the script does, and what it runs on."""

from __future__ import annotations

import hosts
import masters
from moments import computing
from rows_of_failures import FAILURES
from trial import EITHER, GOES_ON, GONE, Row
from work import ACTIVITIES

import synk
from synk.errors import WorkerDied

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
        "Ctrl-C every 10 ms of fork, taken by another thread",
        masters.interrupted_every_10_ms("fork", by_thread=True),
        None,
        session=EITHER,
    ),
    Row(
        "SIGTERM with a handler that closes",
        masters.handler_that_closes,
        SystemExit,
        "7",
        session=GONE,
    ),
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
