"""Faults that come from outside, and those of the script itself.

A thread of the master's process sends the signals, as another process would.
"""

import gc
import itertools
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytensor
from processes import (
    Act,
    Do,
    acting,
    arrive_and_stay,
    board,
    children,
    note,
    rank_pids,
    stamp,
    wait_until,
)
from trial import ACTIVITIES, Trial, X, compare, playing

import synk

Victims = Callable[[Trial], Sequence[int]]
"""Returns the processes that are to be struck."""


def ranks(*numbers: int) -> Victims:
    """Return a function that gives the processes of ranks."""
    return lambda trial: [rank_pids()[rank] for rank in numbers]


def any_rank(trial: Trial) -> list[int]:
    """Return a rank that is drawn; none while there are none."""
    mine = [pid for zygote in children(os.getpid()) for pid in children(zygote)]
    return [trial.rng.choice(mine)] if mine else []


def zygote(trial: Trial) -> list[int]:
    """Return the zygote, a master's one child; none while there is none."""
    return list(children(os.getpid()))[:1]


def master(trial: Trial) -> list[int]:
    return [os.getpid()]


def zygote_and_master(trial: Trial) -> list[int]:
    return [*zygote(trial), os.getpid()]


def in_thread(
    act: Callable[[], object], takes_signals: bool = False
) -> threading.Thread:
    """Begin to do something beside what the master does.

    Unless it `takes_signals`, as threads of a script do, the thread stands for another
    process.
    """

    def run() -> None:
        if not takes_signals:
            signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())
        act()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def send(number: int, victims: Sequence[int]) -> None:
    """Send a signal to all of them, within a millisecond."""
    stamp()
    for pid in victims:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass  # it has just ended, as in close


def strike_within(
    seconds: float, trial: Trial, number: int, victims: Victims
) -> threading.Thread:
    """Send a signal once there are such processes, after a time that is drawn."""
    delay = trial.rng.uniform(0, seconds)

    def strike() -> None:
        time.sleep(delay)
        while not (found := victims(trial)):
            time.sleep(0.0005)
        send(number, found)

    return in_thread(strike)


def until(seconds: float) -> itertools.count:
    """Yield numbers for so long."""
    deadline = time.monotonic() + seconds
    return itertools.takewhile(lambda _: time.monotonic() < deadline, itertools.count())


# -- processes are struck

LONGEST = 0.03
"""Seconds from the first call to the latest fault: a few calls, all their phases."""

OUTLIVES = 2
"""Seconds in which the ranks of a dead zygote, on a busy machine, may do more calls."""

_HERE = 120
"""Places on the board: whether a rank is where it waits to be struck."""


@playing
def idle(trial: Trial, number: int, victims: Victims) -> Iterator[None]:
    """Strike between two calls."""
    trial.fork()
    yield
    send(number, victims(trial))
    for _ in until(OUTLIVES):
        trial.work.step()


@playing
def computing(
    trial: Trial,
    number: int,
    victims: Victims,
    n: int = 3,
    times: int = 1,
    stay: Callable[[], None] = arrive_and_stay,
) -> Iterator[None]:
    """Strike while all ranks but the master compute."""
    call = acting(None, stay_on_ranks, stay)
    trial.fork(n)
    for rank in range(n):
        note(_HERE + rank, 0)

    def strike() -> None:
        for rank in range(1, n):
            wait_until(partial(board, _HERE + rank), 10, f"rank {rank} computes")
        for _ in range(times):
            send(number, victims(trial))
            time.sleep(0.1)

    in_thread(strike)
    yield
    call(X)


def stay_on_ranks(stay: Callable[[], None]) -> None:
    if synk.rank():
        note(_HERE + synk.rank(), 1)
        stay()


@playing
def at_random(
    trial: Trial, number: int, victims: Victims, activity: str | None = None
) -> Iterator[None]:
    """Strike while the script does something again and again; None is for any."""
    activity = activity or trial.rng.choice([*ACTIVITIES, "fork"])
    do = trial.repeating(activity)
    yield
    longest = LONGEST * (5 if activity == "fork" else 1)
    thread = strike_within(longest, trial, number, victims)
    while thread.is_alive():
        do()
    for _ in until(0.1 if activity == "fork" else OUTLIVES):
        do()


@playing
def closing(trial: Trial, number: int, victims: Victims) -> Iterator[None]:
    """Strike while the session is closed."""
    trial.fork()
    found = victims(trial)
    yield
    thread = strike_within(0.005, trial, number, lambda _: found)
    synk.close()
    thread.join()


