"""The notice that a function is being compiled.

::

    synk: compiling step(x, y) for 2 ranks, mode JAX: 12 s

It appears on stderr after two seconds, in one line that is rewritten every second, and
ends with the total time. By default it is shown only in a terminal and in a notebook;
see `compile_notice`.

A thread writes the notice. The thread lives while a call or `distribute` compiles, and
is joined before these return, so that none exists when ranks are forked. If nothing is
to be shown, there is no thread.
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
"""Seconds of compilation before the notice appears."""
EVERY = 1.0
"""Seconds between two updates of the line."""
VARIABLE = "SYNK_COMPILE_NOTICE"

_asked: list[bool | None] = [None]


def compile_notice(shown: bool | None = None) -> None:
    """Set whether a notice on stderr tells of a compilation that takes long.

    The notice is a line with the function, the number of ranks, the mode and the
    seconds since the compilation began. It appears after two seconds. May be called at
    any time, before and after :func:`synk.fork`.

    Parameters
    ----------
    shown : bool, optional
        None, the setting at first, shows the notice in a terminal and in a notebook; if
        the environment variable ``SYNK_COMPILE_NOTICE`` is 0, nowhere, and if it is 1,
        everywhere. True shows it everywhere: in a file or a pipe as two lines, after
        two seconds and at the end. False never shows it.

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
    """Return whether to write notices to `stream`, which may be None."""
    if stream is None:
        return False
    said = os.environ.get(VARIABLE, "")
    asked = _asked[0]
    if asked is None and said:
        asked = said != "0"
    return is_watched(stream) if asked is None else asked


def is_watched(stream: Any) -> bool:
    """Return whether `stream` is a terminal or a notebook, with rewritable lines."""
    if type(stream).__module__.startswith("ipykernel."):  # a notebook's
        return True
    try:
        return stream.isatty()
    except (AttributeError, ValueError):  # not a file, or a closed one
        return False


class Notice:
    """The notice of one function's compilation, in the master.

    In a ``with`` block, call `begin` whenever something is to be compiled, any number
    of times; `end`, or the block's end, ends the notice. ``describe()`` returns the
    text between "compiling" and the seconds.
    """

    def __init__(self, describe: Callable[[], str]) -> None:
        self._describe = describe
        self._thread: threading.Thread | None = None  # while a line may be written

    def begin(self) -> None:
        """Start the notice's time, unless it has begun already."""
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
        """End the thread and the line; `failed` if the compilation has failed."""
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
            # A line longer than the terminal's could not be rewritten.
            room = max(shutil.get_terminal_size().columns - 1, len(start + end) + 10)
            if len(text) > room:
                kept = room - len(start + end) - 3
                text = f"{start}{self._what[:kept]}...{end}"
            text = "\r" + text.ljust(self._width)
        self._width = max(len(text.lstrip("\r")), 1)
        with contextlib.suppress(OSError, ValueError):  # the stream is closed
            self._stream.write(text + "\n" * (last or not self._in_place))
            self._stream.flush()
