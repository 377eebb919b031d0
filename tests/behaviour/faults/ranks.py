"""Faults of ranks: how one ends, fails or hangs, and the moments at which it does.

A moment is a place in synk. Rank 2 is traced: it meets the fault as it comes there. It
does nothing until it is armed, and then once: the board that all processes share says
so, so that ranks forked later have nothing to fear.
"""

import ctypes
import mmap
import os
import resource
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from masters import in_thread, master, send
from processes import acting, arrive_and_stay, await_arrivals, board, note, stamp
from pytensor.compile.compilelock import lock_ctx
from trial import ARMED, Trial, X, compare, playing

import synk

SOURCE = str(Path(synk.__file__).parent)

VICTIM = 2

# -- deaths


def by(function: Callable, *args: object) -> Callable[[], object]:
    """Return what ends this process, or stops it, by a function of C."""
    return partial(_by, function, *args)


def _by(function: Callable, *args: object) -> None:
    stamp()
    function(*args)
    signal.pause()  # until the signal has come


def by_bus_error() -> None:
    """Read a mapped file beyond its end, as in shared memory that was cut."""
    with tempfile.TemporaryFile() as file:
        file.truncate(mmap.PAGESIZE)
        mapped = mmap.mmap(file.fileno(), mmap.PAGESIZE)
        file.truncate(0)
        stamp()
        mapped[0]


SIGKILL = by(signal.raise_signal, signal.SIGKILL)
DEATHS = {
    "SIGKILL": (SIGKILL, "SIGKILL"),
    "SIGTERM": (by(signal.raise_signal, signal.SIGTERM), "SIGTERM"),
    "SIGSEGV": (by(ctypes.string_at, 0), "SIGSEGV"),
    "SIGBUS": (by_bus_error, "SIGBUS"),
    "SIGFPE": (by(signal.raise_signal, signal.SIGFPE), "SIGFPE"),
    "abort": (by(os.abort), "SIGABRT"),
    "os._exit(0)": (by(os._exit, 0), "exited with code 0"),
    "os._exit(3)": (by(os._exit, 3), "exited with code 3"),
}
"""Name -> what is done, and how the message says it."""


def die_with_the_compile_lock() -> None:
    """Be killed while PyTensor's cache of compiled code is locked."""
    lock_ctx().__enter__()
    SIGKILL()


# -- exceptions


class NotPicklable(Exception):
    def __init__(self, code, reason):
        super().__init__(f"{reason} ({code})")
        self.hook = lambda: code


class Unprintable(Exception):
    def __str__(self):
        raise ZeroDivisionError("in __str__")


class ExitsInReduce(Exception):
    def __reduce__(self):
        raise SystemExit(9)


class Base(BaseException):
    pass


def raise_(kind: type, *args: object) -> None:
    raise kind(*args)


def raise_by_rank() -> None:
    raise (ValueError, LookupError, TypeError)[synk.rank()](f"rank {synk.rank()}")


def raise_with_20_mb() -> None:
    raise ValueError("m" * 20_000_000)


def recurse(depth: int = 0) -> int:
    return recurse(depth + 1) + 1


def take_all_memory() -> None:
    """Take more than RLIMIT_AS leaves, as where a machine has no more."""
    with open("/proc/self/statm") as sizes:
        used = int(sizes.read().split()[0]) * mmap.PAGESIZE
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20), before[1]))
    try:
        np.ones(1 << 27)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


# -- ranks that do not come back


def hold_the_gil() -> None:
    """Sleep in C without letting Python go on, signal handlers included."""
    stamp()
    ctypes.PyDLL(None).sleep(60)


def loop_for_ever() -> None:
    stamp()
    while True:
        pass


stop = by(signal.raise_signal, signal.SIGSTOP)


# -- moments


def arm(ranks: Sequence[int], visits: int = 1) -> None:
    """Have ranks act at that visit of theirs to their moment."""
    for rank in ranks:
        note(ARMED + rank, visits)


def is_due() -> bool:
    """Tell whether this rank is to act now."""
    place = ARMED + synk.rank()
    left = board(place)
    if left:
        note(place, left - 1)
    return left == 1


