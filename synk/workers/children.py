"""Processes that the script starts while there are ranks: as if there were none.

Rank 0 is pinned to its cores, and libraries are told of its threads by the environment.
A process takes both over from the thread that starts it: a program that the script
runs, a worker of a data loader or of joblib would have one core of the machine. So the
thread is let go for as long as it takes to start one:

``os.fork``
    By what `os.register_at_fork` calls. The child, which goes on with what there is in
    memory, gets its thread pools back as well.
``subprocess``, ``os.posix_spawn``, ``os.system``, ``os.exec*``, ``multiprocessing``
    By functions that stand in the place of those that start a program. They are there
    from fork to close. Python has a public way to be told of some of these only, and
    of none when it is over.

A program that a library starts in C, without Python, is not seen.
"""

from __future__ import annotations

import _posixsubprocess
import functools
import os
import subprocess
import threading
from collections.abc import Callable
from typing import Any, Protocol

from ..signals import with_signals_held_back

_STARTERS: tuple[tuple[Any, str], ...] = (
    (os, "posix_spawn"),
    (os, "posix_spawnp"),
    (os, "system"),
    (os, "execv"),
    (os, "execve"),
    # Private, in Python 3.10 to 3.14: what `subprocess`, and what `multiprocessing` and
    # joblib's loky start their processes by. test_introduction_cores tells if that
    # changes.
    (subprocess, "_fork_exec"),
    (_posixsubprocess, "fork_exec"),
)

Undo = Callable[[], object]


class Confined(Protocol):
    """What confines this process, and can let go of it."""

    def lift(self) -> Undo:
        """Let the calling thread go; return what confines it again."""

    def release(self) -> object:
        """Let all of this process go, for good."""


class _Places:
    """What stands in the place of a function of another module, and can be removed."""

    def __init__(self) -> None:
        self._taken: list[tuple[Any, str, Any, Any]] = []

    def take(self) -> None:
        for module, name in _STARTERS if not self._taken else ():
            original = getattr(module, name, None)
            if original is not None:
                stand_in = _starting(original)
                # First noted, then done: an interrupt may come between the two.
                self._taken.append((module, name, original, stand_in))
                setattr(module, name, stand_in)

    def give_back(self) -> None:
        while self._taken:
            module, name, original, stand_in = self._taken[-1]
            if getattr(module, name) is stand_in:  # and nobody has wrapped it since
                setattr(module, name, original)
            del self._taken[-1]


_confined: list[Confined] = []
_places = _Places()


class _OfThread(threading.local):
    """What a thread that is forking has to undo in the parent."""

    def __init__(self) -> None:
        self.undo: list[list[Undo]] = []


_forking = _OfThread()


def begin(*confined: Confined) -> None:
    """Have processes that are started be born free, from here on to `end`.

    Parameters
    ----------
    *confined : Confined
        What confines this process.
    """
    _confined[:] = confined
    _places.take()


def end() -> None:
    """End what `begin` has begun; fine if there is nothing, or if it was cut short."""
    _confined.clear()
    _places.give_back()


def _lift() -> list[Undo]:
    """Let this thread go; return what is to be called afterwards, in this order."""
    undo: list[Undo] = []
    for each in tuple(_confined):
        undo.insert(0, each.lift())
    return undo


def _confine_again(undo: list[Undo]) -> None:
    for each in undo:
        each()


def _starting(function: Callable) -> Callable:
    """Return a function that starts a program, in a thread that is let go."""

    @functools.wraps(function)
    def start(*args: Any, **kwargs: Any) -> Any:
        if not _confined:
            return function(*args, **kwargs)
        lifted: list[list[Undo]] = []
        try:
            # No interrupt may come between the one and the other.
            with_signals_held_back(lambda: lifted.append(_lift()))
            return function(*args, **kwargs)
        finally:
            for undo in lifted:
                with_signals_held_back(_confine_again, undo)

    return start


# -- os.fork


def _before_fork() -> None:
    if _confined:
        _forking.undo.append(_lift())


def _in_parent() -> None:
    if _forking.undo:
        _confine_again(_forking.undo.pop())


def _in_child() -> None:
    if _forking.undo:
        _forking.undo.clear()
        confined, _confined[:] = tuple(_confined), []
        for each in confined:
            each.release()


os.register_at_fork(
    before=_before_fork, after_in_parent=_in_parent, after_in_child=_in_child
)
