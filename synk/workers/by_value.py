"""What cloudpickle has dumped, loaded in the process whose classes must not change.

cloudpickle sends what a script defines by value. Where a class is known already, it
returns that, and sets all that it has to what it was when it was dumped: methods that
read a copy of the script's global variables, and former values of attributes. That is
of use on a rank, and not in the process whose class it is.

What is used of cloudpickle here is no public part of it: names of 2.2 to 3.1. Where
they are gone classes are set again, which ``test_models.py`` and
``test_troubleshooting_errors.py`` tell.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

from cloudpickle import cloudpickle

_known: Any = getattr(cloudpickle, "_DYNAMIC_CLASS_TRACKER_BY_ID", {})
"""Each class that this process has sent or made, by the number that it is sent with."""


def loads(pickled: bytes) -> Any:
    """Return an object of this process's own classes, which are left as they are."""
    return Unpickler(io.BytesIO(pickled)).load()


def loads_copy(pickled: bytes) -> Any:
    """Return an object of new classes, as another process has it."""
    return _CopyUnpickler(io.BytesIO(pickled)).load()


class Unpickler(pickle.Unpickler):
    """Loads what `loads` returns."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self._kept: set[type] = set()

    def find_class(self, module: str, name: str) -> Any:
        """Return what has a name, or what does something else than cloudpickle's."""
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
