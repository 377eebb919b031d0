"""A block in which Python does not look for garbage."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def without_collection() -> Iterator[None]:
    """Have Python's collector wait in a block in which much is made and little dies.

    It looks at all objects again and again as they become more. That took a sixth of
    the time of placing ResNet-50's training step, and a fifth of loading a graph or of
    a first call by JAX: imports, rewriting, tracing.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
