"""Faults that come from outside, at moments that are known or drawn.

A thread of the master's process sends the signals, as another process would.
"""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial

from processes import (
    acting,
    arrive_and_stay,
    board,
    note,
    rank_pids,
    stamp,
    wait_until,
)
from trial import Trial
from work import X
from world import children

import synk
from synk.ranks.session import SESSION

Victims = Callable[[Trial], Sequence[int]]
"""Returns the processes that are to be struck."""


def ranks(*numbers: int) -> Victims:
    """Return a function that gives the processes of ranks."""
    return lambda trial: [rank_pids()[rank] for rank in numbers]


def zygote(trial: Trial) -> list[int]:
    return [SESSION.zygote._pid]


def master(trial: Trial) -> list[int]:
    return [os.getpid()]


def any_rank(trial: Trial) -> list[int]:
    """Return a rank that is drawn; none while there are none."""
    mine = [pid for zygote in children(os.getpid()) for pid in children(zygote)]
    return [trial.rng.choice(mine)] if mine else []


def any_zygote(trial: Trial) -> list[int]:
    """Return the zygote; none while there is none."""
    return list(children(os.getpid()))[:1]


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


def idle(number: int, victims: Victims, n: int = 3, **options):
    """Return a row's `play`: processes are struck between two calls."""

    def play(trial: Trial) -> Callable[[], object]:
        trial.fork(n, **options)

        def call() -> None:
            send(number, victims(trial))
            # The ranks of a zygote outlive it for a moment, and may do one more call.
            for _ in until(0.5):
                trial.work.step()

        return call

    return play


def computing(number: int, victims: Victims, n: int = 3, **options):
    """Return a row's `play`: processes are struck while all ranks compute."""

    def play(trial: Trial) -> Callable[[], object]:
        call = acting(None, stay_on_ranks)
        trial.fork(n, **options)

        for rank in range(n):
            note(_HERE + rank, 0)

        def strike() -> None:
            for rank in range(1, n):
                wait_until(partial(board, _HERE + rank), 10, f"rank {rank} computes")
            send(number, victims(trial))

        in_thread(strike)
        return lambda: call(X)

    return play


_HERE = 120
"""Places on the board: whether a rank is in `stay_on_ranks`."""


def stay_on_ranks() -> None:
    if synk.rank():
        note(_HERE + synk.rank(), 1)
        arrive_and_stay()


def until(seconds: float) -> itertools.count:
    """Yield numbers for so long."""
    deadline = time.monotonic() + seconds
    return itertools.takewhile(lambda _: time.monotonic() < deadline, itertools.count())


# -- at moments that are drawn

LONGEST = 0.03
"""Seconds from the first call to the latest fault: a few calls, all their phases."""


def at_random(number: int, victims: Victims, activity: str, **options):
    """Return a row's `play`: a process is struck while the script does something.

    Parameters
    ----------
    activity : str
        A method of `Work`, done again and again; or "fork", with a call and close.
    """

    def play(trial: Trial) -> Callable[[], object]:
        if activity != "fork":
            trial.fork(activity=activity, **options)
        struck = threading.Event()
        delay = trial.rng.uniform(0, LONGEST * (5 if activity == "fork" else 1))

        def strike() -> None:
            time.sleep(delay)
            while not (found := victims(trial)):
                time.sleep(0.0005)
            send(number, found)
            struck.set()

        def call() -> None:
            in_thread(strike)
            do = (
                partial(fork_and_close, trial)
                if activity == "fork"
                else getattr(trial.work, activity)
            )
            while not struck.is_set():
                do()
            for _ in until(0.1):
                do()

        return call

    return play


def closing(number: int, victims: Victims):
    """Return a row's `play`: a process is struck while the session is closed."""

    def play(trial: Trial) -> Callable[[], object]:
        trial.fork()
        delay = trial.rng.uniform(0, 0.005)
        found = victims(trial)

        def strike() -> None:
            time.sleep(delay)
            send(number, found)

        def call() -> None:
            thread = in_thread(strike)
            synk.close()
            thread.join()

        return call

    return play


def fork_and_close(trial: Trial) -> None:
    """Have a session of one step."""
    with synk.session(3):
        trial.work.step()


def stopped_for_a_while(activity: str):
    """Return a row's `play`: a rank is stopped, and goes on."""

    def play(trial: Trial) -> Callable[[], object]:
        trial.fork(activity=activity)
        delay = trial.rng.uniform(0, LONGEST)

        def strike() -> None:
            time.sleep(delay)
            victims = any_rank(trial)
            send(signal.SIGSTOP, victims)
            time.sleep(0.1)
            send(signal.SIGCONT, victims)

        def call() -> None:
            thread = in_thread(strike)
            while thread.is_alive():
                getattr(trial.work, activity)()
            thread.join()

        return call

    return play
