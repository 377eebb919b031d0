"""Copies of a script's objects, in the script's process and in ranks.

cloudpickle sends what a script defines by value. If the process that has dumped a class
loads it, cloudpickle returns the script's own class, and sets all that this has to what
it was when it was dumped: methods that read a copy of the script's global variables,
and former values of attributes. So copies get classes of their own, as they do in
another process.

``_make_skeleton_class`` and ``_make_skeleton_enum``, by whose last argument but one a
class is found again, are cloudpickle's 2.2 to 3.1; ``test_models.py`` tells when that
changes.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

_MAKE_CLASSES = ("_make_skeleton_class", "_make_skeleton_enum")


def loads(pickled: bytes) -> Any:
    """Return what cloudpickle has dumped, as an object of classes of its own."""
    return _Unpickler(io.BytesIO(pickled)).load()


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """Return what has a name, but what makes a class makes one that is new."""
        found = super().find_class(module, name)
        is_cloudpickles = module.partition(".")[0] == "cloudpickle"
        return (
            partial(_new, found) if is_cloudpickles and name in _MAKE_CLASSES else found
        )


def _new(make: Callable[..., type], *args: Any) -> type:
    *given, _, more = args
    return make(*given, None, more)
