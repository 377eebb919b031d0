"""PyTensor's settings that a script may change after the fork: ranks follow the master.

They decide how a graph is rewritten and compiled: ``config.floatX``, for one, is the
dtype of what a rewrite makes of a Python number.
"""

from __future__ import annotations

from typing import Any

from pytensor import config

_NAMES = (
    "cast_policy",
    "exception_verbosity",
    "floatX",
    "linker",
    "mode",
    "numba__cache",
    "numba__fastmath",
    "on_opt_error",
    "openmp",
    "warn_float64",
)
"""Not those for C++, some of which PyTensor takes seconds to find out."""


def current() -> dict[str, Any]:
    """Return the present settings of this process."""
    return {name: getattr(config, name) for name in _NAMES if hasattr(config, name)}


def follow(settings: dict[str, Any]) -> None:
    """Make another process's settings this one's."""
    for name, value in settings.items():
        if getattr(config, name) != value:
            setattr(config, name, value)
