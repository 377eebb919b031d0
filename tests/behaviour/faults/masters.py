"""Faults that come from outside, and those of the script itself.

A thread of the master's process sends the signals, as another process would.
"""

from __future__ import annotations

import gc
import itertools
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytensor
from processes import (
    Act,
    Do,
    acting,
    arrive_and_stay,
    await_arrivals,
    board,
    children,
    note,
    rank_pids,
    release,
    stamp,
    wait_until,
)
from trial import Trial, X, compare

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
        do = trial.repeating(activity, **options)
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


# -- Ctrl-C


def interrupted_between_calls(trial: Trial) -> Callable[[], object]:
    trial.fork()

    def call() -> None:
        send(signal.SIGINT, [os.getpid()])
        time.sleep(5)  # what the script itself does

    return call


def interrupted(times: int = 1, stay: Callable = arrive_and_stay):
    """Return a row's `play`: Ctrl-C while rank 1 computes, `times` in a row."""

    def play(trial: Trial) -> Callable[[], object]:
        call = acting(1, stay)
        trial.fork()
        in_thread(partial(interrupt_on_arrival, times))
        return lambda: call(X)

    return play


def interrupt_on_arrival(times: int = 1) -> None:
    """Send this process SIGINT when a rank has come somewhere."""
    await_arrivals(1)
    for _ in range(times):
        send(signal.SIGINT, [os.getpid()])
        time.sleep(0.1)


def interrupted_closing(trial: Trial) -> Callable[[], object]:
    trial.fork()
    delay = trial.rng.uniform(0, 0.02)

    def strike() -> None:
        time.sleep(delay)
        send(signal.SIGINT, [os.getpid()])

    def call() -> None:
        try:
            in_thread(strike)
            synk.close()
            time.sleep(0.1)  # it may come only now
        finally:
            synk.close()

    return call


def interrupted_every_10_ms(activity: str, by_thread: bool = False):
    """Return a row's `play`: Ctrl-C again and again, and a script that goes on.

    Parameters
    ----------
    activity : str
        A method of `Work`, or "fork".
    by_thread : bool
        Whether another thread of the script takes the signals where the main thread
        holds them back.
    """

    def play(trial: Trial) -> Callable[[], object]:
        do = trial.repeating(activity)
        if activity != "fork":
            do = partial(_do_forked, do)
        period = trial.rng.uniform(0.008, 0.012)
        ended = threading.Event()

        def strike() -> None:
            while not ended.wait(period):
                os.kill(os.getpid(), signal.SIGINT)

        def call() -> None:
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

        return call

    return play


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

    def __enter__(self) -> Interruptible:
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


def handler_that_closes(trial: Trial) -> Callable[[], object]:
    """A handler of SIGTERM that closes the session and exits, at any moment."""
    trial.fork()
    delay = trial.rng.uniform(0, 0.03)

    def close_and_exit(*_: object) -> None:
        synk.close()
        raise SystemExit(7)

    def strike() -> None:
        time.sleep(delay)
        send(signal.SIGTERM, [os.getpid()])

    def call() -> None:
        before = signal.signal(signal.SIGTERM, close_and_exit)
        try:
            in_thread(strike)  # which may strike at once
            for _ in until(2):
                trial.work.step()
        finally:
            signal.signal(signal.SIGTERM, before)

    return call


# -- what the script does


def exception_between_calls(trial: Trial) -> Callable[[], object]:
    trial.fork()

    def call() -> None:
        trial.work.step()
        raise LookupError("of the script")

    return call


def two_threads(trial: Trial) -> Callable[[], object]:
    """Two threads call at once: one is served, the other is told."""
    call = acting(1, arrive_and_stay)
    trial.fork()
    caught: list[BaseException] = []

    def other() -> None:
        await_arrivals(1)
        try:
            trial.work.step()
        except synk.StateError as error:
            caught.append(error)
        finally:
            release()

    def both() -> None:
        thread = threading.Thread(target=other)
        thread.start()
        compare(call(X), X.sum(), "the sum")
        thread.join()
        raise caught[0]

    return both


def call_in_a_call(trial: Trial) -> Callable[[], object]:
    _inner.append(trial.work.sum_)
    call = acting(0, _call_inner)
    trial.fork()
    return lambda: call(X)


_inner: list[synk.Function] = []


def _call_inner() -> None:
    _inner[0](X)


def garbage_in_a_call(trial: Trial) -> Callable[[], object]:
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

    def call() -> None:
        for _ in range(2):
            rows, var = synk.data(X), pytensor.shared(np.ones(4))
            function = acting(None, id, 0)
            function(rows)
            synk.all_reduce(var, "sum")
            held.extend([rows, var, function])
            rows = var = function = None
            compare(dropping(X), X.sum(), "the sum")
            trial.work.step()

    return call


def child_processes(trial: Trial) -> Callable[[], object]:
    """The script's own multiprocessing, after the fork and between calls."""
    import multiprocessing

    trial.fork()

    def call() -> None:
        with multiprocessing.get_context("fork").Pool(2) as pool:
            running = pool.map_async(abs, range(-50, 0))
            trial.work.step()
            assert running.get(10) == list(range(50, 0, -1))
        trial.work.step()

    return call


def at_any_time(number: int, trial: Trial) -> Callable[[], object]:
    activity = trial.rng.choice(["step", "collective", "new_function", "save", "fork"])
    do = trial.repeating(activity)
    delay = trial.rng.uniform(0, 0.05)

    def strike() -> None:
        time.sleep(delay)
        send(number, [os.getpid()])

    def call() -> None:
        in_thread(strike)
        for _ in until(10):
            do()

    return call


def killed_computing(number: int):
    """Return a row's `play`: the master ends while the ranks compute."""

    def play(trial: Trial) -> Callable[[], object]:
        call = acting(1, arrive_and_stay)
        trial.fork()

        def strike() -> None:
            await_arrivals(1)
            send(number, [os.getpid()])

        in_thread(strike)
        return lambda: call(X)

    return play
