"""The fault table: moments and faults, and what is to come of them."""

import signal
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import hosts
import masters
import ranks
from masters import any_rank, at_random, idle, master, zygote, zygote_and_master
from processes import arrive_and_ignore
from ranks import DEATHS, MOMENTS, at, computing, raise_
from trial import ACTIVITIES, BROKEN, EITHER, GOES_ON, GONE, Row

import synk
from synk.errors import RankTimeout, RemoteError, WorkerDied

INT, KILL, TERM = signal.SIGINT, signal.SIGKILL, signal.SIGTERM
CTRL_C = KeyboardInterrupt
ALL = (*ACTIVITIES, "fork")


def dies(name: str, play: Any, text: str, **more: Any) -> Row:
    """Return a row after which a process of the session is dead."""
    return Row(name, play, WorkerDied, text, **more)


def goes_on(name: str, play: Any, error: Any = None, text: str = "", **more) -> Row:
    """Return a row after which the session is as usable as before."""
    return Row(name, play, error, text, GOES_ON, **more)


def either(name: str, play: Any) -> Row:
    """Return a row after which there is a session, or a broken one, or none."""
    return Row(name, play, (None, WorkerDied), session=EITHER)


def ends(name: str, play: Any, number: int) -> Row:
    """Return a row in which a signal ends the master."""
    return Row(name, play, None, status=-number, alone=True)


# -- a rank or the zygote dies ---------------------------------------------------------


def deaths() -> Iterator[Row]:
    """Yield those whose moment is the same each time."""
    fault, text = DEATHS["SIGKILL"]
    for moment in MOMENTS:
        yield dies(f"SIGKILL, {moment}", at(moment, fault), f"rank 2 .*{text}")
    for how, (fault, text) in DEATHS.items():
        yield dies(f"{how}, computing", computing(fault), f"rank 2 .*{text}")
    locked = ranks.die_with_the_compile_lock
    name = "SIGKILL, with the lock of compiled code"
    yield dies(name, computing(locked), "rank 2 .*SIGKILL")
    for number in (KILL, TERM):
        play = idle(number, masters.ranks(2))
        yield dies(f"{number.name}, idle", play, f"rank 2 .*{number.name}")
    play = masters.computing(KILL, masters.ranks(1, 2, 3), n=4)
    yield dies("SIGKILL of all ranks", play, "rank [123] .*SIGKILL")
    play = masters.computing(KILL, masters.ranks(2, 4), n=5)
    yield dies("SIGKILL of half of the ranks", play, "rank [24] .*SIGKILL")
    play = idle(KILL, masters.ranks(1, 2))
    name = "SIGKILL of two ranks in a millisecond, idle"
    yield dies(name, play, "rank [12] .*SIGKILL")
    yield dies("SIGKILL of the zygote, idle", idle(KILL, zygote), "zygote .*SIGKILL")
    play = masters.computing(KILL, zygote)
    yield dies("SIGKILL of the zygote, computing", play, "zygote .*SIGKILL")


def deaths_at_drawn_moments() -> Iterator[Row]:
    for who, victims in {"a rank": masters.ranks(1), "the zygote": zygote}.items():
        play = masters.closing(KILL, victims)
        yield Row(f"SIGKILL of {who}, closing", play, None, session=GONE)
    for activity in ACTIVITIES:
        name = f"SIGKILL at a random moment of {activity}"
        yield dies(name, at_random(KILL, any_rank, activity), "rank [12] .*SIGKILL")
    play = at_random(KILL, zygote, "step")
    yield dies("SIGKILL of the zygote at a random moment", play, "SIGKILL")
    for who, victims in {"a rank": any_rank, "the zygote": zygote}.items():
        name = f"SIGKILL of {who} at a random moment of fork, step and close"
        yield either(name, at_random(KILL, victims, "fork"))


# -- a rank fails, and the session goes on ---------------------------------------------

FAILURES: dict[str, tuple] = {
    "ValueError": (partial(raise_, ValueError, "bad value"), ValueError, "bad value"),
    "an exception that cannot be pickled": (
        partial(raise_, ranks.NotPicklable, 6, "nothing to be done"),
        (RemoteError, ranks.NotPicklable),
        "nothing to be done",
    ),
    "an exception whose __str__ raises": (
        partial(raise_, ranks.Unprintable),
        ranks.Unprintable,
    ),
    "an exception whose __reduce__ exits": (
        partial(raise_, ranks.ExitsInReduce),
        (RemoteError, ranks.ExitsInReduce),
    ),
    "a BaseException": (partial(raise_, ranks.Base, "base"), ranks.Base, "base"),
    "sys.exit": (partial(raise_, SystemExit, 3), SystemExit, "3"),
    "KeyboardInterrupt": (partial(raise_, CTRL_C), CTRL_C),
    "RankTimeout": (partial(raise_, RankTimeout, "own"), RankTimeout, "own"),
    "RecursionError": (ranks.recurse, RecursionError, "recursion"),
    "MemoryError by RLIMIT_AS": (ranks.take_all_memory, MemoryError, "allocate"),
}
BAD_VALUE = FAILURES["ValueError"][0]


