"""Which frames are the user's: for warnings, for messages, and in tracebacks.

A user wants to see lines of the script: where a graph was written, which call failed or
was interrupted. What lies between them and that, ours and PyTensor's, is for us.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import sysconfig
import types
from collections.abc import Callable, Iterable
from typing import Any, ParamSpec, TypeVar

import pytensor
from pytensor.graph.basic import Variable

FULL = "SYNK_FULL_TRACEBACK"
"""An environment variable; set to 1, tracebacks keep all their frames."""

_SYNK = os.path.join(os.path.dirname(__file__), "")
_PYTENSOR = os.path.join(os.path.dirname(pytensor.__file__), "")
_MAKERS = tuple(_SYNK + room for room in ("call", "compiler", "programs"))
"""Here variables are made that the user has not written."""

_PLACES = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib")}
_INSTALLED = tuple(os.path.join(place, "") for place in _PLACES)
_PACKAGES = tuple(
    f"{os.sep}{name}{os.sep}" for name in ("site-packages", "dist-packages")
)

_LONGEST = 60
"""Characters of a source line that are shown."""


def is_ours(path: str) -> bool:
    """Tell whether a file is part of this package."""
    return path.startswith(_SYNK)


def is_users(path: str) -> bool:
    """Tell whether a file is the user's: of no installed package, and not Python's."""
    if path.startswith((_SYNK, _PYTENSOR, *_INSTALLED, "<frozen ")):
        return False
    if path.endswith(".pyx"):  # compiled by Cython, which names no folder
        return False
    return not any(folder in path for folder in _PACKAGES)


def callers_place() -> str:
    """Return the line that has called the package, as messages have it behind a name.

    As in " (made in fit.py:12)"; "" where that is no line of a file.
    """
    frame = sys._getframe(callers_level() - 1)
    place = _place(frame.f_code.co_filename, frame.f_lineno, None)
    return "" if place is None else f" (made in {place})"


def callers_level() -> int:
    """Return the `stacklevel` with which `warnings.warn` shows the package's caller."""
    frame, level = sys._getframe(1), 1
    # contextlib's is between as in `with synk.session():`.
    between = (_SYNK, contextlib.__file__)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(between):
        frame, level = frame.f_back, level + 1
    return level


# -- graphs


def made_in(var: Variable) -> str | None:
    """Return the line that made a variable, as in "fit.py:12: `loss = x.sum()`".

    The innermost line of the user's; or of a library's, where PyTensor's trace
    (``config.traceback__limit`` frames) does not go back to the script. Not that in an
    Op of the user's, which is the same wherever it is applied. None for our variables.
    """
    for test in (is_users, _is_librarys):
        for trace in reversed(getattr(var.tag, "trace", None) or ()):
            for path, number, function, line in reversed(trace):
                if path.startswith(_MAKERS):
                    return None
                if test(path) and function != "make_node":
                    return _place(path, number, line)
    return None


def untraced() -> Any:
    """Have PyTensor not note, in a ``with`` block, which lines make variables.

    Ops tell their shapes again and again, as graphs that are ours: the notes took 4 of
    the 53 seconds in which a script of 74 layers of Keras starts.
    """
    return pytensor.config.change_flags(traceback__limit=0)


def where_made(var: Variable) -> str:
    """Return `made_in` as messages have it behind a name; "" if it is not known."""
    made = made_in(var)
    return "" if made is None else f" (made in {made})"


def hand_on_line(var: Variable, to: Iterable[Variable]) -> None:
    """Have variables say that they were made where `var` was, if they say nothing."""
    trace = getattr(var.tag, "trace", None)
    for made in to:
        if trace is not None and made_in(made) is None:
            made.tag.trace = trace


def _is_librarys(path: str) -> bool:
    return not path.startswith((_SYNK, _PYTENSOR, *_INSTALLED, "<"))


def _place(path: str, number: int, line: str | None) -> str | None:
    folder, name = os.path.split(path)
    if "ipykernel_" in folder:  # a file's name that nobody has seen
        name = "a cell"
    place = None if name.startswith("<") else f"{name}:{number}"
    if not line:
        return place
    line = " ".join(line.removesuffix("\\").split())
    line = line if len(line) <= _LONGEST else line[: _LONGEST - 3] + "..."
    return f"`{line}`" if place is None else f"{place}: `{line}`"


# -- tracebacks

P = ParamSpec("P")
R = TypeVar("R")


def entry(function: Callable[P, R]) -> Callable[P, R]:
    """Make a function one that scripts call: its errors show the script's lines.

    Costs what a call of a Python function does, and nothing else where none is raised.
    """
    tidy = shorten  # by the closure: see the globals below

    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except BaseException as error:
            tidy(error)
            raise  # as it is now: this frame is not added to the traceback again

    # With the globals of `function`, by which doctest tells a module's own functions.
    made: Any = types.FunctionType(
        call.__code__, function.__globals__, closure=call.__closure__
    )
    return functools.update_wrapper(made, function)


def shorten(error: BaseException) -> None:
    """Take our frames out of an exception's traceback, in place.

    An interrupt keeps the user's frames alone, as it says nothing about where it came,
    and no causes. Of another exception the innermost of our frames stays: it may be
    our fault. Frames of other packages stay there, too.
    """
    if shows_all_frames():
        return
    frames, found = [], error.__traceback__
    while found is not None:
        frames.append(found)
        found = found.tb_next
    if isinstance(error, KeyboardInterrupt):
        error.__cause__, error.__suppress_context__ = None, True
        kept = [frame for frame in frames if is_users(_path(frame))]
    else:
        ours = [frame for frame in frames if is_ours(_path(frame))]
        kept = [frame for frame in frames if frame not in ours[:-1]]
    linked = None
    for frame in reversed(kept):
        # An interrupt may come at code that is in no line.
        line = frame.tb_lineno or frame.tb_frame.f_code.co_firstlineno
        linked = types.TracebackType(linked, frame.tb_frame, frame.tb_lasti, line)
    error.__traceback__ = linked


def shows_all_frames() -> bool:
    """Tell whether tracebacks are to keep all their frames."""
    return os.environ.get(FULL, "0") not in ("", "0")


def _path(frame: types.TracebackType) -> str:
    return frame.tb_frame.f_code.co_filename
