"""`scan` and its relatives: outputs and updates, as Theano returns them.

PyTensor will return outputs only. Here, the second result has the updates of shared
variables and random streams.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from pytensor.scan.basic import scan as _scan
from pytensor.scan.views import foldl as _foldl
from pytensor.scan.views import foldr as _foldr
from pytensor.scan.views import map as _map
from pytensor.scan.views import reduce as _reduce

from .pytensor_versions import quiet


class OrderedUpdates(dict):
    """New values of shared variables, by variable; ``+`` has those of both."""

    def update(self, other: Any = None) -> None:  # type: ignore[override]
        """Add others; KeyError if a variable would get a second new value."""
        for var, new in dict(other or ()).items():
            if self.setdefault(var, new) is not new:
                raise KeyError(f"two updates of {var}")

    def __add__(self, other: Any) -> OrderedUpdates:
        found = OrderedUpdates(self)
        found.update(other)
        return found

    def __radd__(self, other: Any) -> OrderedUpdates:
        return OrderedUpdates(other) + self


def _with_updates(theirs: Callable) -> Callable:
    """Return a loop function of PyTensor, which returns outputs and updates."""

    @functools.wraps(theirs)
    def loop(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
        with quiet():
            outputs, updates = theirs(*args, **kwargs)
        return outputs, OrderedUpdates(updates)

    loop.__module__ = __name__  # for pickling
    return loop


scan = _with_updates(_scan)
map = _with_updates(_map)
reduce = _with_updates(_reduce)
foldl = _with_updates(_foldl)
foldr = _with_updates(_foldr)
