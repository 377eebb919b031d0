"""Frames of the user's script: for warnings, messages and tracebacks.

Users want to see lines of the script: where a graph was written, which call failed or
was interrupted. Frames of synk and PyTensor in between do not help them.
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
"""An environment variable; if it is 1, tracebacks keep all their frames."""

_SYNK = os.path.join(os.path.dirname(__file__), "")
_PYTENSOR = os.path.join(os.path.dirname(pytensor.__file__), "")
_MAKERS = tuple(_SYNK + room for room in ("call", "compiler", "programs"))
"""Folders of code that makes variables which the user has not written."""

_PLACES = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib")}
_INSTALLED = tuple(os.path.join(place, "") for place in _PLACES)
_PACKAGES = tuple(
    f"{os.sep}{name}{os.sep}" for name in ("site-packages", "dist-packages")
)

_LONGEST = 60
"""The most characters of a source line that are shown."""


def is_ours(path: str) -> bool:
    """Return whether a file is part of synk."""
    return path.startswith(_SYNK)


def is_users(path: str) -> bool:
    """Return whether a file is the user's: not of an installed package or Python."""
    if path.startswith((_SYNK, _PYTENSOR, *_INSTALLED, "<frozen ")):
        return False
    if path.endswith(".pyx"):  # Cython's file names have no folder
        return False
    return not any(folder in path for folder in _PACKAGES)


def callers_place() -> str:
    """Return the script's line that has called synk, as " (made in fit.py:12)".

    Returns "" if the caller is no line of a file.
    """
    frame = sys._getframe(callers_level() - 1)
    place = _place(frame.f_code.co_filename, frame.f_lineno, None)
    return "" if place is None else f" (made in {place})"


def callers_level() -> int:
    """Return the `stacklevel` with which `warnings.warn` shows synk's caller."""
    frame, level = sys._getframe(1), 1
    # `with synk.session():` has a frame of contextlib in between.
    between = (_SYNK, contextlib.__file__)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(between):
        frame, level = frame.f_back, level + 1
    return level


# -- graphs


def made_in(var: Variable) -> str | None:
    """Return the line that made a variable, as in "fit.py:12: `loss = x.sum()`".

    This is the innermost line of the user, except in `make_node` of a user's Op. If
    PyTensor's trace (``config.traceback__limit`` frames) does not reach the script, it
    is the innermost line of a library. None for variables that synk has made.
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
    """Return a context manager in which PyTensor notes no lines for new variables.

    It is for graphs of shapes, which synk makes often: the notes took 4 of the 53
    seconds in which a script of 74 layers of Keras starts.
    """
    return pytensor.config.change_flags(traceback__limit=0)


def where_made(var: Variable) -> str:
    """Return `made_in` for a message, as " (made in fit.py:12: ...)"; "" if unknown."""
    made = made_in(var)
    return "" if made is None else f" (made in {made})"


def hand_on_line(var: Variable, to: Iterable[Variable]) -> None:
    """Give the line of `var` to the variables in `to` that have none."""
    trace = getattr(var.tag, "trace", None)
    for made in to:
        if trace is not None and made_in(made) is None:
            made.tag.trace = trace


def _is_librarys(path: str) -> bool:
    return not path.startswith((_SYNK, _PYTENSOR, *_INSTALLED, "<"))


def _place(path: str, number: int, line: str | None) -> str | None:
    folder, name = os.path.split(path)
    if "ipykernel_" in folder:  # a temporary name, which users do not see
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
    """Decorate a public function: its errors have tracebacks without synk's frames.

    If no error is raised, this costs one more call of a Python function.
    """
    tidy = shorten  # in the closure, as `call` gets other globals below

    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except BaseException as error:
            tidy(error)
            raise  # bare, so that this frame is not added to the traceback again

    # With the globals of `function`, by which doctest recognises a module's functions.
    made: Any = types.FunctionType(
        call.__code__, function.__globals__, closure=call.__closure__
    )
    return functools.update_wrapper(made, function)


def shorten(error: BaseException) -> None:
    """Remove synk's frames from an exception's traceback, in place.

    A KeyboardInterrupt keeps the user's frames only, and no cause, as the place of an
    interrupt means nothing. Other exceptions keep frames of other packages, and synk's
    innermost frame, as synk may be at fault.
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
        # `tb_lineno` is None if an interrupt came at code without a line.
        line = frame.tb_lineno or frame.tb_frame.f_code.co_firstlineno
        linked = types.TracebackType(linked, frame.tb_frame, frame.tb_lasti, line)
    error.__traceback__ = linked


def shows_all_frames() -> bool:
    """Return whether tracebacks keep all their frames; see `FULL`."""
    return os.environ.get(FULL, "0") not in ("", "0")


def _path(frame: types.TracebackType) -> str:
    return frame.tb_frame.f_code.co_filename
