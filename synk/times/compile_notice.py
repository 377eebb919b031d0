"""What a person who waits is told while a function is compiled.

::

    synk: compiling step(x, y) for 2 ranks, mode JAX: 12 s

comes after two seconds, on stderr, in one line that is rewritten every second, and
stays with the time that it took. It is written where a person looks: to a terminal or
into a notebook; see `compile_notice`.

A thread writes it. It lives while something is compiled in a call or in `distribute`,
and is joined before these return: there is none when ranks are forked. Where nothing
is to be shown, there is no thread.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import threading
from collections.abc import Callable
from time import monotonic
from typing import Any

AFTER = 2.0
"""Seconds of compilation of which nothing is said."""
EVERY = 1.0
"""Seconds from one writing to the next."""
VARIABLE = "SYNK_COMPILE_NOTICE"

_asked: list[bool | None] = [None]


def compile_notice(shown: bool | None = None) -> None:
    """Say whether a compilation that takes long is announced on stderr.

    The line names the function, the number of ranks, the mode and the seconds since the
    compilation began. It comes when that has taken two seconds. May be called at any
    time, before and after :func:`synk.fork`.

    Parameters
    ----------
    shown : bool, optional
        None, the default at first, shows it in a terminal and in a notebook, unless the
        environment variable ``SYNK_COMPILE_NOTICE`` is 0; if it is 1, everywhere. True
        shows it everywhere: in a file or a pipe as two lines, when it is first said
        and at the end. False never does.

    Examples
    --------
    >>> import synk
    >>> synk.compile_notice(False)  # never
    >>> synk.compile_notice()  # where a person looks
    """
    if shown not in (None, True, False):
        raise TypeError(f"shown must be True, False or None, got {shown!r}")
    _asked[0] = shown


def is_shown(stream: Any) -> bool:
    """Tell whether notices are to be written to a stream, if there is one."""
    if stream is None:
        return False
    said = os.environ.get(VARIABLE, "")
    asked = _asked[0]
    if asked is None and said:
        asked = said != "0"
    return is_watched(stream) if asked is None else asked


def is_watched(stream: Any) -> bool:
    """Tell whether a person looks at a stream, and a line of it can be rewritten."""
    if type(stream).__module__.startswith("ipykernel."):  # a notebook's
        return True
    try:
        return stream.isatty()
    except (AttributeError, ValueError):  # there is none, or it is closed
        return False


class Notice:
    """The notice of what is compiled for one function, in the master.

    In a ``with`` block, `begin` may be called any number of times, when something is to
    be compiled; `end`, or the block's end, says that it has been. `describe` returns
    what is compiled, for whom.
    """

    def __init__(self, describe: Callable[[], str]) -> None:
        self._describe = describe
        self._thread: threading.Thread | None = None  # while a line may be written

    def begin(self) -> None:
        """Note that something is compiled from now on, if that is not known yet."""
        if self._thread is None and is_shown(sys.stderr):
            self._what, self._stream = self._describe(), sys.stderr
            self._in_place = is_watched(self._stream)
            self._start, self._width = monotonic(), 0
            self._ended = threading.Event()
            self._thread = threading.Thread(
                target=self._run, name="synk compile notice", daemon=True
            )
            self._thread.start()

    def end(self, failed: bool = False) -> None:
        """Note that it has been compiled, or could not be: end thread and line."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        self._ended.set()
        thread.join()
        if self._width:
            self._write("stopped compiling" if failed else "compiled", last=True)

    def __enter__(self) -> Notice:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.end(kind is not None)

    def _run(self) -> None:
        after: float | None = AFTER
        while not self._ended.wait(after):
            self._write("compiling")
            after = EVERY if self._in_place else None

    def _write(self, verb: str, last: bool = False) -> None:
        seconds = monotonic() - self._start
        start, end = f"synk: {verb} ", f": {seconds:.{int(last)}f} s"
        text = start + self._what + end
        if self._in_place:
            # A line that the terminal breaks could not be rewritten.
            room = max(shutil.get_terminal_size().columns - 1, len(start + end) + 10)
            if len(text) > room:
                kept = room - len(start + end) - 3
                text = f"{start}{self._what[:kept]}...{end}"
            text = "\r" + text.ljust(self._width)
        self._width = max(len(text.lstrip("\r")), 1)
        with contextlib.suppress(OSError, ValueError):  # closed: whoever looked is gone
            self._stream.write(text + "\n" * (last or not self._in_place))
            self._stream.flush()
