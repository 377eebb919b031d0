"""Compiling without the warnings that a user has not caused and cannot heed."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pytensor.compile import get_mode


@contextmanager
def ignoring(mode: Any, *categories: type[Warning]) -> Iterator[None]:
    """Ignore warnings of these categories while a graph is compiled in a mode."""
    if is_numba(mode):
        # It brings filters of what numba says of generated code, for good. Imported
        # later, within `catch_warnings`, it would lose them at the end of that, and
        # numba compiles in the first call.
        importlib.import_module("pytensor.link.numba.dispatch")
    with warnings.catch_warnings():
        for category in categories:
            warnings.simplefilter("ignore", category)
        yield


def is_numba(mode: Any) -> bool:
    """Tell whether numba compiles graphs in one of PyTensor's modes."""
    return type(get_mode(mode).linker).__module__.startswith("pytensor.link.numba")
