"""Kills at a line of synk that is drawn: wherever in the code that may be."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from deaths import by_signal
from processes import board, note
from strikes import fork_and_close, until
from trial import ARMED, Trial

import synk
from synk.workers.channel import WorkerChannel

SOURCE = str(Path(synk.__file__).parent)

LINES = 3000
"""More than any activity below comes to."""


def killed(who: str, activity: str):
    """Return a row's `play`: a process ends at a line that it comes to.

    Parameters
    ----------
    who : {"master", "zygote", "rank"}
        A rank is rank 1.
    activity : str
        A method of `Work`, or "fork".
    """

    def play(trial: Trial) -> Callable[[], object]:
        master = os.getpid()
        trace = partial(_trace, partial(_is, who, master))
        if activity == "fork":
            do = partial(fork_and_close, trial)
        else:
            do = getattr(trial.work, activity)
            _trace_commands(trial, trace)
            trial.fork(activity=activity)

        def call() -> None:
            # As many at the beginning as at the end: most lines are in loops.
            note(ARMED, int(LINES ** trial.rng.random()))
            if activity == "fork" or who == "master":
                sys.settrace(trace)
            try:
                for _ in until(20):
                    if not board(ARMED):
                        break
                    do()
                do()
            finally:
                sys.settrace(None)

        return call

    return play


def _trace_commands(trial: Trial, trace: Callable) -> None:
    """Have ranks traced from the next command on."""
    wait = WorkerChannel.wait

    def traced(self: WorkerChannel, look_about: Callable) -> None:
        wait(self, look_about)
        sys.settrace(trace)

    trial.patch.setattr(WorkerChannel, "wait", traced)


def _is(who: str, master: int) -> bool:
    if synk.rank():
        return who == "rank" and synk.rank() == 1
    return who == ("master" if os.getpid() == master else "zygote")


def _trace(is_victim: Callable[[], bool], frame: Any, event: str, arg: Any) -> Any:
    if not frame.f_code.co_filename.startswith(SOURCE) or not is_victim():
        return None
    return _count


def _count(frame: Any, event: str, arg: Any) -> Any:
    left = board(ARMED)
    if event == "line" and left:
        note(ARMED, left - 1)
        if left == 1:
            print(frame.f_code.co_filename, frame.f_lineno, file=sys.stderr, flush=True)
            by_signal(signal.SIGKILL)
    return _count
