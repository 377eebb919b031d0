"""Unpickle cloudpickle's data without changing this process's own classes.

cloudpickle sends a class that a script defines by value. If the receiving process knows
the class, cloudpickle sets all attributes of that class to those at the dump: methods
that read a copy of the script's global variables, and former values. A rank needs that.
The process that has defined the class must not have it.

This uses private names of cloudpickle 2.2 to 3.1. Without them classes are set again,
and ``test_models.py`` and ``test_troubleshooting_errors.py`` fail.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

from cloudpickle import cloudpickle

_known: Any = getattr(cloudpickle, "_DYNAMIC_CLASS_TRACKER_BY_ID", {})
"""Each class that this process has sent or received, by cloudpickle's number of it."""


def loads(pickled: bytes) -> Any:
    """Unpickle an object; classes known here are used, and stay unchanged."""
    return Unpickler(io.BytesIO(pickled)).load()


def loads_copy(pickled: bytes) -> Any:
    """Unpickle an object with new copies of its classes, as another process does."""
    return _CopyUnpickler(io.BytesIO(pickled)).load()


class Unpickler(pickle.Unpickler):
    """The unpickler of `loads`."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self._kept: set[type] = set()

    def find_class(self, module: str, name: str) -> Any:
        """Return the object of that name, or a stand-in for a cloudpickle function."""
        found = super().find_class(module, name)
        if module.partition(".")[0] != "cloudpickle":
            return found
        if name in ("_make_skeleton_class", "_make_skeleton_enum"):
            return partial(self._make, found)
        return partial(self._set, found) if name == "_class_setstate" else found

    def _make(self, make: Callable[..., type], *args: Any) -> type:
        is_known = args[-2] in _known
        made = make(*args)
        if is_known:
            self._kept.add(made)
        return made

    def _set(self, set_all: Callable[..., type], made: type, state: Any) -> type:
        return made if made in self._kept else set_all(made, state)


class _CopyUnpickler(Unpickler):
    def _make(self, make: Callable[..., type], *args: Any) -> type:
        *given, _, more = args
        return make(*given, None, more)