@playing
def stopped_for_a_while(trial: Trial, activity: str) -> Iterator[None]:
    """Stop a rank, and have it go on."""
    trial.fork(activity=activity)
    delay = trial.rng.uniform(0, LONGEST)

    def strike() -> None:
        time.sleep(delay)
        victims = any_rank(trial)
        send(signal.SIGSTOP, victims)
        time.sleep(0.1)
        send(signal.SIGCONT, victims)

    yield
    thread = in_thread(strike)
    while thread.is_alive():
        getattr(trial.work, activity)()
    thread.join()


# -- the master gets signals


def interrupted_between_calls(trial: Trial) -> Iterator[None]:
    trial.fork()
    yield
    send(signal.SIGINT, master(trial))
    time.sleep(5)  # what the script itself does


def interrupted_closing(trial: Trial) -> Iterator[None]:
    trial.fork()
    yield
    try:
        strike_within(0.02, trial, signal.SIGINT, master)
        synk.close()
        time.sleep(0.1)  # it may come only now
    finally:
        synk.close()


@playing
def interrupted_every_10_ms(
    trial: Trial, activity: str, by_thread: bool = False
) -> Iterator[None]:
    """Interrupt a script that goes on again and again.

    Where the main thread holds the signals back, another one may take them.
    """
    do = trial.repeating(activity)
    if activity != "fork":
        do = partial(_do_forked, do)
    period = trial.rng.uniform(0.008, 0.012)
    ended = threading.Event()

    def strike() -> None:
        while not ended.wait(period):
            os.kill(os.getpid(), signal.SIGINT)

    yield
    with Interruptible() as interruptible:
        thread = in_thread(strike, by_thread)
        for _ in until(0.3):
            caught = interruptible.run(do)
            interruptible.run(partial(_go_on_after, caught))
            interruptible.run(trial.work.settle)
        ended.set()
        thread.join()
        _go_on_after(interruptible.run(do))
    stamp()


def _go_on_after(caught: BaseException | None) -> None:
    """Do what a script must where an interrupt came while one was dealt with."""
    if isinstance(caught, synk.WorkerDied):  # ranks that did not stop were killed
        synk.close()


def _do_forked(do: Callable[[], object]) -> None:
    if not synk.is_forked():
        synk.fork(3)
    do()


class Interruptible:
    """Interrupts raise KeyboardInterrupt in what is run by it, and nowhere else."""

    def __enter__(self) -> "Interruptible":
        self._is_running = False
        self._before = signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._before)

    def _handle(self, number: int, frame: Any) -> None:
        if self._is_running and frame.f_code is not Interruptible.run.__code__:
            raise KeyboardInterrupt

    def run(self, do: Callable[[], object]) -> BaseException | None:
        """Do something; return how it was cut short, if it was."""
        caught: BaseException | None = None
        try:
            self._is_running = True
            do()
        except (KeyboardInterrupt, synk.WorkerDied) as error:
            caught = error.with_traceback(None)
        finally:
            self._is_running = False
        return caught


def handler_that_closes(trial: Trial) -> Iterator[None]:
    """A handler of SIGTERM that closes the session and exits, at any moment."""
    trial.fork()

    def close_and_exit(*_: object) -> None:
        synk.close()
        raise SystemExit(7)

    yield
    before = signal.signal(signal.SIGTERM, close_and_exit)
    try:
        strike_within(0.03, trial, signal.SIGTERM, master)
        for _ in until(2):
            trial.work.step()
    finally:
        signal.signal(signal.SIGTERM, before)


# -- what the script does


def garbage_in_a_call(trial: Trial) -> Iterator[None]:
    """Functions, Data and variables are collected while a call runs."""

    def drop() -> None:
        held.clear()
        gc.collect()

    held: list[object] = []
    x = pytensor.tensor.dmatrix("x")
    dropping = synk.function(
        [x], (Act(0, Do(drop))(x).sum(), "sum"), mode="FAST_COMPILE"
    )
    trial.fork()
    dropping(X)
    yield
    for _ in range(2):
        rows, var = synk.data(X), pytensor.shared(np.ones(4))
        function = acting(None, id, 0)
        function(rows)
        synk.all_reduce(var, "sum")
        held.extend([rows, var, function])
        rows = var = function = None
        compare(dropping(X), X.sum(), "the sum")
        trial.work.step()
