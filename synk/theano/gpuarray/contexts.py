"""GPU contexts of `theano.gpuarray`, of which there are none."""

from __future__ import annotations

from typing import Any

__all__ = ["UNDEFINED", "ContextNotDefined", "get_context", "list_contexts"]

UNDEFINED = "Could not infer context from inputs"
"""What Theano says of variables on the CPU."""


class ContextNotDefined(ValueError):
    """No GPU has this name."""


def get_context(name: Any) -> Any:
    """Raise that there is no context of this name, nor of any."""
    raise ContextNotDefined(f"context name {name} not defined")


def list_contexts() -> list:
    """Return the names of all contexts: none."""
    return []