class Moment(NamedTuple):
    """A place in synk that ranks come to: before a function or after its return."""

    file: str
    name: str
    activity: str
    """The method of `Work` that makes ranks come there."""
    visits: int = 1
    """Which time counts."""
    event: str = "call"


_MEETING = "comm/shm.py", "SharedMemoryComm.next_meeting", "collective"
MOMENTS = {
    "before it reads the command": Moment(
        "workers/channel.py", "WorkerChannel.read", "step"
    ),
    "before it takes its rows": Moment("call/arguments.py", "take_share", "step"),
    "before a barrier": Moment(*_MEETING),
    "between two barriers": Moment(*_MEETING, visits=2),
    "between stages": Moment(
        "programs/one_call.py", "RankCall.reduce", "step", event="return"
    ),
    "storing an update": Moment("programs/transaction.py", "Transaction.store", "step"),
    "writing its result": Moment("memory/arena.py", "Arena.put", "scores"),
    "with its result written": Moment(
        "ranks/context.py", "RankContext.publish", "scores", event="return"
    ),
    "before it replies": Moment("workers/channel.py", "WorkerChannel.reply", "total"),
    "in a broadcast": Moment("variables/lists.py", "store", "collective"),
    "getting a function": Moment("ranks/graphs.py", "load_graph", "new_function"),
    "compiling": Moment("programs/programs.py", "Programs.compile", "new_function"),
}


@playing
def at(
    trial: Trial, moment: str, fault: Callable[[], object], **options: Any
) -> Iterator[None]:
    """Have a rank meet a fault at a moment; options are those of `synk.fork`."""
    place = MOMENTS[moment]
    trial.fork(3, place.activity, **options)
    trace(VICTIM, _at_place, place, fault)
    arm([VICTIM], place.visits)
    yield
    getattr(trial.work, place.activity)()


def trace(rank: int, tracer: Callable, *args: object) -> None:
    """Have a rank traced from now on, until it raises at a moment."""
    acting(rank, sys.settrace, partial(tracer, *args))(X)


def _at_place(
    place: Moment, fault: Callable[[], object], frame: Any, event: str, arg: Any
) -> Any:
    code = frame.f_code
    if not board(ARMED + synk.rank()) or code.co_qualname != place.name:
        return None
    if not code.co_filename.endswith(place.file):
        return None
    if event == place.event and is_due():
        fault()
    return partial(_at_place, place, fault)


@playing
def computing(
    trial: Trial,
    fault: Callable[[], object],
    rank: int | None = VICTIM,
    of_call: Mapping[str, Any] = MappingProxyType({}),
    **options: Any,
) -> Iterator[None]:
    """Have an Op of one rank, or of all (None), meet a fault."""
    call = acting(rank, _fault_if_due, fault)
    trial.fork(3, **options)
    arm(range(3) if rank is None else [rank])
    yield
    compare(call(X, **of_call), X.sum(), "the sum")


def _fault_if_due(fault: Callable[[], object]) -> None:
    if is_due():
        stamp()
        fault()


def interrupted_in_a_collective(trial: Trial) -> Iterator[None]:
    """Interrupt the master while a rank is late at a barrier."""

    def interrupt() -> None:
        await_arrivals(1)
        send(signal.SIGINT, master(trial))

    play = at("before a barrier", arrive_and_stay)(trial)
    next(play)
    in_thread(interrupt)
    yield
    next(play, None)


# -- what ranks print


def much_output(trial: Trial) -> Iterator[None]:
    """What a rank prints goes where the script's own output goes, all of it."""
    path = Path(trial.work.folder) / "stdout"
    kept, file = os.dup(1), os.open(path, os.O_WRONLY | os.O_CREAT)
    os.dup2(file, 1)
    os.close(file)
    yield from computing(write_much)(trial)
    os.dup2(kept, 1)
    os.close(kept)
    assert path.stat().st_size == 10 << 20


def write_much() -> None:
    """Write 10 MB to the standard output."""
    with open(1, "w", closefd=False) as stdout:
        for _ in range(10):
            stdout.write("x" * (1 << 20))