def failures() -> Iterator[Row]:
    for what, (fault, *told) in FAILURES.items():
        # Three tracebacks of a thousand lines take long.
        seconds = 5 if fault is ranks.recurse else 1
        for where, rank in (("one rank", 2), ("all ranks", None)):
            play = computing(fault, rank)
            yield goes_on(f"{what} on {where}", play, *told, seconds=seconds)
    yield goes_on(
        "another exception on each rank",
        computing(ranks.raise_by_rank, None),
        (ExceptionGroup, ValueError, LookupError, TypeError),  # who stops the others
        "not all in the same way|rank [012]",
    )
    yield goes_on(
        "a message of 20 MB",
        computing(ranks.raise_with_20_mb),
        ValueError,
        "mmm",
        seconds=20,
    )
    yield goes_on("10 MB on a rank's stdout", ranks.much_output, alone=True)
    for moment in MOMENTS:
        play = at(moment, BAD_VALUE)
        yield goes_on(f"ValueError, {moment}", play, ValueError, "bad value")


BRIEF = 1


def hangs() -> Iterator[Row]:
    told, limit = r"within 1(\.0)? s", {"timeout": BRIEF}
    for name, play in {
        "an endless loop": computing(ranks.loop_for_ever, **limit),
        "stuck in C with the GIL": computing(ranks.hold_the_gil, **limit),
        "SIGSTOP": computing(ranks.stop, **limit),
        "SIGSTOP before a barrier": at("before a barrier", ranks.stop, **limit),
    }.items():
        name += ", with a timeout"
        yield Row(name, play, RankTimeout, told, seconds=BRIEF + 3)
    name = "an endless loop, with a timeout of the call"
    play = computing(ranks.loop_for_ever, of_call=limit)
    told += ".* in loop_for_ever"
    yield Row(name, play, RankTimeout, told, seconds=BRIEF + 3)
    for activity in ("step", "collective"):
        play = masters.stopped_for_a_while(activity)
        yield goes_on(f"SIGSTOP and SIGCONT in a {activity}", play)


# -- the script ------------------------------------------------------------------------


def interrupts() -> Iterator[Row]:
    yield goes_on("Ctrl-C between calls", masters.interrupted_between_calls, CTRL_C)
    yield goes_on("Ctrl-C computing", masters.computing(INT, master), CTRL_C)
    yield goes_on("Ctrl-C in a collective", ranks.interrupted_in_a_collective, CTRL_C)
    yield Row("Ctrl-C closing", masters.interrupted_closing, CTRL_C, session=GONE)
    deaf = masters.computing(INT, master, times=2, stay=arrive_and_ignore)
    yield Row("Ctrl-C twice, the ranks being deaf", deaf, CTRL_C, session=BROKEN)
    for activity in ALL:
        play = masters.interrupted_every_10_ms(activity)
        yield Row(f"Ctrl-C every 10 ms of {activity}", play, None, session=EITHER)
    yield Row(
        "Ctrl-C every 10 ms of fork, taken by another thread",
        masters.interrupted_every_10_ms("fork", by_thread=True),
        None,
        session=EITHER,
    )
    yield Row(
        "SIGTERM with a handler that closes",
        masters.handler_that_closes,
        SystemExit,
        "7",
        GONE,
    )


def ends_of_the_master() -> Iterator[Row]:
    for number in (KILL, TERM, signal.SIGHUP):
        name = f"{number.name} of the master, computing"
        yield ends(name, masters.computing(number, master), number)
    both = masters.computing(KILL, zygote_and_master)
    yield ends("SIGKILL of the zygote and the master, computing", both, KILL)
    for number in (KILL, TERM):
        name = f"{number.name} of the master at a random moment"
        yield ends(name, at_random(number, master), number)


def scripts() -> Iterator[Row]:
    name = "an exception in the master's share"
    yield goes_on(name, computing(BAD_VALUE, 0), ValueError, "bad value")
    yield goes_on("garbage collected in a call", masters.garbage_in_a_call)


# -- what a session runs on ------------------------------------------------------------


def surroundings() -> Iterator[Row]:
    """Yield rows that change their process for good."""
    name, play = "/dev/shm read-only", hosts.with_read_only_shm
    yield goes_on(name, play, needs=hosts.no_mounts)
    yield goes_on("ulimit -n 64", hosts.with_descriptors(64))
    for spare in (0, 2):
        yield Row(
            f"{spare} descriptors more than the script has",
            hosts.without_descriptors(spare),
            (None, synk.SynkError),
            "ulimit -n",
            GONE,
        )
    yield Row(
        "ulimit -u 1",
        hosts.without_processes,
        synk.SynkError,
        "ulimit -u",
        GONE,
        needs=hosts.not_root,
    )
    name, play = "privileges dropped before the fork", hosts.privileges_dropped_before
    yield goes_on(name, play, needs=hosts.not_root)
    yield Row(
        "privileges dropped after the fork",
        hosts.privileges_dropped_after,
        synk.StateError,
        "uid 65534",
        GONE,
        seconds=3,
        needs=hosts.not_root,
    )
    name = "SIGKILL with another time of day"
    yield dies(name, hosts.other_time_of_day, "rank 2 .*SIGKILL")


def varying(rows: Sequence[Row]) -> list[Row]:
    """Return rows whose moments are drawn."""
    return [replace(row, varies=True) for row in rows]


TABLE = [
    *varying([*deaths_at_drawn_moments(), *interrupts(), *ends_of_the_master()]),
    *(*deaths(), *failures(), *hangs(), *scripts()),
    *[replace(row, alone=True) for row in surroundings()],
]
