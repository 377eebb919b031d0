"""Faults of the master: interrupts, exceptions and ends of the script itself."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytensor
from moments import at
from processes import (
    Act,
    Do,
    acting,
    arrive_and_ignore,
    arrive_and_stay,
    await_arrivals,
    release,
    stamp,
)
from strikes import fork_and_close, in_thread, send, until
from trial import Trial
from work import X, compare

import synk


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

        def strike() -> None:
            await_arrivals(1)
            for _ in range(times):
                send(signal.SIGINT, [os.getpid()])
                time.sleep(0.1)

        in_thread(strike)
        return lambda: call(X)

    return play


interrupted_twice = interrupted(2, arrive_and_ignore)


def interrupted_in_a_collective(trial: Trial) -> Callable[[], object]:
    call = at("before a barrier", arrive_and_stay)(trial)

    def strike() -> None:
        await_arrivals(1)
        send(signal.SIGINT, [os.getpid()])

    in_thread(strike)
    return call


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
        if activity != "fork":
            trial.fork(activity=activity)
        period = trial.rng.uniform(0.008, 0.012)
        do = partial(fork_and_close, trial)
        if activity != "fork":
            do = partial(_do_forked, trial, getattr(trial.work, activity))
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


def _do_forked(trial: Trial, do: Callable[[], object]) -> None:
    if not synk.is_forked():
        synk.fork(trial.ranks)
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
        for _ in range(5):
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
    if activity != "fork":
        trial.fork(activity=activity)
    delay = trial.rng.uniform(0, 0.05)

    def strike() -> None:
        time.sleep(delay)
        send(number, [os.getpid()])

    def call() -> None:
        in_thread(strike)
        do = partial(fork_and_close, trial)
        if activity != "fork":
            do = getattr(trial.work, activity)
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
