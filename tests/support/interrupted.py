"""Interrupts at a line of synk, in the master or on a rank."""

import dis
import functools
import linecache
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import synk

SOURCE = str(Path(synk.__file__).parent)

EVERY = os.environ.get("SYNK_LINES") == "all"
"""Whether tests interrupt at each line; else at one in so many of them."""

SAFE_FUNCTIONS = ("with_signals_held_back", "__del__")
"""Signals are held back there, and what finalizers raise is only printed."""

SAFE_LINES = (
    "self._in_command = False",
    "self._is_starting = False",
    "finally:  # after an interrupt too",
    "try:",
)
"""Python does not look for signals between the end of a block and its `finally`, or
between a loop and what is set next."""

FORKING = tuple(
    f"{name}.py"
    for name in (
        *("forking", "lifetime", "session", "starting", "zygote", "loop"),
        *("zygote_source", "channel", "control", "shm", "affinity", "children"),
    )
)
"""Files of what a session begins and ends with."""

_POP_EXCEPT = dis.opmap["POP_EXCEPT"]
"""Python takes no signal before this instruction, with which some lines begin. Raised
there, an exception would leave the one before it as that which is handled, for ever."""


def lines(step: int) -> Iterator[int]:
    """Yield the numbers of lines to interrupt at: each `step`-th, or all."""
    yield from range(1, 100_000, 1 if EVERY else step)


def interrupts(step: int, least: int, *options: Any) -> Iterator["InterruptedAt"]:
    """Yield one for each `step`-th line, until there are no more; more than `least`."""
    for k in lines(step):
        yield (trace := InterruptedAt(k, *options))
        if not trace.raised_at:
            break
    assert k > least


def interrupt() -> None:
    raise KeyboardInterrupt


class InterruptedAt:
    """Raises KeyboardInterrupt at the k-th line of synk that a process comes to.

    Lines are counted when they are run for the first time. With a k beyond the last of
    them nothing is raised. What else a handler of signals does may be given.
    """

    def __init__(
        self,
        k: int,
        files: tuple[str, ...] = (),
        handler: Callable[[], object] = interrupt,
    ) -> None:
        self.k, self._files, self._handler = k, files, handler
        self._pid = os.getpid()
        self.raised_at: list[str] = []
        self._seen: set[tuple[str, int]] = set()

    def __enter__(self) -> "InterruptedAt":
        self._before, self._caller = sys.gettrace(), sys._getframe(1)
        sys.settrace(self._enter_function)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)
        self._caller = None  # or what the caller has made would live on, in a cycle

    def _enter_function(self, frame: Any, event: str, arg: Any) -> Any:
        path = frame.f_code.co_filename
        if not path.startswith(SOURCE):
            return None
        if self._files and not path.endswith(self._files):
            return None
        return self._line if self.is_open_to_signals(frame) else None

    def is_open_to_signals(self, frame: FrameType | None) -> bool:
        """Tell whether signals are not held back where a frame is.

        Frames of a rank are looked at, not those of the zygote, which was forked with
        signals held back; nor those of pytest, fifty for each call of a function.
        """
        while (
            frame not in (None, self._caller) and frame.f_code.co_name != "run_to_end"
        ):
            if frame.f_code.co_name in SAFE_FUNCTIONS:
                return False
            frame = frame.f_back
        return True

    def _line(self, frame: Any, event: str, arg: Any) -> Any:
        place = frame.f_code.co_filename, frame.f_lineno
        if event == "line" and place not in self._seen and not is_safe(*place):
            if frame.f_code.co_code[frame.f_lasti] == _POP_EXCEPT:
                return self._line
            self._seen.add(place)
            if len(self._seen) == self.k and os.getpid() == self._pid:
                self.raised_at.append(f"{place[0]}:{place[1]}")
                self._handler()
        return self._line


@functools.cache
def is_safe(path: str, number: int) -> bool:
    """Tell whether nothing can come between a line and the one before."""
    return linecache.getline(path, number).strip() in SAFE_LINES


class RankInterruptedAt(InterruptedAt):
    """The same on a rank, from now on: of lines of the commands that it is given.

    Only there a signal interrupts a rank. ``is_armed()`` says whether lines count, and
    ``met()`` is called before the interrupt.
    """

    def __init__(
        self, k: int, is_armed: Callable[[], object], met: Callable[[], object]
    ) -> None:
        super().__init__(k)
        self._is_armed, self._met, self._caller = is_armed, met, None

    def start(self) -> None:
        """Begin on the rank that calls this."""
        self._pid = os.getpid()
        self._handler = self._say_and_interrupt
        sys.settrace(self._enter_function)

    def is_open_to_signals(self, frame: FrameType | None) -> bool:
        """Tell the same: not between commands."""
        if not self._is_armed() or not super().is_open_to_signals(frame):
            return False
        while frame is not None and not frame.f_code.co_name.startswith("worker_"):
            frame = frame.f_back
        return frame is not None

    def _say_and_interrupt(self) -> None:
        self._met()
        interrupt()
